"""Runs that go on until they are done, on a real Slurm: the next attempt waits in the queue, and is not left there."""

from __future__ import annotations

import json
import re

import pytest

from conftest import Cluster
from hpcml import errors
from lab_state import wait_for
from test_exit_status import CONNECT

pytestmark = pytest.mark.lab

# The sum of squares, three steps an attempt: the first ends at the margin before its time limit, killed in the middle of
# its last save, the second loses a node, and the third ends by itself.
SCRIPT = (
    CONNECT
    + """
import json
state = {"total": 0, "attempts": []}
if path := hpcml.run.saved("state.json"):
    state = json.loads(path.read_text())
attempt = hpcml.run.attempt
def write(path):
    path.write_text(json.dumps(state)[: 9 if stopping else None])
    if stopping:
        os.kill(os.getpid(), signal.SIGKILL)
def save():
    hpcml.run.save("state.json", write)
def on_stop():
    global stopping
    stopping = attempt == 0 and "killed" in sys.argv
    save()
def work(steps):
    global state
    for _ in range(steps):
        square = client.submit(pow, len(state["attempts"]), 2).result()
        state = {"total": state["total"] + square, "attempts": [*state["attempts"], attempt]}
stopping = False
hpcml.run.on_stop(on_stop)
work(2)
if attempt < 2:
    save()
work(1)
print("attempt", attempt, flush=True)
if attempt < 2:
    time.sleep(600)
print(json.dumps(state), flush=True)
"""
)
WHERE = ("--nodes", "2", "--nodelist", "n3,n4", "--cpus-per-node", "2", "--memory-per-node", "900M")


def queued(cluster: Cluster) -> list[str]:
    return cluster.run("squeue", "--me", "--noheader", "--format=%i %T %E").stdout.splitlines()


def set_state(cluster: Cluster, node: str, word: str) -> None:
    done = cluster.run(
        "scontrol", "update", f"nodename={node}", f"state={word}", "reason=test", user="root", node="ctl"
    )
    back = word == "resume" and "DOWN" not in cluster.run("scontrol", "show", "node", node).stdout  # by itself
    assert done.returncode == 0 or back, done.stderr


def test_attempts_until_it_is_done(cluster: Cluster) -> None:
    limits = ("--time", "10", "--set", "slurm.signal_lead=30s", "--until-done", "--max-node-hours", "3")
    first, directory = cluster.detach(SCRIPT, "--name", "goes-on", *WHERE, *limits, arguments=("killed",))
    run, log = directory.name, directory / "logs/script.log"
    assert wait_for(lambda: log.exists() and "attempt 0" in log.read_text(), 240), queued(cluster)
    cluster.limit(directory)
    assert wait_for(lambda: log.exists() and "attempt 1" in log.read_text(), 240), queued(cluster)
    assert sum("(Dependency)" in line or "afterany" in line for line in queued(cluster)) == 1
    status = json.loads(cluster.run("hpcml", "status", run, "--json").stdout)
    assert (status["state"], status["attempt"]) == ("RUNNING", 1)
    try:
        set_state(cluster, "n4", "down")
        assert wait_for((directory / "attempts/1/continue").exists, 60), log.read_text()
    finally:
        set_state(cluster, "n4", "resume")
    done = cluster.run("hpcml", "wait", run, timeout=600)
    assert done.returncode == 0, done.stderr
    ends = cluster.run("hpcml", "logs", run).stdout
    found = json.loads(ends.splitlines()[-1])
    # Of attempt 0 the whole checkpoint counts, and not the one in whose middle it was killed.
    done_by = found["attempts"]
    assert (done_by, done_by[-3:], done_by.count(0)) == (sorted(done_by), [2, 2, 2], 2)
    assert done_by.count(1) >= 2
    assert found["total"] == sum(step**2 for step in range(len(done_by)))
    job = str((directory / "job").readlink())
    assert cluster.job_end(job, 60)["JobState"] == "COMPLETED"
    assert not (directory / "next-job").is_symlink()
    assert wait_for(lambda: not queued(cluster), 30), queued(cluster)
    assert re.findall("(?m)^attempt [0-9]$", ends) == [f"attempt {number}" for number in range(3)]
    told = cluster.run("hpcml", "status", first).stdout  # by the job of its first attempt
    states = [("0", "TIMEOUT"), ("1", "NODE_FAIL")]
    assert re.findall(r"(?m)^before +attempt ([0-9]): .*, ([A-Z_]+): ", told) == states, told


def test_a_cancelled_run_leaves_nothing_in_the_queue(cluster: Cluster) -> None:
    _, directory = cluster.detach(SCRIPT, "--name", "given-up", "--time", "5", *WHERE, "--until-done")
    log = directory / "logs/script.log"
    assert wait_for(lambda: log.exists() and "attempt 0" in log.read_text(), 60)
    assert len(queued(cluster)) == 2
    assert cluster.run("hpcml", "cancel", "given-up").returncode == 0
    assert cluster.wait_status(directory)["exit_status"] == errors.CANCELLED
    assert wait_for(lambda: not queued(cluster), 60), queued(cluster)
    assert [path.name for path in (directory / "attempts").iterdir()] == ["0"]
    assert (directory / "checkpoints" / "state.json").exists()
