"""A prepared run whose line a person, or a job of theirs, types: on a real Slurm it is a run as others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

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


def test_it_runs_when_its_line_is_typed_with_options_of_one_s_own(cluster: Cluster) -> None:
    line, directory = prepare(cluster, SUM, "--nodes", "2")
    run = directory.name
    assert state(cluster, run) == "PREPARED"
    assert cluster.run("hpcml", "wait", run).returncode == errors.NOT_FOUND
    job = type_line(cluster, line.replace("sbatch", "sbatch --hold --time 7 --job-name mine"))
    assert state(cluster, run) == "PENDING"
    assert "PENDING" in cluster.run("hpcml", "ls", "--last", "1").stdout
    assert cluster.run("hpcml", "rm", run, "--yes").returncode == 1
    assert (cluster.job(job)["TimeLimit"], cluster.job(job)["JobName"]) == ("00:07:00", "mine")
    cluster.run("scontrol", "release", job)
    done = cluster.run("hpcml", "wait", run)
    assert done.returncode == 0, done.stdout + done.stderr
    assert cluster.run("hpcml", "logs", job).stdout == "sum 6\n"
    assert cluster.run("hpcml", "rm", run, "--yes").returncode == 0


def test_typed_twice_the_first_run_goes_on(cluster: Cluster) -> None:
    line, directory = prepare(cluster, CONNECT + WAIT)
    first = type_line(cluster, line)
    cluster.wait_event(directory, "driver-started")
    second = type_line(cluster, line)
    assert wait_for(lambda: cluster.job(second)["JobState"] == "FAILED", 30)
    assert cluster.job(second)["ExitCode"] == f"{errors.USAGE}:0"
    said = f"This run is job {first}, so job {second} changes nothing in it; to run it again: hpcml rerun {directory.name}\n"
    assert said in cluster.run("hpcml", "logs", directory.name, "job").stdout
    facts = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
    assert (facts["state"], facts["job"]) == ("RUNNING", first)
    assert f"job {first}" in cluster.run("hpcml", "cancel", directory.name).stdout
    assert cluster.wait_status(directory)["exit_status"] == errors.CANCELLED


def test_it_is_typed_within_a_run(cluster: Cluster) -> None:
    """A workflow manager may be a run itself: what that run has set does not reach the new one."""
    line, directory = prepare(cluster, SUM, "--nodes", "2")
    script = f"import subprocess\nprint(subprocess.run({line!r}, shell=True, capture_output=True, text=True, check=True).stdout)\n"
    outer = cluster.submit(script)
    assert outer.code == 0, outer.err
    assert re.search(r"Submitted batch job \d+", outer.out)
    done = cluster.run("hpcml", "wait", directory.name)
    assert done.returncode == 0, done.stdout + cluster.run("hpcml", "logs", directory.name, "job").stdout


def test_it_is_typed_within_a_job_of_other_sizes(cluster: Cluster) -> None:
    line, directory = prepare(cluster, SUM, "--nodes", "2")
    outer = cluster.run(
        "sbatch", "--wait", "--nodes=1", "--ntasks=2", "--cpus-per-task=2", "--mem-per-cpu=300M", f"--wrap={line}"
    )
    assert outer.returncode == 0, outer.stderr
    done = cluster.run("hpcml", "wait", directory.name)
    assert done.returncode == 0, done.stdout + cluster.run("hpcml", "logs", directory.name, "job").stdout
