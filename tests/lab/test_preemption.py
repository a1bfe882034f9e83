"""Preemption on a real Slurm: told as that, and no end of a run whose job goes back into the queue."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from conftest import Cluster, directory_of
from hpcml import errors

pytestmark = pytest.mark.lab

# On its second attempt the script ends by itself.
SCRIPT = """
import os, time
print("attempt", os.environ.get("SLURM_RESTART_COUNT", "0"), flush=True)
while os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    time.sleep(0.2)
"""
PARTITIONS = """
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=low Nodes=n1,n2,n3,n4 PriorityTier=1 PreemptMode=CANCEL
PartitionName=grace Nodes=n1,n2,n3,n4 PriorityTier=1 PreemptMode=CANCEL GraceTime=15
PartitionName=again Nodes=n1,n2,n3,n4 PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=n1,n2,n3,n4 PriorityTier=10
"""


@pytest.fixture(scope="module")
def preempting(cluster: Cluster) -> Iterator[Cluster]:
    """The lab with partitions whose jobs give way, and without them again afterwards."""
    conf = cluster.lab.places.etc / "slurm.conf"
    before = conf.read_text()

    def configure(text: str) -> None:
        conf.write_text(text)
        done = cluster.run("scontrol", "reconfigure", node="ctl", user="root")
        assert done.returncode == 0, done.stderr

    configure(before + PARTITIONS)
    try:
        yield cluster
    finally:
        cluster.run("scancel", "--me", "--quiet")
        cluster.wait_idle(60)
        configure(before)


def start(cluster: Cluster, name: str, *options: str) -> subprocess.Popen[str]:
    """Start a run that is waited for, and return when its script runs."""
    command = cluster.command(SCRIPT, "--wait", "--nodes", "2", "--time", "10", "--name", name, *options)
    waiting = cluster.lab.popen(command, cwd=str(cluster.work), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: "RUNNING: the script runs" in cluster.run("hpcml", "status", name).stdout, waiting)
    return waiting


def until(
    condition: Callable[[], bool], waiting: subprocess.Popen[str], shown: Callable[[], str] = str, seconds: float = 60
) -> None:
    """Wait for a condition while a submission waits for its run; ``shown`` goes into the words of a failure."""
    deadline = time.monotonic() + seconds
    while not condition():
        if waiting.poll() is not None or time.monotonic() > deadline:
            waiting.kill()
            pytest.fail(f"{waiting.poll()}: {waiting.communicate()}\n{shown()}")
        time.sleep(0.2)


def take_the_nodes(cluster: Cluster, seconds: int = 1) -> None:
    options = ("--partition=high", "--nodes=4", "--exclusive", "--output=/dev/null", "--time=5")
    done = cluster.run("sbatch", *options, f"--wrap=sleep {seconds}")
    assert done.returncode == 0, done.stderr


def ended(waiting: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = waiting.communicate(timeout=120)
    return subprocess.CompletedProcess([], waiting.returncode, out, err)


@pytest.mark.parametrize("partition", ["low", "grace"])
def test_a_preempted_run_is_told_as_that(preempting: Cluster, partition: str) -> None:
    """With a grace time only the steps get a signal, and no log says why."""
    waiting = start(preempting, f"gives-way-{partition}", "--partition", partition)
    take_the_nodes(preempting)
    done = ended(waiting)
    assert done.returncode == errors.PREEMPTED, done.stderr
    assert "the job was preempted" in done.stderr
    assert "cancelled" not in done.stderr.replace("CANCELLED", "")
    found = json.loads((directory_of(done) / "status.json").read_text())
    assert (found["exit_status"], found["by"]) == (errors.PREEMPTED, "scheduler")
    assert "preempted" in preempting.run("hpcml", "status", f"gives-way-{partition}").stdout


def test_a_run_that_is_put_back_is_waited_for(preempting: Cluster) -> None:
    options = ("--partition", "again", "--set", 'slurm.extra=["--requeue"]')
    waiting = start(preempting, "comes-back", *options)
    take_the_nodes(preempting)

    def status() -> dict[str, str]:
        facts: dict[str, str] = json.loads(preempting.run("hpcml", "status", "comes-back", "--json").stdout)
        return facts

    until(
        lambda: status()["state"] == "PENDING", waiting, lambda: preempting.run("hpcml", "status", "comes-back").stdout
    )
    facts = status()
    assert facts["message"].startswith("put back into the queue: ")
    assert facts["exit_status"] is None
    assert "PENDING" in preempting.run("hpcml", "ls").stdout.splitlines()[-1]
    # Slurm lets a job that was put back wait for two minutes.
    preempting.run("scontrol", "update", f"jobid={facts['job']}", "StartTime=now")
    done = ended(waiting)
    assert done.returncode == 0, done.stderr
    lines = [
        line for line in done.stdout.splitlines() if not line.startswith("slurmstepd")
    ]  # which says that it ends it
    assert lines == ["attempt 0", "attempt 1"]
    assert "put back into the queue" in done.stderr
    assert done.stderr.count("✓ driver     the script runs") == 2


def test_a_cancelled_run_is_not_told_as_preempted(preempting: Cluster) -> None:
    waiting = start(preempting, "cancelled", "--partition", "low")
    assert preempting.run("hpcml", "cancel", "cancelled").returncode == 0
    done = ended(waiting)
    assert done.returncode == errors.CANCELLED, done.stderr
    assert "the run was cancelled" in done.stderr.lower()
    assert "preempted" not in done.stderr
