"""The lab with slurmdbd: accounts and QoS are enforced."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from conftest import Cluster
from hpcml import errors
from lab_state import wait_for
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


def test_an_account_that_slurm_does_not_know(accounted: Cluster) -> None:
    done = accounted.run(*accounted.command(SCRIPT, "--wait", "--name", "nobody", "--account", "nobody_s"))
    assert done.returncode == errors.REFUSED
    assert "Slurm rejected the account" in done.stderr
    assert "Traceback" not in done.stderr
    assert accounted.run("squeue", "--noheader").stdout == ""
    found = json.loads(accounted.run("hpcml", "why", "nobody", "--json").stdout)
    record("bad account", found, "Slurm rejected the account")
    assert (found["known"], found["rule"]) == (True, "account"), found


def test_a_long_run_where_one_job_may_be_submitted(accounted: Cluster) -> None:
    """The next attempt cannot wait beside this one: Slurm puts this one's job back into its queue."""
    script = """import hpcml, json, time
client = hpcml.connect()
state = {"total": 0, "attempts": []}
if path := hpcml.run.saved("state.json"):
    state = json.loads(path.read_text())
square = client.submit(pow, len(state["attempts"]), 2).result()
state = {"total": state["total"] + square, "attempts": [*state["attempts"], hpcml.run.attempt]}
hpcml.run.save("state.json", lambda path: path.write_text(json.dumps(state)))
if hpcml.run.attempt < 1:
    hpcml.run.stop()
print(json.dumps(state))
"""
    options = ("--nodes", "1", "--time", "10", "--qos", "one_job", "--until-done", *ACCOUNT)
    job, directory = accounted.detach(script, *options, "--name", "alone")
    log = (directory / "logs/job.log").read_text
    assert wait_for((directory / "attempts/0/continue").exists, 120, 0.2), log()
    assert wait_for(lambda: accounted.job(job).get("JobState") == "PENDING", 120, 0.2), log()
    assert "PENDING: Slurm requeued the job" in accounted.run("hpcml", "status", "alone").stdout
    assert "Slurm did not accept the job" in (directory / "events.jsonl").read_text()
    assert accounted.run("scontrol", "update", f"jobid={job}", "StartTime=now+3seconds").returncode == 0
    done = accounted.run("hpcml", "wait", "alone", timeout=360)
    assert done.returncode == 0, done.stderr
    found = json.loads(accounted.run("hpcml", "logs", "alone").stdout.splitlines()[-1])
    assert found == {"total": 1, "attempts": [0, 1]}
    assert accounted.job_end(job, 60)["JobState"] == "COMPLETED"  # its batch script ends a moment after the run
    assert accounted.run("squeue", "--noheader").stdout == ""

    def booked() -> str:
        return accounted.run("sacct", "-nPX", "-o", "State,Account").stdout

    assert wait_for(lambda: "COMPLETED|lab_account" in booked(), 40, 0.2), booked()
