"""Start the user's script once for each point of a sweep, one after another, and write down how each ended.

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
from hpcml.node.sweep.cleaning import Cleaner, CleaningError

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
        self.ok = self.failed = self.halved = self.pid = 0
        self.stopped = ""
        self.exit_status = 0
        self.told_to_end = False

    def run(self) -> bool:
        """Run point after point; False in a child process, which is to become the script."""
        signal.signal(signal.SIGTERM, self._on_term)
        for other in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(other, lambda *_: None)
        self.context.run.point_records.mkdir(mode=0o700, exist_ok=True)
        cleaner = Cleaner()
        try:
            cleaner.clean()
        except CleaningError as error:
            self.stopped = str(error)
        for number, point in enumerate(self.points, 1):
            if self._count(files.read_json(self.context.run.record_of(point["key"])) or {}):
                continue  # in an attempt before
            self._look()
            if self.stopped:
                break
            kills, began = oom_kills(), time.time()
            clock = time.monotonic()
            self.pid = self._fork(point, cleaner)
            if not self.pid:
                return False
            status = self._wait()
            seconds = time.monotonic() - clock
            restarted = ""
            try:
                restarted = cleaner.clean()
            except CleaningError as error:
                self.stopped = str(error)
            record = self._record(point, status, began, seconds, starved=oom_kills() > kills)
            if record:
                record |= {"began": round(began, 3), "restarted": restarted, "node": self.context.node}
                files.write_json(self.context.run.record_of(point["key"]), record)
                self._count(record)
            self._tell(number, point, record, restarted)
        cleaner.end()
        self._end()
        return True

    def _on_term(self, *_: object) -> None:
        self.told_to_end = True
        if self.pid:
            _signal(self.pid, signal.SIGTERM)

    def _look(self) -> None:
        """Take note of why no further point may begin."""
        if self.stopped:
            return
        if self.told_to_end or self.context.attempt.terminate.exists():
            self.stopped = "the run was told to end"
        elif self.context.attempt.time_limit.exists():
            self.stopped = "the time limit is near"
        elif self.max_fails is not None and self.failed > self.max_fails:
            self.stopped = f"more than {self.max_fails} failed (--max-fails)"

    def _fork(self, point: dict[str, Any], cleaner: Cleaner) -> int:
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
        for other in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(other, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cleaner.let_go()
        self._become(point)
        return 0

    def _become(self, point: dict[str, Any]) -> None:
        """Give this process the arguments, variables and log of a point."""
        run, key = self.context.run, point["key"]
        if random := sys.modules.get("numpy.random"):
            random.seed()  # a fork has its parent's
        log = os.open(run.log_of(key), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        facts = {"key": key, "values": point["values"], "seed": int(key[:8], 16)}
        if self.halving:
            facts["halving"] = {name: value for name, value in self.halving.items() if name != "before"}
        os.environ["HPCML_POINT"] = json.dumps(facts)
        os.environ["HPCML_SCRIPT_ERROR"] = str(self._notes(key, "error"))
        sys.argv = ["-c", self.settings.script, *self.settings.arguments, *point["words"]]

    def _notes(self, key: str, kind: str) -> Path:
        """Return where a point writes for this process: its error, its reports."""
        return self.context.attempt.directory / f"point-{key}.{kind}"

    def _wait(self) -> int:
        """Wait for the point's process, end what it has left, and return its status as a shell gives it."""
        _, code = os.waitpid(self.pid, 0)
        pid, self.pid = self.pid, 0
        _signal(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(code)
        return 128 - status if status < 0 else status

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
        return {"cause": words, "kind": kinds.of_cause(found), "rule": rule, "nodes": nodes}

    def _tell(self, number: int, point: dict[str, Any], record: dict[str, Any], restarted: str) -> None:
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
        print(f"point {number} of {len(self.points)}  {point['shown']}  {how}")
        if restarted:
            print(f"  the workers were restarted: {restarted}")

    def _end(self) -> None:
        """Print and write down how the sweep ended."""
        left = len(self.points) - self.ok - self.failed - self.halved
        deadline = time.monotonic() + TOLD
        while left and self.context.attempt.terminate.exists() and not self.told_to_end and time.monotonic() < deadline:
            time.sleep(0.02)  # the supervisor is about to end the run, as cancelled
        words = f"{self.ok} of {len(self.points)} points are done"
        words += f", {self.halved} stopped by halving" if self.halved else ""
        words += f", {self.failed} failed" if self.failed else ""
        if self.halving and not self.context.run.rungs.exists() and self.ok:
            first = self.halving["min_steps"]
            words += f", none compared: no report had '{self.halving['metric']}' at step {first} or later"
        words += f", {left} are left: {self.stopped or 'they stopped to be continued'}" if left else ""
        self.exit_status = 1 if self.failed or left else 0
        if left and self.context.attempt.time_limit.exists():
            self.exit_status = errors.TIME_LIMIT
        files.write_json(self.context.attempt.points_end, {"ended": words})
        print(f"sweep: {words}.")


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
