"""The user's path on a real Slurm: a run that goes on while it is looked at."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from beside import PART, SMALL
from conftest import Cluster, clean
from lab_state import PATIENCE, wait_for
from terminals import Terminal

pytestmark = pytest.mark.lab

STAYS = """
import os, time
import hpcml
client = hpcml.connect()
print("started", flush=True)
while not (hpcml.run.out / "go").exists():
    time.sleep(0.1)
tasks = client.map(time.sleep, [600] * 8)
while not any(client.processing().values()):
    time.sleep(0.05)
print("done", flush=True)
os._exit(0)
"""
TALK = (
    "echo on-$(hostname); python -c 'from distributed import Client; c = Client(); "
    "print(c.scheduler.address[:6], 6 * c.submit(sum, [3, 4]).result())'; exit 5\n"
)


class Staying(NamedTuple):
    """A run on n1 and n2: its job and its directory."""

    job: str
    directory: Path


@pytest.fixture(scope="module")
def staying(cluster: Cluster) -> Iterator[Staying]:
    """Ctrl-C detaches its submission, and the run goes on."""
    command = shlex.join(cluster.command(STAYS, *SMALL, "--name", "staying"))
    with Terminal(cluster.lab, command, cwd=cluster.work) as terminal:
        terminal.shown("started\n")
        terminal.type("\x03")
        assert terminal.ended() == 130, terminal.text
    assert "Detached; the run continues" in terminal.text
    directory = cluster.directory("staying")
    yield Staying(json.loads((directory / "submission.json").read_text())["job"], directory)
    clean(cluster)


@pytest.fixture(autouse=True)
def _clean(cluster: Cluster) -> Iterator[None]:
    """Override: the run outlives a test."""
    yield
    cluster.cancel_own()


def test_a_shell_on_each_node(cluster: Cluster, staying: Staying) -> None:
    wrong = cluster.run("hpcml", "shell", staying.job)
    assert (wrong.returncode, "needs a terminal" in wrong.stderr) == (64, True)
    with contextlib.ExitStack() as stack:
        shells = {}
        for node in ("n1", "n2"):
            shell = Terminal(cluster.lab, f"hpcml shell {staying.job} {node}", cwd=cluster.work)
            shells[node] = stack.enter_context(shell)
            shell.shown("$ ")
            shell.type(TALK)
        for node, shell in shells.items():
            shell.shown(f"on-{node}\n")
            shell.shown("\ntls:// 42\n")
            shell.ended()
    assert "has no node" in cluster.run("script", "-qec", f"hpcml shell {staying.job} n4", "/dev/null").stdout


def test_a_controller_that_falls_silent(cluster: Cluster, staying: Staying) -> None:
    """While slurmctld hangs, a run is shown without it. A job that it makes after sbatch has given up runs once."""

    def asks() -> bool:
        return any("sbatch" in line.split()[0] for _, line in cluster.lab.processes("alice"))

    pid = cluster.lab.state().daemons["slurmctld"].pid
    command = cluster.command("print('ran once')\n", "--nodes", "1", *PART, "--wait", "--name", "silent")
    os.kill(pid, signal.SIGSTOP)
    try:
        process = cluster.lab.popen(command, cwd=cluster.work)
        assert wait_for(asks, 60)
        asked = [["hpcml", "status", staying.job], ["hpcml", "ls", "--json", "--name", "staying"]]
        done, listed = cluster.run_together(asked, timeout=200)  # both wait for Slurm's own time limit
        assert done.returncode == 0, done.stderr
        assert "state      RUNNING: the script runs" in done.stdout
        assert "nodes      n1, n2" in done.stdout
        assert "come from the run's own files)" in done.stdout
        row = json.loads(listed.stdout)[-1]
        assert (row["run"], row["state"]) == (staying.directory.name, "RUNNING")
        assert row["silent"]
        assert wait_for(lambda: not asks(), 60)
        assert process.poll() is None
    finally:
        os.kill(pid, signal.SIGCONT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "ran once" in out
    assert "found the job by the job's comment" in err
    comments = cluster.run("squeue", "--me", "--noheader", "--states=all", "--format=%k").stdout
    assert comments.count("hpcml:silent") == 1
    assert "own files" not in cluster.run("hpcml", "status", staying.job).stdout


def test_logs_follow_until_the_end_which_running_tasks_do_not_hold_up(cluster: Cluster, staying: Staying) -> None:
    worker = cluster.run("hpcml", "logs", staying.job, "worker")
    assert "==> worker-n1.log <==" in worker.stdout
    assert "Registered to" in worker.stdout
    follow = cluster.lab.popen(["hpcml", "logs", "-f", staying.job], cwd=cluster.work)
    assert follow.stdout is not None
    assert follow.stdout.readline() == "started\n"
    cluster.run("touch", str(staying.directory / "out/go"))
    out, err = follow.communicate(timeout=PATIENCE * 60)
    assert (out, cluster.wait_status(staying.directory)["exit_status"]) == ("done\n", 0), err
    cluster.wait_gone(staying.directory)
