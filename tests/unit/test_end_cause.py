"""Why Slurm ended a job, from its own line in the job's log, in the forms that its versions write."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml import errors
from hpcml.failures.end import End
from hpcml.node import end_cause

LINE = "slurmstepd: error: *** JOB 45 ON n1 CANCELLED AT 2026-11-22T15:02:26{} ***\n"


@pytest.mark.parametrize(("ending", "cause"), [
    ("", ""),
    (" DUE TO PREEMPTION", "PREEMPTION"),
    (" DUE TO TIME LIMIT", "TIME LIMIT"),
    (" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"),
    (" DUE to SIGNAL Terminated", ""),
])  # fmt: skip
def test_slurm_s_line(ending: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "45")
    log = tmp_path / "job.log"
    log.write_text("x" * (3 << 20) + "\n" + LINE.format(ending))  # more than is read: the line stands at the end
    assert end_cause.why_ended({log: 0}) == cause
    assert end_cause.why_ended({log: log.stat().st_size}) is None


def test_the_last_line_of_the_own_job_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "45")
    log = tmp_path / "job.log"
    log.write_text(LINE.format(" DUE TO TIME LIMIT").replace("45", "46"))
    assert end_cause.why_ended({log: 0}) is None
    log.write_text(LINE.format(" DUE TO TIME LIMIT") + LINE.format(" DUE TO PREEMPTION"))
    assert end_cause.why_ended({log: 0}) == "PREEMPTION"
    assert end_cause.why_ended({tmp_path / "none": 0, log: 0}) == "PREEMPTION"
    log.write_text(LINE.format(" DUE TO TIME LIMIT").replace("JOB 45", "STEP 45.0"))
    assert end_cause.why_ended({log: 0}) == "TIME LIMIT"
    assert end_cause.why_ended({log: 0}, with_steps=False) is None


@pytest.mark.parametrize(("cause", "status"), [
    ("", errors.CANCELLED), ("TIME LIMIT", errors.TIME_LIMIT), ("PREEMPTION", errors.PREEMPTED), ("NODE FAILURE", errors.ALLOCATION_LOST),
    ("JOB REQUEUE", errors.CANCELLED),
])  # fmt: skip
def test_what_a_cause_means(cause: str, status: int) -> None:
    asked = End(errors.CANCELLED, "script", "user", "the run was cancelled")
    found = end_cause._by_cause(asked, cause)
    assert found.exit_status == status
    assert (found.state == "REQUEUED") == (cause == "JOB REQUEUE")


@pytest.mark.parametrize(("record", "taken", "state"), [
    ("PreemptTime=2026-11-25T13:28:42 Requeue=1", True, "REQUEUED"),
    ("PreemptTime=2026-11-25T13:28:42 Requeue=1", False, "PREEMPTED"),
    ("PreemptTime=2026-11-25T13:28:42 Requeue=0", True, "PREEMPTED"),
    ("PreemptTime=None Requeue=1", True, "CANCELLED"),
])  # fmt: skip
def test_a_job_that_ends_in_its_grace_time_is_put_back_if_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str, taken: bool, state: str
) -> None:
    """Slurm puts back only a job that outlives its grace time."""
    text = f'#!/bin/sh\n[ "$1" != requeue ] || {{ echo "$2" >{tmp_path}/put-back; exit {0 if taken else 1}; }}\necho {record}\n'
    (tmp_path / "scontrol").write_text(text)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "45")
    told = End(errors.CANCELLED, "script", "user", "the run was cancelled")
    monkeypatch.setenv("HPCML_ALLOCATION", "1")  # a run in a job of the user's own, which is not put back
    for cause in (None, ""):  # no line of Slurm's, or one of a step, which says nothing of the job
        assert end_cause._by_cause(told, cause).state == ("CANCELLED" if "None" in record else "PREEMPTED")
    assert not (tmp_path / "put-back").exists()
    monkeypatch.delenv("HPCML_ALLOCATION")
    found = end_cause._by_cause(told, None)
    assert found.state == state
    asked = "Requeue=1" in record and "None" not in record
    assert (tmp_path / "put-back").exists() == asked
    assert not asked or (tmp_path / "put-back").read_text() == "45\n"


@pytest.mark.parametrize(("by", "state"), [("scheduler", "NODE_FAIL"), ("script", "FAILED"), ("user", "FAILED")])
def test_a_lost_node_is_slurm_s_word_alone(by: str, state: str) -> None:
    assert End(errors.ALLOCATION_LOST, by=by).state == state


@pytest.mark.parametrize(("record", "state"), [
    ("JobId=45 JobState=RUNNING Reason=None", "COMPLETED"), ("JobId=45 JobState=CANCELLED Reason=None", "CANCELLED"), ("", "CANCELLED"),
])  # fmt: skip
def test_the_controller_says_whether_a_script_that_ended_well_was_cancelled(
    record: str, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm writes its line also for a mere SIGTERM to a batch script, of which the job goes on."""
    monkeypatch.setenv("SLURM_JOB_ID", "45")
    monkeypatch.setattr(end_cause, "output", lambda *_: record)
    log = tmp_path / "job.log"
    log.write_text(LINE.format(""))
    context: Any = SimpleNamespace(settings=SimpleNamespace(job=SimpleNamespace(one_machine=False)))
    told = End(0, "script", "script", "the script exited with status 0", ended_as="CANCELLED")
    assert end_cause.from_slurm(context, told, {log: 0}).state == state
