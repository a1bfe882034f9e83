"""hpcml top on four nodes, while the run goes on and until it has ended."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from conftest import ALL_NODES, Cluster

pytestmark = pytest.mark.lab

WORKS = """
import time
import hpcml
client = hpcml.connect()
print(sum(client.gather(client.map(lambda number: number, range(40)))), flush=True)
deadline = time.monotonic() + 90
while not (hpcml.run.out / "seen").exists() and time.monotonic() < deadline:
    time.sleep(0.1)
print("that was all")
"""


def is_whole(view: dict[str, Any]) -> bool:
    """Whether each node has told of itself, and the scheduler of the tasks."""
    nodes = [node["name"] for node in view["nodes"] if node["cpu"] is not None and node["workers"] == 1]
    return nodes == list(ALL_NODES) and view["output"] == ["780"] and (view["work"] or {"done": 0})["done"] >= 40


def test_four_nodes_from_the_queue_to_the_end(cluster: Cluster) -> None:
    _, directory = cluster.detach(WORKS, "--nodes", "4")
    words = ["hpcml", "top", "--json", "--interval", "0.5s", directory.name]
    views = []
    with cluster.lab.popen(words, cwd=cluster.work, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            views.append(json.loads(line))
            if is_whole(views[-1]):
                (directory / "out/seen").touch()
    assert process.returncode == 0, views
    whole = [view for view in views if is_whole(view)]
    assert whole, views[-1]
    assert all(0 < node["memory"] < node["memory_size"] for node in whole[0]["nodes"])
    assert 0 < whole[0]["left"] < whole[0]["limit"]
    assert (views[-1]["over"], views[-1]["state"], views[-1]["output"]) == (True, "COMPLETED", ["780", "that was all"])
