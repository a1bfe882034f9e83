"""``hpcml sweep`` on a real Slurm: a crash, a cancelled job and the command again; every point is run once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Cluster
from lab_state import wait_for

pytestmark = pytest.mark.lab

SCRIPT = """
import argparse, socket, time
from pathlib import Path
import hpcml

parser = argparse.ArgumentParser()
parser.add_argument("--starts")
parser.add_argument("--k", type=int)
chosen = parser.parse_args()
with open(chosen.starts, "a") as starts:
    starts.write(f"{chosen.k}\\n")
client = hpcml.connect()
hosts = sorted(set(client.run(socket.gethostname).values()))
assert hosts == ["n1", "n2"], hosts
if chosen.k == 2:
    raise ValueError("two is no number of clusters here")
while chosen.k == 5 and not Path(chosen.starts).with_name("go").exists():
    time.sleep(0.05)
hpcml.run.report(loss=client.submit(abs, chosen.k - 4).result())
"""


def test_every_point_is_run_once(cluster: Cluster) -> None:
    script = cluster.write("sweep/train.py", SCRIPT)
    starts = script.with_name("starts")
    name = f"train-{cluster.work.name}"  # the points of an earlier session's sweep would not be run again
    words = ("train.py", "--name", name, "--nodes", "2", "--grid", "k=range(1,9)", "--", "--starts", str(starts))

    def sweep(*options: str) -> Any:
        done = cluster.run("hpcml", "sweep", *options, *words, cwd=script.parent)
        assert done.returncode in (0, 1), done.stderr
        return done

    def started() -> list[int]:
        return [int(line) for line in starts.read_text().split()] if starts.exists() else []

    first = Path(json.loads(sweep("--detach", "--json").stdout)["directory"])
    assert wait_for(lambda: started() == [1, 2, 3, 4, 5], 60, 0.1), started()
    said = sweep("--detach").stderr
    assert "8 points, 3 done, 1 failed, 4 under way, 0 to run" in said
    assert cluster.run("hpcml", "cancel", name).returncode == 0
    assert cluster.wait_status(first)["exit_status"] == 86
    cluster.wait_gone(first)

    script.with_name("go").touch()
    done = sweep("--wait")
    assert "8 points, 3 done, 1 failed, 4 to run" in done.stderr
    assert " node-h" in done.stderr
    assert done.returncode == 0
    assert started() == [1, 2, 3, 4, 5, 5, 6, 7, 8]  # only the one that was interrupted twice

    rows = json.loads(cluster.run("hpcml", "sweep", "table", name, "--json").stdout)
    assert [(row["values"]["k"], row["metrics"].get("loss"), row["state"]) for row in rows] == [
        ("4", 0, "ok"), ("3", 1, "ok"), ("5", 1, "ok"), ("6", 2, "ok"), ("1", 3, "ok"), ("7", 3, "ok"), ("8", 4, "ok"),
        ("2", None, "failed"),
    ]  # fmt: skip
    assert rows[-1]["cause"] == "ValueError: two is no number of clusters here (train.py:16)"
    assert len({row["run"] for row in rows}) == 2
    assert sweep("--wait", "--only-failed").returncode == 1
    assert started()[9:] == [2]


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
        return {row["values"]["k"]: row for row in found}

    done = sweep("--wait")
    assert done.returncode == 1, done.stdout + done.stderr
    before = rows()
    assert {k: (row["state"], row["kind"]) for k, row in before.items()} == {
        "1": ("ok", ""), "2": ("failed", "oom"), "3": ("failed", "oom"),
    }, before  # fmt: skip
    dry = sweep("--dry-run", "--only-failed=oom")
    assert "2 to run" in dry.stderr
    assert "memory of a node is raised from 900 MiB to 1.3 GiB" in dry.stderr
    assert "0 to run" in sweep("--dry-run", "--only-failed=node,timeout").stderr
    done = sweep("--wait", "--only-failed=oom")
    plan = json.loads(Path(rows()["2"]["out"]).parents[1].joinpath("plan.json").read_text())
    assert ["--mem", "1350M"] in plan["directives"]
    assert rows()["2"]["state"] == "ok", done.stdout + done.stderr


FAULTY = """
import socket, sys
from pathlib import Path
import hpcml

bad = Path(sys.argv[1])
if not bad.exists():
    bad.write_text(socket.gethostname())
if bad.read_text() == socket.gethostname():
    raise RuntimeError("cudaErrorECCUncorrectable: uncorrectable ECC error encountered")
hpcml.run.report(loss=1)
"""


def test_a_point_that_failed_by_its_node_s_fault_goes_elsewhere_unasked(cluster: Cluster) -> None:
    script = cluster.write("faulty/faulty.py", FAULTY)
    bad = script.with_name("bad")
    name = f"faulty-{cluster.work.name}"
    words = ("faulty.py", "--name", name, "--wait", "--nodes", "1", "--time", "3", "--grid", "k=1", "--", str(bad))
    first = cluster.run("hpcml", "sweep", *words, cwd=script.parent)
    assert first.returncode == 1, first.stdout + first.stderr
    again = cluster.run("hpcml", "sweep", *words, cwd=script.parent)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"without {bad.read_text()}, where points failed by the node's fault" in again.stderr
