"""Scripts and roles that wait for what cannot come: it is said while they wait, and ended where a deadline says so."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from homes import CONNECT, Here, here, home
from hpcml import errors
from hpcml.paths import RunPaths

pytestmark = pytest.mark.local

__all__ = ["here"]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def supervisor_of(here: Here, directory: Path) -> int:
    return parent_of(here.events(directory, "driver-started")[0]["pid"])


def warned(here: Here, directory: Path, words: str) -> bool:
    return any(words in warning for warning in here.status(directory.name)["warnings"])


WAITS = (
    CONNECT.replace("client", "while not os.path.exists('go'): time.sleep(0.1)\nclient")
    + "client.wait_for_workers(8)\n"
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Here, Path]]:
    """A run whose supervisor is stopped for good; its deadline passes while other tests run."""
    with home(tmp_path_factory.mktemp("stopped")) as here:
        directory = here.started(
            "import time\ntime.sleep(300)\n", "--set", "deadlines.answer=20s", "--set", "deadlines.driver_grace=1s"
        )
        os.kill(supervisor_of(here, directory), signal.SIGSTOP)
        yield here, directory


@pytest.mark.usefixtures("stopped")
def test_what_waits_is_told_while_it_waits(here: Here) -> None:
    """A script without its cluster, supervisor and scheduler that are stopped for a while, workers that never come."""
    directory = here.started(
        WAITS, "--set", "deadlines.connect_notice=2s", "--set", "deadlines.idle_notice=3s", "--set", "deadlines.answer=60s",
        "--set", "deadlines.workers=25s", "--set", "deadlines.driver_grace=1s",
    )  # fmt: skip
    here.until(lambda: warned(here, directory, "has not connected to its Dask cluster for 2 s"), 60)
    here.until(
        lambda: warned(
            here, directory, "Nothing has used the Dask cluster for 3 s, and the run's node stays reserved."
        ),
        60,
    )
    assert here.status()["phase"] == "running"
    assert "Client() and hpcml.connect() connect to the cluster" in here.run("status", "last").stdout
    samples = RunPaths(directory).attempt(0).samples
    here.until(samples.exists)
    shutil.rmtree(samples)
    samples.write_text("in the way")
    logs = (directory / "logs").glob
    here.until(
        lambda: any("no samples of resource use are written" in path.read_text() for path in logs("worker-*.log")), 60
    )
    supervisor = supervisor_of(here, directory)
    scheduler = here.events(directory, "scheduler-up")[0]["pid"]
    for pid, name in ((supervisor, "hpcml's supervisor process"), (scheduler, "the Dask scheduler")):
        os.kill(pid, signal.SIGSTOP)
        here.until(lambda name=name: warned(here, directory, f"{name} on local has not answered for"), 60)  # type: ignore[misc]
        os.kill(pid, signal.SIGCONT)
    (here.folder / "go").touch()
    found = here.ended(directory)
    assert found["exit_status"] == errors.WORKERS_NEVER_CAME, found
    assert found["message"] == "the script waits in wait_for_workers() for more workers than the run has (1)"
    assert "Wait for fewer workers, or start more" in found["hint"]
    assert samples.read_text() == "in the way"  # a folder that was removed: its loss changes nothing


def test_a_supervisor_that_is_stopped(stopped: tuple[Here, Path]) -> None:
    """Who ends it, and when, is in tests/unit/test_idle.py."""
    here, directory = stopped
    here.until(lambda: warned(here, directory, "hpcml's supervisor process on local has not answered for"), 60)
    found = here.ended(directory, 120)
    assert found["exit_status"] == errors.ROLE_LOST, found
    assert found["message"].endswith("(the process is stopped: SIGSTOP)")
    assert (directory / "attempts/0/exit/driver@local").read_text() == f"{errors.ROLE_LOST}\n"
