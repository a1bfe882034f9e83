"""``hpcml submit --translate``: what is shown, recorded and refused, and what is never started."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml import errors
from remote_world import Laptop
from tests.said import says
from world import World

JOB = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2 --time=10
export LEVEL=3
touch made-by-a-line
srun python job.py "$1"
echo done
"""
SOURCES = "#!/bin/bash\n#SBATCH -N 1 -n 2\nsource more.sh\nsrun python job.py\n"
CLUSTER = "from distributed import Client\nClient()\n"
OF_MPI = "#!/bin/bash\n#SBATCH -N 1 -n 4\nmodule load openmpi\nsrun ./a\n"
LOGIN_SHELL = "#!/bin/bash -li\n#SBATCH -n 1\npython own.py\n"
HOSTILE = "$(: >started)`: >started`;: >started '\\\"\nrm -r x"
AS_WORDS = "hpcml() { printf '%s\\0' \"$@\"; }; hpcml"
ONE_TASK = "#!/bin/bash\n#SBATCH -n 1 -J '$(: >started)'\n"
LINE = ("--nodes 2 --cpus-per-node 2 --time 10 --set 'runtime.setup=[\"export LEVEL=3\", \"touch made-by-a-line\"]' "
        "--ranks 2 -- python job.py 'a b'")  # fmt: skip


@pytest.fixture
def job(world: World) -> Path:
    path = world.project / "job.sh"
    path.write_text(JOB)
    return path


def test_a_dry_run_shows_the_line_and_the_table_where_each_line_went(world: World, job: Path) -> None:
    as_it_is = world.run("submit", "--site", "slurm", "--dry-run", "job.sh", "a b")
    assert as_it_is.returncode == 0, as_it_is.stderr
    assert f"\nin hpcml   hpcml submit --site slurm {LINE}\n" in as_it_is.stdout
    assert "batch: only those that the script starts" in as_it_is.stdout
    done = world.run("submit", "--site", "slurm", "--dry-run", "--translate", "job.sh", "a b")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"in hpcml   hpcml submit --site slurm {LINE}"
    assert [line[:10].strip() for line in lines[1:8]] == [
        "line 2",
        "line 3",
        "line 3",
        "line 4",
        "line 5",
        "line 6",
        "line 7",
    ]
    assert "4 ranks" in done.stdout
    assert not list(world.project.glob("made-by*"))
    assert not world.jobs()


def test_memory_that_the_script_leaves_to_slurm_is_named(world: World, job: Path) -> None:
    submit = ("submit", "--site", "leonardo", "--account", "a", "--partition", "dcgp_usr_prod", "--dry-run=script")
    done = world.run(*submit, "--translate", "job.sh", "a b")
    assert "#SBATCH --mem=8821M\n" in done.stdout
    assert "Slurm's default; hpcml requests 8821M" in done.stderr
    assert "8821M of 494000M" in done.stderr
    done = world.run(*submit, "--memory-per-node", "1G", "--translate", "job.sh", "a b")
    assert "#SBATCH --mem=1024M\n" in done.stdout
    assert "Slurm's default" not in done.stderr


LICENSED = "#!/bin/bash\n#SBATCH -N 2 -t 10 --licenses=b\nexport LEVEL=3\nsrun ./a\n"
IN_HPCML = (
    "in hpcml   hpcml submit --site leonardo --nodes 4 --env API_KEY --sbatch=--licenses=a --time 10 --env LEVEL=3 "
    "--ranks node --partition boost_usr_prod -- ./a\n"
)
ACTIVATES = "#!/bin/bash\n#SBATCH -n 1\nsource /x/bin/activate\n"
ITS_PYTHON = 'python     "python" after runtime.setup (line 3 of job.sh)'


def test_the_line_has_typed_options_and_the_partition_of_the_script_as_it_is(world: World, job: Path) -> None:
    typed = ("--site", "leonardo", "--nodes", "4", "--sbatch=--licenses=a", "--env", "API_KEY=hidden")
    job.write_text(LICENSED)
    done = world.run("submit", *typed, "--dry-run", "job.sh")
    assert IN_HPCML in done.stdout
    assert "partition boost_usr_prod" in " ".join(done.stdout.split())


def test_a_python_that_a_line_prepares_is_found_in_the_job(world: World, job: Path) -> None:
    dry = ("submit", "--site", "slurm", "--dry-run")
    for code, row in (("srun python job.py", ""), ("python job.py", f"; workers: {sys.executable}")):
        job.write_text(f"{ACTIVATES}{code}\n")
        done = world.run(*dry, "--translate", "job.sh")
        assert f"{ITS_PYTHON}{row}" in " ".join(done.stdout.split(" "))
        assert ("python runs the script" in done.stderr) == bool(row)


TORCHRUN = "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node=1 --gpus-per-node=4\nsource /x/bin/activate\n"
TORCHRUN += "srun torchrun --nnodes=2 --nproc_per_node=4 job.py\n"


def test_the_python_of_another_program_is_its_own(world: World, job: Path) -> None:
    """Not hpcml's: torchrun is found in the environment that a line activates."""
    job.write_text(TORCHRUN)
    done = world.run("submit", "--site", "slurm", "--dry-run", "--translate", "job.sh")
    assert "own, after runtime.setup (line 3" in done.stdout
    assert "4 GPUs but only 1 CPU" in done.stderr
    done = world.run("submit", "--site", "slurm", "--dry-run", "--translate", "--cpus-per-node", "4", "job.sh")
    assert "CPU" not in done.stderr
    tool = world.project / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    done = world.run("submit", "--site", "slurm", "--dry-run", "--ranks", "node", "--", "./tool")
    assert "python     the program's own\n" in done.stdout


def test_a_dry_run_names_each_reason_why_a_script_has_no_line(world: World, job: Path) -> None:
    """Those of --translate, also of the Python that Dask's workers would not have; and the option of the shell."""
    (world.project / "own.py").write_text(CLUSTER)
    for text, said in (
        (f"{ACTIVATES}python own.py\n", ("line 4 of job.sh", "own.py uses Dask")),
        (LOGIN_SHELL, ("line 1 of job.sh", "the option -li of the shell")),
        ("#!/bin/csh\n#SBATCH -n 1\npython own.py\n", ("line 1 of job.sh", "another shell")),
    ):
        job.write_text(text)
        done = world.run("submit", "--site", "slurm", "--dry-run", "job.sh")
        assert " ".join(done.stdout.split()) == says("in hpcml hpcml cannot translate", *said)
        refused = world.run("submit", "--site", "slurm", "--translate", "job.sh")
        assert (refused.returncode, said[-1] in refused.stderr) == (errors.USAGE, True)
    job.write_bytes(SOURCES.encode().replace(b"\n", b"\r\n"))
    refused = world.run("submit", "--site", "slurm", "--translate", "job.sh")
    assert refused.stderr == says("Windows", "dos2unix job.sh")
    job.write_text(OF_MPI)
    refused = world.run("submit", "--site", "local", "job.sh")
    assert "--mpi" not in refused.stderr
    assert refused.stderr == says("line 4", "--site", "mpirun")


def test_the_first_line_without_a_word_is_named(world: World, job: Path) -> None:
    job.write_text(f"{JOB}srun other\n")
    done = world.run("submit", "--site", "slurm", "--dry-run", "job.sh")
    assert done.stdout == says("hpcml cannot translate line 8", "it has a second command")
    refused = world.run("submit", "--site", "slurm", "--translate", "job.sh", "a")
    assert refused.returncode == errors.USAGE
    assert refused.stderr == says("second command", "line 8 of job.sh", "remove --translate")
    assert not world.jobs()


def test_a_site_without_slurm_names_the_option_and_the_line(world: World, job: Path) -> None:
    done = world.run("submit", "--site", "local", "job.sh", "a b")
    assert done.returncode == errors.USAGE
    assert " ".join(done.stderr.split()) == says("'local'", "--translate", LINE)


def test_the_run_records_what_was_typed_and_rerun_repeats_the_line(world: World, job: Path) -> None:
    done = world.run("submit", "--site", "slurm", "--translate", "--name", "mine", "--time", "20", "job.sh", "a b")
    assert done.returncode == 0, done.stderr
    replaced = LINE.replace(" --time 10", "")
    assert f" --site slurm --time 20 --name mine {replaced}\n" in done.stderr
    first = world.directory()
    again = world.run("rerun", "mine")
    assert again.returncode == 0, again.stderr
    second = next(path for path in first.parent.glob("mine-*") if path != first)
    for folder in (first, second):
        spec = json.loads((folder / "request.json").read_text())["spec"]
        assert spec["batch_words"] == [str(job), "a b"]
        inside = json.loads((folder / "plan.json").read_text())["inside"]
        assert (inside["kind"], inside["job"]["nodes"], inside["workers"]["per_node"]) == ("ranks", 2, 2)
        assert (inside["code"]["arguments"], inside["job"]["time_limit"]) == (["a b"], 1200)
        assert "touch made-by-a-line" in (folder / "job.sh").read_text()
    spec = json.loads((first / "request.json").read_text())["spec"]
    assert ["--ranks 2", "line 6 of job.sh"] in spec["origins"]


def test_a_laptop_sends_the_script_and_the_login_node_translates_it(laptop: Laptop) -> None:
    (laptop.world.project / "job.sh").write_text(JOB)
    done = laptop.run("submit", "--translate", "job.sh", "a b")
    assert done.returncode == 0, done.stderr
    (run,) = laptop.runs()
    inside = json.loads((laptop.far / ".hpcml/runs" / run / "plan.json").read_text())["inside"]
    assert (inside["kind"], inside["code"]["arguments"]) == ("ranks", ["a b"])
    assert (laptop.far / ".hpcml/runs" / run / "code/job.py").is_file()
    (laptop.world.project / "job.sh").write_text(JOB.replace("srun python job.py", "srun sleep"))
    refused = laptop.run("submit", "--translate", "job.sh", "a b")
    assert refused.returncode == errors.USAGE
    assert refused.stderr == says("A laptop sends only", "line 6 of job.sh")
    assert laptop.staged() == []


def test_what_is_no_batch_script_is_refused_and_nothing_waits(world: World, job: Path) -> None:
    os.mkfifo(world.project / "pipe.sh")
    (world.project / "link.sh").symlink_to("nowhere")
    (world.project / "large.sh").write_bytes(JOB.encode() + b"# x\n" * (1 << 15))
    for name in ("pipe.sh", "link.sh", "job.py", "missing.sh"):
        done = world.run("submit", "--site", "slurm", "--translate", name, timeout=60)
        assert done.returncode == errors.USAGE, done.stderr
        assert "Traceback" not in done.stderr
    large = world.run("submit", "--site", "slurm", "--translate", "large.sh", "a")
    assert (large.returncode, "larger than" in large.stderr) == (errors.USAGE, True), large.stderr
    assert not world.jobs()


def test_what_a_line_prepares_must_fit_what_hpcml_starts(world: World, job: Path) -> None:
    """A file that starts tasks itself, and Dask's workers, which would have another Python than the script."""
    (world.project / "more.sh").write_text("srun ./other\n")
    job.write_text(SOURCES)
    refused = world.run("submit", "--site", "slurm", "--translate", "--dry-run", "job.sh")
    assert refused.returncode == errors.USAGE
    assert refused.stderr == says("more.sh", "srun", "line 3 of job.sh")
    (world.project / "cluster.py").write_text(CLUSTER)
    job.write_text(f"{ACTIVATES}python cluster.py\n")
    refused = world.run("submit", "--site", "slurm", "--translate", "--dry-run", "job.sh")
    assert refused.returncode == errors.USAGE
    assert refused.stderr == says("cluster.py uses Dask", "line 4 of job.sh", "--python")


def test_another_user_s_script_starts_nothing_here(world: World, job: Path) -> None:
    """Neither its Python, for a script that does not compile, nor a line; a terminal obeys nothing of it."""
    program = world.project / "own/bin/python3"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\n: >"${0%/*}/started"\n')
    program.chmod(0o755)
    (world.project / "new.py").write_text("match = = 1\n")
    job.write_text(ONE_TASK + f"export A='{HOSTILE.replace(chr(39), '')}'\n"
                   f"{shlex.quote(str(program))} new.py \"$1\"\n")  # fmt: skip
    for mode in ((), ("--dry-run",)):
        done = world.run("submit", "--site", "slurm", "--translate", *mode, "job.sh", HOSTILE)
        assert "Traceback" not in done.stderr
        shown = next(line for line in (done.stdout + done.stderr).splitlines() if line.startswith("in hpcml"))
        line = shown.removeprefix("in hpcml   hpcml submit")
        pasted = subprocess.run(["bash", "-c", AS_WORDS + line], capture_output=True, cwd=world.top, check=True)
        assert pasted.stdout.split(b"\0")[-2].decode() == HOSTILE
    assert not list(world.top.rglob("started"))
