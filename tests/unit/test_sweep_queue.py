"""Which point of a sweep begins, what the end of one means for the others, and how the run ended."""

from __future__ import annotations

import json
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml import errors, leases
from hpcml.failures.end import End
from hpcml.node.events_and_end import RunEndedError
from hpcml.node.sweep import queue as queues
from hpcml.node.sweep.queue import Points
from hpcml.node.tasks.task import Task
from hpcml.paths import RunPaths
from node_settings import settings as settings_of
from tests.said import says

OF_ARGPARSE = "fit.py: error: unrecognized arguments: --lrr 1"


class Forker:
    """Does as it is ordered when a test says so."""

    pid = 0

    def __init__(self) -> None:
        self.status: int | None = None
        self.link: Connection

    def poll(self) -> int | None:
        return self.status

    def say(self, event: str, **facts: object) -> None:
        self.link.send_bytes(json.dumps({"event": event, **facts}).encode())

    def orders(self) -> list[dict[str, Any]]:
        orders = []
        while not self.link.closed and self.link.poll():
            orders.append(json.loads(self.link.recv_bytes()))
        return orders

    def begin(self, slot: int) -> None:
        self.say("began", slot=slot, pid=1 << 22, began=time.time())

    def end(self, slot: int, status: int = 0) -> None:
        self.say("ended", slot=slot, status=status, seconds=0.5, pruned=None)


class World:
    """A queue of three points, with what a supervisor has around it."""

    def __init__(self, folder: Path, **plan: Any) -> None:
        self.run = RunPaths(folder / "run")
        self.run.attempt(0).directory.mkdir(parents=True)
        points = [
            {"key": f"{k}" * 16, "shown": f"k={k}", "values": {"k": k}, "texts": {}, "number": k + 5} for k in range(3)
        ]
        self.run.points.write_text(json.dumps({"points": points, "max_fails": None, **plan}))
        context = SimpleNamespace(
            run=self.run,
            attempt=self.run.attempt(0),
            node="n1",
            settings=settings_of(points__sweep="fit", job__nodes=1),
        )
        self.asked = SimpleNamespace(signalled=False, names=set(), time_limit_near=False)
        self.state = SimpleNamespace(
            context=context, end_requests=self.asked, kind=SimpleNamespace(reset="x", programs={}), awaited=[], frozen=False,
            clock=SimpleNamespace(seconds=0.0), phase="script",
            end=lambda status, message, hint: RunEndedError(End(status, "script", "hpcml", message, hint)))  # fmt: skip
        self.forker = Forker()
        self.running: dict[Task, Any] = {}
        self.processes = SimpleNamespace(run=lambda *_: self.forker)
        self.queue = self._queue()

    def _queue(self) -> Points:
        queue = Points(self.state, self.processes, {})  # type: ignore[arg-type]
        self.forker.link = queue.of_forker
        queue.of_forker = SimpleNamespace(fileno=lambda: 0, close=lambda: None)  # type: ignore[assignment]
        return queue

    def step(self) -> list[dict[str, Any]]:
        """Do what the supervisor does in a turn, and return what the forker is ordered."""
        self.queue.step()
        for done, running in [*self.running.items()]:
            if (status := running.poll()) is not None:
                del self.running[done]
                self.queue.ended(done, End(status, "script", "script"))
        while task := self.queue.take():
            self.running[task] = self.queue.start(task)
        self.queue.step()
        return self.forker.orders()

    def prepared(self, slots: int = 1) -> list[dict[str, Any]]:
        assert [order["do"] for order in self.step()] == ["prepare"]
        self.forker.say("ready", slots=slots)
        return self.step()

    def over(self) -> End:
        """Return the run's end once the forker obeys its last order."""
        self.forker.link.close()
        self.forker.status = self.queue.exit_status
        self.step()
        return self.queue.end()

    def states(self) -> dict[str, str]:
        records = (json.loads(path.read_text()) for path in self.run.point_records.glob("*.json"))
        return {record["key"][0]: record["status"] for record in records}


def test_a_point_begins_as_soon_as_the_one_before_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker group is still being reset: the forker waits with the order. A point's line has its number N."""
    world = World(tmp_path)
    [order] = world.prepared()
    assert order == {"do": "begin", "slot": 0, "point": 0, "more": True}
    world.forker.begin(0)
    world.forker.end(0)
    [order] = world.step()
    assert (order["point"], world.states()) == (1, {"0": "ok"})
    for more, ordered in (
        (False, {"do": "begin", "slot": 0, "point": 2, "more": False}),
        (None, {"do": "end", "status": 0}),
    ):
        world.forker.begin(0)
        world.forker.end(0)
        assert world.step() == [ordered], more
    end = world.over()
    assert (end.exit_status, end.message, end.hint) == (0, "3 of 3 points are done", "")
    assert world.queue.closed
    assert [line[:26] for line in capsys.readouterr().out.splitlines()][:2] == [
        "1 of 3 ended: point:5  k=0", "2 of 3 ended: point:6  k=1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ("1.ended 2.ended", ("3 of 3 points", ", 2 of them in other runs")),
        ("1.ended 2.ended 2.failed", ("3 of 3 points", ", 2 of them", ", 1 failed")),
        ("1.ended", ("2 of 3 points", ", 1 of them", ", 1 still running in other runs")),
    ],
)
def test_a_run_that_shares_its_points_ends_with_the_state_of_the_sweep(
    tmp_path: Path, others: str, expected: tuple[str, ...]
) -> None:
    folder = tmp_path / "claims"
    folder.mkdir()
    for name in ("1", "2", *others.split()):
        (folder / name.replace(name[0], name[0] * 16, 1)).touch()
    world = World(tmp_path, claims=str(folder), runs=["run", "other"])
    world.prepared()
    world.forker.begin(0)
    world.forker.end(0)
    assert world.step() == [{"do": "end", "status": 0}]
    assert (world.over().message, world.queue.exit_status) == (says(*expected), 0)


def test_a_failed_point_is_judged_after_the_reset(tmp_path: Path) -> None:
    """What workers write of it comes until then. ``--max-fails 0`` lets none fail."""
    world = World(tmp_path, max_fails=0)
    world.prepared()
    world.forker.begin(0)
    world.run.log_of("0" * 16).parent.mkdir(parents=True, exist_ok=True)
    world.run.log_of("0" * 16).write_text(f"usage: fit.py [--lr LR]\n{OF_ARGPARSE}\n\n")
    world.forker.end(0, 3)
    assert (world.step(), world.states()) == ([], {})
    world.forker.say("reset", slot=0, restarted="", problem="")
    assert world.step() == [{"do": "end", "status": 1}]
    assert world.states() == {"0": "failed"}
    end = world.over()
    assert end.message == "0 of 3 points are done, 1 failed, 2 remain: more than 0 points failed (--max-fails)"
    cause = f"exit status 3: {OF_ARGPARSE}"
    assert end.points.first == (("k=0", cause, str(world.run.log_of("0" * 16))),)
    assert (end.points.submitted, end.points.failed) == (3, 1)
    assert "hpcml sweep table fit" in end.hint
    assert "hpcml logs fit point:N" in end.hint


def test_two_may_fail(tmp_path: Path) -> None:
    world = World(tmp_path, max_fails=2)
    world.prepared()
    for _ in range(3):
        world.forker.begin(0)
        world.forker.end(0, 1)
        world.forker.say("reset", slot=0, restarted="", problem="")
        world.step()
    assert len(world.states()) == 3
    assert (world.over().exit_status, world.queue.stopped) == (1, "more than 2 points failed (--max-fails)")


@pytest.mark.parametrize(("what", "status", "word"), [
    ("signalled", 1, "the run received the signal to end"), ("time_limit_near", errors.TIME_LIMIT, "the time limit is near"),
])  # fmt: skip
def test_nothing_begins_when_the_run_is_to_end(what: str, status: int, word: str, tmp_path: Path) -> None:
    """What ended with 0 nevertheless is done, what did not is run again."""
    world = World(tmp_path)
    world.prepared(2)
    setattr(world.asked, what, True)
    for slot, exit_status in ((0, 0), (1, errors.STOPPED)):
        world.forker.begin(slot)
        world.forker.end(slot, exit_status)
        world.forker.say("reset", slot=slot, restarted="", problem="")
    assert world.step() == [{"do": "end", "status": status}]
    assert world.states() == {"0": "ok"}
    end = world.over()
    assert end.message.endswith(f"2 remain: {word}")
    assert "repeat the command" in end.hint


def test_what_an_earlier_attempt_has_ended_is_not_run_again(tmp_path: Path) -> None:
    """A record that is damaged is none."""
    world = World(tmp_path)
    record = {"values": {"k": 0}, "status": "failed", "seconds": 1, "metrics": {}}
    world.run.record_of("0" * 16).write_text(json.dumps(record))
    world.run.record_of("1" * 16).write_text("{")
    world.queue = world._queue()
    assert [order["point"] for order in world.prepared(3)] == [1, 2]
    assert world.queue.counts == {"failed": 1}


def test_a_forker_that_is_killed_takes_its_points_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has ended with 0 is done, also while its worker group is reset; what ran is run again, and is killed."""
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr("os.killpg", lambda group, number: killed.append((group, number)))
    world = World(tmp_path)
    world.prepared(2)
    world.forker.end(0)
    world.forker.begin(1)
    world.forker.link.close()
    world.forker.status = 128 + signal.SIGKILL
    world.step()
    world.step()
    end = world.queue.end()
    assert (world.states(), killed) == ({"0": "ok"}, [(1 << 22, signal.SIGKILL)])
    assert (end.exit_status, end.points.submitted, world.state.awaited) == (137, 0, [])


def test_a_group_that_cannot_be_reset_gets_no_point(tmp_path: Path) -> None:
    """Neither the one that waits for it, which is run again."""
    world = World(tmp_path)
    world.prepared()
    world.forker.say("reset", slot=0, restarted="", problem="the process that resets the Dask cluster ended")
    world.step()
    world.step()
    assert world.over().message == "0 of 3 points are done, 3 remain: the process that resets the Dask cluster ended"
    assert world.states() == {}


def test_a_signal_to_the_forker_reaches_its_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr("os.killpg", lambda _, number: told.append(number))
    world = World(tmp_path)
    world.prepared()
    world.forker.begin(0)
    world.forker.say("signalled")
    world.step()
    assert told == [signal.SIGTERM]
    world.forker.end(0, 143)
    world.forker.say("reset", slot=0, restarted="", problem="")
    assert world.step() == [{"do": "end", "status": 1}]
    assert (world.states(), world.queue.stopped) == ({}, "the run received the signal to end")


def test_what_others_hold_by_now_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run was suspended for so long that another runs its points."""
    killed: list[int] = []
    monkeypatch.setattr("os.killpg", lambda _, number: killed.append(number))
    folder = tmp_path / "leases"
    folder.mkdir()
    world = World(tmp_path, claims=str(folder), runs=["run", "other"])
    world.prepared(2)
    world.forker.begin(0)
    world.forker.begin(1)
    world.step()
    assert world.queue.leases
    world.queue.leases.renewed -= leases.LEASE + 1
    world.forker.end(0)
    world.step()
    assert killed == [signal.SIGKILL]
    world.forker.end(1, 137)
    world.forker.say("reset", slot=1, restarted="", problem="")
    world.step()
    assert world.states() == {}
    assert "other runs now compute its points" in world.over().message


def test_a_forker_that_does_not_answer_ends_the_run(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.prepared()
    world.state.clock.seconds = queues.LATE + settings_of().deadlines.workers
    world.state.frozen = True
    world.queue.check()
    world.state.frozen = False
    world.queue.check()  # it has had no time yet
    world.state.clock.seconds *= 2.1
    with pytest.raises(RunEndedError, match="did not answer") as raised:
        world.queue.check()
    assert raised.value.end.exit_status == errors.ROLE_LOST
