"""What is said before a submission, against what a real Slurm then does and bills."""

from __future__ import annotations

import re

import pytest

from conftest import Cluster
from test_typed_line import prepare, type_line

pytestmark = pytest.mark.lab

COST = ("--set", "cost.ask=true", "--set", "cost.unit=su", "--set", 'cost.weights={cpu="1.5", mem="0.25G"}')


def said(text: str, title: str) -> str:
    found = re.search(rf"^  {title:<11}(.*)$", text, re.MULTILINE)
    return found[1] if found else ""


def test_the_start_and_the_charge_are_slurm_s_own(cluster: Cluster) -> None:
    """Of a partition that bills by weights, ``billing`` of the job is what was said, for an hour."""
    cluster.wait_idle()
    change = ("scontrol", "update", "partitionname=debug")
    assert cluster.run(*change, "TRESBillingWeights=CPU=1.5,Mem=0.25G", node="ctl", user="root").returncode == 0
    try:
        options = ("--partition", "debug", "--nodes", "2", "--cpus-per-node", "4", "--time", "30", *COST)
        dry = cluster.run(*cluster.command("print(1)\n", "--dry-run=script", *options, "--memory-per-node", "2G"))
        assert said(dry.stderr, "start") == "Slurm would start the job now", dry.stderr
        # 8 CPUs and 4 GiB for half an hour
        assert said(dry.stderr, "asks for") == (
            "2 nodes, partition debug, time limit 00:30:00, at most 1 node-h = 6.5 su"
        ), dry.stderr
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
