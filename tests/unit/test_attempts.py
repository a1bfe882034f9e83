"""Whether another attempt follows: by how the last one ended, by newer checkpoints, and within limits."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml import errors
from hpcml.errors import HpcmlError
from hpcml.failures.end import End
from hpcml.node import next_attempt
from hpcml.paths import RunPaths
from hpcml.plan import make_plan
from hpcml.request.record import RunRequest, measure
from hpcml.runs import record
from hpcml.sites import schema, settings_layers
from hpcml.workload_forms import Form
from node_settings import settings as settings_of
from tests.said import in_order

STOPPED = End(errors.STOPPED, "script", "script", "it stopped")
TIME_LIMIT = End(errors.TIME_LIMIT, "script", "scheduler", "the time limit was reached")


def context(folder: Path, number: int = 0, **changes: object) -> Any:
    run = RunPaths(folder)
    for one in range(number + 1):
        run.attempt(one).directory.mkdir(parents=True, exist_ok=True)
        run.attempt(one).begun.touch()
        os.utime(run.attempt(one).begun, (1000 + 100 * one, 1000 + 100 * one))
    run.events.touch()
    settings = settings_of(**{"attempts__several_jobs": True, **changes})
    return SimpleNamespace(run=run, attempt=run.attempt(number), number=number, settings=settings)


def write_end(here: Any, number: int, exit_status: int) -> None:
    here.run.attempt(number).end.write_text(f'{{"attempt": {number}, "exit_status": {exit_status}}}')


def checkpoint(folder: Path, when: int, name: str = "state") -> None:
    path = RunPaths(folder).checkpoints / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.utime(path, (when, when))


def test_which_ends_are_followed_by_another_attempt(tmp_path: Path, subtests: pytest.Subtests) -> None:
    ends = (
        (STOPPED, True),
        (TIME_LIMIT, True),
        (End(errors.PREEMPTED, "script", "scheduler", ""), True),
        (End(errors.ALLOCATION_LOST, "script", "scheduler", ""), True),
        (End(errors.CANCELLED, "script", "scheduler", "", ended_as="REQUEUED"), True),
        (End(0, "script", "script", ""), False),
        (End(1, "script", "script", ""), False),
        (End(errors.TIME_LIMIT, "script", "script", "its own 85"), False),
        (End(errors.CANCELLED, "script", "user", ""), False),
        (End(errors.WORKERS_NEVER_CAME, "workers", "hpcml", ""), False),
    )
    for number, (outcome, follows) in enumerate(ends):
        with subtests.test(outcome=outcome):
            here = context(tmp_path / str(number))
            found = next_attempt.decided(here, outcome)
            assert here.attempt.goes_on.exists() == follows
            assert found.exit_status == outcome.exit_status
    alone = context(tmp_path / "alone", attempts__several_jobs=False)
    assert next_attempt.decided(alone, STOPPED) == STOPPED
    assert not alone.attempt.goes_on.exists()


def test_two_attempts_without_a_newer_checkpoint(tmp_path: Path) -> None:
    """The first one may have come too late to save; what lies there from before, or half written, is no progress."""
    assert next_attempt.decided(context(tmp_path), TIME_LIMIT).exit_status == errors.TIME_LIMIT
    third = context(tmp_path, 2)  # the attempts began at 1000, 1100 and 1200
    write_end(third, 1, errors.TIME_LIMIT)
    checkpoint(tmp_path, 1150)
    assert next_attempt.decided(third, TIME_LIMIT).exit_status == errors.TIME_LIMIT
    third.attempt.goes_on.unlink()
    checkpoint(tmp_path, 1050)
    checkpoint(tmp_path, 1250, ".new.0123456789abcdef.state")
    ended = next_attempt.decided(third, TIME_LIMIT._replace(killed_ranks=(1,)))
    assert (ended.exit_status, ended.by, ended.killed_ranks) == (errors.NO_PROGRESS, "hpcml", (1,))
    assert not third.attempt.goes_on.exists()


def test_attempts_that_others_ended_before_the_first_save_do_not_count(tmp_path: Path) -> None:
    preempted = End(errors.PREEMPTED, "script", "scheduler", "")
    for number, outcome in enumerate((preempted, preempted, TIME_LIMIT, preempted)):
        here = context(tmp_path, number)
        assert next_attempt.decided(here, outcome).exit_status == outcome.exit_status
        assert here.attempt.goes_on.exists()
        if number != 1:  # that one was lost with its node, without a word
            write_end(here, number, outcome.exit_status)
    assert next_attempt.decided(context(tmp_path, 4), STOPPED).exit_status == errors.NO_PROGRESS
    checkpoint(tmp_path, 1250)  # of the third, which had its time
    (context(tmp_path, 4).run.checkpoints / "latest").symlink_to("removed")
    assert next_attempt.decided(context(tmp_path, 4), STOPPED).exit_status == errors.STOPPED


def test_limits(tmp_path: Path) -> None:
    checkpoint(tmp_path, 10**6)
    second = context(tmp_path, 1, attempts__max_restarts=1)
    ended = next_attempt.decided(second, STOPPED)
    assert (ended.exit_status, ended.by) == (errors.STOPPED, "script")
    assert "--max-restarts 1 is reached" in ended.message
    second.run.events.write_text(
        '{"attempt": 0, "time": 5000.0}\n{"attempt": 0, "time": 8600.0}\n'
        '{"attempt": 1, "time": 9000.0}\n{"attempt": 1, "time": 10800.0}\n'
        '{"time": 1.0, "attem\n'  # a full disk's
    )
    assert next_attempt.node_hours(second.run, 2) == pytest.approx(3.0)
    assert next_attempt.reached(context(tmp_path, 1, attempts__max_node_hours=5.0)) == ""
    assert re.search(
        in_order("3 of 4.9 node-hours (--max-node-hours)", "take 2"),
        next_attempt.reached(context(tmp_path, 1, attempts__max_node_hours=4.9)),
    )
    no_job = context(tmp_path, 1, job__one_machine=False)
    assert "could not be queued" in next_attempt.reached(no_job)
    no_job.run.next_job.symlink_to("12")
    assert next_attempt.reached(no_job) == ""


def test_the_job_that_is_put_back_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = context(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert next_attempt.waits_anew(here) == ""
    here.run.next_job.symlink_to("13")
    assert next_attempt.waits_anew(here) == ""
    here.run.next_job.unlink()
    here.run.next_job.symlink_to("12")
    assert "requeues this job" in next_attempt.waits_anew(here)


def test_a_qos_that_takes_one_job_is_told_at_submission(tmp_path: Path) -> None:
    site = settings_layers.build(schema.Site, settings_layers.Layers())
    site = site._replace(scheduler="slurm", qos={"debug": schema.Qos(max_jobs=1), "normal": schema.Qos(max_jobs=9)})
    place = make_plan.RunLocation(tmp_path, "/usr/bin/python3", "0")
    for qos, until_done in (("debug", True), ("debug", False), ("normal", True)):
        asked = RunRequest.of(tmp_path / "job.py", (), tmp_path, qos=qos, until_done=until_done)
        told = [text for text in make_plan.plan(site, asked, place).notices if "only one submitted job" in text]
        assert len(told) == (qos == "debug" and until_done)


def test_how_the_attempt_before_ended_is_kept(tmp_path: Path) -> None:
    """If it is what status.json tells: one that was killed left no word, and what stands there is older."""
    third = context(tmp_path, 2)
    third.run.status.write_text('{"attempt": 0, "message": "older"}')
    next_attempt.keep_last_end(third)
    assert not third.run.attempt(1).end.exists()
    third.run.status.write_text('{"attempt": 1, "message": "it stopped"}')
    next_attempt.keep_last_end(third)
    assert third.run.attempt(1).end.read_text() == '{"attempt": 1, "message": "it stopped"}\n'
    next_attempt.keep_last_end(context(tmp_path / "first"))


def test_requests_that_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"max_restarts": 3}, "--max-restarts needs --until-done"),
        ({"max_node_hours": 3.0}, "--max-node-hours needs --until-done"),
        ({"until_done": True, "form": Form.JUPYTER}, "jupyter cannot be continued"),
        ({"until_done": True, "nodes": 4, "time": measure("time", "1:00:00"), "max_node_hours": 3.0}, "One attempt may take 4 node-hours, but the limit for all attempts is 3"),
    )  # fmt: skip
    site = settings_layers.build(schema.Site, settings_layers.Layers())
    place = make_plan.RunLocation(tmp_path, "/usr/bin/python3", "0")
    for asked, words in refused:
        with subtests.test(asked=asked), pytest.raises(HpcmlError, match=words):
            make_plan.plan(site, RunRequest.of(tmp_path / "job.py", (), tmp_path, **asked), place)
    just = {"until_done": True, "nodes": 4, "time": measure("time", "1:00:00"), "max_node_hours": 4.0}
    assert make_plan.plan(
        site, RunRequest.of(tmp_path / "job.py", (), tmp_path, **just), place
    ).inside.attempts.several_jobs
    inside = site._replace(scheduler="allocation")
    with pytest.raises(HpcmlError):
        make_plan.plan(inside, RunRequest.of(tmp_path / "job.py", (), tmp_path, until_done=True), place)


def test_a_damaged_exit_status_of_the_supervisor_counts_as_none(tmp_path: Path) -> None:
    run = RunPaths(tmp_path)
    path = run.attempt(0).exit_of("supervisor", "n1")
    path.parent.mkdir(parents=True)
    for text, status in (("3", 3), ("²", None), ("", None)):
        path.write_text(text)
        found = record.supervisor_exit(run)
        assert (found and found.exit_status) == status
