"""The job's exit status is the script's, whatever ends it; and whoever else ends it says so with a status of its own.

The time limit has a file of its own, because of the minute that it takes.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from beside import PART, SMALL
from conftest import Cluster, Ended
from hpcml import errors
from test_losses import roles

pytestmark = pytest.mark.lab

CONNECT = "import hpcml, sys, os, time, signal\nclient = hpcml.connect()\n"
WAIT = "print('waiting', flush=True)\ntime.sleep(600)\n"
ONE, FOUR = ("--nodes", "1", *PART), ("--nodes", "4", *PART)
SOON = 60.0  # seconds until the nodes are free, also on a busy machine; the job's time limit is longer


def slurm_exit(cluster: Cluster, directory: Path) -> str:
    job = json.loads((directory / "submission.json").read_text())["job"]
    deadline = time.monotonic() + 120
    while (facts := cluster.job(job))["JobState"] in ("RUNNING", "COMPLETING"):  # the run's own word comes first
        assert time.monotonic() < deadline, facts
        time.sleep(0.1)
    return f"{facts['JobState']} {facts['ExitCode']}"


def idle_after(cluster: Cluster, ended: Ended) -> float:
    """Return the seconds from the driver's end to its nodes being free."""
    cluster.wait_gone(ended.directory)
    return time.time() - ended.times()["driver-ended"]


@pytest.mark.beside
@pytest.mark.parametrize("status", [0, 3])
def test_the_script_s_own_status(cluster: Cluster, status: int) -> None:
    ended = cluster.submit(
        CONNECT + f"print(client.submit(lambda: 6 * 7).result())\nsys.exit({status})", *(SMALL if status else FOUR)
    )
    assert ended.code == status, ended.err
    assert "42" in ended.out
    assert idle_after(cluster, ended) <= SOON
    assert slurm_exit(cluster, ended.directory) == ("COMPLETED 0:0" if status == 0 else f"FAILED {status}:0")
    assert ended.status["by"] == "script"


@pytest.mark.beside
def test_the_script_raises(cluster: Cluster) -> None:
    ended = cluster.submit(CONNECT + "raise ValueError('too few stars')", *SMALL)
    assert ended.code == 1
    assert "ValueError: too few stars" in ended.out
    assert slurm_exit(cluster, ended.directory) == "FAILED 1:0"


@pytest.mark.beside
def test_the_script_is_killed(cluster: Cluster) -> None:
    ended = cluster.submit(CONNECT + "os.kill(os.getpid(), signal.SIGKILL)", *SMALL)
    assert ended.code == 128 + signal.SIGKILL
    assert ended.status["message"] == "the script was killed by SIGKILL"
    assert slurm_exit(cluster, ended.directory) == "FAILED 137:0"


@pytest.mark.beside
def test_the_script_runs_out_of_memory(cluster: Cluster) -> None:
    if "cgroup" not in str(cluster.lab.state()):
        pytest.skip("the lab cannot enforce memory limits through cgroup v1 on this machine")
    hog = "parts = []\nwhile True:\n    parts.append(bytearray(b'x' * (50 << 20)))\n"
    ended = cluster.submit(CONNECT + hog, *ONE)
    assert ended.code == 128 + signal.SIGKILL, ended.err
    assert "out of memory" in ended.status["message"]
    # Slurm itself marks a job in which something was killed for memory; the batch script's status is kept beside.
    assert slurm_exit(cluster, ended.directory) in ("OUT_OF_MEMORY 0:125", "FAILED 137:0")


@pytest.mark.beside
@pytest.mark.parametrize("handles", [False, True])
def test_the_job_is_cancelled(cluster: Cluster, handles: bool) -> None:
    """The driver gets SIGTERM while scheduler and workers still serve it, so that it can save what it has."""
    saving = ("def save(*_):\n    print('saved', client.submit(lambda: 'with the cluster').result(), flush=True)\n"
              "    os._exit(0)\nsignal.signal(signal.SIGTERM, save)\n") if handles else ""  # fmt: skip
    name = f"tocancel-{handles}"
    job, directory = cluster.detach(CONNECT + saving + WAIT, *SMALL, "--name", name)
    cluster.wait_event(directory, "driver-started")
    deadline = time.monotonic() + 120
    while "waiting" not in (directory / "logs/driver.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert cluster.run("hpcml", "cancel", name).returncode == 0
    status = cluster.wait_status(directory)
    cluster.wait_gone(directory)
    if handles:
        assert "saved with the cluster" in (directory / "logs/driver.log").read_text()
        assert (status["exit_status"], status["by"], status["state"]) == (0, "script", "CANCELLED")
    else:
        assert (status["exit_status"], status["message"]) == (errors.CANCELLED, "the run was cancelled")
    assert cluster.job(job)["JobState"] == "CANCELLED"


@pytest.mark.beside
def test_a_worker_is_killed_and_the_work_goes_on(cluster: Cluster) -> None:
    script = CONNECT + (
        "futures = client.map(lambda i: (time.sleep(0.3), i)[1], range(40))\n"
        "murder = client.submit(lambda: os.kill(os.getpid(), signal.SIGKILL), workers=['n2'])\n"
        "print('sum', sum(client.gather(futures)))\n"
        "deadline = time.time() + 120\n"
        "while len(client.scheduler_info(n_workers=-1)['workers']) < 2 and time.time() < deadline: time.sleep(0.1)\n"
        "print('workers', len(client.scheduler_info(n_workers=-1)['workers']))\n")  # fmt: skip
    ended = cluster.submit(script, *SMALL)
    assert ended.code == 0, ended.err + ended.log("worker-n2.log")
    assert f"sum {sum(range(40))}" in ended.out
    assert "workers 2" in ended.out
    assert "killed by SIGKILL" in ended.log("worker-n2.log")
    assert [event["worker"] for event in ended.events if event["event"] == "worker-removed"][:1] == ["n2"]


@pytest.mark.beside
def test_workers_that_die_for_good_end_the_run_where_the_policy_says_so(cluster: Cluster) -> None:
    script = CONNECT + (
        "murder = client.submit(lambda: os.kill(os.getpid(), signal.SIGKILL), workers=['n2'])\n" + WAIT)  # fmt: skip
    ended = cluster.submit(script, *SMALL, "--set", "workers.on_loss=fail", "--set", "workers.restarts=0")
    assert ended.code == errors.ROLE_LOST, ended.err
    assert "n2" in ended.status["message"]
    assert "SIGKILL" in ended.status["message"]


@pytest.mark.beside
def test_a_job_that_is_suspended_goes_on(cluster: Cluster) -> None:
    """Suspending stops every process of the job, the batch script's too; after resuming nothing is lost."""
    job, directory = cluster.detach(CONNECT + "time.sleep(3)\nprint(client.submit(sum, [1, 2]).result())", *SMALL)
    cluster.wait_event(directory, "driver-started")
    assert cluster.run("scontrol", "suspend", job, user="root").returncode == 0
    time.sleep(4)
    assert cluster.job(job)["JobState"] == "SUSPENDED"
    assert cluster.run("scontrol", "resume", job, user="root").returncode == 0
    assert cluster.wait_status(directory)["exit_status"] == 0
    assert "3" in (directory / "logs/driver.log").read_text()


@pytest.mark.beside
def test_the_scheduler_is_killed(cluster: Cluster) -> None:
    _, directory = cluster.detach(CONNECT + WAIT, *SMALL)
    pid = cluster.wait_event(directory, "scheduler-up")["pid"]
    cluster.wait_event(directory, "driver-started")
    os.kill(pid, signal.SIGKILL)
    status = cluster.wait_status(directory)
    assert (status["exit_status"], status["phase"]) == (errors.ROLE_LOST, "driver")
    assert "the Dask scheduler on n1 was lost" in status["message"]
    cluster.wait_gone(directory)


@pytest.mark.beside
def test_a_teardown_that_was_cut_short(cluster: Cluster) -> None:
    """The end was written, its last word was not: whoever follows the run is told the end, and does not wait for ever."""
    ended = cluster.submit("import sys\nsys.exit(3)\n", *ONE)
    cluster.wait_gone(ended.directory)
    path = ended.directory / "status.json"
    path.write_text(json.dumps({**ended.status, "over": False}))
    assert cluster.run("hpcml", "logs", "-f", ended.directory.name, timeout=240).returncode == 0
    facts = json.loads(cluster.run("hpcml", "status", ended.directory.name, "--json").stdout)
    assert (facts["state"], facts["exit_status"], facts["by"]) == ("FAILED", 3, "script")


@pytest.mark.beside
def test_the_supervisor_is_killed(cluster: Cluster) -> None:
    """Nobody is left to write the end: Slurm's word is taken, and the nodes are free all the same."""
    job, directory = cluster.detach(CONNECT + WAIT, *SMALL)
    cluster.wait_event(directory, "driver-started")
    pids = roles(cluster, directory, "driver", "n1")
    assert len(pids) == 1
    os.kill(pids[0], signal.SIGKILL)
    cluster.wait_gone(directory)
    facts = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
    assert facts["phase"] == "ended"
    assert facts["exit_status"] == 137
    assert cluster.job(job)["ExitCode"] == "137:0"


def test_a_slurmd_that_crashes_while_the_script_runs(cluster: Cluster) -> None:
    """Slurm's own daemon dies of a bug on the driver's node and is started again: the run does not notice."""
    directory = cluster.detach(CONNECT + "time.sleep(3)\nprint(client.submit(lambda: 6 * 7).result())", "--nodes", "4")[
        1
    ]
    cluster.wait_event(directory, "driver-started")
    slurmd = int((cluster.lab.places.run / "slurmd-n1.pid").read_text())
    os.kill(slurmd, signal.SIGABRT)
    assert cluster.wait_status(directory)["exit_status"] == 0
    assert "42" in (directory / "logs/driver.log").read_text()
    cluster.wait_idle(30)
    assert int((cluster.lab.places.run / "slurmd-n1.pid").read_text()) != slurmd
