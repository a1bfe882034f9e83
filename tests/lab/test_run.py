"""``hpcml run`` in an allocation: the same ends as a submission, from salloc and from a batch script, and no nodes held."""

from __future__ import annotations

import json
import time

import pytest

from conftest import Cluster
from hpcml import errors
from lab_state import wait_for
from test_exit_status import CONNECT, WAIT

pytestmark = pytest.mark.lab

SALLOC = ("salloc", "--quiet", "--partition=boost", "--nodes=2", "--time=5", "--mem=3000M")
SUM = (
    CONNECT + "print(f'sum {client.submit(sum, [1, 2, 3]).result()}\\n', end='')\n"
)  # at once: others write to the log too


def test_the_allocation_is_cancelled(cluster: Cluster) -> None:
    name = f"revoked-{time.time_ns()}"  # an earlier run of that name would be taken for this one
    words = cluster.command(CONNECT + WAIT, "--name", name)
    process = cluster.lab.popen([*SALLOC, "hpcml", "run", *words[2:]], cwd=cluster.work)
    assert wait_for(lambda: cluster.run("hpcml", "status", name).returncode == 0, 30), process.communicate()
    directory = cluster.directory(name)
    cluster.wait_event(directory, "script-started")
    cluster.run("scancel", json.loads((directory / "submission.json").read_text())["job"])
    process.communicate(timeout=180)
    status = cluster.wait_status(directory)
    assert (status["exit_status"], status["state"]) == (errors.CANCELLED, "CANCELLED")


BATCH = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=4 --mem-per-cpu=400M --time=5 --output={log}
hpcml run {first}
echo "first $?"
srun --ntasks=2 --ntasks-per-node=1 hostname
srun --job-name=holder --cpus-per-task=4 sleep 600 &
until squeue --me --steps --noheader --format=%j | grep -qx holder; do sleep 0.1; done
hpcml run {second}
echo "second $?"
"""


def test_two_runs_one_after_another_in_a_batch_script(cluster: Cluster) -> None:
    """The script's own sizes (tasks, memory per CPU) do not reach the run, and what it took is free for the next line.

    A step with all CPUs and memory does not keep the second out; it is named.
    """
    log = cluster.work / f"batch{cluster.count}.log"
    first, second = (" ".join(cluster.command(SUM, "--name", name)[2:]) for name in ("first", "second"))
    script = cluster.write("batch.sh", BATCH.format(log=log, first=first, second=second))
    job = cluster.run("sbatch", "--parsable", "--nodelist=n1,n2", str(script)).stdout.strip()
    assert cluster.job_end(job, 120)["ExitCode"] == "0:0", log.read_text()
    text = log.read_text()
    assert text.count("sum 6") == 2, text
    words = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert words["first"][0] == words["second"][0] == "0"
    assert {"n1", "n2"} <= set(text.split())
    assert text.count("(holder) on n[1-2]") == 1, text
    assert json.loads(cluster.run("hpcml", "status", job, "--json").stdout)["exit_status"] == 0
