"""Scripts and roles that wait for what cannot come: it is said while they wait, and ended where a deadline says so."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from hpcml import errors
from test_local import CONNECT, Here, here  # noqa: F401 - the fixture

pytestmark = pytest.mark.local


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def pid_in(directory: Path, event: str) -> int:
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return next(int(found["pid"]) for found in events if found["event"] == event)


def started(here: Here, text: str, *options: str) -> Path:  # noqa: F811
    _, directory = here.detach(text, *options)
    here.until((directory / "events.jsonl").exists, 60)
    here.until(lambda: "driver-started" in (directory / "events.jsonl").read_text(), 90)
    return directory


def warned(here: Here, words: str) -> bool:  # noqa: F811
    return any(words in warning for warning in here.status()["warnings"])


def test_more_workers_than_the_run_has(here: Here) -> None:  # noqa: F811
    done = here.submit(
        CONNECT + "client.wait_for_workers(8)\n", "--nodes", "2",
        "--set", "deadlines.workers=25s", "--set", "deadlines.driver_grace=1s",
    )  # fmt: skip
    assert done.returncode == errors.WORKERS_NEVER_CAME, done.stderr
    assert "the script waits for more workers than the 2 that the run has (wait_for_workers)" in done.stderr
    assert "Wait for fewer, or ask for more" in done.stderr


def test_as_many_workers_as_the_run_has(here: Here) -> None:  # noqa: F811
    done = here.submit(CONNECT + "client.wait_for_workers(2, timeout=60)\nprint('all')\n", "--nodes", "2")
    assert (done.returncode, done.stdout) == (0, "all\n"), done.stderr


# In the script itself these are the run's own cluster (test_idioms.py).
CONNECT_IN_A_CHILD = (  # -E: it does not open the run's cluster
    "import subprocess, sys\n"
    'text = "from distributed import Client; Client({})"\n'
    "sys.exit(subprocess.run([sys.executable, '-E', '-c', text]).returncode)\n"
)


def test_a_scheduler_file_that_is_not_there(here: Here) -> None:  # noqa: F811
    """It is said, and goes on: a script that needs no cluster is none of hpcml's business."""
    text = CONNECT_IN_A_CHILD.format("scheduler_file='missing.json'")
    started(here, text, "--set", "deadlines.connect_notice=2s", "--set", "deadlines.driver_grace=1s")
    here.until(lambda: warned(here, "has run for 2 s without connecting to its cluster"), 60)
    assert here.status()["phase"] == "running"
    assert "Client(scheduler_file=…)" in here.run("status", "last").stdout
    assert here.run("cancel", "last").returncode == 0
    here.until(lambda: here.status()["phase"] == "ended", 60)


def test_an_address_nobody_answers_at(here: Here) -> None:  # noqa: F811
    done = here.submit(CONNECT_IN_A_CHILD.format("'tls://127.0.0.1:9', timeout=3"))
    assert done.returncode == 1
    assert "Timed out" in done.stdout + done.stderr


def test_a_cluster_that_nobody_uses(here: Here) -> None:  # noqa: F811
    text = CONNECT + "print(client.submit(sum, [1, 2]).result(), flush=True)\ntime.sleep(300)\n"
    done = here.submit(text, "--set", "deadlines.idle_notice=5s", "--set", "deadlines.idle=15s",
                       "--set", "deadlines.driver_grace=1s")  # fmt: skip
    assert done.returncode == errors.IDLE, done.stderr
    assert "Nothing has used the cluster for 5 s, and its node is held." in done.stderr
    assert "nothing used the cluster for 15 s" in done.stderr.lower()


def test_a_cluster_that_computes_is_used(here: Here) -> None:  # noqa: F811
    """One task that is longer than the deadline, and a function that no task stands for."""
    text = CONNECT + (
        "def long():\n    time.sleep(12)\n    return 5\n"
        "def spin():\n    end = time.monotonic() + 12\n    while time.monotonic() < end: pass\n    return 6\n"
        "print(client.submit(long).result(), *client.run(spin).values())\n"
    )
    done = here.submit(text, "--set", "deadlines.idle=8s", "--set", "deadlines.driver_grace=1s")
    assert (done.returncode, done.stdout) == (0, "5 6\n"), done.stderr


def test_workers_that_the_script_retires_are_no_loss(here: Here) -> None:  # noqa: F811
    text = CONNECT + (
        "names = list(client.scheduler_info(n_workers=-1)['workers'])\n"
        "client.retire_workers(names[:1])\ntime.sleep(22)\n"
        "print(client.submit(sum, [1, 2]).result(), flush=True)\n"
        "client.retire_workers(names[1:])\ntime.sleep(5)\nprint('alone')\n"
    )
    done = here.submit(text, "--set", "workers.per_node=2", "--set", "workers.on_loss=fail",
                       "--set", "deadlines.workers=20s")  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "3\nalone\n"), done.stderr
    assert "lost" not in done.stderr


def test_a_script_that_looks_at_the_cluster_while_it_computes(here: Here) -> None:  # noqa: F811
    text = CONNECT + (
        "future = client.submit(time.sleep, 26)\n"
        "while not future.done():\n    client.scheduler_info(n_workers=-1)\n    time.sleep(0.1)\nprint('computed')\n"
    )
    done = here.submit(text, "--set", "deadlines.workers=20s")
    assert (done.returncode, done.stdout) == (0, "computed\n"), done.stderr
    assert "waits for more workers" not in done.stderr


@pytest.mark.parametrize("role", ["supervisor", "scheduler"])
def test_a_role_that_is_stopped(here: Here, role: str) -> None:  # noqa: F811
    directory = started(
        here, CONNECT + "time.sleep(300)\n", "--set", "deadlines.answer=30s", "--set", "deadlines.driver_grace=1s"
    )
    pid = parent_of(pid_in(directory, "driver-started")) if role == "supervisor" else pid_in(directory, "scheduler-up")
    os.kill(pid, signal.SIGSTOP)
    name = "the supervisor on local" if role == "supervisor" else "the Dask scheduler on local"
    here.until(lambda: warned(here, f"{name} has not answered for"), 60)
    here.until(lambda: here.status()["phase"] == "ended", 120)
    found = here.status()
    assert found["exit_status"] == errors.ROLE_LOST, found
    assert "30 s" in found["message"] or "31 s" in found["message"]
    if role == "supervisor":
        assert "(it is stopped: SIGSTOP)" in found["message"]
        assert (directory / "attempts/0/exit/driver@local").read_text() == f"{errors.ROLE_LOST}\n"


def test_a_supervisor_that_goes_on_in_time(here: Here) -> None:  # noqa: F811
    text = CONNECT + "open('connected', 'w')\nwhile not os.path.exists('go'): time.sleep(0.1)\n"
    directory = started(here, text, "--set", "deadlines.answer=60s")
    pid = parent_of(pid_in(directory, "driver-started"))
    os.kill(pid, signal.SIGSTOP)
    here.until(lambda: warned(here, "has not answered for"), 60)
    os.kill(pid, signal.SIGCONT)
    (here.folder / "go").touch()
    here.until(lambda: here.status()["phase"] == "ended", 60)
    assert here.status()["exit_status"] == 0
