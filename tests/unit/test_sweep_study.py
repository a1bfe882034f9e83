"""The study of a sweep: what it is asked, told, and answers, by Optuna itself on a journal."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.failures.end import End
from hpcml.node.sweep import points
from hpcml.node.sweep.points import Point, Settings
from hpcml.node.sweep.study import Study
from hpcml.paths import RunPaths
from node_settings import settings as settings_of

SPACE: dict[str, tuple[str, list[Any]]] = {"x": ("uniform", [0, 1]), "r": ("loguniform", [1e-4, 1]), "k": ("randint", [1, 9]), "c": ("choice", ["8", "b"])}  # fmt: skip
ASHA = ("SuccessiveHalvingPruner", {"min_resource": 2, "reduction_factor": 3})
NONE: tuple[str, dict[str, Any]] = ("", {})


def study(folder: Path, job: int = 0, *, space: Any = None, pruner: Any = NONE) -> Study:
    sampler = ("TPESampler", {}) if space else NONE
    typed = {"c": {"8": 8, "b": "b"}}
    return Study(Settings(str(folder / "journal"), "s", "loss", False, sampler, pruner, space or {}, typed, 0), job)


def point(key: str, **values: Any) -> Point:
    return Point(key, "draw=0", values, {}, 0)


def pruned_at(one: Study, key: str, values: list[float | None]) -> int:
    """Return the step at which a point is stopped that reports these values, 0 if it comes to its end."""
    one.begin(point(key, k=1, name="text"))
    stops = [step for step, value in enumerate(values, 1) if one.report(key, step, {"loss": value})]
    one.end(key, "pruned" if stops else "ok", values[-1])
    return stops[0] if stops else 0


def test_values_are_drawn_and_no_two_jobs_draw_the_same(tmp_path: Path) -> None:
    first, second = study(tmp_path, 0, space=SPACE), study(tmp_path, 1, space=SPACE)
    points = [one.begin(point(f"{job}{number}")) for job, one in enumerate((first, second)) for number in range(3)]
    assert len({one.texts["x"] for one in points}) == 6
    for one in points:
        values = one.values
        assert 0 <= values["x"] <= 1
        assert 1e-4 <= values["r"] <= 1
        assert values["k"] in range(1, 10)
        assert values["c"] in (8, "b")
        assert one.texts == {name: str(value) for name, value in values.items()}
        assert one.shown.startswith("draw=0 x=")
    assert len(second.study.trials) == 6, "they share the study"
    assert type(first.study.sampler).__name__ == "TPESampler"


def test_what_failed_is_tried_again_with_its_values(tmp_path: Path) -> None:
    values = study(tmp_path, space=SPACE).begin(point("a")).values
    again = study(tmp_path, 1, space=SPACE)
    assert again.begin(point("a", **values, draw=0)).values == values
    assert again.begin(point("b")).values != values


def test_what_is_pruned(tmp_path: Path) -> None:
    one = study(tmp_path, pruner=ASHA)
    ends = [pruned_at(one, key, [loss] * 10) for key, loss in
            (("a", 3.0), ("b", 2.0), ("c", 2.5), ("d", 1.0), ("e", 1.5), ("f", None))]  # fmt: skip
    assert ends == [0, 0, 2, 0, 2, 2]
    assert [trial.state.name for trial in one.study.trials][-1] == "PRUNED"
    assert one.report("c", 11, {"loss": 0.0}), "once it is, it stays so"


def test_a_step_may_be_left_out_and_another_metric_is_not_judged(tmp_path: Path) -> None:
    one = study(tmp_path, pruner=ASHA)
    assert pruned_at(one, "a", [1.0] * 4) == 0
    one.begin(point("b"))
    assert not one.report("b", 5, {"other": 9.0})
    assert not one.report("b", None, {"loss": 9.0})  # the first report is step 1
    assert one.report("b", None, {"loss": 9.0})


def test_what_ended_without_a_number_teaches_nothing(tmp_path: Path) -> None:
    one = study(tmp_path)
    for key, state, value in (("a", "ok", 1.0), ("b", "ok", None), ("c", "failed", 0.1), ("d", "", None)):
        one.begin(point(key, k=1, name="text"))
        one.end(key, state, value)
    assert [trial.state.name for trial in one.study.trials] == ["COMPLETE", "FAIL", "FAIL", "FAIL"]
    trial = one.study.trials[0]
    assert (trial.params, trial.user_attrs) == ({"k": 1.0}, {"point": "a", "name": "text"})


def record_of(folder: Path, status: int, pruned: int | None = None, *, is_cut: bool = False) -> Any:
    run = RunPaths(folder)
    run.attempt(0).directory.mkdir(parents=True, exist_ok=True)
    context: Any = SimpleNamespace(run=run, attempt=run.attempt(0), node="n1", settings=settings_of(job__nodes=1))
    running = points.RunningPoint(point("a", k=1), 0)
    running.end({"status": status, "seconds": 1.0, "pruned": pruned})
    return points.record(context, running, End(status, by="script"), is_cut=is_cut)


def test_only_what_ended_as_it_was_told_is_pruned(tmp_path: Path) -> None:
    for status, pruned, state, cause in ((94, 3, "pruned", "pruned at step 3"), (0, 3, "pruned", "pruned at step 3"),
                                         (0, None, "ok", ""), (1, 3, "failed", "exit status 1"), (94, None, "failed", "exit status 94")):  # fmt: skip
        record, stops = record_of(tmp_path, status, pruned)
        assert (record.status, record.cause, stops) == (state, cause, False)
        assert record.values == {"k": 1, "draw": 0}


@pytest.mark.parametrize(("status", "stops"), [(143, True), (0, False)])
def test_a_point_that_a_cancellation_ends_is_run_again(tmp_path: Path, status: int, stops: bool) -> None:
    record, stopped = record_of(tmp_path, status, is_cut=True)
    assert (stopped, record is None) == (stops, stops)


def test_a_point_begun_anew_leaves_no_open_trial(tmp_path: Path) -> None:
    study(tmp_path).begin(point("a", k=1))
    later = study(tmp_path)
    later.begin(point("b", k=2))
    later.begin(point("a", k=1))
    assert [trial.state.name for trial in later.study.trials] == ["FAIL", "RUNNING", "RUNNING"]


def test_a_trial_that_another_run_has_ended_stays_so(tmp_path: Path) -> None:
    """Others run a point again that this run held for too long without a heartbeat."""
    one = study(tmp_path, pruner=ASHA)
    one.begin(point("a", k=1))
    other = study(tmp_path, 1)
    other.begin(point("a", k=1))
    assert not one.report("a", 1, {"loss": 1.0})
    one.end("a", "ok", 1.0)
    other.end("a", "ok", 2.0)
    assert [trial.state.name for trial in study(tmp_path).study.trials] == ["FAIL", "COMPLETE"]


def test_a_sampler_says_at_once_which_package_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)
    cmaes = Settings(str(tmp_path / "journal"), "s", "loss", False, ("CmaEsSampler", {}), NONE, SPACE, {}, 0)
    with pytest.raises(ImportError) as raised:
        Study(cmaes, 0)
    assert raised.value.name == "cmaes"


def test_a_journal_that_ends_in_half_a_line_goes_on(tmp_path: Path) -> None:
    """As after a full disk, a quota or a crash; also where another job has written behind the half line."""
    journal = tmp_path / "journal"
    one = study(tmp_path, space=SPACE)
    for key in ("a", "b"):
        one.begin(point(key))
        one.end(key, "ok", 1.0)
    journal.write_bytes(journal.read_bytes()[:-37])
    again = study(tmp_path, space=SPACE)
    assert [trial.state.name for trial in again.study.trials] == ["COMPLETE", "RUNNING"]
    again.begin(point("b"))
    assert [trial.state.name for trial in again.study.trials] == ["COMPLETE", "FAIL", "RUNNING"]
    again.end("b", "ok", 2.0)

    *whole, last = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*whole, whole[-1][:40], last]))
    size = journal.stat().st_size
    assert [trial.state.name for trial in study(tmp_path, space=SPACE).study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert journal.read_bytes()[:size].endswith(last), "other jobs read on from where they were"

    journal.write_bytes(bytes(40) + b"\n" + journal.read_bytes())
    with pytest.raises(ValueError, match=rf"line 1 of the sweep's journal {journal} is damaged\. Remove this line"):
        study(tmp_path, space=SPACE)
    assert not list(tmp_path.glob("journal.*")), "the lock is released"
