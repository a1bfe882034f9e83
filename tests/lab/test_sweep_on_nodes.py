"""``hpcml sweep`` on a real Slurm: what the kernel killed for want of memory gets more the next time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Cluster

pytestmark = pytest.mark.lab

GREEDY = """
import sys
import hpcml

client = hpcml.connect()
if sys.argv[-1] == "2":
    kept = bytearray(b"x") * (850 << 20)
if sys.argv[-1] == "3":
    client.submit(lambda: len(bytearray(b"x") * (850 << 20))).result()
hpcml.run.report(loss=int(sys.argv[-1]))
"""


def test_what_failed_for_want_of_memory_gets_more(cluster: Cluster) -> None:
    """A script that is killed, and a worker that is ended, on 900 MiB; both have half as much again the next time."""
    if "cgroup" not in str(cluster.lab.state()):
        pytest.skip("the lab cannot enforce memory limits through cgroup v1 on this machine")
    script = cluster.write("greedy/greedy.py", GREEDY)
    name = f"greedy-{cluster.work.name}"
    words = ("greedy.py", "--name", name, "--nodes", "1", "--time", "10", "--memory-per-node", "900M",
             "--set", "workers.restarts=9", "--grid", "k=1,2,3")  # fmt: skip

    def sweep(*options: str) -> Any:
        return cluster.run("hpcml", "sweep", *options, *words, cwd=script.parent)

    def rows() -> dict[str, dict[str, Any]]:
        found = json.loads(cluster.run("hpcml", "sweep", "table", name, "--json").stdout)
        return {row["texts"]["k"]: row for row in found}

    done = sweep("--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    before = rows()
    assert {k: (row["state"], row["kind"]) for k, row in before.items()} == {
        "1": ("ok", ""), "2": ("failed", "oom"), "3": ("failed", "oom"),
    }, before  # fmt: skip
    done = sweep("--wait", "--only-failed=oom")
    plan = json.loads(Path(rows()["2"]["out"]).parents[1].joinpath("plan.json").read_text())
    assert ["--mem", "1350M"] in plan["directives"]
    assert rows()["2"]["state"] == "ok", done.stdout + done.stderr
