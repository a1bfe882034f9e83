"""Runs that go on until they are done, on a real Slurm: the next attempt waits in the queue, and is not left there."""

from __future__ import annotations

import json
import subprocess

import pytest

from conftest import Cluster
from hpcml import errors
from lab_state import wait_for
from test_exit_status import CONNECT

pytestmark = pytest.mark.lab

# The first attempt ends at the margin before its time limit, the second with a node, the third by itself.
SCRIPT = (
    CONNECT
    + """
import json
state = {"sum": 0, "attempts": []}
if path := hpcml.run.saved("state.json"):
    state = json.loads(path.read_text())
save = lambda: hpcml.run.save("state.json", lambda path: path.write_text(json.dumps(state)))
hpcml.run.on_stop(save)
total = client.submit(sum, range(100)).result()
state = {"sum": state["sum"] + total, "attempts": [*state["attempts"], hpcml.run.attempt]}
if hpcml.run.attempt:
    save()
print("attempt", hpcml.run.attempt, flush=True)
if hpcml.run.attempt < 2:
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


def test_three_attempts_of_which_one_loses_a_node(cluster: Cluster) -> None:
    limits = ("--time", "1", "--set", "slurm.signal_lead=30s", "--until-done", "--max-node-hours", "1")
    command = cluster.command(SCRIPT, "--wait", "--name", "goes-on", *WHERE, *limits)
    waiting = cluster.lab.popen(command, cwd=str(cluster.work), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert wait_for(lambda: "goes-on" in cluster.run("hpcml", "ls").stdout, 60)
        directory = cluster.directory("goes-on")
        log = directory / "logs/driver.log"
        assert wait_for(lambda: log.exists() and "attempt 1" in log.read_text(), 180), queued(cluster)
        assert sum("(Dependency)" in line or "afterany" in line for line in queued(cluster)) == 1
        status = json.loads(cluster.run("hpcml", "status", "goes-on", "--json").stdout)
        assert (status["state"], status["attempt"]) == ("RUNNING", 1)
        try:
            set_state(cluster, "n4", "down")
            first = (directory / "job").readlink()
            assert wait_for(lambda: (directory / "job").readlink() != first or "PENDING" in str(queued(cluster)), 60)
        finally:
            set_state(cluster, "n4", "resume")
        out, err = waiting.communicate(timeout=180)
    finally:
        waiting.kill()
        waiting.communicate()
        cluster.run("scancel", "--quiet", "--me", "--name", "goes-on")
    assert waiting.returncode == 0, err
    found = json.loads(out.splitlines()[-1])
    assert found == {"sum": 3 * 4950, "attempts": [0, 1, 2]}
    job = str((directory / "job").readlink())
    assert cluster.job(job)["JobState"] == "COMPLETED"
    assert not (directory / "next-job").is_symlink()
    assert wait_for(lambda: not queued(cluster), 30), queued(cluster)
    ends = cluster.run("hpcml", "logs", "goes-on").stdout
    assert [line for line in ends.splitlines() if line.startswith("attempt ")] == [
        "attempt 0",
        "attempt 1",
        "attempt 2",
    ]
    assert "COMPLETED" in cluster.run("hpcml", "ls", "--name", "goes-on").stdout


def test_a_cancelled_run_leaves_nothing_in_the_queue(cluster: Cluster) -> None:
    _, directory = cluster.detach(SCRIPT, "--name", "given-up", "--time", "5", *WHERE, "--until-done")
    log = directory / "logs/driver.log"
    assert wait_for(lambda: log.exists() and "attempt 0" in log.read_text(), 60)
    assert len(queued(cluster)) == 2
    assert cluster.run("hpcml", "cancel", "given-up").returncode == 0
    assert cluster.wait_status(directory)["exit_status"] == errors.CANCELLED
    assert wait_for(lambda: not queued(cluster), 60), queued(cluster)
    assert [path.name for path in (directory / "attempts").iterdir()] == ["0"]
    assert (directory / "checkpoints" / "state.json").exists()
