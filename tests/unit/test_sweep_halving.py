"""Which points halving stops, by what all had at a step, and that a run that begins again finds it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hpcml.errors import HpcmlError
from hpcml.node.sweep import halving as node
from hpcml.paths import RunPaths
from hpcml.sweeps import halving
from hpcml.sweeps.store import Sweep

SETTINGS = node.Settings("val/loss", 3, 2, maximize=False)


def a_run(folder: Path, before: dict[str, dict[str, float | None]] | None = None) -> RunPaths:
    folder.mkdir()
    run = RunPaths(folder)
    run.points.write_text(json.dumps({"halving": {"before": before or {}}}))
    return run


def stopped_at(run: RunPaths, key: str, values: list[float], settings: node.Settings = SETTINGS) -> int:
    """Return the step at which a point is stopped that reports these values, 0 if it comes to its end."""
    judge = node.Judge(run, key, settings)
    stops = [judge.look(step, {settings.metric: value, "other": 1.0}) for step, value in enumerate(values, 1)]
    return next((stop.step for stop in stops if stop), 0)


def test_the_steps_at_which_points_are_compared() -> None:
    assert [node.rung_of(step, SETTINGS) for step in (0, 1, 2, 5, 6, 17, 18, 100)] == [0, 0, 2, 2, 6, 6, 18, 54]


def test_the_best_third_goes_on(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    ends = [stopped_at(run, key, [loss] * 10) for key, loss in
            (("a", 3.0), ("b", 2.0), ("c", 2.5), ("d", 1.0), ("e", 1.5), ("f", math.nan), ("g", 1.0))]  # fmt: skip
    # b: best so far; c: second of three, of which one goes on; e: second of five; g: as good as the best, which is d
    assert ends == [0, 0, 2, 0, 2, 2, 0]
    assert {path.name for path in (run.rungs / "val%2Floss" / "6").iterdir()} == {"a=3.0", "b=2.0", "d=1.0", "g=1.0"}


def test_the_largest_may_be_the_best_and_a_step_may_be_left_out(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    largest = SETTINGS._replace(maximize=True)
    assert [stopped_at(run, key, [value] * 4, largest) for key, value in (("a", 0.5), ("b", 0.9), ("c", 0.7))] == [
        0,
        0,
        2,
    ]
    judge = node.Judge(run, "d", largest)
    assert judge.look(5, {"other": 1.0}) is None
    assert judge.look(None, {"val/loss": 0.1}) is None  # the first report is step 1
    assert judge.look(None, {"val/loss": 0.1})
    assert judge.look(None, {"other": 0.1}), "whoever goes on is told again"


def test_what_was_before_counts_and_a_point_is_not_compared_with_itself(tmp_path: Path) -> None:
    first = a_run(tmp_path / "first")
    for key, loss in (("a", 1.0), ("b", 2.0), ("c", math.nan), ("old", 0.1)):
        stopped_at(first, key, [loss] * 3)
    found = halving.for_the_nodes(
        halving.Halving("val/loss"), tmp_path, Sweep("s", runs=("first", "gone")), {"a", "b", "c"}, maximize=False
    )
    assert found == {
        "metric": "val/loss", "eta": 3, "min_steps": 1, "maximize": False,
        "before": {"2": {"a": 1.0, "b": 2.0, "c": None}},
    }  # fmt: skip
    second = a_run(tmp_path / "second", {"2": {"a": 1.0, "b": 2.0, "c": None}})
    assert stopped_at(second, "d", [1.5] * 3) == 2
    assert stopped_at(second, "a", [1.2] * 3) == 0  # run again: its own 1.0 is gone
    assert stopped_at(second, "d", [0.5] * 3) == 0  # as after a restart
    assert {path.name for path in (second.rungs / "val%2Floss" / "2").iterdir()} == {"a=1.2", "d=0.5"}


def test_runs_beside_each_other_compare_their_points(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    settings = SETTINGS._replace(shared=str(tmp_path / "shared"))
    one, other = a_run(tmp_path / "one"), a_run(tmp_path / "other")
    assert stopped_at(one, "a", [1.0] * 3, settings) == 0
    assert stopped_at(other, "b", [2.0] * 3, settings) == 2
    assert [path.name for path in (other.rungs / "val%2Floss" / "2").iterdir()] == ["b=2.0"]
    assert stopped_at(a_run(tmp_path / "third"), "c", [2.0] * 3, settings._replace(shared=str(tmp_path / "no"))) == 0
    assert not (tmp_path / "no").exists()


def test_what_is_refused(subtests: pytest.Subtests) -> None:
    for wrong in (halving.Halving(""), halving.Halving("loss", 1), halving.Halving("loss", 3, 0)):
        with subtests.test(wrong=wrong), pytest.raises(HpcmlError):
            wrong.checked()
