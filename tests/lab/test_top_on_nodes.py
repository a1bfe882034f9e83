"""hpcml top on four nodes and from the laptop, while the run goes on and until it has ended."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import IO, Any

import pytest

import lab_ssh
from conftest import ALL_NODES, Cluster
from lab_state import PATIENCE
from laptop import Outside

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


def until(stream: IO[str], text: str, seconds: float) -> str:
    """Read what a terminal is sent until a text is in it; return all of it."""
    read, end = "", time.monotonic() + PATIENCE * seconds
    while text not in read and select.select([stream], [], [], max(0.0, end - time.monotonic()))[0]:
        if not (piece := os.read(stream.fileno(), 65536)):
            break
        read += piece.decode(errors="replace")
    assert text in read, read
    return read


def test_the_laptop_draws_a_run_of_the_cluster(outside: Outside) -> None:
    script = outside.home / "work.py"
    outside.on(lab_ssh.LAPTOP, "tee", str(script), input=WORKS)
    words = ["hpcml", "--host", "lab", "submit", "--nodes", "2", "--detach", "--json", str(script)]
    done = outside.lab.exec(words, node=lab_ssh.LAPTOP)
    assert done.returncode == 0, done.stderr
    directory = Path(json.loads(done.stdout)["directory"])
    typed = f"stty columns 80 rows 24; hpcml --host lab top --interval 0.5s {directory.name}; echo status $?"
    environment = {"TERM": "xterm-256color"}
    with outside.lab.popen(["script", "-qec", typed, "/dev/null"], node=lab_ssh.LAPTOP, env=environment) as process:
        assert process.stdout is not None
        shown = until(process.stdout, "780", 60)
        assert "\x1b[?1049h" in shown
        (directory / "out/seen").touch()
        rest = until(process.stdout, "status ", 60) + process.communicate(timeout=PATIENCE * 30)[0]
    final = rest.rpartition("\x1b[?1049l")[2].splitlines()
    assert final[0].startswith(directory.name)
    assert final[1].startswith("COMPLETED the script ended with exit status 0, after ")
    assert any(line.split()[:1] == ["n1"] for line in final)
    assert final[-2:] == ["          that was all", "status 0"]
