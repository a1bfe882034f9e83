"""Parts of a run that are killed or stopped while it goes on: nobody computes unseen, nothing waits for ever."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from beside import SMALL
from conftest import ALL_NODES, Cluster
from hpcml import errors
from lab_state import wait_for
from tests.looks import by_age
from tests.said import in_order

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
    found = [pid for pid, line in cluster.processes() if line.endswith(f"hpcml.kinds {role}") and "step.sh" not in line]
    found = [pid for pid in found if name(pid) != "hpcml-sampler"]  # a child of the task that is no worker
    mine = {"SLURMD_NODENAME": node, "HPCML_RUN_DIR": str(directory)}
    return by_age(pid for pid in found if mine.items() <= environment(pid).items())


def step(cluster: Cluster, directory: Path, role: str) -> int:
    """Return the pid of the srun of a role's step."""
    assert wait_for(lambda: bool(roles(cluster, directory, "supervisor", "n1")), 30)
    words = environment(roles(cluster, directory, "supervisor", "n1")[0])["HPCML_STEPS"].split()
    return int(words[("scheduler", "worker").index(role)])


def parents(pid: int) -> list[int]:
    """Return a process's parents, the nearest first; none if it has gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            found.append(pid)
    return found


def shell(cluster: Cluster, directory: Path, role: str, node: str) -> int:
    """Return the pid of the step.sh of a role on a node."""
    found = parents(roles(cluster, directory, role, node)[0])
    return next(pid for pid in found if "step.sh" in Path(f"/proc/{pid}/cmdline").read_text())


def batch(cluster: Cluster, directory: Path) -> int:
    """Return the pid of a run's batch script."""
    return int(environment(roles(cluster, directory, "supervisor", "n1")[0])["HPCML_BATCH"])


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def output(directory: Path) -> str:
    """Return what the script printed, then what hpcml said beside it."""
    return "".join((directory / "logs" / name).read_text() for name in ("script.log", "job.log"))


def start(cluster: Cluster, text: str, *options: str) -> Path:
    """Submit, and return the run's directory when its script has connected."""
    _, directory = cluster.detach(text, *options)
    cluster.wait_event(directory, "script-started", 60)
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
    assert output(directory).count("n2: the workers' parent process was killed (exit status 137); it restarts") == 1
    assert "4950" in output(directory)


def test_a_worker_task_that_cannot_come_back_is_lost(cluster: Cluster) -> None:
    directory = start(cluster, WAITS, *TWO_BY_TWO, "--set", "workers.restarts=0")
    os.kill(roles(cluster, directory, "worker", "n2")[0], signal.SIGKILL)
    assert cluster.wait_event(directory, "workers-lost")["workers"] == ["n2-0", "n2-1"]
    said = "n2 lost 2 workers permanently: the workers' parent process exited with status 137 (killed by SIGKILL); 2 of 4 workers are left."
    assert wait_for(lambda: said in output(directory), 10)
    shown = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
    assert (shown["state"], shown["workers"], shown["warnings"]) == ("RUNNING", 2, [said])


def test_workers_that_are_stopped_are_told_and_go_on(cluster: Cluster) -> None:
    """The task alone, which its workers have go on; then all of a node with their task, where none of them can."""
    directory = start(cluster, f"{WAITS}print(sum(client.gather(client.map(lambda x: x, range(100)))))\n".replace(
        "time.sleep(300)", "\nwhile not (hpcml.run.out / 'killed').exists():\n    time.sleep(0.1)"), *TWO_BY_TWO)  # fmt: skip
    task, *workers = stopped = roles(cluster, directory, "worker", "n2")
    os.kill(task, signal.SIGSTOP)
    assert cluster.wait_event(directory, "worker-task-stopped", 60)["node"] == "n2"
    assert state(task) != "T"
    assert wait_for(lambda: bool(re.search(in_order("n2", "stopped (SIGSTOP)"), output(directory))), 10)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    assert list(cluster.wait_event(directory, "workers-silent", 90)["since"]) == ["n2"]
    for verb in ("status", "why"):
        assert "n2: a worker sent no heartbeat for " in cluster.run("hpcml", verb, directory.name).stdout
    os.kill(task, signal.SIGCONT)
    log = directory / "logs/worker-n2.log"
    assert wait_for(lambda: log.read_text().count("(SIGSTOP). hpcml continued the worker.") == len(workers), 60), (
        log.read_text()
    )
    cluster.run("touch", str(directory / "out/killed"))
    assert cluster.wait_status(directory)["exit_status"] == 0, output(directory)
    assert "4950" in output(directory)


@pytest.mark.parametrize("stopped", ["batch script", "step"])
def test_what_is_stopped_at_the_end_does_not_keep_the_nodes(cluster: Cluster, stopped: str) -> None:
    text = "import hpcml, time\nprint('waiting', flush=True)\nwhile not (hpcml.run.out / 'killed').exists():\n    time.sleep(0.1)\n"
    directory = start(cluster, text, *SMALL)
    script = batch(cluster, directory)
    of_driver = shell(cluster, directory, "supervisor", "n1")
    steps = {step(cluster, directory, role) for role in ("scheduler", "worker")}
    sruns = [pid for pid, _ in cluster.lab.processes("alice") if name(pid) == "srun" and parents(pid)[:1] == [script]]
    (of_srun,) = set(sruns) - steps
    for pid in (script,) if stopped == "batch script" else (of_driver, of_srun):
        os.kill(pid, signal.SIGSTOP)
    cluster.run("touch", str(directory / "out/killed"))
    status = cluster.wait_status(directory)
    assert status["exit_status"] == 0, status
    cluster.wait_gone(directory, 90)
    said = "the batch script was stopped" if stopped == "batch script" else "it may have been stopped (SIGSTOP)"
    assert said in output(directory)
    shown = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
    assert (shown["state"], shown["exit_status"]) == ("COMPLETED", 0)


def test_a_signal_to_the_steps_alone_cancels_the_run(cluster: Cluster) -> None:
    """As ``srun`` of a plain job ends by it: without --batch and --full Slurm signals the task of each step alone."""
    directory = start(cluster, WAITS, *SMALL)
    job = json.loads((directory / "submission.json").read_text())["job"]
    assert cluster.run("scancel", "--signal=TERM", job).returncode == 0
    status = cluster.wait_status(directory)
    assert (status["exit_status"], status["state"]) == (errors.CANCELLED, "CANCELLED"), status
    cluster.wait_gone(directory)


UNWRITABLE = """
import os
import hpcml
top = hpcml.run.out.parent
for folder in (top / 'attempts/0/exit', top / 'attempts/0', top / 'reserve', top):
    os.chmod(folder, 0o500)
"""


def test_an_end_that_cannot_be_written_has_a_status(cluster: Cluster) -> None:
    """The script ended well, and its file system takes nothing any more."""
    done = cluster.run(*cluster.command(UNWRITABLE, "--wait", "--json", *SMALL))
    assert done.returncode == errors.STORAGE, done.stderr
    assert "could not write its status" in done.stdout + done.stderr


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
    for node in ALL_NODES:
        cluster.program(
            node, path, 'case "$*" in *"$HPCML_TEST_HANGS") sleep 1000;; esac\nexec "$(command -v python)" "$@"'
        )
    yield path
    for node in ALL_NODES:
        cluster.run("rm", "-f", path, node=node)


@pytest.mark.parametrize(
    ("role", "killed", "status", "words"),
    [
        ("scheduler", "srun", errors.START_FAILED, "ended (its srun may have been killed)"),
        ("worker", "batch script", errors.ALLOCATION_LOST, "the batch script was killed"),
    ],
)
def test_a_step_is_gone_while_its_role_is_awaited(
    cluster: Cluster, hangs: str, role: str, killed: str, status: int, words: str
) -> None:
    """At once, and not when the deadline has passed."""
    _, directory = cluster.detach(
        WAITS, *SMALL, "--set", f"runtime.python={hangs}", "--set", f"environment.HPCML_TEST_HANGS={role}",
        "--set", f"deadlines.{role}{'s' if role == 'worker' else ''}=300s",
    )  # fmt: skip
    cluster.wait_event(directory, "scheduler-up" if role == "worker" else "allocated", 60)
    pid = batch(cluster, directory) if killed == "batch script" else step(cluster, directory, role)
    os.kill(pid, signal.SIGKILL)
    ended = cluster.wait_status(directory, 60)
    assert ended["exit_status"] == status, ended
    assert words in ended["message"]
    cluster.wait_gone(directory)
    if killed == "batch script":  # nobody but Slurm can say by what, and it says so later than the supervisor sees it
        why = ("hpcml", "why", directory.name, "--json")
        assert wait_for(lambda: "killed by SIGKILL" in json.loads(cluster.run(*why).stdout)["cause"], 60)
        assert json.loads(cluster.run(*why).stdout)["known"]
