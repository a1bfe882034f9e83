"""Parts of a run of ranks that are stopped or lost: the run ends soon and says which, and nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from homes import Here, here
from hpcml import errors
from tests.looks import by_age

pytestmark = pytest.mark.local

__all__ = ["here"]
WAITS = "import time\nwhile True: time.sleep(1)\n"
# A rank that no signal but SIGKILL ends; a grace that no test waits for.
DEAF = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAITS}"
HEARS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(open("told" + os.environ["RANK"], "w").close()))
open("ready" + os.environ["RANK"], "w").close()
while True: time.sleep(1)
"""
PATIENT = ("--ranks", "2", "--set", "deadlines.script_grace=600s")


def pid_of(here: Here, role: str) -> int:
    """Return the process of a role, which is older than its forks."""
    lines = here.processes().items()
    oldest, *_ = by_age(pid for pid, line in lines if line.endswith(f"hpcml.kinds {role}") and "step.sh" not in line)
    return oldest


def test_a_supervisor_that_is_stopped_ends_the_run(here: Here) -> None:
    directory = here.started(DEAF, *PATIENT, "--set", "deadlines.answer=6s")
    os.kill(pid_of(here, "supervisor"), signal.SIGSTOP)
    end = here.ended(directory)
    assert end["exit_status"] == errors.ROLE_LOST, end
    assert "supervisor process on local did not answer" in end["message"]
    assert "(the process is stopped: SIGSTOP)" in end["message"]
    here.until(lambda: not here.left())


def test_ranks_of_a_lost_agent_are_not_waited_for(here: Here) -> None:
    directory = here.started(DEAF, *PATIENT)
    here.until(lambda: here.events(directory, "ranks-running"))
    os.kill(pid_of(here, "rank"), signal.SIGKILL)
    end = here.ended(directory)
    assert end["exit_status"] == errors.ROLE_LOST, end
    assert "exited with status 137 (killed by SIGKILL)" in end["message"]
    here.until(lambda: not here.left())


@pytest.mark.parametrize("role", ["supervisor", "job.sh"])
def test_a_stopped_run_can_be_cancelled(here: Here, role: str) -> None:
    pid, directory = here.detach(WAITS, "--ranks", "2")
    here.until(lambda: here.events(directory, "ranks-running"), 90)
    os.kill(pid if role == "job.sh" else pid_of(here, role), signal.SIGSTOP)
    assert here.run("cancel", directory.name).returncode == 0
    end = here.ended(directory)
    assert (end["exit_status"], end["state"]) == (errors.CANCELLED, "CANCELLED"), end
    here.until(lambda: not here.left())


def test_a_cancelled_run_whose_supervisor_does_not_end_is_killed(here: Here) -> None:
    """It is stopped again and again, which no SIGCONT helps."""
    directory = here.started(
        WAITS, "--ranks", "2", "--set", "deadlines.script_grace=0s", "--set", "deadlines.teardown=0s"
    )
    driver = pid_of(here, "supervisor")
    os.kill(driver, signal.SIGSTOP)
    assert here.run("cancel", directory.name).returncode == 0

    def is_over() -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver, signal.SIGSTOP)
        return bool(here.status(directory.name)["phase"] == "ended")

    here.until(is_over, 90)
    assert here.status(directory.name)["exit_status"] == errors.CANCELLED
    here.until(lambda: not here.left())


def test_a_signal_to_the_supervisor_alone_reaches_the_ranks(here: Here) -> None:
    directory = here.started(HEARS, *PATIENT)
    here.until(lambda: all((here.folder / f"ready{rank}").exists() for rank in (0, 1)))
    os.kill(pid_of(here, "supervisor"), signal.SIGTERM)
    here.until(lambda: all((here.folder / f"told{rank}").exists() for rank in (0, 1)))
    here.ended(directory)
