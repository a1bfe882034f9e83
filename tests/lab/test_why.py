"""Failures staged on a real Slurm: each names its cause, with the evidence and the option to try again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from conftest import Cluster
from hpcml import errors
from lab_state import wait_for
from staged import record

pytestmark = pytest.mark.lab

CONNECT = "import hpcml, os, signal, sys, time, ctypes\nclient = hpcml.connect()\n"
WAITS = f"{CONNECT}print('waiting', flush=True)\ntime.sleep(300)\n"
ONE = ("--nodes", "1")

# The script, options, the run's exit status, and the cause in some words.
STAGED: dict[str, tuple[str, tuple[str, ...], int, str]] = {
    "exception": ("def f():\n    return {}['x']\nf()\n", ONE, 1, "KeyError in"),
    "a task's": (f"{CONNECT}client.submit(lambda: 1 / 0).result()\n", ONE, 1, "ZeroDivisionError in"),
    "import": ("import importlib\nimportlib.import_module('no_such' + '_module')\n", ONE, 1, "module no_such_module missing"),
    "segfault": ("import ctypes\nctypes.string_at(0)\n", ONE, 139, "crashed (SIGSEGV)"),
    "sys.exit": ("import sys\nsys.exit(7)\n", ONE, 7, "script chose exit status 7"),
    "memory of the script": (f"{CONNECT}x = [bytearray(10**7) for _ in range(10**4)]\n",
                             (*ONE, "--memory-per-node", "900M", "--cpus-per-node", "2", "--set", "workers.memory_limit=300M"), 137,
                             "out of memory"),
    "memory of a worker": (f"{CONNECT}client.submit(lambda: [(bytearray(10**7), time.sleep(.02)) for _ in range(10**4)]).result()\n",
                           (*ONE, "--set", "workers.memory_limit=300M", "--set", "workers.restarts=9"), 1, "worker out of memory"),
    "disk full": ("open('/dev/full', 'w').write('x' * 10**6)\n", ONE, 1, "disk full"),
}  # fmt: skip


def why(cluster: Cluster, run: Path) -> dict[str, Any]:
    done = cluster.run("hpcml", "why", run.name, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", STAGED)
def test_a_staged_failure_names_its_cause(cluster: Cluster, name: str) -> None:
    script, options, status, short = STAGED[name]
    ended = cluster.submit(script, *options)
    assert ended.code == status, ended.err
    found = why(cluster, ended.directory)
    record(name, found, short)
    assert (found["known"], found["short"][: len(short)]) == (True, short), found
    if name == "memory of the script":
        assert found["options"] == ["--memory-per-node", "1350M"]


def test_what_slurm_refuses(cluster: Cluster) -> None:
    done = cluster.run(*cluster.command("pass\n", "--name", "refused", "--sbatch=--gres=nosuch:1"))
    assert done.returncode == errors.REFUSED, done.stderr
    found = json.loads(cluster.run("hpcml", "why", "refused", "--json").stdout)
    record("impossible GRES", found, "GPUs not known")
    assert (found["state"], found["rule"]) == ("REFUSED", "gres"), found


def test_a_job_that_never_starts_and_one_that_is_cancelled(cluster: Cluster) -> None:
    job, waits = cluster.detach(WAITS, *ONE, "--name", "waits")
    cluster.wait_event(waits, "driver-started", 60)
    _, after = cluster.detach("pass\n", *ONE, "--name", "after", "--dependency", f"afterok:{job}")
    found = why(cluster, waits)
    assert (found["failed"], found["state"]) == (False, "RUNNING")
    cluster.run("scancel", job)
    cluster.wait_status(waits)
    found = why(cluster, waits)
    record("cancelled", found, "cancelled")
    assert (found["short"], found["known"]) == ("cancelled", True)
    assert wait_for(lambda: why(cluster, after)["failed"], 90), why(cluster, after)
    found = why(cluster, after)
    record("dependency never satisfied", found, "never start")
    assert "never start" in found["cause"]
    assert "hpcml cancel" in found["next_step"]
    cluster.run("hpcml", "cancel", "after")


def test_a_killed_worker_is_named_before_what_followed(cluster: Cluster) -> None:
    ended = cluster.submit(f"{CONNECT}client.submit(ctypes.string_at, 0).result()\n", "--nodes", "2")
    assert ended.code != 0
    found = why(cluster, ended.directory)
    record("killed worker", found, "crashed (SIGSEGV)")
    assert (found["rule"], found["short"]) == ("segfault", "crashed (SIGSEGV)"), found
    assert set(found["nodes"]) <= {"n1", "n2"}
    assert "hpcml: cause: A crash" in ended.err


def test_the_batch_script_is_killed(cluster: Cluster) -> None:
    job, directory = cluster.detach(WAITS, *ONE, "--name", "batch")
    cluster.wait_event(directory, "driver-started", 60)
    batch = [pid for pid, line in cluster.lab.processes("alice") if f"job{int(job):05d}/slurm_script" in line]
    assert batch
    os.kill(batch[0], signal.SIGKILL)
    assert wait_for(lambda: why(cluster, directory)["failed"], 120), why(cluster, directory)
    found = why(cluster, directory)
    assert (found["known"], found["short"]) == (True, "batch script killed"), found
    named = "the batch script was killed by SIGKILL"  # Slurm names the signal after the supervisor saw the end
    assert wait_for(lambda: why(cluster, directory)["cause"] == named, 120), why(cluster, directory)
    record("batch script killed", why(cluster, directory), named)
