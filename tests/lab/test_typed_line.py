"""A prepared run whose line a person, or a job of theirs, types: on a real Slurm it is a run as others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from beside import PART
from conftest import Cluster
from hpcml import errors
from lab_state import wait_for
from test_exit_status import CONNECT, WAIT

pytestmark = pytest.mark.lab

SUM = CONNECT + "print('sum', client.submit(sum, [1, 2, 3]).result())\n"


def prepare(cluster: Cluster, text: str, *options: str) -> tuple[str, Path]:
    """Prepare a run of a script; return its line and its directory."""
    done = cluster.run(*cluster.command(text, "--prepare", *options))
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return line, Path(line.split()[-1]).parent


def type_line(cluster: Cluster, line: str) -> str:
    """Type a line; return the job that sbatch names."""
    done = cluster.run("bash", "-c", line)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def state(cluster: Cluster, run: str) -> str:
    return str(json.loads(cluster.run("hpcml", "status", run, "--json").stdout)["state"])


def test_typed_twice_the_first_run_goes_on(cluster: Cluster) -> None:
    """The run types the line of another: what it has set does not reach that one."""
    inner, other = prepare(cluster, SUM, "--nodes", "2", *PART)
    types = f"import subprocess\nsubprocess.run({inner!r}, shell=True, check=True)\n"
    line, directory = prepare(cluster, CONNECT + types + WAIT, *PART)
    first = type_line(cluster, line)
    cluster.wait_event(directory, "driver-started")
    second = type_line(cluster, line)
    assert wait_for(lambda: cluster.job(second)["JobState"] == "FAILED", 30)
    assert cluster.job(second)["ExitCode"] == f"{errors.USAGE}:0"
    said = (
        f"This run is job {first}, so job {second} does not change it; to run it again: hpcml rerun {directory.name}\n"
    )
    assert said in cluster.run("hpcml", "logs", directory.name, "job").stdout
    facts = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
    assert (facts["state"], facts["job"]) == ("RUNNING", first)
    assert wait_for(lambda: state(cluster, other.name) != "PREPARED", 60), (directory / "logs/driver.log").read_text()
    done = cluster.run("hpcml", "wait", other.name)
    assert done.returncode == 0, done.stdout + cluster.run("hpcml", "logs", other.name, "job").stdout
    assert f"job {first}" in cluster.run("hpcml", "cancel", directory.name).stdout
    assert cluster.wait_status(directory)["exit_status"] == errors.CANCELLED


OUTER = """#!/bin/bash
#SBATCH --nodes=1 --ntasks=2 --cpus-per-task=2 --mem-per-cpu=300M --output=outer.log --error=outer.err
{line}
export SBATCH_PARTITION=nowhere
hpcml submit --nodes 2 --detach --json {inner}
"""


def test_within_a_job_of_other_sizes(cluster: Cluster) -> None:
    """What the job set (SLURM_*, SBATCH_*) reaches neither the run whose line it types nor the one that it submits."""
    line, directory = prepare(cluster, SUM, "--nodes", "2")
    run = directory.name
    assert state(cluster, run) == "PREPARED"
    assert cluster.run("hpcml", "wait", run).returncode == errors.NOT_FOUND
    typed = line.replace("sbatch", "sbatch --hold --time 7 --job-name mine")
    inner = cluster.write("inner.py", "import hpcml\nprint('inner', hpcml.run.nodes)\n")
    outer = cluster.write("outer.sh", OUTER.format(line=typed, inner=inner))
    ended = cluster.job_end(cluster.run("sbatch", "--parsable", str(outer)).stdout.strip(), 60)
    log = (cluster.work / "outer.log").read_text()
    assert ended["ExitCode"] == "0:0", log + (cluster.work / "outer.err").read_text()
    job = log.splitlines()[0].split()[-1]
    assert state(cluster, run) == "PENDING"
    assert cluster.run("hpcml", "rm", run, "--yes").returncode == 1
    assert (cluster.job(job)["TimeLimit"], cluster.job(job)["JobName"]) == ("00:07:00", "mine")
    cluster.run("scontrol", "release", job)
    done = cluster.run("hpcml", "wait", run)
    assert done.returncode == 0, done.stdout + done.stderr + cluster.run("hpcml", "logs", run, "job").stdout
    assert cluster.run("hpcml", "logs", job).stdout == "sum 6\n"
    cluster.job_end(job)  # the run's end is known before Slurm has done with its job
    assert cluster.run("hpcml", "rm", run, "--yes").returncode == 0
    submitted = Path(json.loads(log[log.index("{") :])["directory"])
    assert cluster.wait_status(submitted)["exit_status"] == 0
    assert "inner 2" in (submitted / "logs/driver.log").read_text()
