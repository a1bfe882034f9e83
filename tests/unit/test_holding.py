"""A hold's supervisor: which run starts on which nodes, and which is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any, cast

import pytest

from hpcml import errors, held
from hpcml.kinds.hold.node import holding
from hpcml.paths import RunPaths
from hpcml.recorded import Recorded

NODE, HALF = (2, 8, 800), (1, 4, 400)  # GPUs, CPUs and MiB


class Fake:
    """A run that has started, for the hold."""

    def __init__(self, _: object, name: str, nodes: tuple[str, ...], *__: object) -> None:
        self.name, self.nodes, self.ready, self.kill_at = name, nodes, None, float("inf")
        self.paths, self.start = RunPaths(HOLD.parent / name), None
        plan = Recorded(self.paths).plan
        self.part, self.image = plan.part, plan.inside.job.image


HOLD = Path()


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> holding.Holding:
    """Return a hold of two nodes, in which runs start without processes."""
    monkeypatch.setattr(holding, "HeldRun", Fake)
    monkeypatch.setitem(globals(), "HOLD", tmp_path / "hold-20260101-000000-0000")
    run = RunPaths(HOLD)
    run.queue.mkdir(parents=True)
    settings = Some(job=Some(one_machine=False, nodes=2), code=Some(keeps=False, idle=0))
    context = Some(run=run, settings=settings, node_names=("n1", "n2"))
    state = Some(context=context, events=Some(write=lambda *_, **__: None), end_requests=Some(time_limit_near=False))
    return holding.Holding(cast("Any", state))


def put(number: int, nodes: int = 1, *, no_wait: bool = False, part: tuple[int, ...] = (), image: str = "") -> RunPaths:
    """Put a run into the hold's queue."""
    run = RunPaths(HOLD.parent / f"run-20260101-00000{number}-0000")
    run.directory.mkdir()
    plan = {
        "inside": {"job": {"nodes": nodes, "image": image}},
        "no_wait": no_wait,
        "part": [dict(zip(held.Part._fields, sizes, strict=True)) for sizes in (part, NODE)] if part else [],
    }
    run.plan.write_text(json.dumps(plan))
    (RunPaths(HOLD).queue / run.directory.name).write_text('{"command": ["x"], "environment": {}}')
    return run


def take(hold: holding.Holding) -> None:
    while hold._take():
        pass


def test_a_run_that_is_not_to_wait_does_not_wait_behind_another(hold: holding.Holding) -> None:
    """It may not overtake it either, though a part of a node is free."""
    put(0, part=HALF)
    large, hasty, patient = put(1, 2), put(2, part=HALF, no_wait=True), put(3, part=HALF)
    take(hold)
    assert [*hold.runs] == ["run-20260101-000000-0000"]
    end = json.loads(hasty.status.read_text())
    assert end["exit_status"] == errors.REFUSED
    assert "another run waits, and --no-wait refuses to wait" in end["message"]
    waiting = {path.name for path in RunPaths(HOLD).queue.iterdir()}
    assert waiting == {large.directory.name, patient.directory.name}


def test_parts_of_a_node_go_back_when_their_runs_end(hold: holding.Holding) -> None:
    for number in range(4):
        put(number, part=HALF)
    whole = put(4, 2)
    take(hold)
    assert sorted(run.nodes[0] for run in hold.runs.values()) == ["n1", "n1", "n2", "n2"]
    for run in [*hold.runs.values()]:
        run.close = lambda: None  # type: ignore[method-assign]
        hold._end(run)
    assert (hold.parts, sorted(hold.free)) == ({}, ["n1", "n2"])
    take(hold)
    assert [*hold.runs] == [whole.directory.name]


@pytest.mark.parametrize("image", ["", "/images/mine.sif"])
def test_no_processes_of_a_run_in_an_image_start_ahead(
    hold: holding.Holding, monkeypatch: pytest.MonkeyPatch, image: str
) -> None:
    """The image would have the folders of the last run: not the next one's, nor the targets of links in its code."""
    started: list[object] = []
    monkeypatch.setattr(holding, "Ahead", lambda *given: started.append(given))
    hold.keeps = True
    for number in range(2):
        put(number, image=image)
        take(hold)
        [run] = hold.runs.values()
        run.close = lambda: None  # type: ignore[method-assign]
        hold._end(run)
        if number == 0:
            hold._keep_ahead()
            assert len(started) == (0 if image else 1)
    not_ahead = json.loads(run.paths.kept.read_text())["not_ahead"]
    assert not_ahead == ("the run has an image" if image else "the last run has only just ended")


def test_a_hold_that_slurm_has_requeued_takes_runs_again(hold: holding.Holding) -> None:
    """Else its nodes are paid for, and no run can start there."""
    (hold.paths.ahead / "1").mkdir(parents=True)
    hold._close()
    assert not hold.paths.queue.exists()
    again = holding.Holding(hold.state)
    put(0)
    take(again)
    assert len(again.runs) == 1
    assert not hold.paths.ahead.exists()
    again._close()
    assert [*hold.paths.closed.iterdir()] == []
