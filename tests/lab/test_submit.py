"""The user's path on a real Slurm: submit, watch, look, and the same result as on a laptop."""

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
from conftest import Cluster, clean, directory_of
from lab_state import PATIENCE, wait_for
from terminals import Terminal

pytestmark = pytest.mark.lab


# What `--site local` gives; the data are a function of the seed.
SIZES = [6112, 6254, 6250, 6267, 6252, 6251, 6244, 6370]
CENTRES = [-2.06888, -9.99298, -9.43981, -1.57229, -7.05692, -5.89702, -6.27260, -1.69474]


@pytest.mark.beside
def test_kmeans_gives_the_laptop_s_result(cluster: Cluster) -> None:
    """`hpcml submit --nodes 4 --wait jobs/kmeans.py --k 8`, with the same figures."""
    folder = cluster.run("python", "-c", "from hpcml import assets; print(assets.folder('jobs'))").stdout.strip()
    done = cluster.run(
        "hpcml", "submit", "--nodes", "4", *PART, "--wait", f"{folder}/kmeans.py", "--k", "8", timeout=300
    )
    assert done.returncode == 0, done.stderr + done.stdout
    out = directory_of(done) / "out"
    assert (out / "kmeans.png").stat().st_size > 10_000
    result = json.loads((out / "result.json").read_text())
    assert result["sizes"] == SIZES
    assert [centre[0] for centre in result["centres"]] == pytest.approx(CENTRES, rel=1e-4)


# -- one run that goes on while it is looked at ---------------------------------------------------------------------

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
    """A run on n1 and n2: its job, its directory, and what its submission showed on a terminal until Ctrl-C."""

    job: str
    directory: Path
    shown: str


@pytest.fixture(scope="module")
def staying(cluster: Cluster) -> Iterator[Staying]:
    command = shlex.join(cluster.command(STAYS, *SMALL, "--name", "staying"))
    with Terminal(cluster.lab, command, cwd=cluster.work) as terminal:
        terminal.shown("started\n")
        terminal.type("\x03")
        assert terminal.ended() == 130, terminal.text
    directory = cluster.directory("staying")
    yield Staying(json.loads((directory / "submission.json").read_text())["job"], directory, terminal.text)
    clean(cluster)


@pytest.fixture(autouse=True)
def _clean(cluster: Cluster) -> Iterator[None]:
    """Override: the run outlives a test."""
    yield
    cluster.cancel_own()


def test_ctrl_c_detaches_and_the_run_goes_on(cluster: Cluster, staying: Staying) -> None:
    assert "Detached; the run continues" in staying.shown
    assert "\x1b[K" in staying.shown
    comments = cluster.run("squeue", "--me", "--noheader", "--format=%i|%k|%T").stdout
    assert f"{staying.job}|hpcml:{staying.directory.name}|RUNNING" in comments


def test_a_shell_on_each_node(cluster: Cluster, staying: Staying) -> None:
    wrong = cluster.run("hpcml", "shell", staying.job)
    assert wrong.returncode == 64
    assert "needs a terminal" in wrong.stderr
    with contextlib.ExitStack() as stack:
        lines = {node: f"hpcml shell {staying.job} {node}" for node in ("n1", "n2")}
        shells = {
            node: stack.enter_context(Terminal(cluster.lab, line, cwd=cluster.work)) for node, line in lines.items()
        }
        for shell in shells.values():
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
        assert "(all other lines come from the run's own files)" in done.stdout
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
