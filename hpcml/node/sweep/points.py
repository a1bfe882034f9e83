"""The points of a run as they were submitted, and the record of each: its end, its cause, and what it reported."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcml import errors
from hpcml.failures import point as point_end
from hpcml.failures.end import End
from hpcml.failures.point import PointEnd
from hpcml.node import shared_files
from hpcml.node.context import Context
from hpcml.node.tasks.process import OneProcess, signal_group
from hpcml.paths import SCRIPT
from hpcml.safe_files import tail

if TYPE_CHECKING:
    from hpcml.failures.cause import Cause

_LONGEST = 200  # characters of a cause
_MOST_REPORTS = 16 << 20  # bytes of what a point reported that are read
_MOST_LOGS = 128  # of workers, that are read
_OF_THE_POINT = (SCRIPT, "job", "record")  # sources of lines that the run's other processes have not written
_SLACK = 1.0  # seconds by which the clocks of nodes may differ


class Point(NamedTuple):
    """A point as points.json has it."""

    key: str
    shown: str  # in a line of the run's log
    values: dict[str, Any]  # for hpcml.run.point; of a search's point empty, or those with which it failed
    texts: dict[str, str]  # the options of the script, by name
    draw: int | None = None  # the number of a search's point
    number: int = 0  # N of ``hpcml logs NAME point:N``


Tool = tuple[str, dict[str, Any]]  # the name of a class of Optuna's, empty for none, and its arguments


class Settings(NamedTuple):
    """The study as it was submitted."""

    journal: str  # its file
    name: str  # its name in that file
    metric: str
    maximize: bool
    sampler: Tool
    pruner: Tool
    space: dict[str, tuple[str, list[Any]]]  # by parameter a distribution's kind and its bounds or choices; else empty
    typed: dict[str, dict[str, Any]]  # by parameter the value that a choice's text means
    seed: int


class Plan(NamedTuple):
    """What the run was submitted with, as points.json has it."""

    points: tuple[Point, ...]
    max_fails: int | None  # begin no more points when more have failed
    runs: tuple[str, ...]  # that divide the points, this one among them; empty without others
    folder: str  # of the leases by which they do, empty without others
    study: Settings | None  # of a search or a pruner


def plan(path: Path) -> Plan:
    """Return the plan with which a run was submitted."""
    table = shared_files.read_json(path) or {}
    points = tuple(Point(**point) for point in table["points"])
    study = Settings(**table["study"]) if table.get("study") else None
    return Plan(points, table["max_fails"], tuple(table.get("runs", ())), table.get("claims", ""), study)


def notes(context: Context, key: str, kind: str) -> Path:
    """Return the file that a point writes for the supervisor: its error, its reports."""
    return context.attempt.directory / f"point-{key}.{kind}"


class RunningPoint(OneProcess):
    """A point, as the process reports it that has forked it."""

    def __init__(self, point: Point, slot: int) -> None:
        super().__init__()
        self.point, self.slot = point, slot
        self.pid = 0  # until it has begun
        self.began, self.seconds = time.time(), 0.0
        self.status: int | None = None
        self.pruned: int | None = None  # the step at which it was told to stop
        self.restarted = ""  # why the workers were restarted after it, empty if they were not
        self.is_over = False  # its process has ended; if that failed, its worker group is reset too
        self.is_cut = self.is_told = False  # whether nobody knows how it ended; whether it was told to

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Take note of its process, and of the values that a search has chosen."""
        self.pid, self.began = facts["pid"], facts["began"]
        if "values" in facts:
            self.point = self.point._replace(values=facts["values"], shown=facts["shown"])
        if self.is_told:
            self._signal(signal.SIGTERM)

    def end(self, facts: Mapping[str, Any]) -> None:
        """Take note of its end; what workers write of a failure comes until they are reset."""
        self.status, self.seconds, self.pruned = facts["status"], facts["seconds"], facts["pruned"]
        self.is_over = self.status == 0

    def cut_off(self) -> None:
        """Take note that it will not begin, or that nobody will say how it ended; kill what it has started."""
        if self.status is None:
            self.kill()
            self.status, self.is_cut = 128 + signal.SIGKILL, True
        self.is_over = True

    def poll(self) -> int | None:
        """Return the exit status once it is over."""
        return self.status if self.is_over else None

    def tell_to_end(self) -> None:
        """Send SIGTERM to its process group, once."""
        if not self.is_told:
            self.is_told = True
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to its process group; what it left when it ended, is killed already."""
        self.killed = self.killed or self.status is None
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid and self.status is None:
            signal_group(self.pid, number)


def record(context: Context, running: RunningPoint, end: End, *, is_cut: bool) -> tuple[PointEnd | None, bool]:
    """Return the record of a point that has ended, and remove what it wrote for that.

    There is no record of a point that was interrupted, so that it is run again. ``is_cut``: because the run is to end,
    unless the point exited with 0. The second value is whether it was.
    """
    point, status = running.point, running.status or 0
    error, reports = notes(context, point.key, "error"), notes(context, point.key, "reports")
    reported = _reports(reports)
    why: dict[str, Any] = {}
    was_pruned = running.pruned is not None and status in (0, errors.PRUNED)
    if was_pruned:
        why["cause"] = f"pruned at step {running.pruned}"
    elif status and not is_cut:
        why = _why(context, point.key, error, end, running.began)
    for path in (error, reports):
        path.unlink(missing_ok=True)
    if reported.pop("stopped", False) or (status and is_cut):
        return None, True
    if status == errors.STOPPED:
        return None, False
    state = point_end.PRUNED if was_pruned else point_end.FAILED if status else point_end.OK
    values = point.values | ({} if point.draw is None else {"draw": point.draw})
    facts: dict[str, Any] = {"began": round(running.began, 3), "node": context.node, "memory_limit": end.memory_limit}
    facts |= {"key": point.key, "run": context.run.directory.name, "exit_status": status}
    return PointEnd(values, state, round(running.seconds, 3), **reported, **why, **facts), False


def _why(context: Context, key: str, error: Path, end: End, began: float) -> dict[str, Any]:
    """Return the cause of a point's failure in some words, its kind, and the rule and the nodes that show it."""
    from hpcml.failures.cause import kind_of

    log = context.run.log_of(key)
    cause_text = "out of memory" if end.memory_limit else _cause(error, end.exit_status, log)
    cause = cause_of(context, log, shared_files.read_json(error) or {}, end, began)
    if cause and cause.known and any(line.source not in _OF_THE_POINT for line in cause.evidence):
        cause_text = cause.what[:_LONGEST]  # what the script raised only followed from it
    rule, nodes = (cause.rule, cause.nodes) if cause else ("", ())
    kind = kind_of(rule, evident=cause.known) if cause else "unknown"
    if kind == "node" and not nodes and context.settings.job.nodes == 1:
        nodes = (context.node,)  # the script's own error names none
    return {"cause": cause_text, "kind": kind, "rule": rule, "nodes": nodes}


def _reports(path: Path) -> dict[str, Any]:
    """Return the summary of a point's reports: the last value of each metric, the last step, and their number."""
    metrics: dict[str, float | None] = {}
    reported: dict[str, Any] = {"metrics": metrics, "reports": 0}
    try:
        with path.open() as file:
            lines = file.read(_MOST_REPORTS).splitlines()
    except FileNotFoundError:
        return reported
    for line in lines:
        try:
            table = json.loads(line)
        except ValueError:
            continue  # the point was ended in the middle of it
        if table.get("stopped"):
            reported["stopped"] = True
            continue
        metrics.update(table["metrics"])
        reported["reports"] += 1
        reported |= {"step": table["step"]} if table["step"] is not None else {}
    return reported


def _cause(note: Path, status: int, log: Path) -> str:
    """Return the cause of a point's failure, in some words: its error, a signal, or its status and last line."""
    table = shared_files.read_json(note)
    if table and table["chain"]:
        error = table["chain"][0]
        place = f" ({Path(table['file']).name}:{table['line']})" if table.get("line") else ""
        message = re.sub(r"\s+", " ", f"{error['type']}: {error['message']}")
        return f"{message[:_LONGEST]}{place}"
    if number := errors.signal_of_status(status):
        return f"killed by {errors.signal_name(number)}"
    return ": ".join((f"exit status {status}", *tail(log, 1)))[:_LONGEST]


def cause_of(context: Context, log: Path, error: Mapping[str, Any], end: End, began: float) -> Cause | None:
    """Return the cause of a point's failure, by the rules of ``hpcml why``: its error, its log and its workers' logs.

    Parameters
    ----------
    log
        What the point printed.
    error
        The error that it did not catch, as the launcher wrote it down; empty if there is none.
    end
        How the point ended.
    began
        When it began, in seconds since 1970: what others wrote before is not about it.
    """
    from hpcml.failures import evidence, judgement
    from hpcml.failures.cause import Case

    hits = evidence.hits(context.run, context.attempt, _MOST_LOGS)
    hits = [hit for hit in hits if hit.line.source not in _OF_THE_POINT and hit.line.time > began - _SLACK]
    name = f"{log.parent.name}/{log.name}"
    hits += [hit for piece in evidence.pieces(log) for hit in evidence.hits_in(piece, SCRIPT, name=name)]
    return judgement.judge(Case(end, error=error, last_error=evidence.last_error(log)), hits)


def options_of(texts: Mapping[str, str]) -> list[str]:
    """Return a point's values as options of the script: ``--lr 0.1``, or ``--lr=-1`` where it looks like one."""
    pairs = ((f"--{name}={text}",) if text.startswith("-") else (f"--{name}", text) for name, text in texts.items())
    return [word for pair in pairs for word in pair]
