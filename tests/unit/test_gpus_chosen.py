"""GPUs for a script that can use them: which scripts, on which sites and requests, and with which packages."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcml.request.record import RunRequest
from hpcml.runs import gpus_chosen, script_or_program
from hpcml.sites import lookup
from tests.fixtures.images import sif_file
from tests.said import says

PACKAGES = ("cudf", "cuml", "cupy", "dask_cuda")
CUML = "from cuml.dask.cluster import KMeans\n"
AUTO = 'import hpcml\nhpcml.connect(backend="auto")\n'
USES = {
    CUML: ("cuML",),
    "def main():\n    import cupy\n    import cupyx.scipy.sparse": ("CuPy",),
    "if gpus:\n    import cudf\nelse:\n    import pandas": ("cuDF",),
    "import dask_cudf": ("Dask-cuDF",),
    "from dask_cuda import LocalCUDACluster": ("Dask-CUDA",),
    "import cudf_polars": ("cuDF-Polars",),
    "import hpcml\nwith hpcml.polars_engine() as engine: pass": ("cuDF-Polars",),
    AUTO: ('backend="auto"',),
    'import dask\ndask.config.set({"dataframe.backend": "cudf"})': ("cuDF",),
    'import xgboost\nxgboost.dask.train(client, {"device": "cuda:0"})': ("XGBoost's device cuda",),
    "import beside": ("cuML",),
    "import dask\nimport numpy as cupy  # cuml": (),
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cupy": (),
    "import mine.cpu": (),
    "import mine.gpu": ("CuPy",),
    '"""Like cudf."""\nimport hpcml\nhpcml.connect(backend="cpu")': (),
    'import torch\ntorch.device("cuda")': (),
    "def broken(": (),
}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a script that uses cuML, in which nothing of this shell counts."""
    for name in ("PYTHONPATH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HPCML_SYSTEM_CONFIG", str(tmp_path / "etc"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(CUML)
    return tmp_path


def python(folder: Path, *modules: str) -> str:
    """Make the files of a virtual environment; return its interpreter."""
    packages = folder / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to("/usr/bin/python3.11")
    (folder / "pyvenv.cfg").write_text("include-system-site-packages = false\nversion = 3.11.2\n")
    for module in modules:
        (packages / module).mkdir()
        (packages / module / "__init__.py").touch()
    return str(folder / "bin/python")


def choose(interpreter: str, *settings: str, site: str = "leonardo", **asked: Any) -> tuple[RunRequest, list[str]]:
    spec = RunRequest(script_or_program.code(["job.py"], Path.cwd())).changed(**asked)
    return gpus_chosen.choose(lookup.load(site, dict(os.environ), None, settings), spec, interpreter)


def test_which_scripts_can_use_gpus(world: Path, subtests: pytest.Subtests) -> None:
    (world / "beside.py").write_text(CUML)
    (world / "mine").mkdir()
    for name, text in (("__init__", ""), ("cpu", "import dask"), ("gpu", "import cupy")):
        (world / f"mine/{name}.py").write_text(text)
    mine = python(world / "environment", *PACKAGES, "dask_cudf", "cudf_polars", "xgboost")
    for text, names in USES.items():
        with subtests.test(text):
            (world / "job.py").write_text(text)
            spec, notes = choose(mine)
            assert (spec.size.gpus_because, spec.size.gpus_per_node) == (names, 4 if names else -1)
            assert notes == []


def test_which_sites_and_requests_get_gpus(world: Path, subtests: pytest.Subtests) -> None:
    mine = python(world / "mine", *PACKAGES)
    for gpus, settings, asked in (
        (4, (), {"nodes": 64}),
        (4, (), {"partition": "boost_usr_prod"}),
        (4, (), {"qos": "boost_qos_dbg", "nodes": 2}),
        (4, (), {"site": "perlmutter"}),
        (-1, (), {"gpus_per_node": -1, "partition": "dcgp_usr_prod"}),
        (-1, (), {"qos": "dcgp_qos_dbg"}),
        (-1, (), {"qos": "boost_qos_dbg", "nodes": 3}),
        (-1, (), {"cpus_per_node": 100}),
        (-1, (), {"nodes": 65}),
        (-1, (), {"sbatch": (("--constraint", "cpu"),)}),
        (-1, (), {"clusters": "other"}),
        (-1, ("defaults.partition=dcgp_usr_prod",), {}),
        (-1, ("defaults.gpus_per_node=0",), {}),
        (-1, (), {"kind": "ranks"}),
        (-1, (), {"site": "slurm"}),
        (-1, (), {"site": "slurm", "partition": "gpu"}),
        (-1, ("defaults.time=2-0",), {}),
        (0, (), {"gpus_per_node": 0}),
        (2, (), {"gpus_per_node": 2}),
    ):
        with subtests.test(settings=settings, **asked):
            site = str(asked.pop("site", "leonardo"))
            spec, notes = choose(mine, *settings, site=site, **asked)
            assert spec.size.gpus_per_node == gpus
            assert bool(spec.size.gpus_because) == (gpus == 4)
            assert notes == []


def test_this_machine(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = python(world / "mine", *PACKAGES)
    said = (
        ("0,1", 2),
        ("GPU-1a", 1),
        ("", -1),
        ("-1", -1),
        ("0,-1,1", 1),
        ("NoDevFiles", -1),
        ("none", -1),
        ("1,0,1,2", 2),
    )
    for visible, gpus in said:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert choose(mine, site="local")[0].size.gpus_per_node == gpus
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert choose(mine, site="local", nodes=2)[0].size.gpus_per_node == -1, "the local site refuses GPUs on two nodes"


def test_a_python_that_lacks_packages(world: Path, subtests: pytest.Subtests) -> None:
    bare, polars = python(world / "bare", "dask"), python(world / "polars", "dask_cuda")
    for text, interpreter, settings, lacks, words in (
        (CUML, bare, (), ("cuml", "dask_cuda"),
         ("lacks cuml, dask_cuda", "CPUs", "hpcml image build rapids-cu12", "hpcml submit --image rapids-cu12.sif job.py",
          f"{bare} -m pip install 'hpcml[cuda12]'")),
        (AUTO, polars, ("gpu.cuda='13'",), ("cudf", "cupy"), ("image build rapids-cu13", "hpcml[cuda13]")),
        ("import cudf_polars", polars, (), ("cudf_polars",), ("hpcml[polars-cuda12]",)),
        (CUML, bare, ("runtime.modules=['rapids']",), ("cuml", "dask_cuda"), ("modules", "--gpus-per-node 4")),
        (CUML, str(world / "nowhere/bin/python"), (), ("cuml", "dask_cuda"), ("cannot read", "--gpus-per-node 4")),
    ):  # fmt: skip
        with subtests.test(text, settings=settings):
            (world / "job.py").write_text(text)
            spec, [note] = choose(interpreter, *settings)
            assert (spec.size.gpus_per_node, spec.size.gpus_because, spec.size.gpus_lacking) == (-1, (), lacks)
            assert note == says(*words)


def test_an_image_by_its_labels(world: Path, subtests: pytest.Subtests) -> None:
    own = {"org.hpcml.kind": "rapids", "org.hpcml.cuda": "12"}
    changes: dict[str, tuple[int, Callable[[dict[str, str]], dict[str, str] | None], tuple[str, ...]]] = {
        "rapids": (4, lambda labels: labels, ()),
        "other CUDA": (-1, lambda labels: labels | {"org.hpcml.cuda": "13"}, ("lacks cuml", "image build rapids-cu12")),
        "cpu": (-1, lambda _: {"org.hpcml.kind": "cpu"}, ("lacks cuml", "image build rapids-cu12")),
        "without labels": (-1, lambda _: None, ("no labels", "--gpus-per-node 4")),
    }
    for name, (gpus, change, words) in changes.items():
        with subtests.test(name):
            image = sif_file.make(world / f"{name}.sif", change(own))
            spec, notes = choose("/nowhere/python", image=str(image))
            assert spec.size.gpus_per_node == gpus
            assert " ".join(notes) == says(*words)
            assert "pip install" not in " ".join(notes)
