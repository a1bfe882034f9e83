"""A sweep in several jobs on a real Slurm: a lost node, crashes, memory and Ctrl-C; no point is done twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from conftest import Cluster
from lab_state import PATIENCE, wait_for
from test_attempts_on_nodes import set_state

pytestmark = pytest.mark.lab

SCRIPT = """
import argparse, time
from pathlib import Path
import hpcml

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path)
parser.add_argument("--k", type=int)
chosen = parser.parse_args()
with open(chosen.folder / "starts", "a") as starts:
    starts.write(f"{chosen.k}\\n")
if chosen.k == 5 and not (chosen.folder / "mended").exists():
    raise ValueError("five")
if chosen.k == 6 and not (chosen.folder / "mended").exists():
    eat = lambda: [(bytearray(10**7), time.sleep(.02)) for _ in range(10**4)]
    hpcml.connect().submit(eat).result()
if chosen.k >= GATE:
    (chosen.folder / f"waits-{chosen.k}").touch()
    while not (chosen.folder / "go").exists():
        time.sleep(0.05)
time.sleep(0.2)
with open(chosen.folder / "ends", "a") as ends:
    ends.write(f"{chosen.k}\\n")
hpcml.run.report(loss=chosen.k)
"""
GATE = 8  # the first point that waits for a file, where points do
ONE = ("--nodes", "1", "--set", "workers.memory_limit=300M", "--set", "workers.restarts=9")


class Sweep:
    """The command in a folder of alice's, and what its points leave there."""

    def __init__(self, cluster: Cluster, name: str, count: int, gate: int = 99) -> None:
        self.cluster, self.count = cluster, count
        self.name = name = f"{name}{cluster.work.name[-6:]}"  # runs of other sessions stay in the lab
        self.folder = cluster.write(f"{name}/{name}.py", SCRIPT.replace("GATE", str(gate))).parent

    def words(self, *options: str) -> list[str]:
        grid = ("--grid", f"k=range({self.count})", "--", "--folder", str(self.folder))
        # Who waits for a lost job's points waits for a minute: no time limit may come near meanwhile.
        return ["hpcml", "sweep", *options, *ONE, "--time", "30", f"{self.name}.py", *grid]

    def __call__(self, *options: str) -> Any:
        return self.cluster.run(*self.words(*options), cwd=self.folder, timeout=600)

    def lines(self, name: str) -> list[int]:
        path = self.folder / name
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def at_the_gate(self) -> bool:
        return len(self.lines("ends")) == GATE - 2 and len(list(self.folder.glob("waits-*"))) == 6

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            self.cluster.run("hpcml", "sweep", "table", self.name, "--json").stdout
        )
        return found

    def runs(self) -> list[str]:
        said = self.cluster.run("hpcml", "sweep", "status", self.name, "--json").stdout
        return list(json.loads(said)["runs"])


def living(cluster: Cluster, directory: Path) -> list[int]:
    """Return the processes of a run, also the forks that its points are."""
    found = []
    for pid, _ in cluster.lab.processes("alice"):
        with contextlib.suppress(OSError):  # it ends in this moment
            if f"HPCML_RUN_DIR={directory}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def test_twenty_points_with_all_that_goes_wrong(cluster: Cluster) -> None:
    sweep = Sweep(cluster, "wide", 20, GATE)
    words = sweep.words("--wait", "--jobs", "3", "--at-once", "2", "--set", "workers.per_node=2")
    command = cluster.lab.popen(words, cwd=str(sweep.folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert wait_for(lambda: sweep.at_the_gate() or command.poll() is not None, 180, 0.1), sweep.lines("starts")
        assert command.poll() is None, command.communicate()
        os.killpg(command.pid, signal.SIGINT)
        _, said = command.communicate(timeout=PATIENCE * 60)
    finally:
        command.kill()
        command.communicate()
    assert command.returncode == 130, said
    again = sweep("--detach")
    assert again.returncode == 0, again.stderr
    assert "20 points, 6 done, 2 failed, 12 under way, 0 to run" in again.stderr, again.stderr
    runs = sweep.runs()
    assert len(runs) == 3
    node = cluster.job(json.loads((cluster.directory(runs[1]) / "submission.json").read_text())["job"])["NodeList"]
    try:
        assert living(cluster, cluster.directory(runs[1]))
        set_state(cluster, node, "down")
        assert cluster.run("hpcml", "wait", runs[1], timeout=PATIENCE * 60).returncode != 0
        # Slurm gives the job up before the node has ended its processes; they would go on with the next point.
        assert wait_for(lambda: not living(cluster, cluster.directory(runs[1])), PATIENCE * 120, 0.1)
        (sweep.folder / "go").touch()
        ended = [cluster.run("hpcml", "wait", run, timeout=PATIENCE * 120).returncode for run in (runs[0], runs[2])]
    finally:
        set_state(cluster, node, "resume")
    assert set(ended) <= {0, 1}
    rows = sweep.rows()
    assert len(rows) == 20
    failed = {row["values"]["k"]: row["cause"] for row in rows if row["state"] == "failed"}
    assert failed["5"].startswith("ValueError: five")
    assert "memory" in failed["6"]
    assert Counter(row["state"] for row in rows) == {"ok": 18, "failed": 2}
    assert Counter(sweep.lines("ends")) == Counter(set(range(20)) - {5, 6}), "each once"
    assert len(sweep.lines("starts")) <= 20 + 2  # what the lost job had begun was begun again, and nothing else
    (sweep.folder / "mended").touch()
    done = sweep("--wait", "--only-failed")
    assert done.returncode == 0, done.stderr
    assert Counter(row["state"] for row in sweep.rows()) == {"ok": 20}


def test_two_jobs_inside_an_image(cluster: Cluster, image: Path) -> None:
    sweep = Sweep(cluster, "inside", 2)
    done = sweep("--jobs", "2", "--image", str(image), "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(sweep.lines("starts")) == sorted(sweep.lines("ends")) == [0, 1]
    for run in sweep.runs():
        plan = json.loads((cluster.directory(run) / "plan.json").read_text())
        assert plan["inside"]["job"]["image"] == str(image)
