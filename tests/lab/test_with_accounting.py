"""The lab with slurmdbd: accounts and QoS are enforced, and accounting answers when the queue has forgotten."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from conftest import Cluster
from hpcml import errors
from staged import record

pytestmark = pytest.mark.lab

SCRIPT = "import hpcml\nprint(len(hpcml.connect().scheduler_info(n_workers=-1)['workers']))\n"
ACCOUNT = ("--account", "lab_account")


@pytest.fixture(scope="module")
def accounted(cluster: Cluster) -> Iterator[Cluster]:
    """The lab restarted with accounting, and without again afterwards."""
    cluster.lab.down()
    cluster.lab.up(accounting=True)
    yield cluster
    cluster.lab.down()
    cluster.lab.up()


def test_a_run_with_an_account(accounted: Cluster) -> None:
    ended = accounted.submit(SCRIPT, "--nodes", "4", *ACCOUNT)
    assert ended.code == 0, ended.err
    deadline = time.monotonic() + 120
    while "COMPLETED" not in (said := accounted.run("sacct", "-nPX", "-o", "State,Account").stdout):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    assert "lab_account" in said


def test_an_account_that_slurm_does_not_know(accounted: Cluster) -> None:
    done = accounted.run(*accounted.command(SCRIPT, "--wait", "--name", "nobody", "--account", "nobody_s"))
    assert done.returncode == errors.REFUSED
    assert "Slurm does not know this account" in done.stderr
    assert "Traceback" not in done.stderr
    assert accounted.run("squeue", "--noheader").stdout == ""
    found = json.loads(accounted.run("hpcml", "why", "nobody", "--json").stdout)
    record("bad account", found, "Slurm does not know this account")
    assert (found["known"], found["rule"]) == (True, "account"), found


def test_more_than_the_qos_allows_is_said_in_words(accounted: Cluster) -> None:
    """Slurm accepts such a job and never starts it: the reason says so."""
    accounted.detach(SCRIPT, "--nodes", "4", "--time", "10", "--qos", "boost_qos_dbg", "--name", "toomany", *ACCOUNT)
    deadline = time.monotonic() + 120
    while "it will never start" not in (said := accounted.run("hpcml", "status", "toomany").stdout):
        assert time.monotonic() < deadline, said
        time.sleep(0.3)
