"""What hangs on several nodes is noticed, told and ended; what Slurm suspended does not hang."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from conftest import Cluster
from hpcml import errors
from lab_state import wait_for
from test_losses import TWO_BY_TWO, WAITS, output, roles, start

pytestmark = pytest.mark.lab


def test_a_supervisor_that_is_stopped(cluster: Cluster) -> None:
    """The scheduler notices, and the nodes are free; `status` tells it meanwhile."""
    directory = start(cluster, WAITS, *TWO_BY_TWO, "--name", "stopped", "--set", "deadlines.answer=30s")
    os.kill(roles(cluster, "driver", "n1")[0], signal.SIGSTOP)
    words = "the supervisor on n1 has not answered for"
    assert wait_for(lambda: words in output(directory), 60)
    shown = cluster.run("hpcml", "status", "stopped").stdout
    assert words in shown
    assert "(it is stopped: SIGSTOP)" in shown
    cluster.wait_idle(90)
    found = json.loads(cluster.run("hpcml", "status", "stopped", "--json").stdout)
    assert (found["state"], found["exit_status"]) == ("FAILED", errors.ROLE_LOST)
    job = json.loads((directory / "submission.json").read_text())["job"]
    assert cluster.job(job)["ExitCode"] == f"{errors.ROLE_LOST}:0"


def test_a_script_that_waits_for_more_workers_than_there_are(cluster: Cluster) -> None:
    text = "import hpcml\nhpcml.connect().wait_for_workers(8)\n"
    ended = cluster.submit(text, *TWO_BY_TWO, "--set", "deadlines.workers=30s")
    assert ended.code == errors.WORKERS_NEVER_CAME, ended.err
    assert "the script waits for more workers than the 4 that the run has (wait_for_workers)" in ended.err


def test_a_suspended_job_does_not_hang(cluster: Cluster) -> None:
    options = ("--set", "deadlines.answer=15s", "--set", "deadlines.idle=20s", "--set", "deadlines.idle_notice=20s")
    directory = start(cluster, WAITS, *TWO_BY_TWO, *options)
    job = json.loads((directory / "submission.json").read_text())["job"]
    assert cluster.run("scontrol", "suspend", job, user="root", node="ctl").returncode == 0
    assert wait_for(lambda: cluster.job(job)["JobState"] == "SUSPENDED", 30)
    time.sleep(25)  # longer than all deadlines
    assert cluster.run("scontrol", "resume", job, user="root", node="ctl").returncode == 0
    assert wait_for(lambda: cluster.job(job)["JobState"] == "RUNNING", 30)
    time.sleep(2)
    assert not (directory / "status.json").exists()
    status = cluster.wait_status(directory, 60)  # then the time that it ran itself is over
    assert status["exit_status"] == errors.IDLE, status
    assert not [words for words in status["warnings"] if "answered" in words], status
