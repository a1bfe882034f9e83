"""Who is told to be the cause of an end, where several things end in one moment."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml import errors
from hpcml.node.outcome import Outcome
from hpcml.node.roles import script as scripts
from hpcml.node.roles.script import Script
from hpcml.node.roles.supervisor import Supervisor

KILLED = 128 + signal.SIGKILL


def ended(killed: bool, monkeypatch: pytest.MonkeyPatch, *, starved: bool) -> Script:
    script = Script.__new__(Script)
    script.oom_before, script.killed = 3, killed
    script.context = SimpleNamespace(settings=SimpleNamespace(service=""))  # type: ignore[assignment]
    monkeypatch.setattr(scripts, "oom_kills", lambda: 4 if starved else 3)
    return script


def end_of(script: Any, verdict: Outcome, status: int, tmp_path: Any) -> Outcome:
    """Return what the supervisor says of a script that ends with ``status`` just after it found the cluster broken."""

    class Quiet(Supervisor):
        def _step(self) -> None:
            pass

        def _look_for_room(self) -> None:
            pass

        def _must_end(self) -> Outcome | None:
            return verdict

    supervisor = Quiet.__new__(Quiet)
    supervisor.events = SimpleNamespace(write=lambda *_, **__: None)  # type: ignore[assignment]
    supervisor.context = SimpleNamespace(  # type: ignore[assignment]
        settings=SimpleNamespace(driver_grace=60.0, service=""), run=SimpleNamespace(driver_log=tmp_path / "driver.log")
    )
    supervisor.signalled = False
    answers = iter([None, status])
    script.poll = lambda: next(answers)
    script.tell_to_end = lambda: None
    return supervisor._follow(script)


def test_memory_is_the_cause_where_the_kernel_took_the_script_and_a_role(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    verdict = Outcome(errors.ROLE_LOST, "driver", "hpcml", "a role was lost")
    found = end_of(ended(False, monkeypatch, starved=True), verdict, KILLED, tmp_path)
    assert (found.status, found.by) == (KILLED, "script")
    assert "out of memory" in found.reason


@pytest.mark.parametrize(
    ("killed", "starved", "status"), [(True, True, KILLED), (False, False, KILLED), (False, True, 1)]
)
def test_a_script_that_ends_because_of_the_loss_is_not_the_cause(
    killed: bool, starved: bool, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    verdict = Outcome(errors.ROLE_LOST, "driver", "hpcml", "the scheduler was lost")
    assert end_of(ended(killed, monkeypatch, starved=starved), verdict, status, tmp_path) == verdict


def test_the_time_limit_is_not_overruled(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    verdict = Outcome(errors.TIME_LIMIT, "driver", "slurm", "the time limit was reached")
    assert end_of(ended(False, monkeypatch, starved=True), verdict, KILLED, tmp_path) == verdict
