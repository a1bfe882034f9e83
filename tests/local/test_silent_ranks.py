"""Parts of a run of ranks that are stopped or lost: the run ends soon and says which, and nothing of it is left."""

from __future__ import annotations

import os
import signal

import pytest

from homes import Here, here
from hpcml import errors

pytestmark = pytest.mark.local

__all__ = ["here"]
WAITS = "import time\nwhile True: time.sleep(1)\n"
# A rank that no signal but SIGKILL ends; a grace that no test waits for.
DEAF = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAITS}"
PATIENT = ("--ranks", "2", "--set", "deadlines.driver_grace=600s")


def pid_of(here: Here, role: str) -> int:
    """Return the process of a role, which is older than its forks."""
    lines = here.processes().items()
    return min(pid for pid, line in lines if line.endswith(f"hpcml.node {role}") and "step.sh" not in line)


def test_a_supervisor_that_is_stopped_ends_the_run(here: Here) -> None:
    directory = here.started(DEAF, *PATIENT, "--set", "deadlines.answer=6s")
    os.kill(pid_of(here, "driver"), signal.SIGSTOP)
    end = here.ended(directory)
    assert end["exit_status"] == errors.ROLE_LOST, end
    assert "hpcml's supervisor process on local did not answer for" in end["message"]
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
