"""hpcml gc and ls beside a real Slurm: what it knows of is not removed, and states are its words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from conftest import Cluster
from lab_state import wait_for

pytestmark = pytest.mark.lab


def test_a_run_that_slurm_still_has_is_not_removed(cluster: Cluster) -> None:
    folder = cluster.work / "gc-runs"
    there = ("--set", f"paths.runs={folder}")
    ended = cluster.submit("raise SystemExit(3)\n", "--name", "ended", *there)
    assert ended.code == 3, ended.err
    waiting = cluster.run(
        *cluster.command("print(1)\n", "--name", "waiting", "--begin", "now+1hour", "--detach", *there)
    )
    assert waiting.returncode == 0, waiting.stderr
    try:
        listed = json.loads(cluster.run("hpcml", "ls", "--json", *there).stdout)
        assert [(row["run"][:5], row["state"]) for row in listed] == [("ended", "FAILED"), ("waiti", "PENDING")]
        assert listed[0]["seconds"] is not None
        assert [row["run"] for row in json.loads(cluster.run("hpcml", "ls", "--failed", "--json", *there).stdout)] == [
            ended.directory.name
        ]
        gone: dict[str, Any] = {}

        def removed() -> bool:  # its job is completing for some seconds
            done = cluster.run("hpcml", "gc", "--keep", "0", "--yes", "--json", *there)
            assert done.returncode == 0, done.stderr
            gone.update(json.loads(done.stdout))
            return bool(gone["removed"])

        assert wait_for(removed, 30), gone
        assert (gone["removed"], len(gone["staying"])) == ([ended.directory.name], 1)
        assert cluster.run("ls", "-A", str(folder)).stdout.split() == gone["staying"]
    finally:
        assert cluster.run("hpcml", "cancel", "--all", "--yes", *there).returncode == 0
