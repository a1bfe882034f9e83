"""What waits for something that cannot come: when it is said, what is said, and when it ends the run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml import errors
from hpcml.kinds.dask.node.supervised import Hangs
from hpcml.node.events_and_end import EventLog, RunEndedError
from hpcml.node.process_helpers import OwnTime
from hpcml.node.tasks import run_tasks
from hpcml.paths import RunPaths
from hpcml.run_files import Recorded
from hpcml.runs.record import Planned
from hpcml.runs.status import _reported
from hpcml.workload_forms import Form
from node_settings import settings as settings_of
from tests.said import says


class Run:
    """A script that runs, its clock set by the test."""

    def __init__(self, **settings: Any) -> None:
        self.clock = OwnTime()
        self.said: list[str] = []
        context: Any = SimpleNamespace(settings=settings_of(workers__per_node=2, **settings), node="n1")
        self.hangs = Hangs(context, self.clock, lambda words: None if words in self.said else self.said.append(words))
        self.hangs.begin()

    def at(self, seconds: float, missing: int = 0, *, final: bool = True, **told: Any) -> None:
        self.clock.seconds = seconds
        if told:
            self.hangs.take({"connected": True, "idle": 0.0, "waited": 0.0, "stuck": 0, **told})
        self.hangs.look(missing, final=final)


def test_a_script_that_never_connects_is_told_and_goes_on() -> None:
    run = Run()
    run.at(59, connected=False, idle=59)
    assert run.said == []
    run.at(61, connected=False, idle=61)
    run.at(90, connected=False, idle=90)
    (said,) = run.said
    assert "not connected to its Dask cluster for 60" in said


def test_a_scheduler_that_is_held_up_reports_no_idle_script() -> None:
    run = Run(deadlines__answer=6000.0, deadlines__idle=700.0)
    run.at(39, connected=False, idle=39)  # the script connects; then a graph's imports hold up the scheduler
    run.at(590)
    assert run.said == []
    run.at(600, connected=True, idle=550)
    run.at(900)
    assert run.said == []


def test_the_time_before_the_script_does_not_count() -> None:
    run = Run()
    run.clock.seconds = 1000.0
    run.hangs.begin()
    run.at(1050, connected=False, idle=1050)
    assert run.said == []


def test_a_cluster_that_nobody_uses() -> None:
    run = Run()
    run.at(1000, idle=599)
    assert run.said == []
    run.at(1010, idle=609)
    assert run.said == [says("used the Dask cluster for 10 min, and 2")]


def test_an_end_for_idleness_only_where_it_is_asked_for() -> None:
    Run().at(1e6, idle=1e6)
    with pytest.raises(RunEndedError) as ended:
        Run(deadlines__idle=300.0).at(1000, idle=301)
    assert ended.value.end.exit_status == errors.IDLE
    assert "deadlines.idle (default: off)" in ended.value.end.hint


def test_a_script_that_waits_for_more_workers_than_there_are() -> None:
    run = Run()
    run.at(100, waited=9)
    assert run.said == []
    run.at(102, waited=11)
    assert run.said[0].startswith("the script waits in wait_for_workers() for more workers than the run has (4)")
    with pytest.raises(RunEndedError) as ended:
        run.at(212, waited=121)
    assert ended.value.end.exit_status == errors.WORKERS_NEVER_CAME


def test_a_script_that_waits_for_workers_that_come_back_waits() -> None:
    run = Run()
    run.at(1000, 1, final=False, waited=500)
    assert run.said == []
    with pytest.raises(RunEndedError) as ended:
        run.at(1001, 1, final=True, waited=501)
    assert "than the run has (3)" in ended.value.end.message


def test_tasks_that_no_worker_may_run() -> None:
    run = Run()
    run.at(100, stuck=2, idle=29)
    run.at(102, stuck=2, idle=31)
    assert run.said == [says("2", "a task needs (resources= or workers=)")]


def test_a_scheduler_that_does_not_answer() -> None:
    run = Run()
    run.at(10, idle=0)
    run.at(69)
    assert run.said == []
    run.at(71)
    assert run.said == [says("scheduler on n1 has not answered for 60", "s; the run ends after 600")]
    with pytest.raises(RunEndedError) as ended:
        run.at(611)
    assert ended.value.end.exit_status == errors.ROLE_LOST


@pytest.mark.parametrize("settings", [
    {"deadlines__connect_notice": 0.0, "deadlines__idle_notice": 0.0},
    {"code__form": Form.JUPYTER, "deadlines__idle": 10.0},  # it ends for idleness by itself
])  # fmt: skip
def test_notices_can_be_switched_off_and_a_service_has_none(settings: dict[str, Any]) -> None:
    run = Run(**settings)
    run.at(1e6, connected=False, idle=1e6)
    run.at(1e6 + 1, connected=False, idle=1e6)
    assert run.said == []


def test_a_script_that_a_file_system_blocks_is_an_event_that_its_status_has(tmp_path: Path) -> None:
    """What `hpcml why` decides by is a field of the event, and no word of the warning."""
    warnings: list[str] = []
    events, waits = EventLog(tmp_path / "events.jsonl", 0), iter(["/data/a.npy, wait", ""])
    state: Any = SimpleNamespace(
        frozen=False, events=events, warn=warnings.append, clock=OwnTime(), context=SimpleNamespace(node="n3")
    )
    hang: Any = SimpleNamespace(look=lambda _: next(waits))
    with events:
        for blocked in (True, False):
            run_tasks.look_for_hang(state, hang)
            assert state.frozen == blocked
    assert _reported(Planned(), tuple(Recorded(RunPaths(tmp_path)).events))["blocked_on"] == "/data/a.npy, wait"
    assert [*events.times] == ["script-blocked", "script-unblocked"]
    assert len(warnings) == 2
