"""A hold's supervisor: which run starts on which nodes, and which is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace as Some
from typing import Any, cast
from unittest.mock import Mock

import pytest

from hpcml import errors, hold_queue
from hpcml.kinds.hold.node import holding
from hpcml.paths import RunPaths
from hpcml.run_files import Recorded

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
    return holding_of(RunPaths(HOLD), "n1", "n2")


def holding_of(run: RunPaths, *nodes: str) -> holding.Holding:
    """Return a hold of these nodes as its supervisor has it."""
    run.queue.mkdir(parents=True)
    settings = Some(job=Some(one_machine=False, nodes=len(nodes)), code=Some(keeps=False, idle=0))
    context = Some(run=run, settings=settings, node_names=nodes)
    state = Some(context=context, events=Some(write=lambda *_, **__: None), end_requests=Some(time_limit_near=False))
    return holding.Holding(cast("Any", state))


def put(number: int, nodes: int = 1, *, no_wait: bool = False, part: tuple[int, ...] = (), image: str = "") -> RunPaths:
    """Put a run into the hold's queue."""
    run = RunPaths(HOLD.parent / f"run-20260101-00000{number}-0000")
    run.directory.mkdir()
    plan = {
        "inside": {"job": {"nodes": nodes, "image": image}},
        "no_wait": no_wait,
        "part": [dict(zip(hold_queue.Part._fields, sizes, strict=True)) for sizes in (part, NODE)] if part else [],
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


def test_an_entry_that_cannot_be_read_ends_its_run_and_not_the_hold(hold: holding.Holding) -> None:
    """As after an error of the file system; the next run starts."""
    hold.state.warn = Mock()  # type: ignore[method-assign]
    damaged, new = put(1), put(2)
    entry = RunPaths(HOLD).queue / damaged.directory.name
    entry.unlink()
    entry.mkdir()
    (RunPaths(HOLD).queue / "stray").mkdir()
    take(hold)
    end = json.loads(damaged.status.read_text())
    assert (end["exit_status"], end["over"]) == (errors.START_FAILED, True)
    assert [*hold.runs] == [new.directory.name]
    assert [damaged.directory.name in str(call) for call in hold.state.warn.call_args_list] == [False, True]


def test_a_run_whose_plan_is_gone_ends_and_not_the_hold(hold: holding.Holding) -> None:
    """As if its owner has removed its folder while it waits; the supervisor's error would end all runs of the hold."""
    removed, damaged, new = put(1), put(2), put(3)
    shutil.rmtree(removed.directory)
    damaged.plan.write_text("{")
    take(hold)
    assert [*hold.runs] == [new.directory.name]
    assert json.loads(damaged.status.read_text())["exit_status"] == errors.START_FAILED
    assert not removed.directory.exists()


@pytest.mark.parametrize("is_read", [False, True])
def test_a_run_that_is_cancelled_while_the_hold_takes_it_has_an_end(
    hold: holding.Holding, monkeypatch: pytest.MonkeyPatch, is_read: bool
) -> None:
    """Its file was renamed between two looks: without an end the run would be RUNNING until the hold's end.

    Also after it was read: else its variables would stay under the new name.
    """
    run, paths = put(1), RunPaths(HOLD)

    def cancelled(entry: Path) -> object:
        text = entry.read_text()
        entry.rename(paths.told / entry.name)
        if not is_read:
            raise FileNotFoundError
        return json.loads(text)

    monkeypatch.setattr(holding, "read_json", cancelled)
    take(hold)
    assert (json.loads(run.status.read_text())["exit_status"], hold.runs) == (errors.CANCELLED, {})
    assert [*paths.hold.rglob("*-*")] == []


def test_the_watch_beside_a_batch_script_ends_with_it(tmp_path: Path) -> None:
    """Also if it ended before its first attempt, as on a full disk: no process is left on this machine."""
    run = RunPaths(tmp_path)
    run.script.write_text("exit 3\n")
    reader, writer = os.pipe()
    with subprocess.Popen(hold_queue.batch_script(run), stdin=reader, start_new_session=True) as process:
        os.close(reader)
        assert process.wait(30) == 3
    os.close(writer)
    until = time.monotonic() + 30
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(process.pid, 0)
            time.sleep(0.05)


def test_a_queue_that_cannot_be_changed_now_is_looked_at_again(
    hold: holding.Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = put(1)
    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", Mock(side_effect=OSError(5, "Input/output error")))
        take(hold)
    assert hold.runs == {}
    take(hold)
    assert [*hold.runs] == [waits.directory.name]


def test_a_hold_looks_often_for_runs_for_a_minute_after_one_began_or_ended(
    hold: holding.Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folders are on a file system that all users share."""
    clock, looks = Mock(return_value=1000.0), Mock(return_value=False)
    monkeypatch.setattr(time, "monotonic", clock)
    monkeypatch.setattr(hold, "_take", looks)
    hold.changed = 0.0

    def count() -> int:
        looks.reset_mock()
        for _ in range(80):
            clock.return_value += holding.LOOK * 1.01
            hold.step()
        return looks.call_count

    assert count() <= 20
    name = put(1).directory.name
    hold._begin(cast("Any", Fake(None, name, ("n1",))))
    hold.runs[name].process, hold.runs[name].close = Mock(**{"poll.return_value": None}), Mock()  # type: ignore[method-assign]
    hold.runs[name].keep_limit = Mock()  # type: ignore[method-assign]
    assert count() == 80
    clock.return_value += holding.LIVELY
    assert count() <= 20
    hold._end(hold.runs[name])
    assert count() == 80


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


class Kept:
    """A hold of one node as its supervisor has it, with runs that only wait."""

    def __init__(self, folder: Path) -> None:
        self.paths = RunPaths(folder / "hold-1")
        self.holding = holding_of(self.paths, "n1")

    def put(self, name: str, **plan: object) -> Path:
        """Put a run into the queue; return its directory."""
        directory = self.paths.directory.parent / name
        (directory / "logs").mkdir(parents=True)
        (directory / "plan.json").write_text(json.dumps({"inside": {"job": {"nodes": 1}}} | plan))
        (self.paths.queue / name).write_text(json.dumps({"command": ["sleep", "600"], "environment": dict(os.environ)}))
        return directory

    def look(self) -> list[str]:
        """Let the hold look for runs; return those that are in it."""
        self.holding.looked = 0.0
        self.holding.step()
        return [*self.holding.runs]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    made = Kept(tmp_path)
    yield made
    for started in made.holding.runs.values():
        started.kill()
        started.close()


def test_runs_share_a_node_and_one_that_wants_all_of_it_waits(kept: Kept) -> None:
    quarter, node = [1, 2, 800], [4, 8, 3200]
    part = [dict(zip(hold_queue.Part._fields, amounts, strict=True)) for amounts in (quarter, node)]
    for number in range(3):
        kept.put(f"a-1-{number}-0", part=part)
    assert len(kept.look()) == 3
    kept.put("b-1-3-0")
    kept.put("c-1-4-0", part=part)
    assert len(kept.look()) == 3, "runs start in their order"
    (kept.paths.queue / "b-1-3-0").unlink()
    assert "c-1-4-0" in kept.look()
    kept.put("b-1-5-0")
    for started in kept.holding.runs.values():
        started.kill()
        started.process.wait()
    assert kept.look() == ["b-1-5-0"]
    assert kept.holding.parts == {}


def test_of_two_runs_at_the_same_moment_one_that_does_not_wait_is_refused(kept: Kept) -> None:
    kept.put("a-1-1-0", no_wait=True)
    late = kept.put("b-1-2-0", no_wait=True)
    assert kept.look() == ["a-1-1-0"]
    assert json.loads((late / "status.json").read_text())["exit_status"] == errors.REFUSED
    assert [*kept.paths.queue.iterdir()] == []


def test_a_hold_ends_after_the_processes_that_started_ahead(kept: Kept) -> None:
    ready = Mock(lives=True)
    kept.holding.ahead = ready
    kept.holding.tell_to_end()
    assert kept.holding.poll() is None, "its directory is left"
    kept.look()
    ready.lives = False
    kept.look()
    assert kept.holding.poll() == holding.TOLD_TO_END
    ready.end.assert_called_once_with()
    ready.remove.assert_called_once_with()
