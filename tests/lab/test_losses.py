"""Parts of a run that are killed or stopped while it goes on: nobody computes unseen, nothing waits for ever."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from beside import SMALL
from conftest import ALL_NODES, Cluster
from hpcml import errors
from lab_state import wait_for

pytestmark = [pytest.mark.lab, pytest.mark.beside]

TWO_BY_TWO = (*SMALL, "--set", "workers.per_node=2")
WAITS = "import hpcml, time\nclient = hpcml.connect()\nprint('waiting', flush=True)\ntime.sleep(300)\n"
ALL_AGAIN = """
import hpcml, os, time
client = hpcml.connect()
before = set(client.scheduler_info()['workers'])
print('waiting', flush=True)
while not (hpcml.run.out / 'killed').exists():
    time.sleep(0.1)
deadline = time.monotonic() + 90
while len(now := set(client.scheduler_info()['workers'])) < 4 or len(now - before) < 2:
    assert time.monotonic() < deadline, client.scheduler_info()
    time.sleep(0.2)
print(sum(client.gather(client.map(lambda x: x, range(100)))))
"""


def environment(pid: int) -> dict[str, str]:
    """Return a process's environment, empty if it has gone."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(word.split("=", 1) for word in words if "=" in word)


def name(pid: int) -> str:
    """Return what ps calls a process, empty if it has gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def roles(cluster: Cluster, directory: Path, role: str, node: str) -> list[int]:
    """Return the pids of a run's role on a node; of the worker role these are the task, first, and its workers."""
    found = [pid for pid, line in cluster.processes() if line.endswith(f"hpcml.node {role}") and "step.sh" not in line]
    found = [pid for pid in found if name(pid) != "hpcml-sampler"]  # a child of the task that is no worker
    mine = {"SLURMD_NODENAME": node, "HPCML_RUN_DIR": str(directory)}
    return sorted(pid for pid in found if mine.items() <= environment(pid).items())


def step(cluster: Cluster, directory: Path, role: str) -> int:
    """Return the pid of the srun of a role's step."""
    assert wait_for(lambda: bool(roles(cluster, directory, "driver", "n1")), 30)
    words = environment(roles(cluster, directory, "driver", "n1")[0])["HPCML_STEPS"].split()
    return int(words[("scheduler", "worker").index(role)])


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def output(directory: Path) -> str:
    """Return what the script printed, then what hpcml said beside it."""
    return "".join((directory / "logs" / name).read_text() for name in ("driver.log", "job.log"))


def start(cluster: Cluster, text: str, *options: str) -> Path:
    """Submit, and return the run's directory when its script has connected."""
    _, directory = cluster.detach(text, *options)
    cluster.wait_event(directory, "driver-started", 60)
    assert wait_for(lambda: "waiting" in output(directory), 30), output(directory)
    return directory


def test_a_worker_task_that_is_killed_comes_back_with_its_workers(cluster: Cluster) -> None:
    directory = start(cluster, ALL_AGAIN, *TWO_BY_TWO)
    task, *workers = roles(cluster, directory, "worker", "n2")
    assert len(workers) == 2
    os.kill(task, signal.SIGKILL)
    assert wait_for(lambda: not set(workers) & set(roles(cluster, directory, "worker", "n2")), 10), "orphans compute on"
    cluster.run("touch", str(directory / "out/killed"))
    assert cluster.wait_status(directory, 120)["exit_status"] == 0, output(directory)
    assert cluster.wait_event(directory, "worker-task-killed")["node"] == "n2"
    assert output(directory).count("n2: the worker task was killed (exit status 137); it is started again") == 1
    assert "4950" in output(directory)


@pytest.mark.parametrize("on_loss", ["continue", "fail"])
def test_a_worker_task_that_cannot_come_back_is_lost(cluster: Cluster, on_loss: str) -> None:
    directory = start(
        cluster, WAITS, *TWO_BY_TWO, "--set", "workers.restarts=0", "--set", f"workers.on_loss={on_loss}",
        "--name", f"loses-{on_loss}",
    )  # fmt: skip
    os.kill(roles(cluster, directory, "worker", "n2")[0], signal.SIGKILL)
    assert cluster.wait_event(directory, "workers-lost")["workers"] == ["n2-0", "n2-1"]
    said = "n2 lost 2 workers for good: the worker task ended with exit status 137 (killed by SIGKILL); 2 of 4 workers are left."
    if on_loss == "fail":
        status = cluster.wait_status(directory)
        assert (status["exit_status"], status["warnings"]) == (errors.ROLE_LOST, [said])
        assert "n2: the worker task ended with exit status 137" in status["message"]
    else:
        assert wait_for(lambda: said in output(directory), 10)
        shown = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
        assert (shown["state"], shown["workers"], shown["warnings"]) == ("RUNNING", 2, [said])
        assert f"warning    {said}" in cluster.run("hpcml", "status", directory.name).stdout
    assert output(directory).count(said) == 1


def test_a_worker_task_that_is_stopped_goes_on(cluster: Cluster) -> None:
    directory = start(cluster, WAITS, *TWO_BY_TWO)
    task = roles(cluster, directory, "worker", "n2")[0]
    os.kill(task, signal.SIGSTOP)
    assert cluster.wait_event(directory, "worker-task-stopped", 60)["node"] == "n2"
    assert state(task) != "T"
    assert wait_for(lambda: "n2: the worker task was stopped (SIGSTOP)" in output(directory), 10)


def test_the_step_of_the_workers_is_gone_while_the_script_runs(cluster: Cluster) -> None:
    directory = start(cluster, WAITS, *TWO_BY_TWO)
    os.kill(step(cluster, directory, "worker"), signal.SIGKILL)
    status = cluster.wait_status(directory, 60)
    assert status["exit_status"] == errors.ROLE_LOST, status
    assert "workers were lost: n1: " in status["message"]
    cluster.wait_gone(directory)


@pytest.fixture(scope="module")
def hangs(cluster: Cluster) -> Iterator[str]:
    """An interpreter whose scheduler and workers never get beyond their start."""
    path = "/tmp/hpcml-test-hangs"
    text = '#!/bin/sh\ncase "$*" in *"$HPCML_TEST_HANGS") sleep 1000;; esac\nexec "$(command -v python)" "$@"\n'
    for node in ALL_NODES:
        cluster.lab.exec(["tee", path], node=node, input=text)
        cluster.run("chmod", "755", path, node=node)
    yield path
    for node in ALL_NODES:
        cluster.run("rm", "-f", path, node=node)


@pytest.mark.parametrize(
    ("role", "status"), [("scheduler", errors.START_FAILED), ("worker", errors.WORKERS_NEVER_CAME)]
)
def test_a_step_is_gone_while_its_role_is_awaited(cluster: Cluster, hangs: str, role: str, status: int) -> None:
    """At once, and not when the deadline has passed."""
    _, directory = cluster.detach(
        WAITS, *SMALL, "--set", f"runtime.python={hangs}", "--set", f"environment.HPCML_TEST_HANGS={role}",
        "--set", f"deadlines.{role}{'s' if role == 'worker' else ''}=300s",
    )  # fmt: skip
    cluster.wait_event(directory, "scheduler-up" if role == "worker" else "allocated", 60)
    os.kill(step(cluster, directory, role), signal.SIGKILL)
    ended = cluster.wait_status(directory, 60)
    assert ended["exit_status"] == status, ended
    cluster.wait_gone(directory)
