"""A run's state in Slurm's words, and its log of events, whose lines stay whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml import errors
from hpcml.node.health.heartbeat import Activity
from hpcml.node.outcome import EventLog, Outcome


@pytest.mark.parametrize(
    ("status", "by", "state"),
    [
        (0, "script", "COMPLETED"),
        (1, "script", "FAILED"),
        (errors.TIME_LIMIT, "scheduler", "TIMEOUT"),
        (errors.TIME_LIMIT, "script", "FAILED"),
        (errors.CANCELLED, "user", "CANCELLED"),
        (errors.PREEMPTED, "scheduler", "PREEMPTED"),
        (errors.ALLOCATION_LOST, "scheduler", "NODE_FAIL"),
        (errors.ALLOCATION_LOST, "hpcml", "FAILED"),
    ],
)
def test_states(status: int, by: str, state: str) -> None:
    assert Outcome(status, "script", by, "it ended").state == state


def test_a_line_that_does_not_fit_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    path = tmp_path / "events.jsonl"
    log = EventLog(path, 0)
    log.write("first")
    write = os.write
    with monkeypatch.context() as full:
        full.setattr("os.write", lambda descriptor, line: write(descriptor, line[:7]))
        log.write("cut")
    log.write("last")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["first", "last"]
    assert "the log of events cannot be written (No space left on device)" in capsys.readouterr().err


def test_a_warning_of_the_scheduler_leaves_no_file_open(tmp_path: Path) -> None:
    activity: Any = object.__new__(Activity)
    run = SimpleNamespace(job_log=tmp_path / "job.log", events=tmp_path / "events.jsonl")
    activity.context = SimpleNamespace(run=run, number=0)
    before = os.listdir("/proc/self/fd")
    activity._tell("it does not answer")
    assert os.listdir("/proc/self/fd") == before
    assert json.loads(run.events.read_text())["sentence"] == "it does not answer."
