"""The tasks of a sweep's run: the process that becomes the points, and each point as a fork of it.

The supervisor takes the tasks from here, follows them, and says how each ended. Here it is decided which point begins
next and on which worker group, what the end of one means for the others, and how the run ended.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from hpcml import errors, leases
from hpcml.failures import point as point_end
from hpcml.failures.end import End, FailedPoint, PointEnds
from hpcml.failures.point import PointEnd
from hpcml.kind import Processes, RunningTask
from hpcml.node import shared_files
from hpcml.node.process_helpers import OwnTime, Process
from hpcml.node.run_state import RunState
from hpcml.node.script import interpreter_state
from hpcml.node.sweep import points
from hpcml.node.sweep.forker import LINK
from hpcml.node.sweep.forks import ANSWER
from hpcml.node.sweep.points import Point, RunningPoint
from hpcml.node.tasks.task import Queue, Task, of_run
from hpcml.terminal import say
from hpcml.typed_json import plain

LATE = 2 * ANSWER  # seconds for an answer of the forker, which itself says when a reset takes too long
_FIRST = 3  # failed points whose causes are in the run's end
_LONGEST = 400  # characters of the values of a failed point
_LOST = "this run sent no heartbeat for too long, so other runs now compute its points"
_SIGNALLED = "the run received the signal to end"


class Points(Queue):
    """The queue of a sweep's run."""

    def __init__(self, state: RunState, processes: Processes, environment: Mapping[str, str]) -> None:
        super().__init__(state, processes, environment)
        self.context = state.context
        self.plan = points.plan(self.context.run.points)
        self.places = {point.key: place for place, point in enumerate(self.plan.points)}
        self.link, self.of_forker = Pipe()
        self.forker: RunningTask | None = None
        self.is_prepared = self.is_ending = False  # what the forker has been ordered
        self.is_connected = True
        self.owed: dict[int, float] = {}  # by worker group, since when the forker owes an answer; see _expect()
        self.free: list[int] = []  # worker groups that wait for a point
        self.running: dict[int, RunningPoint] = {}  # by worker group
        self.waiting: list[Point] = []
        self.begun: set[str] = set()  # by key
        self.counts: Counter[str] = Counter()  # by their state, or "interrupted"
        self.failed: list[FailedPoint] = []  # the first
        self.leases: leases.Leases | None = None
        self.out_of_points: float | None = None  # since when, by the clock of the leases
        self.stopped = ""  # why no more points begin
        self.is_lost = False  # others hold what this run held
        self.is_told = False  # the forker received SIGTERM
        self.summary, self.exit_status = "", 0
        self.outcome: End | None = None
        self._count_earlier()
        self._join()

    def _count_earlier(self) -> None:
        """Leave out what earlier attempts of this run have ended; a point with a damaged record has not."""
        run = self.context.run
        run.point_records.mkdir(mode=0o700, exist_ok=True)
        names = shared_files.listed(run.point_records)
        for point in self.plan.points:
            path = run.record_of(point.key)
            with contextlib.suppress(ValueError):
                if path.name in names:
                    self.counts[point_end.read(path, run.directory.name).state] += 1
                    continue
            self.waiting.append(point)

    def _join(self) -> None:
        """Take part in the sweep of several runs."""
        if not self.plan.folder:
            return
        try:
            self.leases = leases.Leases(Path(self.plan.folder), self._run, self.plan.runs, OwnTime())
        except FileNotFoundError:  # all have ended, and other runs have others
            self.waiting, self.plan = [], self.plan._replace(points=())
        except leases.LostError:
            self.stopped = _LOST

    @property
    def _run(self) -> str:
        return self.context.run.directory.name

    # -- which begins -------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the forker has ended, which is the last."""
        return self.outcome is not None

    def take(self) -> Task | None:
        """Return the forker, then a point for each worker group that is free."""
        if self.forker is None and self.outcome is None:
            script = of_run(self.context)
            return script._replace(program="hpcml.node.sweep.forker", descriptors=(self.of_forker.fileno(),))
        if not self.free or self.is_ending or not (point := self._next()):
            return None
        slot = self.free.pop(0)
        self.running[slot] = RunningPoint(point, slot)
        self.begun.add(point.key)
        log, error = self.context.run.log_of(point.key), points.notes(self.context, point.key, "error")
        return Task(point.key, self.context.settings.code, log, error)

    def start(self, task: Task) -> RunningTask:
        """Start the forker, or have it become a point."""
        if self.forker is None:
            variables = {interpreter_state.RESETS: self.state.kind.reset, LINK: str(self.of_forker.fileno())}
            try:
                self.forker = self.processes.run(task, self.environment | variables)
            finally:
                self.of_forker.close()
            self.state.awaited.append(self.link.fileno())
            return self.forker
        running = self._of(task)
        self._send(do="begin", slot=running.slot, point=self.places[task.key], more=bool(self.waiting))
        self._expect(running.slot)
        return running

    def _of(self, task: Task) -> RunningPoint:
        return next(running for running in self.running.values() if running.point.key == task.key)

    def _next(self) -> Point | None:
        """Return a point to begin with; None if there is none, or none may begin."""
        while self.waiting:
            self._look()
            if self.stopped:
                return None
            point = self.waiting.pop(0)
            with self._may_be_lost():
                if not self.leases or self.leases.take(point.key):
                    return point
        return None

    def _look(self) -> None:
        """Take note of why no further point may begin."""
        asked = self.state.end_requests
        if self.stopped:
            return
        if self.is_told or asked.signalled or self.context.attempt.terminate.name in asked.names:
            self.stopped = _SIGNALLED
        elif asked.time_limit_near:
            self.stopped = "the time limit is near"
        elif self.plan.max_fails is not None and self._failures() > self.plan.max_fails:
            self.stopped = f"more than {self.plan.max_fails} points failed (--max-fails)"

    def _failures(self) -> int:
        return self.leases.count("failed") if self.leases else self.counts[point_end.FAILED]

    def _goes_on(self) -> bool:
        """Whether more points may begin, of this run's or of those that other runs give back."""
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

    # -- meanwhile ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Take in what the forker says, renew the leases, and have the forker end when there is nothing more to do."""
        if not self.forker or not self.is_connected:
            return
        for message in self._messages():
            self._hear(message)
        with self._may_be_lost():
            if self.leases and not self.is_lost and self.leases.renew(often=not self.waiting):
                self.waiting = self._untried()
        if self.running or self.is_ending:
            return
        if not self._goes_on():
            self._end_forker()
        elif self.waiting and not self.is_prepared:
            self.is_prepared = True
            self._send(do="prepare", job=self.plan.runs.index(self._run) if self._run in self.plan.runs else 0)
            self._expect(-1)

    def check(self) -> None:
        """Raise RunEndedError if the forker has owed an answer for too long; a stopped or blocked one owes nothing."""
        longest = max(LATE, self.context.settings.deadlines.workers)
        late = [slot for slot, since in self.owed.items() if self.state.clock.seconds - since > longest]
        if not late or not self.forker:
            return
        if not self.state.frozen and Process.named(self.forker.pid).state != "T":
            reason = f"the process that starts the sweep's points did not answer for {longest:g} s"
            raise self.state.end(errors.ROLE_LOST, reason, "See the run's output: hpcml logs RUN.")
        for slot in late:
            self._expect(slot)

    def _expect(self, slot: int) -> None:
        """Expect an answer for a worker group; -1: for all."""
        self.owed[slot] = self.state.clock.seconds

    def _send(self, **order: object) -> None:
        with contextlib.suppress(OSError):  # the forker has ended, as the end of its messages tells
            self.link.send_bytes(json.dumps(order).encode())

    def _messages(self) -> Iterator[dict[str, Any]]:
        try:
            while self.link.poll():
                yield json.loads(self.link.recv_bytes())
        except (EOFError, OSError):
            self._cut_off()

    def _hear(self, message: Mapping[str, Any]) -> None:
        slot = message.get("slot", -1)
        running = self.running.get(slot)
        self.owed.pop(slot, None)
        match message["event"]:
            case "ready":
                self.free += range(message["slots"])
            case "began" if running:
                running.begin(message)
            case "ended" if running:
                running.end(message)
                self._expect(slot)
            case "reset":
                self._reset_done(running, **message)
            case "signalled":
                self.is_told = True
                for point in self.running.values():
                    point.tell_to_end()

    def _reset_done(self, running: RunningPoint | None, slot: int, restarted: str, problem: str, **_: str) -> None:
        """Take note of a reset after a point, or before one that waits for it and does not begin after a problem."""
        self.stopped = self.stopped or problem
        if running and running.status is not None:
            running.restarted, running.is_over = restarted, True
            return
        self._say_restarted(restarted)
        if running and problem:
            running.cut_off()
        elif running:
            self._expect(slot)

    def _cut_off(self) -> None:
        """Hear no more of the forker, which has ended, and its points with it."""
        self.is_connected = False
        self.owed.clear()
        self.state.awaited.clear()
        self.link.close()
        for running in self.running.values():
            running.cut_off()

    @contextlib.contextmanager
    def _may_be_lost(self) -> Iterator[None]:
        """End the points that others have by now; nothing is written of them."""
        try:
            yield
        except leases.LostError:
            self.is_lost, self.stopped = True, _LOST
            for running in self.running.values():
                running.kill()

    # -- what ended ---------------------------------------------------------------------------------------------------

    def ended(self, task: Task, end: End) -> None:
        """Write down how a point ended, or how the forker did."""
        if task.program:
            self.outcome = end
            return
        running = self._of(task)
        del self.running[running.slot]
        self.free.append(running.slot)
        with self._may_be_lost():
            if self.leases and not self.is_lost:
                self.leases.check()
        if self.is_lost:
            return
        is_cut = running.is_cut or self.is_told or self.state.end_requests.signalled or end.by != "script"
        record, stops = points.record(self.context, running, end, is_cut=is_cut)
        if stops:
            self._look()
            self.stopped = self.stopped or _SIGNALLED
        self._keep(running.point, record)
        if running.pid:
            self._say(running.point, record)
        self._say_restarted(running.restarted)

    def _keep(self, point: Point, record: PointEnd | None) -> None:
        """Write the record of a point, which then is done; without one it is given back."""
        if record:
            shared_files.write_json(self.context.run.record_of(point.key), plain(record, brief=True))
        self.counts[record.state if record else "interrupted"] += 1
        if study := self.plan.study:
            state, value = (record.state, record.metrics.get(study.metric)) if record else ("", None)
            self._send(do="learn", key=point.key, state=state, value=value)
            if state == point_end.OK and value is None:
                say(f"  the search ignores this point, which reported no number for the metric '{study.metric}'")
        if self.leases and record:
            self.leases.done(point.key, failed=record.failed)
        elif self.leases:
            self.leases.give_back(point.key)

    def _say(self, point: Point, record: PointEnd | None) -> None:
        """Print a line for a point: the run's log is the sweep's progress."""
        how = "interrupted"
        if record:
            metrics = " ".join(
                f"{name}={'nan' if value is None else format(value, '.6g')}" for name, value in record.metrics.items()
            )
            how = f"{record.seconds:.1f} s {metrics}".rstrip()
            if record.failed:
                how = f"failed: {record.cause}"
                if len(self.failed) < _FIRST:
                    log = str(self.context.run.log_of(point.key))
                    self.failed.append(FailedPoint(point.shown[:_LONGEST], record.cause, log))
            how += f"  {record.cause}" if record.state == point_end.PRUNED else ""
        say(f"{self.counts.total()} of {len(self.plan.points)} ended: point:{point.number}  {point.shown}  {how}")

    def _say_restarted(self, why: str) -> None:
        if why:
            say(f"  the workers were restarted: {why}")

    def _end_forker(self) -> None:
        """Have the forker end, and print how the sweep ended."""
        self.is_ending = True
        if self.leases:
            self.leases.end()
        count, failed = len(self.plan.points), self.counts[point_end.FAILED]
        ok, pruned = self.counts[point_end.OK], self.counts[point_end.PRUNED]
        done = ok + failed + pruned
        left = len(self.leases.free(point.key for point in self.plan.points)) if self.leases else count - done
        summary = f"{ok} of {count} points are done"
        if self.leases and left + done < count:
            ended = self.leases.count("ended")
            summary = f"{ended} of {count} points have ended, {ended - done} of them in other runs"
            summary += f", {running} still running in other runs" if (running := count - left - ended) else ""
        summary += f", {pruned} pruned" if pruned else ""
        summary += f", {failures} failed" if (failures := self._failures()) else ""
        summary += f", {left} remain: {self.stopped or 'these points stopped and can be continued'}" if left else ""
        self.exit_status = 1 if failed or left else 0
        if left and self.state.end_requests.time_limit_near:
            self.exit_status = errors.TIME_LIMIT
        self.summary = summary
        say(f"sweep: {summary}.")
        self._send(do="end", status=self.exit_status)
        self._expect(-1)

    def end(self) -> End:
        """Return the end of the sweep, if the forker ended as it was ordered."""
        end = self.outcome
        assert end is not None
        if self.is_connected:
            self._cut_off()
        if self.leases and not self.is_ending:
            self.leases.end()
        if not self.is_ending or (end.by, end.exit_status) != ("script", self.exit_status):
            return end
        ends = PointEnds(len(self.plan.points), self.counts[point_end.FAILED], tuple(self.failed))
        name = self.context.settings.points.sweep
        hint = f"List the points and their numbers N: hpcml sweep table {name}. Show a point's output: "
        hint += f"hpcml logs {name} point:N."
        if not ends.failed:
            hint = "To run the remaining points, repeat the command of the sweep. hpcml keeps the finished points."
        return end._replace(message=self.summary, hint=hint if self.exit_status else "", reason="", points=ends)
