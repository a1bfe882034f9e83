"""Scripts and launchers that expect ranks: refused where they are nothing else, noted where they may do without."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcml.errors import ScriptError, UsageError
from hpcml.plan.make_plan import RunLocation, plan
from hpcml.request.record import RunRequest
from hpcml.runs import script_or_program
from hpcml.runs.checks import expects_ranks
from hpcml.sites import schema, settings_layers
from hpcml.workload_forms import Form
from tests.said import in_order

NEEDS_RANKS = {
    "MPI.COMM_WORLD": [
        "from mpi4py import MPI\nprint(MPI.COMM_WORLD.rank, 'of', MPI.COMM_WORLD.size)",
        "from mpi4py import MPI\ndef main():\n    comm = MPI.COMM_WORLD\n    assert comm.size == 2\nif __name__ == '__main__':\n    main()",
        "from mpi4py.MPI import COMM_WORLD as c, COMM_WORLD\nimport numpy as np\nx = COMM_WORLD.bcast(1)",
        "import mpi4py.MPI as M\ncomm = M.COMM_WORLD\nif comm.size < 2:\n    raise SystemExit('two ranks')",
    ],
    "init_process_group()": [
        "import torch.distributed as dist\ndist.init_process_group('nccl')",
        "from torch.distributed import init_process_group\ndef setup():\n    init_process_group(backend='gloo')\n"
        "def main():\n    setup()\nif __name__ == '__main__':\n    main()",
        "import os\nimport torch.distributed as dist\ndist.init_process_group('nccl', rank=int(os.environ['SLURM_PROCID']), world_size=2)",
    ],
    "jax.distributed.initialize()": ["import jax\njax.distributed.initialize()"],
    "the variable RANK": ["from os import environ\nrank = int(environ['RANK'])"],
}  # fmt: skip
MAY_DO_WITHOUT = {
    "mpi4py": [
        "from mpi4py.futures import MPIPoolExecutor\nfrom mpi4py import MPI\nprint(MPI.COMM_WORLD.size)\nMPIPoolExecutor()",
        "from mpi4py import MPI\ncomm = MPI.COMM_SELF.Spawn('worker')\nMPI.COMM_WORLD.Barrier()",
        "try:\n    from mpi4py import MPI\n    comm = MPI.COMM_WORLD\nexcept ImportError:\n    comm = None",
        "def parallel():\n    from mpi4py import MPI\n    return MPI.COMM_WORLD\n",
        "from mpi4py import MPI\nimport sys\nif '--mpi' in sys.argv:\n    comm = MPI.COMM_WORLD",
        "from mpi4py import MPI\ncomm = MPI.COMM_WORLD\nif comm.Get_size() == 1:\n    print('serial')",
        "from mpi4py import MPI\nfrom dask.distributed import Client\nprint(MPI.COMM_WORLD.rank)",
        "from mpi4py import MPI\nimport helper\nprint(MPI.COMM_WORLD.rank)",
    ],
    "torch.distributed": [
        "import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, world_size=1)",
        "import torch, os\nimport torch.distributed as dist\nif 'RANK' in os.environ:\n    dist.init_process_group('nccl')",
        "import torch.multiprocessing as mp\nimport torch.distributed as dist\ndef main(rank):\n    dist.init_process_group('gloo')\n"
        "mp.spawn(main, nprocs=2)",
    ],
    "accelerate": ["from accelerate import Accelerator\nAccelerator()"],
}  # fmt: skip
NOTHING = [
    "import os\nrank = int(os.environ.get('RANK', 0))",
    "import os\nif 'RANK' in os.environ:\n    print(os.environ['RANK'])",
    "import os\nos.environ['RANK'] = '0'\nprint(os.environ['RANK'])",
    "import torch.distributed\nfrom dask.distributed import Client",
    "import jax\njax.distributed.initialize('10.0.0.1:1', num_processes=1, process_id=0)",
]


def spec(tmp_path: Path, text: str, **facts: object) -> RunRequest:
    (tmp_path / "s.py").write_text(text)
    (tmp_path / "helper.py").write_text("import hpcml\nclient = hpcml.connect()\n")
    asked = RunRequest.of(tmp_path / "s.py", (), tmp_path)
    return asked.changed(**facts)


@pytest.mark.parametrize(("what", "text"), [(what, text) for what, texts in NEEDS_RANKS.items() for text in texts])
def test_a_script_that_is_nothing_without_ranks_is_refused(tmp_path: Path, what: str, text: str) -> None:
    with pytest.raises(ScriptError, match=in_order(f"({what})", "one process")) as caught:
        expects_ranks.check_script(spec(tmp_path, text), "/env/bin/python", 1, ())
    assert caught.value.place.startswith("s.py:")
    mpi = " --mpi pmix" if what.startswith("MPI") else ""
    ways = in_order(f"--ranks N{mpi} (", expects_ranks.PAGE, "hpcml submit -- /env/bin/python s.py.")
    assert re.search(ways, caught.value.hint)
    for asked, way in (
        ({"interpreter": ("python",)}, "to start ranks, add"),
        ({"sweep": "one"}, "submit each point with"),
    ):
        (told,) = expects_ranks.check_script(spec(tmp_path, text, **asked), "python", 4, ())
        assert re.search(
            in_order(what, "one process", "4 Dask workers", f"{way} --ranks"), told
        )  # one is what was asked for
    module = spec(tmp_path, text, script=tmp_path / "s", form=Form.MODULE)
    with pytest.raises(ScriptError, match=r"-- python -m s\."):
        expects_ranks.check_script(module, "python", 1, ())


@pytest.mark.parametrize(("what", "text"), [(what, text) for what, texts in MAY_DO_WITHOUT.items() for text in texts])
def test_a_script_that_may_do_without_ranks_is_noted(tmp_path: Path, what: str, text: str) -> None:
    (told,) = expects_ranks.check_script(spec(tmp_path, text), "python", 4, ())
    assert re.search(in_order(what, "one process", "4 Dask workers"), told)
    assert expects_ranks.check_script(spec(tmp_path, text), "python", 1, ()) == []


@pytest.mark.parametrize("text", NOTHING)
def test_what_expects_no_ranks_is_not_noted(tmp_path: Path, text: str) -> None:
    assert expects_ranks.check_script(spec(tmp_path, text), "python", 4, ()) == []


def test_ranks_of_mpi_without_its_option_are_refused_or_noted(tmp_path: Path) -> None:
    def told(text: str, workers: int = 2, **facts: object) -> str:
        asked = spec(tmp_path, text, kind="ranks").changed(ranks="2", **facts)
        return " ".join(expects_ranks.check_script(asked, "python", workers, ()))

    mpi, perhaps = NEEDS_RANKS["MPI.COMM_WORLD"][0], MAY_DO_WITHOUT["mpi4py"][2]
    for asked in (spec(tmp_path, mpi), spec(tmp_path, mpi, kind="ranks").changed(ranks="2")):
        with pytest.raises(ScriptError) as caught:  # on the local site
            expects_ranks.check_script(asked, "python", 2, (), srun=False)
        assert "-- mpirun -n N python -m mpi4py s.py" in caught.value.hint
        assert "--mpi" not in f"{caught.value.message}{caught.value.hint}"
    with pytest.raises(ScriptError, match=in_order("MPI.COMM_WORLD", "s.py:2")):
        told(mpi)
    assert re.search(in_order("s.py:2", "mpi4py", "--mpi pmix", "--mpi pmi2"), told(perhaps))
    assert "the ranks do not find each other" in told(mpi, workers=1)
    assert told(mpi, mpi="pmi2") == told(NEEDS_RANKS["init_process_group()"][0]) == ""


# Programs whose parallel part is in a package: files, and the line that expects ranks.
IN_A_PACKAGE = {
    "a function": ({"solver/core.py": "from mpi4py import MPI\ndef main():\n    c = MPI.COMM_WORLD\n    print(c.Get_rank())\n"},
                   "from solver.core import main\nmain()\n", "solver/core.py:3"),
    "JAX": ({"solver/core.py": "import jax\ndef main():\n    jax.distributed.initialize()\n"},
            "from solver.core import main\nmain()\n", "solver/core.py:3"),
    "JAX by a short name": ({"solver/core.py": "from jax import distributed\ndef main():\n    distributed.initialize()\n"},
                            "import solver.core as c\nif __name__ == '__main__':\n    c.main()\n", "solver/core.py:3"),
    "a name that the package hands on": (
        {"solver/__init__.py": "from .core import main as run\n", "solver/core.py": "from mpi4py import MPI\ndef main():\n    MPI.COMM_WORLD.Barrier()\n"},
        "import solver\nsolver.run()\n", "solver/core.py:3"),
    "a class": ({"solver/core.py": "from mpi4py import MPI\nclass Solver:\n    def __init__(self):\n        self.comm = MPI.COMM_WORLD\n"},
                "from solver.core import Solver\nSolver()\n", "solver/core.py:4"),
    "at the import": ({"solver/parallel.py": "from mpi4py import MPI\ncomm = MPI.COMM_WORLD\n", "solver/core.py": "from .parallel import comm\n"},
                      "from solver import core\nprint(core.comm.rank)\n", "solver/parallel.py:2"),
    "torch": ({"solver/ddp.py": "import torch.distributed as dist\ndef setup():\n    dist.init_process_group('nccl')\n",
               "solver/core.py": "from solver.ddp import setup\ndef main():\n    setup()\n"},
              "from solver.core import main\nmain()\n", "solver/ddp.py:3"),
    "a variable": ({"solver/env.py": "import os\nRANK = int(os.environ['RANK'])\n"}, "import solver.env\n", "solver/env.py:2"),
}  # fmt: skip
PERHAPS_IN_A_PACKAGE = {
    "a branch": ({"solver/core.py": "from mpi4py import MPI\ndef main():\n    MPI.COMM_WORLD.Barrier()\n"},
                 "import sys\nfrom solver.core import main\nif '--mpi' in sys.argv:\n    main()\n"),
    "another function of that name": ({"solver/core.py": "from mpi4py import MPI\ndef run():\n    MPI.COMM_WORLD.Barrier()\n"},
                                      "import solver.core\nimport subprocess\nsubprocess.run(['true'])\n"),
    "one rank is enough": ({"solver/core.py": "from mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"},
                           "from solver.core import comm\nif comm.Get_size() == 1:\n    print('serial')\n"),
    "a method": ({"solver/core.py": "from mpi4py import MPI\nclass Solver:\n    def run(self):\n        MPI.COMM_WORLD.Barrier()\n"},
                 "from solver.core import Solver\nSolver().run()\n"),
}  # fmt: skip


def package(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in {"solver/__init__.py": "", **files}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)


@pytest.mark.parametrize("case", IN_A_PACKAGE)
def test_the_modules_of_the_script_s_own_package_are_looked_through(tmp_path: Path, case: str) -> None:
    files, text, where = IN_A_PACKAGE[case]
    package(tmp_path, files)
    with pytest.raises(ScriptError, match="but without --ranks hpcml starts one process") as caught:
        expects_ranks.check_script(spec(tmp_path, text), "python", 2, ())
    assert caught.value.place == where


@pytest.mark.parametrize("case", PERHAPS_IN_A_PACKAGE)
def test_a_package_that_may_do_without_ranks_is_noted(tmp_path: Path, case: str) -> None:
    files, text = PERHAPS_IN_A_PACKAGE[case]
    package(tmp_path, files)
    (told,) = expects_ranks.check_script(spec(tmp_path, text), "python", 2, ())
    assert re.match(in_order("solver/core.py:1", "mpi4py", "one process"), told)
    (told,) = expects_ranks.check_script(spec(tmp_path, text, kind="ranks").changed(ranks="2"), "python", 2, ())
    assert "the ranks do not find each other" in told


def test_a_package_with_dask_needs_no_ranks(tmp_path: Path) -> None:
    files, text, _ = IN_A_PACKAGE["a function"]
    package(tmp_path, {**files, "solver/other.py": "from dask.distributed import Client\n"})
    (told,) = expects_ranks.check_script(spec(tmp_path, text), "python", 2, ())
    assert "uses mpi4py" in told


def test_a_variable_that_the_run_sets_is_there(tmp_path: Path) -> None:
    asked = spec(tmp_path, "import os\nrank = int(os.environ['RANK'])")
    assert expects_ranks.check_script(asked, "python", 4, {"RANK"}) == []


def check_program(
    tmp_path: Path, nodes: int, *words: str, gpus: int = 0, pool: str = "auto", ranks_asked: str = ""
) -> list[str]:
    path, script, form = script_or_program.named(list(words), tmp_path)
    spec = RunRequest.of(path, tuple(script[1:]), tmp_path, form=form, nodes=nodes, gpus_per_node=gpus)
    spec = spec.changed(kind="ranks").changed(ranks=ranks_asked) if ranks_asked else spec
    site = settings_layers.build(schema.Site, settings_layers.Layers())
    site = site._replace(gpu=site.gpu._replace(rmm_pool_size=pool))
    return expects_ranks.check_program(spec, plan(site, spec, RunLocation(tmp_path, "/usr/bin/python3", "0")))


@pytest.mark.parametrize("words", [
    ("--", "torchrun", "--nproc-per-node", "1", "ddp.py"), ("--", "/opt/venv/bin/accelerate", "launch", "a.py"),
("--", "srun", "hostname"), ("--", "python3", "-m", "torch.distributed.run", "a.py"),
    ("-m", "torch.distributed.launch", "a.py"), ("--", "deepspeed", "a.py"),
])  # fmt: skip
def test_a_launcher_starts_nothing_on_several_nodes(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=in_order("--ranks", "only once", "first of 2 nodes")) as caught:
        check_program(tmp_path, 2, *words)
    assert "Or request one node: --nodes 1." in caught.value.hint
    assert ("Remove" if words[1] in ("srun", "deepspeed") else "Add --ranks node.") in caught.value.hint
    (told,) = check_program(tmp_path, 1, *words)
    assert re.search(in_order("first node", "workers", "hpcml help ranks"), told)


def test_a_launcher_on_gpus_is_told_of_the_workers_pool(tmp_path: Path) -> None:
    words = ("--", "torchrun", "a.py")
    assert "--set gpu.rmm_pool_size=none" in check_program(tmp_path, 1, *words, gpus=2)[0]
    assert "rmm_pool_size" not in check_program(tmp_path, 1, *words, gpus=2, pool="none")[0]


@pytest.mark.parametrize("words", [
("srun", "--nodes=4", "x"), ("torchrun", "--nnodes", "2", "a.py"), ("accelerate", "launch", "--num_machines=2", "a.py"), ("srun", "-n", "8", "-N", "8", "x"),
])  # fmt: skip
def test_a_launcher_of_several_nodes_is_refused_on_one(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=in_order("--ranks", "only once", "one node")):
        check_program(tmp_path, 1, "--", *words)


def test_accelerate_gets_the_nodes_from_hpcml(tmp_path: Path) -> None:
    words = ("--", "accelerate", "launch", "--num_machines", "2", "--machine_rank=0", "a.py")
    for ranks_asked in ("", "node"):
        with pytest.raises(UsageError) as caught:
            check_program(tmp_path, 2, *words, ranks_asked=ranks_asked)
        assert "--num_machines, --machine_rank." in caught.value.hint
    assert check_program(tmp_path, 2, "--", "accelerate", "launch", "a.py", "--machine_rank", ranks_asked="node") == []


def test_other_programs_are_not_launchers(tmp_path: Path) -> None:
    for own in (("mpirun", "-N", "4", "./x"), ("srun", "-l", "./solver", "-N", "64")):
        assert len(check_program(tmp_path, 1, "--", *own)) == 1
    assert check_program(tmp_path, 2, "--", "bash", "-c", "srun hostname")[0].startswith(
        "the program has a line with srun"
    )
    for words in (("bash", "-c", "x"), ("./srun.sh",), ("python3", "-m", "pytest")):
        assert check_program(tmp_path, 4, "--", *words) == []
    (tmp_path / "run.sh").write_text("#!/bin/bash\nmodule load x\n  srun -N2 ./solver\n")
    for by in ((), ("bash",)):
        whole: tuple[str, ...] = (*by, "./run.sh")
        (told,) = check_program(tmp_path, 2, "--", *whole)
        values = ("srun", "once", "first of 2 nodes", "2 Dask workers", "--ranks", "srun", expects_ranks.PAGE)
        assert re.match(in_order("the program", *values), told)
        assert check_program(tmp_path, 1, "--", *whole) == []


def test_an_mpi4py_script_of_mpirun_gets_the_words_that_end_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("from mpi4py import MPI\n")
    (tmp_path / "other.py").write_text("print()\n")
    words = ("--", "mpirun", "-n", "4", "python3")
    assert "python3 -m mpi4py s.py" in check_program(tmp_path, 1, *words, "s.py")[0]
    for others in (("-m", "mpi4py", "s.py"), ("other.py",), ("absent.py",)):
        assert not any("mpi4py" in note for note in check_program(tmp_path, 1, *words, *others))


@pytest.mark.parametrize("words", [
    ("uv", "run", "torchrun", "a.py"), ("env", "A=1", "mpirun", "-n", "4", "python", "s.py"), ("fabric", "run", "a.py"),
    ("uv", "run", "--with", "x", "accelerate", "launch", "a.py"), ("nice", "-n", "10", "/opt/bin/srun", "./x"),
    ("uv", "run", "python", "-m", "torch.distributed.run", "a.py"), ("timeout", "9", "fabric", "run", "a.py"),
    ("apptainer", "exec", "x.sif", "torchrun", "a.py"), ("conda", "run", "-n", "ml", "deepspeed", "a.py"),
])  # fmt: skip
def test_a_launcher_after_another_program_is_seen(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=in_order("--ranks", "only once")) as caught:
        check_program(tmp_path, 2, "--", *words)
    if "fabric" in words:
        assert re.match(in_order("Remove fabric run", "--ranks gpu", "--ranks N"), caught.value.hint)


@pytest.mark.parametrize("words", [
    ("uv", "run", "--with", "deepspeed", "train.py"), ("uv", "run", "python", "train.py", "srun"), ("env", "A=srun", "./x"),
    ("uv", "run", "train.py", "torchrun"), ("./tool", "torchrun"), ("fabric", "deploy"),
])  # fmt: skip
def test_a_word_of_another_program_is_no_launcher(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert check_program(tmp_path, 2, "--", *words) == []


STARTS_AGAIN = (  # what starts ranks of its own in each of several ranks, and the word that is named
    (("torchrun", "a.py"), "torchrun"), (("uv", "run", "torchrun", "a.py"), "torchrun"),
    (("python3", "-m", "torch.distributed.run", "a.py"), "-m torch.distributed.run"), (("fabric", "run", "a.py"), "fabric run"),
    (("accelerate", "launch", "--multi_gpu", "a.py"), "accelerate launch"),
    (("accelerate", "launch", "--num_processes=2", "a.py"), "accelerate launch"),
    (("bash", "-c", "cd x && torchrun a.py"), "torchrun"),
)  # fmt: skip


@pytest.mark.parametrize(("words", "named"), STARTS_AGAIN)
def test_a_launcher_in_several_ranks_of_a_node_is_refused(tmp_path: Path, words: tuple[str, ...], named: str) -> None:
    for asked, gpus in (("2", 0), ("gpu", 2)):
        with pytest.raises(UsageError, match=f"{named} in each rank would start ranks of its own") as caught:
            check_program(tmp_path, 1, "--", *words, ranks_asked=asked, gpus=gpus)
        keeps = "" if named == "fabric run" else f" To keep {named}, use --ranks node."
        assert caught.value.hint == f"Remove {named}: hpcml starts the ranks.{keeps} More: {expects_ranks.PAGE}."
    for asked, gpus in (("1", 0), ("node", 2), ("gpu", 1)):
        assert check_program(tmp_path, 1, "--", *words, ranks_asked=asked, gpus=gpus) == []


def test_accelerate_is_the_rank_itself_where_it_starts_one_process(tmp_path: Path) -> None:
    assert check_program(tmp_path, 2, "--", "accelerate", "launch", "a.py", "--multi_gpu", ranks_asked="2") == []


def test_fabric_run_does_not_read_the_nodes_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fabric run in each rank would start"):
        check_program(tmp_path, 2, "--", "fabric", "run", "a.py", ranks_asked="node")


@pytest.mark.parametrize("asked", ["2", "node"])
def test_a_script_that_starts_all_tasks_in_each_rank_is_refused(tmp_path: Path, asked: str) -> None:
    """As ``-- mpiexec`` is: a batch script, and a text for a shell."""
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --ntasks-per-node=2\n# mpirun\nsrun python -c 'print(1)'\n")
    for words in (("bash", "job.sh"), ("bash", "-c", "time mpirun ./x"), ("deepspeed", "a.py"), ("env", "mpiexec", "./x"),
                  ("python3", "-m", "deepspeed.launcher.runner", "a.py")):  # fmt: skip
        with pytest.raises(UsageError, match="in each rank would start all ranks again"):
            check_program(tmp_path, 2, "--", *words, ranks_asked=asked)
    (tmp_path / "job.sh").write_text("#!/bin/bash\n# srun python\npython train.py\n")
    assert check_program(tmp_path, 2, "--", "bash", "job.sh", ranks_asked=asked) == []


OWN_ADDRESS = (  # PyTorch's tutorial form, and its like
    "os.environ['MASTER_ADDR'] = 'localhost'",
    "os.environ['MASTER_ADDR'] = '127.0.0.1'",
    "dist.init_process_group('gloo', init_method='tcp://localhost:12355', rank=int(os.environ['RANK']), world_size=2)",
    "def setup():\n    os.environ['MASTER_ADDR'] = 'localhost'\ndef main():\n    setup()\nif __name__ == '__main__':\n    main()",
)
NO_ADDRESS = (
    "if 'MASTER_ADDR' not in os.environ:\n    os.environ['MASTER_ADDR'] = 'localhost'",
    "os.environ.setdefault('MASTER_ADDR', 'localhost')",
    "os.environ['MASTER_ADDR'] = socket.gethostname()",
    "os.environ['MASTER_PORT'] = '12355'",
    "def setup(rank, size):\n    os.environ['MASTER_ADDR'] = 'localhost'\nmp.spawn(setup, nprocs=2)",
)


def test_an_address_of_each_node_itself_is_refused_on_several(tmp_path: Path) -> None:
    for text in (*OWN_ADDRESS, *NO_ADDRESS):
        asked = spec(tmp_path, f"import os\nimport torch.distributed as dist\n{text}\n", kind="ranks").changed(
            ranks="2"
        )
        if text in NO_ADDRESS:
            assert expects_ranks.check_script(asked, "python", 4, (), 2) == []
            continue
        with pytest.raises(ScriptError, match=in_order("its own node", "2 nodes")) as caught:
            expects_ranks.check_script(asked, "python", 4, (), 2)
        assert caught.value.place.startswith("s.py:")
        assert re.search(in_order("MASTER_ADDR", "MASTER_PORT", "(hpcml help ranks)."), caught.value.hint)
        assert expects_ranks.check_script(asked, "python", 2, (), 1) == []


def test_an_address_of_each_node_itself_in_a_shell_script_is_noted(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/bash\nexport MASTER_ADDR=localhost\npython train.py\n")
    (note,) = check_program(tmp_path, 2, "--", "bash", "job.sh", ranks_asked="2")
    assert re.match(in_order("line 2 of the program", "MASTER_ADDR", "Remove the line"), note)
    assert check_program(tmp_path, 1, "--", "bash", "job.sh", ranks_asked="2") == []


def test_lightning_s_nodes_need_ranks(tmp_path: Path) -> None:
    for name, text in (
        ("Trainer", "from lightning import Trainer\nTrainer(num_nodes=2, devices=2, strategy='ddp').fit(m)"),
        ("Trainer", "import pytorch_lightning as pl\nif __name__ == '__main__':\n    t = pl.Trainer(num_nodes=2)"),
        ("Fabric", "import lightning as L\nfabric = L.Fabric(num_nodes=2)"),
    ):
        with pytest.raises(ScriptError, match=rf"The script needs ranks \({name}\(num_nodes=2\)\)"):
            expects_ranks.check_script(spec(tmp_path, text), "python", 1, ())
    for text in ("import lightning as L\nL.Trainer(num_nodes=1, devices=2)", "import lightning as L\nL.Trainer(num_nodes=n)",
                 "from mine import Trainer\nTrainer(num_nodes=2)"):  # fmt: skip
        assert expects_ranks.check_script(spec(tmp_path, text), "python", 1, ()) == []
