"""Fifty runs in one hold, twenty of which fail in all ways, and what is left of them: `make test-slurms` names this file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Cluster
from hpcml import errors
from lab_state import wait_for
from test_hold_on_nodes import started

pytestmark = pytest.mark.lab

ASKED = "--nodes 2 --nodelist n1,n2 --cpus-per-node 8 --mem 3200M --time 2h --idle off"
PART = ("--cpus-per-node", "2", "--memory-per-node", "800M")
WELL = 30
COMMON = """
import os, signal, socket, subprocess, sys, tempfile, threading, time
subprocess.Popen(["setsid", "sleep", "4321"])  # it leaves the script's group and session
print("at", os.environ["SLURM_CPUS_PER_TASK"], flush=True)
"""
FAILS: list[tuple[str, int | None]] = [
    ("sys.exit(3)", 3),
    ("sys.exit('no')", 1),
    ("raise ValueError('no')", 1),
    ("__import__('no_such_module_of_mine')", 1),
    ("os._exit(9)", 9),
    ("os.abort()", 128 + 6),
    ("os.kill(os.getpid(), signal.SIGSEGV)", 128 + 11),
    ("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9),
    ("os.kill(os.getpid(), signal.SIGTERM)", 128 + 15),
    ("os.kill(os.getpid(), signal.SIGHUP)", 128 + 1),
    ("os.kill(os.getpid(), signal.SIGFPE)", 128 + 8),
    ("os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)", None),  # its supervisor
    ("os.close(1); os.close(2); sys.exit(11)", 11),
    ("threading.Thread(target=time.sleep, args=(1,)).start(); sys.exit(12)", 12),
    ("socket.create_server(('127.0.0.1', 23457)); sys.exit(13)", 13),
    ("subprocess.run(['sh', '-c', 'sleep 600 & exit 14'], check=True)", 1),
    ("import ctypes; ctypes.string_at(0)", 128 + 11),
    ("sys.setrecursionlimit(10**6); f = lambda: f(); signal.alarm(1); time.sleep(60)", 128 + 14),
    ("import hpcml; hpcml.connect().submit(os._exit, 5).result()", None),  # each worker that gets the task dies
    ("time.sleep(600)", errors.TIME_LIMIT),  # by --time
]


@pytest.fixture(scope="module")
def hold(cluster: Cluster) -> Iterator[Path]:
    directory = started(cluster, *ASKED.split())
    yield directory
    cluster.run("hpcml", "cancel", directory.name)
    assert cluster.wait_status(directory, 90)["exit_status"] == errors.CANCELLED


def left(cluster: Cluster, hold: Path) -> dict[str, object]:
    """Return what the nodes have of alice's: files, ports, processes, steps, and open files of the hold's supervisor."""
    nodes = ("n1", "n2")
    supervisors = [pid for pid, line in cluster.lab.processes("alice") if line.endswith("hpcml.kinds supervisor") and "step.sh" not in line]  # fmt: skip
    return {
        "files": [cluster.run("sh", "-c", "ls -A /tmp /dev/shm", node=node).stdout for node in nodes],
        "ports": [cluster.run("sh", "-c", "grep -c ' 0A ' /proc/net/tcp", node=node).stdout for node in nodes],
        "processes": sorted(line for _, line in cluster.lab.processes("alice") if hold.name not in line),
        "steps": cluster.run("squeue", "--steps", "--me", "--noheader", "--format=%i").stdout.split(),
        "open": [len(os.listdir(f"/proc/{pid}/fd")) for pid in supervisors],
        "entries": [str(path.name) for path in (hold / "hold").rglob("*") if path.is_file()],
    }


def test_nothing_is_left_of_fifty_runs(cluster: Cluster, hold: Path) -> None:
    """Up to eight are beside each other, four on a node."""
    first = cluster.run("hpcml", "run", "--in", hold.name, *cluster.command("print('well')")[2:])
    assert first.stdout == "well\n", first.stderr
    before = left(cluster, hold)
    texts = [(f"{COMMON}{text}\n", status) for text, status in FAILS]
    texts += [(f"{COMMON}{'time.sleep(0.2)' if number % 3 else ''}\n", 0) for number in range(WELL)]
    order = [texts[number * 7 % len(texts)] for number in range(len(texts))]
    runs: list[tuple[Path, int | None]] = []
    for number, (text, status) in enumerate(order):
        script = cluster.write(f"one{number}.py", text)
        limit = ["--time", "20s"] if status == errors.TIME_LIMIT else []
        words = ["hpcml", "run", "--in", hold.name, "--detach", "--json", *PART, *limit, str(script)]
        done = cluster.run(*words)
        assert done.returncode == 0, done.stderr
        runs.append((Path(json.loads(done.stdout)["directory"]), status))
    assert wait_for(lambda: not any((hold / "hold").rglob("one*")), 240)
    for directory, status in runs:
        found = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)["exit_status"]
        log = (directory / "logs/script.log").read_text()
        assert found == status if status is not None else found, (found, status, directory.name, log)
    facts = json.loads(cluster.run("hpcml", "status", hold.name, "--json").stdout)
    assert (facts["state"], facts["runs_ended"]) == ("RUNNING", len(runs) + 1)
    assert wait_for(lambda: left(cluster, hold) == before, 60), (before, left(cluster, hold))
