"""``--after`` on a real Slurm: a chain of runs, and one that can never start."""

from __future__ import annotations

import json

import pytest

from conftest import Cluster
from lab_state import wait_for

pytestmark = pytest.mark.lab

ONE = ("--nodes", "1", "--cpus-per-node", "2", "--memory-per-node", "900M")
WAITS = """
import sys, time
import hpcml
while not (hpcml.run.out / "stop").exists():
    time.sleep(0.05)
sys.exit(3)
"""


def test_runs_wait_for_one_that_fails(cluster: Cluster) -> None:
    job, first = cluster.detach(WAITS, *ONE, "--name", "first")
    _, plain = cluster.detach("pass\n", *ONE, "--name", "plain", "--dependency", f"afterok:{job}")
    _, well = cluster.detach("print('well')\n", *ONE, "--name", "well", "--after", "first")
    _, failed = cluster.detach("print('failed')\n", *ONE, "--name", "failed", "--after", "first:fail")
    _, last = cluster.detach("print('last')\n", *ONE, "--name", "last", "--after", "well:any", "--after", "failed")
    cluster.wait_event(first, "script-started", 60)

    def facts(run: str, command: str = "status") -> dict[str, object]:
        done = cluster.run("hpcml", command, run, "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    assert wait_for(lambda: facts(well.name)["message"] == f"waiting for {first.name} to succeed", 30), facts(well.name)
    cluster.run("touch", str(first / "out/stop"))
    assert cluster.wait_status(first)["exit_status"] == 3
    assert wait_for(lambda: facts(well.name)["state"] == "CANCELLED", 90), facts(well.name)
    why = facts(well.name, "why")
    assert why["rule"] == "dependency"
    assert (
        why["cause"]
        == f"the run never started: it waited for {first.name} to succeed, and that run exited with status 3"
    )
    for run in (failed, last):
        assert cluster.wait_status(run, 90)["exit_status"] == 0
    assert wait_for(lambda: bool(facts(plain.name, "why")["failed"]), 90), facts(plain.name, "why")
    why = facts(plain.name, "why")
    assert "never start" in str(why["cause"])
    assert "hpcml cancel" in str(why["next_step"])
    cluster.run("hpcml", "cancel", "plain")
    refused = cluster.run(*cluster.command("pass\n", *ONE, "--after", "first"))
    assert refused.returncode == 65, refused.stderr
    assert "exited with status 3" in refused.stderr
