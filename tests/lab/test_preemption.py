"""Preemption on a real Slurm: told as that, and no end of a run whose job goes back into the queue."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Cluster
from hpcml import errors
from lab_state import wait_for

pytestmark = pytest.mark.lab

SCRIPT = "import time\ntime.sleep(600)\n"
# Two attempts are put back into the queue, and save when they are told so; the third ends by itself.
LONG = """
import json, time
import hpcml
client = hpcml.connect()
state = {"total": 0, "attempts": []}
if path := hpcml.run.saved("state.json"):
    state = json.loads(path.read_text())
hpcml.run.on_stop(lambda: hpcml.run.save("state.json", lambda path: path.write_text(json.dumps(state))))
for _ in range(3):
    square = client.submit(pow, len(state["attempts"]), 2).result()
    state = {"total": state["total"] + square, "attempts": [*state["attempts"], hpcml.run.attempt]}
print("attempt", hpcml.run.attempt, flush=True)
if hpcml.run.attempt < 2:
    time.sleep(600)
print(json.dumps(state), flush=True)
"""
PARTITIONS = """
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=low Nodes=n1,n2,n3,n4 PriorityTier=1 PreemptMode=CANCEL
PartitionName=grace Nodes=n1,n2,n3,n4 PriorityTier=1 PreemptMode=CANCEL GraceTime=15
PartitionName=later Nodes=n1,n2,n3,n4 PriorityTier=1 PreemptMode=REQUEUE GraceTime=15
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


def start(cluster: Cluster, script: str, name: str, *options: str) -> subprocess.Popen[str]:
    """Start a run that is waited for, and return when its script runs."""
    command = cluster.command(script, "--wait", "--nodes", "2", "--time", "10", "--name", name, *options)
    waiting = cluster.lab.popen(command, cwd=str(cluster.work))
    until(lambda: "RUNNING: the script runs" in cluster.run("hpcml", "status", name).stdout, waiting)
    return waiting


def until(condition: Callable[[], bool], waiting: subprocess.Popen[str]) -> None:
    """Wait for a condition while a submission waits for its run."""
    deadline = time.monotonic() + 180
    while not condition():
        if waiting.poll() is not None or time.monotonic() > deadline:
            waiting.kill()
            pytest.fail(f"{waiting.poll()}: {waiting.communicate()}")
        time.sleep(0.2)


def take_the_nodes(cluster: Cluster) -> None:
    options = ("--partition=high", "--nodes=4", "--exclusive", "--output=/dev/null", "--time=5")
    done = cluster.run("sbatch", *options, "--wrap=sleep 1")
    assert done.returncode == 0, done.stderr


def test_preempted_runs_are_told_as_that(preempting: Cluster) -> None:
    """With a grace time only the steps get a signal, and no log says why."""
    names = {f"gives-way-{partition}": partition for partition in ("low", "grace")}
    waiting = [start(preempting, SCRIPT, name, "--partition", partition) for name, partition in names.items()]
    take_the_nodes(preempting)
    for name, process in zip(names, waiting, strict=True):
        _, said = process.communicate(timeout=360)
        assert process.returncode == errors.PREEMPTED, said
        assert "the job was preempted" in said
        assert "cancelled" not in said.replace("CANCELLED", "")
        found = json.loads((preempting.directory(name) / "status.json").read_text())
        assert (found["exit_status"], found["by"]) == (errors.PREEMPTED, "scheduler")
        assert "preempted" in preempting.run("hpcml", "status", name).stdout


def test_a_preempted_hold_and_its_run_are_told_so(preempting: Cluster) -> None:
    """Both end as a preempted run does, not as one that its user cancelled."""
    started = []
    for partition in ("low", "grace"):
        asked = ("--nodes", "2", "--partition", partition, "--time", "10", "--name", f"hold-{partition}")
        done = preempting.run("hpcml", "hold", "--json", *asked)
        assert done.returncode == 0, done.stderr
        hold = Path(json.loads(done.stdout)["directory"])
        preempting.wait_event(hold, "script-started", 60)
        words = preempting.command(SCRIPT)[2:]
        done = preempting.run("hpcml", "run", "--in", hold.name, "--detach", "--json", *words)
        assert done.returncode == 0, done.stderr
        run = Path(json.loads(done.stdout)["directory"])
        preempting.wait_event(run, "script-started", 60)
        started += [hold, run]
    take_the_nodes(preempting)
    ends = [preempting.wait_status(directory, 120) for directory in started]
    told = [(end["exit_status"], end["by"]) for end in ends]
    assert told == [(errors.PREEMPTED, "scheduler")] * 4, ends
    assert all("preempted" in preempting.run("hpcml", "status", directory.name).stdout for directory in started)


def test_a_long_run_that_is_put_back(preempting: Cluster) -> None:
    """By the user, by a preemption with a grace time: the same job goes on, and the one that waits waits on."""
    options = ("--partition", "later", "--set", 'slurm.extra=["--requeue"]', "--until-done")
    waiting = start(preempting, LONG, "goes-on", *options)
    directory = preempting.directory("goes-on")
    log, jobs = directory / "logs/script.log", []

    def pending() -> list[list[str]]:
        lines = preempting.run("squeue", "--me", "--noheader", "--partition=later", "--format=%i %T").stdout
        return [line.split() for line in lines.splitlines()]

    job = str((directory / "job").readlink())
    for attempt in range(2):
        until(lambda attempt=attempt: f"attempt {attempt}" in log.read_text(), waiting)  # type: ignore[misc]
        if attempt == 0:
            assert preempting.run("scontrol", "requeue", job).returncode == 0
        else:
            take_the_nodes(preempting)
        until(lambda: [job, "PENDING"] in pending(), waiting)
        jobs += sorted(pending())
        facts = json.loads(preempting.run("hpcml", "status", "goes-on", "--json").stdout)
        assert (facts["state"], facts["exit_status"]) == ("PENDING", None)
        assert facts["message"].startswith("Slurm requeued the job: ")
        # Slurm lets a job that was put back wait for two minutes; one that starts in the second of its end is killed.
        preempting.run("scontrol", "update", f"jobid={job}", "StartTime=now+3seconds")
    out, err = waiting.communicate(timeout=360)
    assert waiting.returncode == 0, err + (directory / "logs/job.log").read_text()
    assert "Slurm requeued the job" in err
    assert err.count("✓ script     the script runs") == 3
    assert jobs[:2] == jobs[2:], jobs  # this one, and one that waits for its end
    assert json.loads(out.splitlines()[-1]) == {"total": 204, "attempts": sorted([*range(3)] * 3)}
    told = [line for line in log.read_text().splitlines() if line.startswith("attempt")]
    assert told == [f"attempt {attempt}" for attempt in range(3)]
    assert wait_for(lambda: not pending(), 60), pending()
    preempting.job_end(job, 60)  # its batch script ends a moment after the run
    assert not (directory / "next-job").is_symlink()
