"""The process that becomes the points of a sweep: one fork each, made from what all points import.

To start Python and to import takes longer than many a point. A point has a process group, a log and a folder for
results of its own, and writes nothing where others do. The supervisor's queue (:mod:`hpcml.node.sweep.queue`) decides
which point begins, and what its end means. This process does what orders say: it forks, resets worker groups, and asks
the study. Orders and answers are JSON tables on a connection: an order has ``do``, an answer ``event``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn, cast

from hpcml.node import process_helpers
from hpcml.node.context import Context, load
from hpcml.node.script import interpreter_state
from hpcml.node.sweep import points
from hpcml.node.sweep.forks import Fork, Order, ResetError, Resets, Resetter
from hpcml.node.sweep.points import Point
from hpcml.node.sweep.study import Study
from hpcml.node.tasks.process import signal_group

if TYPE_CHECKING:
    import socket

LINK = "HPCML_POINTS_LINK"  # names the descriptor of this end of the connection
_TICK = 0.5  # seconds between looks at what no signal tells
_LONGEST_REPORT = 1 << 20  # bytes


def main() -> NoReturn:
    """Import what all points need, do what the supervisor orders, and raise SystemExit with its status."""
    context, link = load(), Connection(int(os.environ.pop(LINK)))
    interpreter_state.install_kind()  # before what it replaces is imported
    with process_helpers.long_import():
        kind = cast("Resets", importlib.import_module(os.environ.pop(interpreter_state.RESETS)))
        kind.preload()
        from hpcml.node.script import launcher  # noqa: F401 - for the points

    try:
        status = Forker(context, kind, link).run()
    except ImportError as error:
        if error.name not in ("optuna", "cmaes"):
            raise
        user = "a search and a pruner need" if error.name == "optuna" else "--sampler cmaes needs"
        raise SystemExit(f"hpcml: The nodes' Python lacks {error.name}, which {user}.") from None
    sys.stdout.flush()
    raise SystemExit(status)


class Slot:
    """A place for one point at a time, with a worker group and what resets it; ``pid`` is 0 without a process."""

    def __init__(self, number: int, address: str, resetter: Resetter) -> None:
        self.number, self.address, self.resetter = number, address, resetter
        self.key = ""
        self.pid, self.clock = 0, 0.0
        self.resetting = False
        self.problem = ""  # why its worker group could not be reset: no point begins there any more
        self.order: Mapping[str, Any] | None = None  # of the point that begins when the worker group is reset
        self.reports: socket.socket | None = None

    def hang_up(self) -> None:
        """Hear no more reports of its point."""
        if self.reports:
            self.reports.close()
        self.reports = None


class Forker:
    """The forks and the worker groups of a run."""

    def __init__(self, context: Context, kind: Resets, link: Connection) -> None:
        self.context, self.kind, self.link = context, kind, link
        self.plan = points.plan(context.run.points)
        self.study: Study | None = None
        self.slots: list[Slot] = []
        self.next_fork: Fork | None = None
        self.is_signalled = False  # by SIGTERM, of which the supervisor has not heard
        self.status: int | None = None
        self.wake, waker = os.pipe()  # a signal ends a wait
        for end in (self.wake, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "is_signalled", True))
        for other in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(other, lambda *_: None)

    def run(self) -> int:
        """Do what is ordered until the last order, and return the exit status that it has."""
        while self.status is None:
            self._wait()
        if self.next_fork:
            self.next_fork.end()
        for slot in self.slots:
            slot.resetter.end()
        return self.status

    def _say(self, event: str, **facts: object) -> None:
        with contextlib.suppress(OSError):  # the supervisor has ended, and this process ends with it
            self.link.send_bytes(json.dumps({"event": event, **facts}).encode())

    def _wait(self) -> None:
        """Wait until a point ends or reports, a worker group is reset, or an order comes."""
        reporting = {slot.reports.fileno(): slot for slot in self.slots if slot.reports} if self.study else {}
        resetting = {slot.resetter.connection.fileno() for slot in self.slots if slot.resetting}
        ready = process_helpers.readable([self.link.fileno(), self.wake, *resetting, *reporting], _TICK)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        if self.is_signalled:
            self.is_signalled = False
            self._say("signalled")
        for descriptor in reporting.keys() & ready:
            self._answer_report(reporting[descriptor])
        for slot in self.slots:
            if slot.pid:
                pid, code = os.waitpid(slot.pid, os.WNOHANG)
                if pid:
                    self._point_ended(slot, os.waitstatus_to_exitcode(code))
            elif slot.resetting and (slot.resetter.connection.fileno() in ready or slot.resetter.late):
                self._reset_done(slot)
        if self.link.fileno() in ready:
            try:
                self._obey(json.loads(self.link.recv_bytes()))
            except (EOFError, OSError):
                self.status = 1  # the supervisor has ended

    def _obey(self, order: Mapping[str, Any]) -> None:
        match order["do"]:
            case "prepare":
                self._prepare(order["job"])
            case "begin":
                slot = self.slots[order["slot"]]
                slot.order = order
                if slot.problem:
                    self._say("reset", slot=slot.number, restarted="", problem=slot.problem)
                elif not slot.resetting:
                    self._begin(slot)
            case "learn":
                if self.study:
                    self.study.end(order["key"], order["state"], order["value"])
            case "end":
                self.status = order["status"]

    def _prepare(self, job: int) -> None:
        """Open the study of a sweep that is searched or pruned, and reset the worker groups."""
        self.study = Study(self.plan.study, job) if self.plan.study else None
        for address in self.kind.worker_groups(self.context):
            resetter = Resetter(self.context, self.kind, address, self._own())
            self.slots.append(Slot(len(self.slots), address, resetter))
        self._say("ready", slots=len(self.slots))
        for slot in self.slots:
            self._reset(slot)
        self.next_fork = self._fork()

    def _own(self) -> list[Any]:
        """Return the ends of connections that no fork may keep."""
        reports = [slot.reports for slot in self.slots if slot.reports]
        return [self.link, *(slot.resetter.connection for slot in self.slots), *reports]

    def _fork(self) -> Fork:
        return Fork(self.kind, self._own())

    def _begin(self, slot: Slot) -> None:
        """Have a fork become the point that was ordered."""
        assert slot.order
        order, slot.order = slot.order, None
        planned = self.plan.points[order["point"]]
        point = self.study.begin(planned) if self.study else planned
        fork = self.next_fork or self._fork()
        self.next_fork = None
        slot.key, slot.clock, began = point.key, time.monotonic(), time.time()
        orders = self._orders(slot, point)
        if not fork.begin(orders):
            os.waitpid(fork.pid, 0)
            fork.reports.close()
            fork = self._fork()
            fork.begin(orders)  # if that has ended too, it is the point that has
        slot.pid, slot.reports = fork.pid, fork.reports
        drawn = {"values": point.values, "shown": point.shown} if point is not planned else {}
        self._say("began", slot=slot.number, pid=slot.pid, began=began, **drawn)
        if order["more"]:
            self.next_fork = self._fork()

    def _orders(self, slot: Slot, point: Point) -> Order:
        """Return the arguments, variables and log that a fork is to have as a point."""
        run, code, key = self.context.run, self.context.settings.code, point.key
        table = {"key": key, "values": point.values, "seed": int(key[:8], 16)}
        table |= {"workers": self.context.in_share(slot.number)} if len(self.slots) > 1 else {}
        return Order(
            environment={"HPCML_POINT": json.dumps(table)},
            argv=["-c", code.script, *code.arguments, *points.options_of(point.texts)],
            log=str(run.log_of(key)),
            error=str(points.notes(self.context, key, "error")),
            group=slot.address,
            reports_answered=self.study is not None,
        )

    def _answer_report(self, slot: Slot) -> None:
        """Answer a report: ``p`` if its point is to stop."""
        assert slot.reports
        assert self.study
        if not (text := slot.reports.recv(_LONGEST_REPORT)):
            slot.hang_up()
            return
        report = json.loads(text)
        prunes = self.study.report(slot.key, report["step"], report["metrics"])
        with contextlib.suppress(OSError):  # the point has ended
            slot.reports.send(b"p" if prunes else b"c")

    def _point_ended(self, slot: Slot, code: int) -> None:
        pid, slot.pid = slot.pid, 0
        signal_group(pid, signal.SIGKILL)  # what it has left
        slot.hang_up()
        seconds, pruned = time.monotonic() - slot.clock, self.study.pruned.get(slot.key) if self.study else None
        status = 128 - code if code < 0 else code
        self._say("ended", slot=slot.number, status=status, seconds=seconds, pruned=pruned)
        self._reset(slot)

    def _reset(self, slot: Slot) -> None:
        slot.resetting = True
        slot.resetter.ask()

    def _reset_done(self, slot: Slot) -> None:
        """Say that a worker group is reset, and begin the point that waits for that."""
        slot.resetting = False
        restarted = ""
        try:
            restarted = slot.resetter.answer()
        except ResetError as error:
            slot.problem, slot.order = str(error), None
        if restarted or slot.problem or not slot.order:
            self._say("reset", slot=slot.number, restarted=restarted, problem=slot.problem)
        if slot.order:
            self._begin(slot)
