"""Scripts and roles that wait for what cannot come: it is said while they wait, and ended where a deadline says so.

A supervisor that is stopped for good: tests/unit/test_idle.py.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from homes import CONNECT, Here, here
from hpcml import errors
from tests.said import in_order

pytestmark = pytest.mark.local

__all__ = ["here"]


def warned(here: Here, directory: Path, words: str) -> bool:
    return any(words in warning for warning in here.status(directory.name)["warnings"])


WAITS = (
    CONNECT.replace("client", "while not os.path.exists('go'): time.sleep(0.1)\nclient")
    + "client.wait_for_workers(8)\n"
)


def test_what_waits_is_told_while_it_waits(here: Here) -> None:
    """A script without its cluster, supervisor and scheduler that are stopped for a while, workers that never come."""
    directory = here.started(
        WAITS, "--set", "deadlines.connect_notice=2s", "--set", "deadlines.idle_notice=3s", "--set", "deadlines.answer=60s",
        "--set", "deadlines.workers=25s", "--set", "deadlines.script_grace=1s",
    )  # fmt: skip
    here.until(lambda: warned(here, directory, "not connected to its Dask cluster for 2 s"), 60)
    reserved = "has used the Dask cluster for 3 s"
    here.until(lambda: warned(here, directory, reserved), 60)
    assert here.status()["phase"] == "running"
    assert "hpcml.connect() connect to the cluster" in here.run("status", "last").stdout
    script = here.events(directory, "script-started")[0]["pid"]
    supervisor = int(Path(f"/proc/{script}/stat").read_text().rpartition(")")[2].split()[1])
    scheduler = here.events(directory, "scheduler-up")[0]["pid"]
    for pid, name in ((supervisor, "hpcml's supervisor process"), (scheduler, "the Dask scheduler")):
        os.kill(pid, signal.SIGSTOP)
        here.until(lambda name=name: warned(here, directory, f"{name} on local has not answered for"), 60)  # type: ignore[misc]
        os.kill(pid, signal.SIGCONT)
    (here.folder / "go").touch()
    found = here.ended(directory)
    assert found["exit_status"] == errors.WORKERS_NEVER_CAME, found
    assert re.search(in_order("waits in wait_for_workers()", "(1)"), found["message"])
    assert "Wait for fewer workers, or start more" in found["hint"]
