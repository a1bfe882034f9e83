"""A point as it was submitted, and what is kept of it: how it ended, why it failed, and what it reported."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcml import errors
from hpcml.failures import point as point_record
from hpcml.failures.point import PointEnd
from hpcml.files import tail
from hpcml.node import files
from hpcml.node.settings import Context
from hpcml.paths import SCRIPT, RunPaths
from hpcml.states import State

if TYPE_CHECKING:
    from hpcml.failures.judgement import Cause

_LONGEST = 200  # characters of a cause
_MOST_REPORTS = 16 << 20  # bytes of what a point reported that are read
_MOST_LOGS = 128  # of workers, that are read
_OF_THE_POINT = (SCRIPT, "job", "record")  # sources of lines that the run's other processes have not written
_SLACK = 1.0  # seconds by which the clocks of nodes may differ
_OUT_OF_MEMORY = "the script was killed because the node's memory limit was reached (out of memory)"


class Point(NamedTuple):
    """A point as points.json has it."""

    key: str
    shown: str  # in a line of the run's log
    values: dict[str, Any]  # for hpcml.run.point; of a search's point empty, or those with which it failed
    texts: dict[str, str]  # the options of the script, by name
    draw: int | None = None  # the number of a search's point


class End(NamedTuple):
    """How a point's process ended."""

    status: int  # its exit status
    began: float  # in seconds since 1970
    seconds: float
    out_of_memory: bool  # the kernel killed a process of this node meanwhile, because memory was used up
    told_to_end: bool  # the run had been told to end


class Kept(NamedTuple):
    """What is kept of a point."""

    record: PointEnd | None  # for its file; None for a point that was interrupted, so that it is run again
    stops: bool = False  # it was interrupted because the run is to end


def notes(context: Context, key: str, kind: str) -> Path:
    """Return where a point writes for the process that started it: its error, its reports."""
    return context.attempt.directory / f"point-{key}.{kind}"


def kept(context: Context, point: Point, end: End, pruned: int | None) -> Kept:
    """Return what is kept of a point that has ended, and remove what it wrote for that.

    ``pruned`` is the step at which it was told to stop, None if it was not.
    """
    error, reports = notes(context, point.key, "error"), notes(context, point.key, "reports")
    reported = _reports(reports)
    why: dict[str, Any] = {}
    was_pruned = pruned is not None and end.status in (0, errors.PRUNED)
    if was_pruned:
        why["cause"] = f"pruned at step {pruned}"
    elif end.status:
        why = _why(context, point.key, error, end)
    for path in (error, reports):
        path.unlink(missing_ok=True)
    if reported.pop("stopped", False) or (end.status and end.told_to_end):
        return Kept(None, stops=True)
    if end.status == errors.STOPPED:
        return Kept(None)
    state = point_record.PRUNED if was_pruned else point_record.FAILED if end.status else point_record.OK
    values = point.values | ({} if point.draw is None else {"draw": point.draw})
    facts: dict[str, Any] = {
        "key": point.key,
        "exit_status": end.status,
        "began": round(end.began, 3),
        "node": context.node,
    }
    run = context.run.directory.name
    return Kept(PointEnd(values, state, round(end.seconds, 3), **reported, **facts, **why, run=run))


def _why(context: Context, key: str, error: Path, end: End) -> dict[str, Any]:
    """Return why a point failed in some words, of which kind that is, and the rule and the nodes that show it."""
    from hpcml.failures import judgement

    log, out_of_memory = context.run.log_of(key), end.out_of_memory and end.status == 128 + signal.SIGKILL
    cause_text = "out of memory" if out_of_memory else _cause(error, end.status)
    cause_text = cause_text or (tail(log, 1) or ("",))[0][:_LONGEST]
    cause = cause_of(context.run, log, files.read_json(error) or {}, end.status, end.began, out_of_memory=out_of_memory)
    if cause and cause.known and any(line.source not in _OF_THE_POINT for line in cause.evidence):
        cause_text = cause.what[:_LONGEST]  # what the script raised only followed from it
    rule, nodes = (cause.rule, cause.nodes) if cause else ("", ())
    kind = judgement.kind_of(rule, evident=cause.known) if cause else "unknown"
    if kind == "node" and not nodes and context.settings.job.nodes == 1:
        nodes = (context.node,)  # the script's own error names none
    return {"cause": cause_text, "kind": kind, "rule": rule, "nodes": nodes}


def _reports(path: Path) -> dict[str, Any]:
    """Return what a point reported: the last value of each metric, the last step, and how often it reported."""
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


def _cause(note: Path, status: int) -> str:
    """Return why a point failed, in some words; empty if that is not known."""
    table = files.read_json(note)
    if table and table["chain"]:
        error = table["chain"][0]
        place = f" ({Path(table['file']).name}:{table['line']})" if table.get("line") else ""
        message = re.sub(r"\s+", " ", f"{error['type']}: {error['message']}")
        return f"{message[:_LONGEST]}{place}"
    if number := errors.signal_of_status(status):
        return f"killed by {errors.signal_name(number)}"
    return f"exit status {status}"


def cause_of(
    run: RunPaths, log: Path, error: Mapping[str, Any], status: int, began: float, *, out_of_memory: bool
) -> Cause | None:
    """Return why a point failed, by the rules of ``hpcml why``: its error, its log and what workers wrote meanwhile.

    Parameters
    ----------
    log
        What the point printed.
    error
        The error that it did not catch, as the launcher wrote it down; empty if there is none.
    began
        When it began, in seconds since 1970: what others wrote before is not about it.
    out_of_memory
        Whether the kernel killed a process of this node meanwhile, because memory was used up.
    """
    from hpcml.failures import evidence, judgement
    from hpcml.failures.end import End as RunEnd
    from hpcml.failures.end import MemoryLimit

    others = [hit for hit in evidence.hits(run, _MOST_LOGS) if hit.line.source not in _OF_THE_POINT]
    hits = [hit for hit in others if hit.line.time > began - _SLACK]
    name = f"{log.parent.name}/{log.name}"
    hits += [hit for piece in evidence.pieces(log) for hit in evidence.hits_in(piece, SCRIPT, name=name)]
    message, limit = (_OUT_OF_MEMORY, MemoryLimit.NODE) if out_of_memory else ("", "")
    end = RunEnd(status, SCRIPT, "script", message, ended_as="" if limit else State.FAILED, memory_limit=limit)
    return judgement.judge(judgement.Case(end, error=error, last_error=evidence.last_error(log)), hits)
