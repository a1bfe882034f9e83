"""Programs of MPI and JAX whose ranks do not find each other: no run of them ends with 0."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import world_programs
import worlds
from homes import Here, here
from tests.said import in_order

pytestmark = pytest.mark.local

__all__ = ["here"]

HIDDEN = "import importlib\nMPI = importlib.import_module('mpi4py.MPI')\nprint(MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size())\n"

# Two ranks, which one program has on two nodes and the next on one: where they are changes nothing of what is looked for.
RANKS = (("--nodes", "2", "--ranks", "1"), ("--ranks", "2"))


@pytest.fixture
def libraries(here: Here) -> Here:
    """A home whose Python has MPI and JAX; those that are installed take their place."""
    worlds.write(here.folder / "libraries")
    here.environment["PYTHONPATH"] = str(here.folder / "libraries")
    return here


def test_a_rank_that_is_its_own_mpi_world_ends_the_run_at_once(libraries: Here) -> None:
    text = HIDDEN + "import time\nprint('computes', flush=True)\ntime.sleep(60)\n"
    done = libraries.submit(text, "--ranks", "2")
    assert done.returncode == 80, done.stdout + done.stderr
    assert "computes" not in done.stdout
    status = libraries.status()
    assert (status["by"], status["state"]) == ("hpcml", "FAILED")
    assert status["message"].startswith("the 2 ranks did not find each other: in rank ")
    assert re.search(in_order("MPI started with one process", "(my script.py:2)"), status["message"])
    assert "--mpi pmix" in status["hint"]
    assert (status["rank"] in (0, 1), status["node"]) == (True, "local")
    why = libraries.json("why")
    print(why)
    assert "did not find each other" in why["cause"]


def test_ranks_that_find_each_other_run(libraries: Here) -> None:
    text = "import os\nos.environ.update(OMPI_COMM_WORLD_SIZE='2')\n" + HIDDEN
    assert libraries.submit(text, "--ranks", "2").returncode == 0
    assert libraries.submit(HIDDEN, "--ranks", "1").returncode == 0


def test_a_world_of_one_on_several_nodes_without_a_dask_client_is_an_error(libraries: Here) -> None:
    done = libraries.submit(HIDDEN, "--nodes", "2")
    assert done.returncode == 80, done.stdout + done.stderr
    assert re.search(
        in_order("MPI started with one process", "script.py:2) on one of 2 nodes", "no Dask client connected"),
        libraries.status()["message"],
    )
    client = "import hpcml\nassert hpcml.connect().submit(sum, [1, 2]).result() == 3\n"
    assert libraries.submit(HIDDEN + client, "--nodes", "2").returncode == 0
    assert libraries.submit(HIDDEN).returncode == 0
    failed = libraries.submit(HIDDEN + "raise SystemExit(3)\n", "--nodes", "2")
    assert failed.returncode == 3


def test_a_child_of_a_rank_and_jax_are_noticed_too(libraries: Here, subtests: pytest.Subtests) -> None:
    (libraries.folder / "solver.py").write_text(HIDDEN)
    jax = "import jax\njax.distributed.initialize('127.0.0.1:1', num_processes=1, process_id=0)\nprint('computes')\n"
    (libraries.folder / "model.py").write_text(jax)
    for words, library in (
        (("--ranks", "2", "--", "sh", "-c", "python3 solver.py || true"), "MPI"),  # with the status of its own
        (("--nodes", "2", "--", "sh", "-c", "python3 solver.py"), "MPI"),
        (("--ranks", "2", "model.py"), "JAX"),
        (("--nodes", "2", "model.py"), "JAX"),
    ):
        with subtests.test(" ".join(words)):
            done = libraries.run("submit", "--wait", *words)
            assert done.returncode == 80, done.stdout + done.stderr
            assert f"{library} started with one process" in libraries.status()["message"]
            assert ("computes" in done.stdout) is (library == "JAX" and "--nodes" in words)


def test_mpi_that_a_library_starts_is_no_world_of_the_program_s_where_torch_is(libraries: Here) -> None:
    packages = libraries.folder / "libraries/site-packages"
    packages.mkdir()
    (packages / "h5py.py").write_text("from mpi4py import MPI\n")
    (packages / "torch.py").touch()
    find = f"import sys\nsys.path.append({str(packages)!r})\n"
    assert libraries.submit(f"{find}import h5py, torch\n", "--ranks", "2").returncode == 0
    assert libraries.submit(f"{find}import h5py\n", "--nodes", "2").returncode == 0
    done = libraries.submit(f"{find}import h5py\n", "--ranks", "2")
    assert done.returncode == 80, done.stderr
    assert re.search(
        in_order("MPI started with one process", "(libraries/site-packages/h5py.py:1)"), libraries.status()["message"]
    )


def test_a_program_that_is_not_python_and_uses_mpi_needs_its_option(
    libraries: Here, tmp_path_factory: pytest.TempPathFactory
) -> None:
    maps = Path("/proc/self/maps").read_text().splitlines()
    library = next(line.split()[-1] for line in maps if "/libm.so" in line or "/libm-" in line)
    folder = tmp_path_factory.mktemp("mpi")  # a path in LD_PRELOAD has no spaces
    shutil.copy(library, folder / "libmpi.so.40")
    program = f"LD_PRELOAD={folder}/libmpi.so.40 sleep 600; true"
    done = libraries.run("submit", "--wait", "--ranks", "2", "--", "sh", "-c", program)
    assert done.returncode == 80, done.stderr
    message = libraries.status()["message"]
    assert "the program sleep uses MPI (libmpi)" in message
    assert "--mpi pmix" in libraries.status()["hint"]


@pytest.mark.parametrize("name", world_programs.PROGRAMS)
def test_no_program_ends_well_with_a_wrong_world(libraries: Here, name: str, subtests: pytest.Subtests) -> None:
    program = world_programs.PROGRAMS[name]
    for module, text in {"__init__": "", **program.files}.items():
        path = libraries.folder / f"solver/{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (libraries.folder / "run.py").write_text(program.run)
    ranks = RANKS[list(world_programs.PROGRAMS).index(name) % 2]
    for options, size in (("--nodes", "2"), 2), (ranks, 2):
        with subtests.test(" ".join(options)):
            done = libraries.run("submit", "--wait", *options, "run.py")
            worlds_seen = {line for line in done.stdout.splitlines() if line.startswith("world ")}
            right = worlds_seen == {f"world {size}"}
            assert (done.returncode == 0) is right, (done.returncode, done.stdout, done.stderr)
            if "--ranks" in options and program.library in ("JAX", "torch"):
                assert right, done.stderr
            if not right:
                assert done.returncode in (1, 65, 80), done.stderr
