"""Preemption on a real Slurm: told as that, and no end of a run whose job goes back into the queue."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from conftest import Cluster, directory_of
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
RANKS = """
import json, time
import hpcml
path = hpcml.run.saved("state.json")
state = [*(json.loads(path.read_text()) if path else []), hpcml.run.attempt]
hpcml.run.on_stop(lambda: hpcml.run.save("state.json", lambda path: path.write_text(json.dumps(state))))
print("attempt", hpcml.run.attempt, flush=True)
if hpcml.run.attempt < 1:
    time.sleep(600)
print(json.dumps(state), flush=True)
"""
STARTED: list[subprocess.Popen[str]] = []
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


@pytest.fixture(autouse=True)
def _none_is_left() -> Iterator[None]:
    """After each test, also one that failed: no command is left that waits for a run."""
    yield
    while STARTED:
        waiting = STARTED.pop()
        if waiting.poll() is None:
            waiting.kill()
            waiting.communicate()


def start(cluster: Cluster, name: str, *options: str, script: str = SCRIPT) -> subprocess.Popen[str]:
    """Start a run that is waited for, and return when its script runs."""
    command = cluster.command(script, "--wait", "--nodes", "2", "--time", "10", "--name", name, *options)
    waiting = cluster.lab.popen(command, cwd=str(cluster.work), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    STARTED.append(waiting)
    until(lambda: "RUNNING: the script runs" in cluster.run("hpcml", "status", name).stdout, waiting)
    return waiting


def until(
    condition: Callable[[], bool], waiting: subprocess.Popen[str], shown: Callable[[], str] = str, seconds: float = 180
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


def printed(text: str) -> list[str]:
    """Return what the script printed: without Slurm's own lines, which say that it ends a step."""
    return [line for line in text.splitlines() if " error: *** " not in line]


def ended(waiting: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = waiting.communicate(timeout=360)
    return subprocess.CompletedProcess([], waiting.returncode, out, err)


def test_preempted_runs_are_told_as_that(preempting: Cluster) -> None:
    """With a grace time only the steps get a signal, and no log says why."""
    names = {f"gives-way-{partition}": partition for partition in ("low", "grace")}
    waiting = [start(preempting, name, "--partition", partition) for name, partition in names.items()]
    take_the_nodes(preempting)
    for name, done in zip(names, map(ended, waiting), strict=True):
        assert done.returncode == errors.PREEMPTED, done.stderr
        assert "the job was preempted" in done.stderr
        assert "cancelled" not in done.stderr.replace("CANCELLED", "")
        found = json.loads((directory_of(done) / "status.json").read_text())
        assert (found["exit_status"], found["by"]) == (errors.PREEMPTED, "scheduler")
        assert "preempted" in preempting.run("hpcml", "status", name).stdout


def test_a_long_run_that_is_put_back(preempting: Cluster) -> None:
    """By the user, by a preemption with a grace time: the same job goes on, and the one that waits waits on."""
    options = ("--partition", "later", "--set", 'slurm.extra=["--requeue"]', "--until-done")
    waiting = start(preempting, "goes-on", *options, script=LONG)
    directory = preempting.directory("goes-on")
    log, jobs = directory / "logs/driver.log", []

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
        until(lambda: [job, "PENDING"] in pending(), waiting, lambda: str(pending()))
        jobs += sorted(pending())
        facts = json.loads(preempting.run("hpcml", "status", "goes-on", "--json").stdout)
        assert (facts["state"], facts["exit_status"]) == ("PENDING", None)
        assert facts["message"].startswith("Slurm requeued the job: ")
        listed = preempting.run("hpcml", "ls").stdout.splitlines()
        assert any("goes-on" in line and "PENDING" in line for line in listed), listed
        # Slurm lets a job that was put back wait for two minutes; one that starts in the second of its end is killed.
        preempting.run("scontrol", "update", f"jobid={job}", "StartTime=now+3seconds")
    done = ended(waiting)
    assert done.returncode == 0, done.stderr + (directory / "logs/job.log").read_text()
    assert "Slurm requeued the job" in done.stderr
    assert done.stderr.count("✓ script     the script runs") == 3
    assert jobs[:2] == jobs[2:], jobs  # this one, and one that waits for its end
    by = sorted([*range(3)] * 3)
    assert json.loads(done.stdout.splitlines()[-1]) == {"total": 204, "attempts": by}
    told = [line for line in log.read_text().splitlines() if line.startswith("attempt")]
    assert told == [f"attempt {attempt}" for attempt in range(3)]
    assert printed(preempting.run("hpcml", "logs", "goes-on", "--attempt", "2").stdout) == ["attempt 1"]
    assert not (directory / "next-job").is_symlink()
    assert wait_for(lambda: not pending(), 60), pending()


def test_ranks_that_are_preempted_save_and_go_on(preempting: Cluster) -> None:
    options = ("--ranks", "1", "--partition", "later", "--set", 'slurm.extra=["--requeue"]', "--until-done")
    waiting = start(preempting, "ranks-go-on", *options, script=RANKS)
    directory = preempting.directory("ranks-go-on")
    until(lambda: preempting.run("hpcml", "logs", "ranks-go-on", "rank").stdout.count("attempt 0") == 2, waiting)
    take_the_nodes(preempting)
    until(lambda: "PENDING" in preempting.run("hpcml", "status", "ranks-go-on").stdout, waiting)
    preempting.run("scontrol", "update", f"jobid={(directory / 'job').readlink()}", "StartTime=now+3seconds")
    done = ended(waiting)
    assert done.returncode == 0, done.stderr + (directory / "logs/job.log").read_text()
    assert "Slurm requeued the job" in done.stderr
    logs = preempting.run("hpcml", "logs", "ranks-go-on", "rank").stdout
    assert logs.count("[0, 1]") == 2, logs
