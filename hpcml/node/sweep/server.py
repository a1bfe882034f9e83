"""Start the user's script once for each point of a sweep, one or several at once, and write down how each ended.

A point is a fork of this process, which has imported what all need: to start Python and to import takes longer than
many a point. It has a process group, a log and a folder for results of its own, and writes nothing where others do.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn, cast

from hpcml import errors, leases
from hpcml.failures import point as point_end
from hpcml.failures.point import PointEnd
from hpcml.node import files, processes
from hpcml.node.kernel import oom_kills
from hpcml.node.script import interpreter
from hpcml.node.settings import Context, load
from hpcml.node.sweep import records
from hpcml.node.sweep.forks import Fork, Order, ResetError, Resets, Resetter
from hpcml.node.sweep.records import Point
from hpcml.node.sweep.study import Settings, Study
from hpcml.records import plain
from hpcml.terminal import say

TICK = 0.5  # seconds between looks at what no signal tells
TOLD = 10.0  # seconds in which a supervisor that ends the run says so
_LONGEST_REPORT = 1 << 20  # bytes
_FIRST = 3  # failed points whose causes are in points-end.json


def serve() -> NoReturn:
    """Run the points, and exit."""
    context = load()
    interpreter.install_kind()  # before what it replaces is imported
    with processes.long_import():
        kind = cast("Resets", importlib.import_module(os.environ.pop(interpreter.RESETS)))
        kind.preload()
        from hpcml.node.script import launcher  # noqa: F401 - for the points

    sweep = Sweep(context, kind)
    try:
        sweep.run()
    except ImportError as error:
        if error.name not in ("optuna", "cmaes"):
            raise
        user = "a search and a pruner need" if error.name == "optuna" else "--sampler cmaes needs"
        raise SystemExit(f"hpcml: The nodes' Python lacks {error.name}, which {user}.") from None
    sys.stdout.flush()
    raise SystemExit(sweep.exit_status)


class Plan(NamedTuple):
    """What the run was submitted with, as points.json has it."""

    points: tuple[Point, ...]
    max_fails: int | None  # begin no more points when more have failed
    runs: tuple[str, ...]  # that divide the points, this one among them; empty without others
    folder: str  # of the leases by which they do, empty without others
    study: Settings | None  # of a search or a pruner


def _plan(path: Path) -> Plan:
    table = files.read_json(path) or {}
    points = tuple(Point(**point) for point in table["points"])
    study = Settings(**table["study"]) if table.get("study") else None
    return Plan(points, table["max_fails"], tuple(table.get("runs", ())), table.get("claims", ""), study)


class Slot:
    """A place for one point at a time, with a worker group and what resets it; ``pid`` is 0 without a point."""

    def __init__(self, number: int, address: str, resetter: Resetter) -> None:
        self.number, self.address, self.resetter = number, address, resetter
        self.point: Point | None = None
        self.pid = self.kills = self.status = 0
        self.began = self.clock = self.seconds = 0.0
        self.resetting = False
        self.reports: socket.socket | None = None

    def hang_up(self) -> None:
        """Hear no more reports of its point."""
        if self.reports:
            self.reports.close()
        self.reports = None


class Sweep:
    """The points of this run."""

    def __init__(self, context: Context, kind: Resets) -> None:
        self.context, self.kind = context, kind
        self.plan = _plan(context.run.points)
        self.study: Study | None = None
        self.leases: leases.Leases | None = None
        self.waiting: list[Point] = []
        self.begun: set[str] = set()  # by key
        self.slots: list[Slot] = []
        self.next_fork: Fork | None = None
        self.ended: Counter[str] = Counter()  # points by their state: ok, failed, pruned, interrupted
        self.first_failures: dict[str, str] = {}  # by the log of the point
        self.out_of_points: float | None = None  # since when, by the clock of the leases
        self.stopped = ""  # why no more points begin
        self.told_to_end = False
        self.exit_status = 0

    def run(self) -> None:
        """Run the points."""
        self._count_earlier()
        self._listen()
        self._join()
        self._open_study()
        if self.waiting:
            groups = enumerate(self.kind.worker_groups(self.context))
            self.slots = [Slot(number, at, Resetter(self.context, self.kind, at)) for number, at in groups]
        for slot in self.slots:
            self._reset(slot)
        while self._goes_on():
            for slot in self.slots:
                if not slot.pid and not slot.resetting and (point := self._next()):
                    self._begin(slot, point)
            if not self.next_fork and self.waiting and not self.stopped:
                self.next_fork = self._fork()
            self._wait()
        if self.next_fork:
            self.next_fork.end()
        for slot in self.slots:
            slot.resetter.end()
        if self.leases:
            self.leases.end()
        self._end()

    def _listen(self) -> None:
        """Have a signal end a wait."""
        self.wake, waker = os.pipe()
        for end in (self.wake, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_term)
        for other in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(other, lambda *_: None)

    def _count_earlier(self) -> None:
        """Leave out what earlier attempts of this run have ended."""
        folder = self.context.run.point_records
        folder.mkdir(mode=0o700, exist_ok=True)
        names = files.listed(folder)
        for point in self.plan.points:
            path = self.context.run.record_of(point.key)
            if path.name in names:
                self.ended[point_end.read(path, self.context.run.directory.name).state] += 1
            else:
                self.waiting.append(point)

    def _join(self) -> None:
        """Take part in the sweep of several runs."""
        if not self.plan.folder:
            return
        try:
            run = self.context.run.directory.name
            self.leases = leases.Leases(Path(self.plan.folder), run, self.plan.runs, processes.OwnTime())
        except FileNotFoundError:
            self.waiting, self.plan = [], self.plan._replace(points=())  # all have ended, and other runs have others

    def _open_study(self) -> None:
        """Open the study of a sweep that is searched or pruned."""
        run, runs = self.context.run.directory.name, self.plan.runs
        if self.waiting and self.plan.study:
            self.study = Study(self.plan.study, runs.index(run) if run in runs else 0)

    def _goes_on(self) -> bool:
        """Whether points run, or more may begin."""
        if any(slot.pid or slot.resetting for slot in self.slots):
            return True
        self._look()
        if self.stopped:
            return False
        if self.waiting or not self.leases:
            self.out_of_points = None
            return bool(self.waiting)
        if self.out_of_points is None:
            self.out_of_points = self.leases.scan()
        silent = self.leases.silent(self.out_of_points)  # it may have died, and its points are to be run here
        if self.leases.free(point.key for point in self._untried()):  # another run has given them back
            self.waiting = self._untried()
        return silent or bool(self.waiting)

    def _untried(self) -> list[Point]:
        """Return the points that this run has not begun: one that stopped to be continued is left to a later run."""
        return [point for point in self.plan.points if point.key not in self.begun]

    def _next(self) -> Point | None:
        """Return a point to begin with; None if there is none, or none may begin."""
        while self.waiting:
            self._look()
            if self.stopped:
                return None
            point = self.waiting.pop(0)
            try:
                if not self.leases or self.leases.take(point.key):
                    return point
            except leases.LostError:
                self._lose()
                return None
        return None

    def _begin(self, slot: Slot, point: Point) -> None:
        """Begin a point."""
        self.begun.add(point.key)
        point = self.study.begin(point) if self.study else point
        order, fork = self._order(slot, point), self.next_fork or self._fork()
        self.next_fork = None
        slot.point, slot.kills, slot.began, slot.clock = point, oom_kills(), time.time(), time.monotonic()
        if not fork.begin(order):
            os.waitpid(fork.pid, 0)
            fork.reports.close()
            fork = self._fork()
            fork.begin(order)  # if that has ended too, it is the point that has
        slot.pid, slot.reports = fork.pid, fork.reports
        if self.told_to_end:
            _signal(slot.pid, signal.SIGTERM)

    def _fork(self) -> Fork:
        return Fork(self.kind, [slot.resetter for slot in self.slots])

    def _order(self, slot: Slot, point: Point) -> Order:
        """Return the arguments, variables and log that a fork is to have as a point."""
        run, key = self.context.run, point.key
        table = {"key": key, "values": point.values, "seed": int(key[:8], 16)}
        table |= {"workers": self.context.in_share(slot.number)} if len(self.slots) > 1 else {}
        return Order(
            environment={"HPCML_POINT": json.dumps(table)},
            argv=[
                "-c",
                self.context.settings.code.script,
                *self.context.settings.code.arguments,
                *options_of(point.texts),
            ],
            log=str(run.log_of(key)),
            error=str(records.notes(self.context, key, "error")),
            group=slot.address,
            reports_answered=self.study is not None,
        )

    def _wait(self) -> None:
        """Wait until a point ends or reports, a worker group is reset, or it is time to look at the other runs."""
        reporting = {slot.reports.fileno(): slot for slot in self.slots if slot.reports} if self.study else {}
        resetting = {slot.resetter.connection.fileno(): slot for slot in self.slots if slot.resetting}
        ready = processes.readable([self.wake, *resetting, *reporting], TICK)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        for descriptor in reporting.keys() & ready:
            self._judge(reporting[descriptor])
        for slot in self.slots:
            if slot.pid:
                pid, code = os.waitpid(slot.pid, os.WNOHANG)
                if pid:
                    self._point_ended(slot, os.waitstatus_to_exitcode(code))
            elif slot.resetting and (slot.resetter.connection.fileno() in ready or slot.resetter.late):
                self._reset_done(slot)
        if self.leases:
            try:
                if self.leases.renew(often=not self.waiting):
                    self.waiting = self._untried()
            except leases.LostError:
                self._lose()

    def _judge(self, slot: Slot) -> None:
        """Answer a report: ``p`` if its point is to stop."""
        assert slot.reports
        assert self.study
        try:
            if self.leases:
                self.leases.check()
        except leases.LostError:
            self._lose()
        text = slot.reports.recv(_LONGEST_REPORT)
        if text and slot.point:
            report = json.loads(text)
            prunes = self.study.report(slot.point.key, report["step"], report["metrics"])
            with contextlib.suppress(OSError):  # the point has ended
                slot.reports.send(b"p" if prunes else b"c")
        else:
            slot.hang_up()

    def _lose(self) -> None:
        """End the points that others have by now; nothing is written of them."""
        self.stopped = "this run sent no heartbeat for too long, so other runs now compute its points"
        for slot in self.slots:
            slot.point = None
            if slot.pid:
                _signal(slot.pid, signal.SIGKILL)

    def _point_ended(self, slot: Slot, code: int) -> None:
        pid, slot.pid = slot.pid, 0
        _signal(pid, signal.SIGKILL)  # what it has left
        slot.hang_up()
        slot.status, slot.seconds = 128 - code if code < 0 else code, time.monotonic() - slot.clock
        self._reset(slot)

    def _reset(self, slot: Slot) -> None:
        slot.resetting = True
        slot.resetter.ask()

    def _reset_done(self, slot: Slot) -> None:
        """Write down how a point has ended, now that its worker group is reset."""
        slot.resetting = False
        restarted = ""
        try:
            restarted = slot.resetter.answer()
        except ResetError as error:
            self.stopped = self.stopped or str(error)
        point, slot.point = slot.point, None
        if not point:
            return
        out_of_memory = oom_kills() > slot.kills
        end = records.End(slot.status, slot.began, slot.seconds, out_of_memory, self.told_to_end)
        pruned = self.study.pruned.get(point.key) if self.study else None
        record, stops = records.kept(self.context, point, end, pruned)
        if stops:
            self._look()
            self.stopped = self.stopped or "the run received the signal to end"
        try:
            if self.leases:
                self.leases.check()
        except leases.LostError:
            self._lose()
            return
        if self.study:
            self.study.end(point.key, record)
        if record:
            record = record._replace(restarted=restarted)
            files.write_json(self.context.run.record_of(point.key), plain(record, brief=True))
            self.ended[record.state] += 1
        else:
            self.ended["interrupted"] += 1
        if self.leases and record:
            self.leases.done(point.key, failed=record.failed)
        elif self.leases:
            self.leases.give_back(point.key)
        self._tell(point, record, restarted)

    def _on_term(self, *_: object) -> None:
        self.told_to_end = True
        for slot in self.slots:
            if slot.pid:
                _signal(slot.pid, signal.SIGTERM)

    def _look(self) -> None:
        """Take note of why no further point may begin."""
        if self.stopped:
            return
        if self.told_to_end or self.context.attempt.terminate.exists():
            self.stopped = "the run received the signal to end"
        elif self.context.attempt.time_limit.exists():
            self.stopped = "the time limit is near"
        elif self.plan.max_fails is not None and self._failures() > self.plan.max_fails:
            self.stopped = f"more than {self.plan.max_fails} points failed (--max-fails)"

    def _failures(self) -> int:
        return self.leases.failures() if self.leases else self.ended["failed"]

    def _tell(self, point: Point, record: PointEnd | None, restarted: str) -> None:
        """Print a line for a point: the run's log is the sweep's progress."""
        how = "interrupted"
        if record:
            metrics = " ".join(
                f"{name}={'nan' if value is None else format(value, '.6g')}" for name, value in record.metrics.items()
            )
            how = f"{record.seconds:.1f} s {metrics}".rstrip()
            if record.failed:
                how = f"failed: {record.cause}"
                if len(self.first_failures) < _FIRST:
                    log = str(self.context.run.log_of(point.key))
                    self.first_failures[log] = f"{point.shown}: {record.cause}"[:400]
            how += f"  {record.cause}" if record.state == point_end.PRUNED else ""
        number = self.ended.total()
        say(f"point {number} of {len(self.plan.points)}  {point.shown}  {how}")
        if restarted:
            say(f"  the workers were restarted: {restarted}")

    def _end(self) -> None:
        """Print and write down how the sweep ended."""
        points, ok, failed, pruned = self.plan.points, *(self.ended[state] for state in ("ok", "failed", "pruned"))
        done = ok + failed + pruned
        left = len(self.leases.free(point.key for point in points)) if self.leases else len(points) - done
        deadline = time.monotonic() + TOLD
        while left and self.context.attempt.terminate.exists() and not self.told_to_end and time.monotonic() < deadline:
            time.sleep(0.02)  # the supervisor is about to end the run, as cancelled
        summary = f"{ok} of {len(points)} points are done"
        summary += f", {pruned} pruned" if pruned else ""
        summary += f", {failed} failed" if failed else ""
        if self.leases and (others := len(points) - done - left):
            summary += f", {others} belong to other runs"
        summary += f", {left} remain: {self.stopped or 'these points stopped and can be continued'}" if left else ""
        self.exit_status = 1 if failed or left else 0
        if left and self.context.attempt.time_limit.exists():
            self.exit_status = errors.TIME_LIMIT
        table = {"ended": summary, "points": len(points), "failed": failed, "first": list(self.first_failures.values())}
        table["logs"] = list(self.first_failures)
        files.write_json(self.context.attempt.points_end, table)
        say(f"sweep: {summary}.")


def options_of(texts: Mapping[str, str]) -> list[str]:
    """Return a point's values as options of the script: ``--lr 0.1``, or ``--lr=-1`` where it looks like one."""
    pairs = ((f"--{name}={text}",) if text.startswith("-") else (f"--{name}", text) for name, text in texts.items())
    return [word for pair in pairs for word in pair]


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # it ended by itself
