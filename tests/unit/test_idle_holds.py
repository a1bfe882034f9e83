"""What keeps an idle hold: processes in the job that work, and who is warned before its end."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpcml.kinds.hold.node.user_activity import Users

JOB = "778812345"
SPINS = "print(flush=True)\nwhile True: pass"
SLEEPS = "import time\nprint(flush=True)\ntime.sleep(600)"


@contextmanager
def process(code: str, before: Callable[[], object] | None = None, **variables: str) -> Iterator[int]:
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=before,  # noqa: PLW1509 - it only takes a terminal
    ) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == b"\n"  # the start of an interpreter is work
            yield started.pid
        finally:
            started.kill()


def look(users: Users, pid: int, seconds: float = 0.0) -> str:
    """Return what works, as soon as something does, or after some seconds in which the process is seen."""
    until, works = time.monotonic() + 60, ""
    while not works and time.monotonic() < until:
        works = users.working()
        if pid in users.seconds:
            until = min(until, time.monotonic() + seconds)
        time.sleep(0.2)
    return works


def test_a_process_of_the_job_that_works_keeps_the_hold() -> None:
    with process(SPINS, SLURM_JOB_ID=JOB) as pid:
        assert look(Users(JOB), pid, 60) == f"process {pid}"


def test_what_sleeps_or_is_of_hpcml_or_another_job_does_not() -> None:
    with (
        process(SLEEPS, SLURM_JOB_ID=JOB) as asleep,
        process(SPINS, SLURM_JOB_ID=JOB, HPCML_RUN_DIR="/runs/hold"),
        process(SPINS, SLURM_JOB_ID="778812346"),
    ):
        users = Users(JOB)
        users.working()
        assert look(users, asleep, 1.0) == ""
        assert [*users.seconds] == [asleep]
    assert not Users("").look_is_due(), "on this machine a process may be of anything"


def test_who_has_a_terminal_in_the_job_is_warned() -> None:
    ours, theirs = os.openpty()
    with process(SLEEPS, lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0), SLURM_JOB_ID=JOB):
        Users(JOB).say("the hold ends soon")
        assert os.read(ours, 100).strip() == b"hpcml: the hold ends soon"
    os.close(ours)
    os.close(theirs)
