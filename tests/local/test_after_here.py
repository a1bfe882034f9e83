"""Runs on this machine that wait for others: they start when those have ended, never start, or are cancelled."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpcml

pytestmark = pytest.mark.local

UNTIL_TOLD = """
import sys, time
import hpcml
while not (hpcml.run.out / "stop").exists() and not hpcml.run.should_stop():
    time.sleep(0.05)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("first.py").write_text(UNTIL_TOLD)
    Path("then.py").write_text("print('then')\n")


def first(exit_status: int) -> hpcml.RunHandle:
    return hpcml.submit("first.py", exit_status, site="local")


def then(after: object) -> hpcml.RunHandle:
    return hpcml.submit("then.py", site="local", after=after)


def test_a_run_starts_when_another_has_ended_as_asked() -> None:
    before = first(0)
    try:
        well, badly = then(before), then(f"{before.id}:fail")
        last = then([f"{well.id}:any", f"{badly.id}:any"])
        for one in (well, badly):
            assert (one.state, one.status().phase) == ("PENDING", "queued")
        assert badly.status().message == f"waiting for {before.id} to fail"
        assert last.status().message == f"waiting for {well.id} to end and for {badly.id} to end"
        (before.out / "stop").write_text("")
        assert well.wait(120) == 0
        assert well.logs() == "then\n"
        assert badly.wait(60) == 86
        assert badly.state == "CANCELLED"
        assert badly.status().message == (
            f"the run never started: it waited for {before.id} to fail, and it ended well"
        )
        assert last.wait(120) == 0
        began = last.status().times["allocated"]
        assert began > max(before.status().times["torn-down"], well.status().times["torn-down"])
    finally:
        before.cancel()


def test_a_run_that_waits_can_be_cancelled_and_waits_for_one_that_is_killed() -> None:
    before = first(0)
    waiting = then(before)
    after_all = then(f"{before.id}:fail")
    try:
        assert waiting.status().phase == "queued"
        assert waiting.cancel()
        assert waiting.wait(60) == 86
        assert waiting.status().message == "the run was cancelled before it started"
        assert before.cancel()
        assert before.wait(60) == 86
        assert after_all.wait(120) == 0
    finally:
        before.cancel()
        after_all.cancel()
