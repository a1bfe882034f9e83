"""A prepared run whose line a person, or a job of theirs, types: on a real Slurm it is a run as others, and costs what was said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from conftest import Cluster
from test_exit_status import CONNECT
from tests.said import says

pytestmark = pytest.mark.lab


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


OUTER = """#!/bin/bash
#SBATCH --nodes=1 --ntasks=2 --cpus-per-task=2 --mem-per-cpu=300M --output=outer.log --error=outer.err
{line}
export SBATCH_PARTITION=nowhere
hpcml submit --nodes 2 --detach --json {inner}
"""


def test_within_a_job_of_other_sizes(cluster: Cluster) -> None:
    """What the job set (SLURM_*, SBATCH_*) reaches neither the run whose line it types nor the one that it submits."""
    script = CONNECT + "print('sum', client.submit(sum, [1, 2, 3]).result())\n"
    line, directory = prepare(cluster, script, "--nodes", "2")
    run = directory.name
    typed = line.replace("sbatch", "sbatch --hold --time 7 --job-name mine")
    inner = cluster.write("inner.py", "import hpcml\nprint('inner', hpcml.run.nodes)\n")
    outer = cluster.write("outer.sh", OUTER.format(line=typed, inner=inner))
    ended = cluster.job_end(cluster.run("sbatch", "--parsable", str(outer)).stdout.strip(), 60)
    log = (cluster.work / "outer.log").read_text()
    assert ended["ExitCode"] == "0:0", log + (cluster.work / "outer.err").read_text()
    job = log.splitlines()[0].split()[-1]
    assert json.loads(cluster.run("hpcml", "status", run, "--json").stdout)["state"] == "PENDING"
    assert (cluster.job(job)["TimeLimit"], cluster.job(job)["JobName"]) == ("00:07:00", "mine")
    cluster.run("scontrol", "release", job)
    done = cluster.run("hpcml", "wait", run)
    assert done.returncode == 0, done.stdout + done.stderr + cluster.run("hpcml", "logs", run, "job").stdout
    assert cluster.run("hpcml", "logs", job).stdout == "sum 6\n"
    submitted = Path(json.loads(log[log.index("{") :])["directory"])
    assert cluster.wait_status(submitted)["exit_status"] == 0
    assert "inner 2" in (submitted / "logs/script.log").read_text()


def said(text: str, title: str) -> str:
    found = re.search(rf"^  {title:<11}(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def test_the_start_and_the_charge_are_slurm_s_own(cluster: Cluster) -> None:
    """Of a partition that bills by weights, ``billing`` of the job is what was said, for an hour."""
    cluster.wait_idle()
    change = ("scontrol", "update", "partitionname=debug")
    assert cluster.run(*change, "TRESBillingWeights=CPU=1.5,Mem=0.25G", node="ctl", user="root").returncode == 0
    try:
        options = ("--partition", "debug", "--nodes", "2", "--cpus-per-node", "4", "--time", "30",
                   "--set", "cost.ask=true", "--set", "cost.unit=su", "--set", 'cost.weights={cpu="1.5", mem="0.25G"}')  # fmt: skip
        dry = cluster.run(*cluster.command("print(1)\n", "--dry-run=script", *options, "--memory-per-node", "2G"))
        assert said(dry.stderr, "start") == "Slurm would start the job now", dry.stderr
        # 8 CPUs and 4 GiB for half an hour
        assert said(dry.stderr, "asks for") == says("2 nodes", "4 of 8 CPUs", "2.0 GiB", "at most 6.5 su"), dry.stderr
        assert said(dry.stderr, "") == "Slurm's billing weights give a cost of 6.5 su", dry.stderr
        line, _ = prepare(cluster, "print(1)\n", *options, "--memory-per-node", "2G")
        job = type_line(cluster, line.replace("sbatch", "sbatch --hold"))
        shown = cluster.run("scontrol", "show", "job", job).stdout
        cluster.run("scancel", job)
        billing = re.search(r"\bbilling=(\d+)", shown)
        assert billing is not None, shown
        assert int(billing[1]) == 13
    finally:
        cluster.run(*change, "TRESBillingWeights=", node="ctl", user="root")
