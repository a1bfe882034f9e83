"""Which scripts and programs name Dask, so that their run's cluster starts before them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.request.record import RunRequest
from hpcml.runs import script_or_program
from hpcml.runs import submit as submission
from hpcml.runs.dask_named import names_dask

NAMED = (
    "import dask",
    "import dask.array as da",
    "from dask import delayed",
    "import distributed",
    "from distributed import Client",
    "from dask.distributed import Client",
    "def main():\n    from distributed import LocalCluster",
    "import hpcml\nclient = hpcml.connect()",
    "from hpcml import connect",
    "from hpcml import *",
    "import hpcml\nwith hpcml.polars_engine() as engine: pass",
    "from cuml.dask.cluster import KMeans",
    "import cuml\ncuml.dask.cluster.KMeans()",
    "import xgboost.dask",
    "import xgboost as xgb\nxgb.dask.train()",
    "from lightgbm import DaskLGBMClassifier",
    "import lightgbm.dask",
    "import dask_ml.cluster",
    "from dask_cuda import LocalCUDACluster",
    "import dask_mpi",
    "from dask_jobqueue import SLURMCluster",
    "import coiled",
    'import joblib\nwith joblib.parallel_config("dask"): pass',
    'from joblib import parallel_backend\nparallel_backend(backend="dask")',
    'import os\nos.environ["DASK_SCHEDULER_ADDRESS"]',
    'import importlib\nimportlib.import_module("dask.distributed")',
)
PLAIN = (
    "import torch.distributed as dist",
    "from torch import distributed",
    "import torch\ntorch.distributed.init_process_group(mode='distributed')",
    '"""Trains without Dask."""\nimport torch  # not dask',
    "import hpcml\nprint(hpcml.run.out)",
    "import xgboost\nimport lightgbm\nimport cuml\nfrom joblib import Parallel",
)


def asked(folder: Path, *command: str, **values: object) -> RunRequest:
    return RunRequest(script_or_program.code(list(command), folder)).changed(**values)


@pytest.mark.parametrize(("texts", "named"), [(NAMED, True), (PLAIN, False)])
def test_a_script(tmp_path: Path, texts: tuple[str, ...], named: bool, subtests: pytest.Subtests) -> None:
    for text in texts:
        with subtests.test(text):
            (tmp_path / "job.py").write_text(text)
            assert names_dask(asked(tmp_path, "job.py")) == named
            (tmp_path / "main.py").write_text("import job\n")
            assert names_dask(asked(tmp_path, "main.py")) == named, "a module beside the script"


def test_a_command(tmp_path: Path, subtests: pytest.Subtests) -> None:
    files = {
        "plain.py": "import torch\n",
        "uses.py": "import dask\n",
        "package/__init__.py": "",
        "package/__main__.py": "from package import work\n",
        "package/work.py": "def work():\n    import distributed\n",
        "plain.sh": "#!/bin/bash\n# dask is not used\npython plain.py --lr 0.1\n",
        "uses.sh": '#!/bin/bash\nset -e\nexec python ./uses.py "$@"\n',
        "module.sh": "python -m package\n",
        "inner.sh": "bash uses.sh\n",
        "names.sh": "conda activate dask-env\n./simulate\n",
        "notebook.ipynb": "{}",
        "simulate": "\x7fELF dask",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "simulate").chmod(0o700)
    named = {
        "plain.py": False,
        "plain.py uses.py": True,
        "plain.py --backend dask": True,
        "-m package": True,
        "-m plain": False,
        "-m pytest": False,
        "-- python plain.py": False,
        "-- python uses.py": True,
        "-- python -m package": True,
        "-- bash plain.sh": False,
        "-- bash uses.sh": True,
        "-- bash module.sh": True,
        "-- bash inner.sh": True,
        "-- bash names.sh": True,
        "-- ./simulate": False,
        "-- jupyter nbconvert": True,
        "-- papermill notebook.ipynb": True,
        "-- env A=1 python uses.py": True,
    }
    for command, expected in named.items():
        with subtests.test(command):
            assert names_dask(asked(tmp_path, *command.split())) == expected
    for code, expected in (("python uses.py", True), ("python plain.py", False)):
        assert names_dask(asked(tmp_path, "--", "bash", "-c", code)) == expected
    for code, expected in (("import distributed; distributed.Client()", True), ("import torch", False)):
        assert names_dask(asked(tmp_path, "--", "python", "-c", code)) == expected
    assert names_dask(asked(tmp_path, "plain.py", environment=(("DASK_LOGGING__DISTRIBUTED", "info"),)))


def test_a_folder_whose_name_has_a_space_and_dask_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / "my dask tests"
    folder.mkdir()
    (folder / "plain.py").write_text("import torch\n")
    (folder / "plain.sh").write_text("#!/bin/bash\npython plain.py\n")
    for command in (("plain.py",), ("--", "bash", "plain.sh"), ("--", str(folder / "plain.sh"))):
        assert not names_dask(asked(folder, *command)), command


@pytest.mark.parametrize("end", ["", " y", ".y"])
def test_a_word_that_is_too_long_for_a_path_names_no_file(tmp_path: Path, end: str) -> None:
    (tmp_path / "plain.py").write_text("import torch\n")
    long = "x" * 300 + end
    for command in (("plain.py", long), ("--", "bash", "-c", long), ("--", long)):
        assert not names_dask(asked(tmp_path, *command)), command


def test_a_script_that_does_not_compile_here_counts_as_one_that_names_dask(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("if True print('of a newer Python')")
    assert names_dask(asked(tmp_path, "job.py"))


def test_a_dry_run_says_which_of_two_reasons_lets_the_cluster_start_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "job.py").write_text("print(1)\n")
    for value, why in (("auto", ["the code does not name Dask"]), ("late", ["workers.start is late"]), ("early", [])):
        made = submission.prepare_request(
            asked(tmp_path, "job.py", site="slurm", settings=(f"workers.start={value}",)), dry_run=True
        )
        said = [reason.rpartition(": ")[2] for reason in made.plan.reasons if "Dask cluster" in reason]
        assert said == why


def test_a_sweep_of_a_script_without_dask_leaves_the_gpus_memory_to_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("torch", "jax", "cuml"):
        (tmp_path / f"{name}_job.py").write_text(f"import {name}\n")
    (tmp_path / "dask_job.py").write_text("import hpcml, torch\nhpcml.connect()\n")
    for script, settings, nodes, pool, notes in (
        ("torch_job.py", (), 1, None, [True]),
        ("jax_job.py", (), 2, None, [False, True]),  # and a note on the idle node
        ("cuml_job.py", (), 1, None, [True]),
        ("torch_job.py", ("gpu.rmm_pool_size=0.5",), 1, 0.5, []),
        ("torch_job.py", ("workers.start=early",), 1, -1.0, []),
        ("dask_job.py", (), 2, -1.0, []),
    ):
        with subtests.test(f"{script} {settings}"):
            request = asked(tmp_path, script, site="slurm", settings=settings, nodes=nodes, gpus_per_node=1)
            made = submission.prepare_request(request.changed(sweep="lr", partition="gpu"), dry_run=True).plan
            assert made.inside.workers.gpu is not None
            assert made.inside.workers.gpu.rmm_pool_size == pool
            of_dask = [note for note in made.notices if "Dask" in note]
            assert ["gpu.rmm_pool_size" in note for note in of_dask] == notes
            assert all("does not name Dask" in note for note in of_dask), "an installed package may use it"
            assert ["workers.start=early" in note for note in of_dask] == notes, "how to have the pool"
