"""Scripts and roles that wait for what cannot come: it is said while they wait, and ended where a deadline says so."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from hpcml import errors
from test_local import CONNECT, Here, here  # noqa: F401 - the fixture

pytestmark = pytest.mark.local


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pid_in(directory: Path, event: str) -> int:
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return next(int(found["pid"]) for found in events if found["event"] == event)


def started(here: Here, text: str, *options: str) -> Path:  # noqa: F811
    _, directory = here.detach(text, *options)
    here.until((directory / "events.jsonl").exists, 60)
    here.until(lambda: "driver-started" in (directory / "events.jsonl").read_text(), 90)
    return directory


def warned(here: Here, words: str) -> bool:  # noqa: F811
    return any(words in warning for warning in here.status()["warnings"])


WAITS = (
    CONNECT.replace("client", "while not os.path.exists('go'): time.sleep(0.1)\nclient")
    + "client.wait_for_workers(8)\n"
)


def test_what_waits_is_told_while_it_waits(here: Here) -> None:  # noqa: F811
    """A script without its cluster, supervisor and scheduler that are stopped for a while, workers that never come."""
    directory = started(
        here, WAITS, "--set", "deadlines.connect_notice=2s", "--set", "deadlines.idle_notice=3s", "--set", "deadlines.answer=60s",
        "--set", "deadlines.workers=25s", "--set", "deadlines.driver_grace=1s",
    )  # fmt: skip
    here.until(lambda: warned(here, "has run for 2 s without connecting to its cluster"), 60)
    here.until(lambda: warned(here, "Nothing has used the cluster for 3 s, and its node is held."), 60)
    assert here.status()["phase"] == "running"
    assert "Client(scheduler_file=…)" in here.run("status", "last").stdout
    supervisor, scheduler = parent_of(pid_in(directory, "driver-started")), pid_in(directory, "scheduler-up")
    for pid, name in ((supervisor, "the supervisor"), (scheduler, "the Dask scheduler")):
        os.kill(pid, signal.SIGSTOP)
        here.until(lambda name=name: warned(here, f"{name} on local has not answered for"), 60)  # type: ignore[misc]
        os.kill(pid, signal.SIGCONT)
    (here.folder / "go").touch()
    here.until(lambda: here.status()["phase"] == "ended", 60)
    found = here.status()
    assert found["exit_status"] == errors.WORKERS_NEVER_CAME, found
    assert found["message"] == "the script waits for more workers than the 1 that the run has (wait_for_workers)"
    assert "Wait for fewer, or ask for more" in found["hint"]


def test_a_supervisor_that_is_stopped(here: Here) -> None:  # noqa: F811
    """Who ends it, and when, is in tests/unit/test_idle.py."""
    directory = started(
        here, CONNECT + "time.sleep(300)\n", "--set", "deadlines.answer=20s", "--set", "deadlines.driver_grace=1s"
    )
    os.kill(parent_of(pid_in(directory, "driver-started")), signal.SIGSTOP)
    here.until(lambda: warned(here, "the supervisor on local has not answered for"), 60)
    here.until(lambda: here.status()["phase"] == "ended", 120)
    found = here.status()
    assert found["exit_status"] == errors.ROLE_LOST, found
    assert found["message"].endswith("(it is stopped: SIGSTOP)")
    assert (directory / "attempts/0/exit/driver@local").read_text() == f"{errors.ROLE_LOST}\n"
