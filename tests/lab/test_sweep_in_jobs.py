"""A sweep in several jobs on a real Slurm: a lost node, crashes, memory and Ctrl-C; no point is done twice."""

from __future__ import annotations

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
from test_losses import environment

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
if chosen.k >= 8:
    (chosen.folder / f"waits-{chosen.k}").touch()
    while not (chosen.folder / "go").exists():
        time.sleep(0.05)
time.sleep(0.2)
with open(chosen.folder / "ends", "a") as ends:
    ends.write(f"{chosen.k}\\n")
hpcml.run.report(loss=chosen.k)
"""
ONE = ("--nodes", "1", "--set", "workers.memory_limit=300M", "--set", "workers.restarts=9")


class Sweep:
    """The command in a folder of alice's, and what its points leave there."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name = f"wide{cluster.work.name[-6:]}"  # runs of other sessions stay in the lab
        self.folder = cluster.write(f"{self.name}/{self.name}.py", SCRIPT).parent

    def words(self, *options: str) -> list[str]:
        # Who waits for a lost job's points waits for a minute: no time limit may come near meanwhile.
        grid = ("--grid", "k=range(20)", "--", "--folder", str(self.folder))
        return ["hpcml", "sweep", *options, *ONE, "--time", "30", f"{self.name}.py", *grid]

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(*self.words(*options), cwd=self.folder, timeout=600)

    def lines(self, name: str) -> list[int]:
        path = self.folder / name
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def at_the_gate(self) -> bool:
        return len(self.lines("ends")) == 6 and len(list(self.folder.glob("waits-*"))) == 6

    def told(self, verb: str) -> Any:
        return json.loads(self.cluster.run("hpcml", "sweep", verb, self.name, "--json").stdout)


def living(cluster: Cluster, directory: Path) -> list[int]:
    """Return the processes of a run, also the forks that its points are."""
    run = str(directory)
    return [pid for pid, _ in cluster.lab.processes("alice") if environment(pid).get("HPCML_RUN_DIR") == run]


def test_twenty_points_with_all_that_goes_wrong(cluster: Cluster) -> None:
    sweep = Sweep(cluster)
    words = sweep.words("--wait", "--jobs", "3", "--at-once", "2", "--set", "workers.per_node=2")
    command = cluster.lab.popen(words, cwd=sweep.folder)
    try:
        assert wait_for(lambda: sweep.at_the_gate() or command.poll() is not None, 180, 0.1), sweep.lines("starts")
        assert command.poll() is None, command.communicate()
        os.killpg(command.pid, signal.SIGINT)
        _, said = command.communicate(timeout=PATIENCE * 60)
    finally:
        command.kill()
        command.communicate()
    assert command.returncode == 130, said
    again = sweep.run("--detach")
    assert again.returncode == 0, again.stderr
    assert "20 points, 6 done, 2 failed, 12 under way, 0 to run" in again.stderr, again.stderr
    runs = list(sweep.told("status")["runs"])
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
    rows = sweep.told("table")
    assert len(rows) == 20
    failed = {row["values"]["k"]: row["cause"] for row in rows if row["state"] == "failed"}
    assert failed[5].startswith("ValueError: five")
    assert "memory" in failed[6]
    assert Counter(row["state"] for row in rows) == {"ok": 18, "failed": 2}
    assert Counter(sweep.lines("ends")) == Counter(set(range(20)) - {5, 6}), "each once"
    assert len(sweep.lines("starts")) <= 20 + 2  # what the lost job had begun was begun again, and nothing else
    (sweep.folder / "mended").touch()
    done = sweep.run("--wait", "--only-failed")
    assert done.returncode == 0, done.stderr
    assert Counter(row["state"] for row in sweep.told("table")) == {"ok": 20}
