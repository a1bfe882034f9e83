"""Start the user's script once for each point of a sweep, one or several at once, and write down how each ended.

A point is a fork of this process, which has imported Dask: to start Python and to import takes longer than many a
point. It has a process group, a log and a folder for results of its own, and writes nothing where others do.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import json
import os
import re
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from hpcml import errors
from hpcml.files import tail
from hpcml.node import files, processes
from hpcml.node.roles.script import oom_kills
from hpcml.node.settings import Context, load
from hpcml.node.sweep.claims import Claims, LostError
from hpcml.node.sweep.cleaning import Cleaner, CleaningError, use

TICK = 0.5  # seconds between looks at what no signal tells
TOLD = 10.0  # seconds in which a supervisor that ends the run says so
_LONGEST = 200  # characters of a cause
_MOST_REPORTS = 16 << 20  # bytes of what a point reported that are read


def serve() -> None:
    """Run the points; return only in a process that is to become the script, and exit in all others."""
    from hpcml.node.script import replacements

    context = load()
    replacements.install()  # before what it replaces is imported
    with processes.long_import():
        import distributed  # noqa: F401 - for the points

    sweep = Sweep(context)
    if not sweep.run():
        return
    sys.stdout.flush()
    raise SystemExit(sweep.exit_status)


def become_script() -> NoReturn:
    """Be the script that the command line names, to its end.

    Python would take its whole heap apart then, which is the parent's for the most part and takes longer than many a
    point. Here threads are joined, what is to run at exit runs, and files that the script left open are written.
    """
    from hpcml.node.script import launcher

    status = 0
    try:
        launcher.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:  # noqa: BLE001 - as the interpreter's own end
        status = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error, frames)
    try:
        threading._shutdown()  # type: ignore[attr-defined] # noqa: SLF001 - as multiprocessing ends its children
        atexit._run_exitfuncs()  # noqa: SLF001 - as above
        vars(sys.modules["__main__"]).clear()
        for one in gc.get_objects():  # those from before the fork are not among them
            if isinstance(one, io.IOBase) and not one.closed:
                one.flush()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status & 0xFF)


class Slot:
    """A place for one point at a time, with a share of the workers and who cleans it; ``pid`` is 0 without a point."""

    def __init__(self, number: int, address: str) -> None:
        self.number, self.address = number, address
        self.cleaner = Cleaner(address)
        self.point: dict[str, Any] = {}
        self.pid = self.kills = self.status = 0
        self.began = self.clock = self.seconds = 0.0
        self.cleaning = False


class Sweep:
    """The points of this run; ``ok``, ``failed`` and ``halved`` count those that have ended.

    ``stopped`` says why no more begin.
    """

    def __init__(self, context: Context) -> None:
        self.context, self.settings = context, context.settings
        plan = files.read_json(context.run.points) or {}
        self.points: list[dict[str, Any]] = plan["points"]
        self.max_fails: int | None = plan["max_fails"]
        self.halving: dict[str, Any] | None = plan.get("halving")
        self.runs: list[str] = plan.get("runs", [])
        self.waiting: list[dict[str, Any]] = []
        self.slots: list[Slot] = []
        self.claims: Claims | None = None
        self.ok = self.failed = self.halved = self.interrupted = 0
        self.gang = bool(plan.get("gang"))  # a point for each job, as long as another one follows
        self.begun: set[str] = set()
        self.handed_on = False
        self.out_of_points: float | None = None  # since when, by the clock of the claims
        self.stopped = ""
        self.exit_status = 0
        self.told_to_end = False

    def run(self) -> bool:
        """Run the points; False in a child process, which is to become the script."""
        self._count_earlier()
        self.wake, waker = os.pipe()
        for end in (self.wake, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_term)
        for other in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(other, lambda *_: None)
        self._join()
        if self.waiting:
            addresses = (files.read_json(self.context.attempt.scheduler) or {}).get("shares", [])
            self.slots = [Slot(number, address) for number, address in enumerate(["", *addresses])]
        for slot in self.slots:
            self._clean(slot)
        while self._goes_on():
            for slot in self.slots:
                if not slot.pid and not slot.cleaning and (point := self._next()) and not self._begin(slot, point):
                    return False
            self._wait()
        for slot in self.slots:
            slot.cleaner.end()
        if self.claims:
            self.claims.end()
        self._end()
        return True

    def _count_earlier(self) -> None:
        """Leave out what earlier attempts of this run have ended."""
        folder = self.context.run.point_records
        folder.mkdir(mode=0o700, exist_ok=True)
        there = files.listed(folder)
        for point in self.points:
            path = self.context.run.record_of(point["key"])
            if path.name not in there or not self._count(files.read_json(path) or {}):
                self.waiting.append(point)

    def _join(self) -> None:
        """Take part in the sweep of several runs."""
        if not self.settings.claims:
            return
        try:
            self.claims = Claims(Path(self.settings.claims), self.context.run.directory.name, self.runs)
        except FileNotFoundError:
            self.waiting, self.points = [], []  # all have ended, and other runs have others

    def _goes_on(self) -> bool:
        """Whether points run, or more may begin."""
        if any(slot.pid or slot.cleaning for slot in self.slots):
            return True
        self._look()
        if self.stopped:
            return False
        if self.waiting or not self.claims:
            self.out_of_points = None
            return bool(self.waiting)
        if self.out_of_points is None:
            self.out_of_points = self.claims.clock.seconds
        silent = self.claims.silent(self.out_of_points)  # it may have died, and its points are to be run here
        if self.claims.any_free(point["key"] for point in self._untried()):  # another has given them back
            self.waiting = self._untried()
        return silent or bool(self.waiting)

    def _untried(self) -> list[dict[str, Any]]:
        """Return the points that this run has not begun: one that stopped to be continued is left to a later run."""
        return [point for point in self.points if point["key"] not in self.begun]

    def _next(self) -> dict[str, Any] | None:
        """Return a point to begin with; None if there is none, or none may begin."""
        while self.waiting:
            self._look()
            if self.stopped or self._hand_on():
                return None
            point = self.waiting.pop(0)
            try:
                if not self.claims or self.claims.take(point["key"]):
                    return point
            except LostError:
                self._lose()
                return None
        return None

    def _hand_on(self) -> bool:
        """Leave the rest to the job that follows, if there is one and a rest."""
        if not self.gang or not self.begun or not self.claims:
            return False
        if (
            self.context.number < self.settings.most_restarts
            and self._is_followed()
            and self.claims.any_free(point["key"] for point in self.waiting)
        ):
            self.handed_on, self.stopped = True, "the next job goes on"
        return self.handed_on

    def _is_followed(self) -> bool:
        """Whether another job waits for this one's end; this one itself would lose its place in the queue."""
        if self.settings.one_machine:
            return True
        try:
            return str(self.context.run.next_job.readlink()) != os.environ.get("SLURM_JOB_ID", "")
        except OSError:
            return False

    def _begin(self, slot: Slot, point: dict[str, Any]) -> bool:
        """Begin a point; False in its process."""
        self.begun.add(point["key"])
        slot.point, slot.kills, slot.began, slot.clock = point, oom_kills(), time.time(), time.monotonic()
        slot.pid = self._fork(slot)
        return bool(slot.pid)

    def _wait(self) -> None:
        """Wait until a point ends, a share is clean, or it is time to look at the other runs."""
        cleaning = {slot.cleaner.connection.fileno(): slot for slot in self.slots if slot.cleaning}
        ready, _, _ = select.select([self.wake, *cleaning], [], [], TICK)
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake, 4096)
        for slot in self.slots:
            if slot.pid:
                pid, code = os.waitpid(slot.pid, os.WNOHANG)
                if pid:
                    self._point_ended(slot, os.waitstatus_to_exitcode(code))
            elif slot.cleaning and (slot.cleaner.connection.fileno() in ready or slot.cleaner.late):
                self._cleaned(slot)
        if self.claims:
            try:
                if self.claims.look(often=not self.waiting):
                    self.waiting = self._untried()
            except LostError:
                self._lose()

    def _lose(self) -> None:
        """End the points that others have by now; nothing is written of them."""
        self.stopped = "this run was silent for so long that others have its points"
        for slot in self.slots:
            slot.point = {}
            if slot.pid:
                _signal(slot.pid, signal.SIGKILL)

    def _point_ended(self, slot: Slot, code: int) -> None:
        pid, slot.pid = slot.pid, 0
        _signal(pid, signal.SIGKILL)  # what it has left
        slot.status, slot.seconds = 128 - code if code < 0 else code, time.monotonic() - slot.clock
        self._clean(slot)

    def _clean(self, slot: Slot) -> None:
        slot.cleaning = True
        slot.cleaner.ask()

    def _cleaned(self, slot: Slot) -> None:
        """Write down how a share's point has ended, now that the share is clean."""
        slot.cleaning = False
        restarted = ""
        try:
            restarted = slot.cleaner.answer()
        except CleaningError as error:
            self.stopped = self.stopped or str(error)
        point, slot.point = slot.point, {}
        if not point:
            return
        starved = oom_kills() > slot.kills
        record = self._record(point, slot.status, slot.began, slot.seconds, starved=starved)
        try:
            if self.claims:
                self.claims.check()
        except LostError:
            self._lose()
            return
        if record:
            record |= {"began": round(slot.began, 3), "restarted": restarted, "node": self.context.node}
            files.write_json(self.context.run.record_of(point["key"]), record)
            self._count(record)
        else:
            self.interrupted += 1
        if self.claims and record:
            self.claims.ended(point["key"], failed=record["status"] == "failed")
        elif self.claims:
            self.claims.give_back(point["key"])
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
            self.stopped = "the run was told to end"
        elif self.context.attempt.time_limit.exists():
            self.stopped = "the time limit is near"
        elif self.max_fails is not None and self._failures() > self.max_fails:
            self.stopped = f"more than {self.max_fails} failed (--max-fails)"

    def _failures(self) -> int:
        return self.claims.failures() if self.claims else self.failed

    def _fork(self, slot: Slot) -> int:
        """Fork a point; return its pid, and 0 in it, where all is as the script is to find it."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            with contextlib.suppress(PermissionError, ProcessLookupError):  # it has done so itself, or has ended
                os.setpgid(pid, pid)
            if self.told_to_end:
                _signal(pid, signal.SIGTERM)
            return pid
        os.setpgid(0, 0)
        processes.end_with(parent)
        signal.set_wakeup_fd(-1)
        for other in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
            signal.signal(other, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for other_slot in self.slots:
            other_slot.cleaner.let_go()
        if slot.address:
            use(slot.address)
        self._become(slot)
        return 0

    def _become(self, slot: Slot) -> None:
        """Give this process the arguments, variables and log of a point."""
        point, run = slot.point, self.context.run
        key = point["key"]
        if random := sys.modules.get("numpy.random"):
            random.seed()  # a fork has its parent's
        log = os.open(run.log_of(key), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        facts = {"key": key, "values": point["values"], "seed": int(key[:8], 16)}
        if self.halving:
            known = {name: value for name, value in self.halving.items() if name != "before"}
            facts["halving"] = {**known, "shared": self.settings.claims}
        facts |= {"workers": self.context.in_share(slot.number)} if len(self.slots) > 1 else {}
        os.environ["HPCML_POINT"] = json.dumps(facts)
        os.environ["HPCML_SCRIPT_ERROR"] = str(self._notes(key, "error"))
        sys.argv = ["-c", self.settings.script, *self.settings.arguments, *point["words"]]

    def _notes(self, key: str, kind: str) -> Path:
        """Return where a point writes for this process: its error, its reports."""
        return self.context.attempt.directory / f"point-{key}.{kind}"

    def _record(
        self, point: dict[str, Any], status: int, began: float, seconds: float, *, starved: bool
    ) -> dict[str, Any]:
        """Return what is kept of a point; nothing of one that was interrupted, so that it is run again."""
        error, reports = self._notes(point["key"], "error"), self._notes(point["key"], "reports")
        told = _reports(reports)
        why: dict[str, Any] = {"cause": ""}
        halved = told.pop("halved", 0)
        halved = halved if status in (0, errors.HALVED) else 0
        if halved:
            why["cause"] = f"stopped by halving at step {halved}"
        elif status:
            why = self._why(point["key"], error, status, began, starved=starved and status == 128 + signal.SIGKILL)
        for path in (error, reports):
            path.unlink(missing_ok=True)
        if told.pop("stopped", False) or (status and self.told_to_end):
            self._look()
            self.stopped = self.stopped or "the run was told to end"
            return {}
        if status == errors.STOPPED:
            return {}
        state = "stopped" if halved else "failed" if status else "ok"
        facts = {"key": point["key"], "values": point["values"], "status": state}
        return {**facts, "exit_status": status, **why, "seconds": round(seconds, 3), **told}

    def _count(self, record: dict[str, Any]) -> bool:
        """Count a point that has ended; False if it has not."""
        state = record.get("status", "")
        self.ok, self.failed = self.ok + (state == "ok"), self.failed + (state == "failed")
        self.halved += state == "stopped"
        return bool(record)

    def _why(self, key: str, error: Path, status: int, began: float, *, starved: bool) -> dict[str, Any]:
        """Return why a point failed in some words, of which kind that is, and the rule and the nodes that show it."""
        from hpcml.failures import kinds
        from hpcml.node.sweep import causes

        log = self.context.run.log_of(key)
        words = "out of memory" if starved else _cause(error, status)
        words = words or (tail(log, 1) or ("",))[0][:_LONGEST]
        found = causes.look(self.context.run, log, files.read_json(error) or {}, status, began, starved=starved)
        if found and found.known and any(line.source in ("worker", "library") for line in found.evidence):
            words = found.what[:_LONGEST]  # what the script raised only followed from it
        rule, nodes = (found.rule, list(found.nodes)) if found else ("", [])
        kind = kinds.of_cause(found)
        if kind == "node" and not nodes and self.settings.nodes == 1:
            nodes = [self.context.node]  # the script's own error names none
        return {"cause": words, "kind": kind, "rule": rule, "nodes": nodes}

    def _tell(self, point: dict[str, Any], record: dict[str, Any], restarted: str) -> None:
        """Print a line for a point: the run's log is the sweep's progress."""
        how = "interrupted"
        if record:
            metrics = " ".join(
                f"{name}={'nan' if value is None else format(value, '.6g')}"
                for name, value in record["metrics"].items()
            )
            how = f"{record['seconds']:.1f} s {metrics}".rstrip()
            how = f"failed: {record['cause']}" if record["status"] == "failed" else how
            how += f"  {record['cause']}" if record["status"] == "stopped" else ""
        number = self.ok + self.failed + self.halved + self.interrupted
        print(f"point {number} of {len(self.points)}  {point['shown']}  {how}")
        if restarted:
            print(f"  the workers were restarted: {restarted}")

    def _end(self) -> None:
        """Print and write down how the sweep ended."""
        done = self.ok + self.failed + self.halved
        left = self._left() if self.claims else len(self.points) - done
        deadline = time.monotonic() + TOLD
        while left and self.context.attempt.terminate.exists() and not self.told_to_end and time.monotonic() < deadline:
            time.sleep(0.02)  # the supervisor is about to end the run, as cancelled
        words = f"{self.ok} of {len(self.points)} points are done"
        words += f", {self.halved} stopped by halving" if self.halved else ""
        words += f", {self.failed} failed" if self.failed else ""
        if self.halving and not self.context.run.rungs.exists() and self.ok:
            first = self.halving["min_steps"]
            words += f", none compared: no report had '{self.halving['metric']}' at step {first} or later"
        if self.claims and (others := len(self.points) - done - left):
            words += f", {others} are those of other runs"
        words += f", {left} are left: {self.stopped or 'they stopped to be continued'}" if left else ""
        self.exit_status = 1 if self.failed or left else 0
        if left and self.context.attempt.time_limit.exists():
            self.exit_status = errors.TIME_LIMIT
        if self.handed_on:
            self.exit_status = errors.STOPPED
            self.context.run.checkpoints.mkdir(mode=0o700, exist_ok=True)
            files.write_json(self.context.run.checkpoints / "points", {"ok": self.ok, "failed": self.failed})
        files.write_json(self.context.attempt.points_end, {"ended": words})
        print(f"sweep: {words}.")

    def _left(self) -> int:
        """Return how many points nobody has, of a sweep that several runs divide."""
        there = set(os.listdir(self.settings.claims))
        return sum(point["key"] not in there for point in self.points)


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # it ended by itself


def _reports(path: Path) -> dict[str, Any]:
    """Return what a point reported: the last value of each metric, the last step, and how often it reported."""
    metrics: dict[str, float | None] = {}
    found: dict[str, Any] = {"metrics": metrics, "reports": 0}
    try:
        with path.open() as file:
            lines = file.read(_MOST_REPORTS).splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        try:
            table = json.loads(line)
        except ValueError:
            continue  # the point was ended in the middle of it
        if table.get("stopped"):
            found["stopped"] = True
            continue
        if "halved" in table:
            found["halved"] = table["halved"]
            continue
        metrics.update(table["metrics"])
        found["reports"] += 1
        found |= {"step": table["step"]} if table["step"] is not None else {}
    return found


def _cause(note: Path, status: int) -> str:
    """Return why a point failed, in some words; empty if that is not known."""
    facts = files.read_json(note)
    if facts and facts["chain"]:
        error = facts["chain"][0]
        place = f" ({Path(facts['file']).name}:{facts['line']})" if facts.get("line") else ""
        message = re.sub(r"\s+", " ", f"{error['type']}: {error['message']}")
        return f"{message[:_LONGEST]}{place}"
    if status > 128 and status - 128 in signal.valid_signals():
        return f"killed by {signal.Signals(status - 128).name}"
    return f"exit status {status}"
