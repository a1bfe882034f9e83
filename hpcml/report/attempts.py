"""The attempts of a run by its own files: what happened, how each ended and why, what it took, and what it left."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from hpcml import files, records
from hpcml.errors import STOPPED
from hpcml.failures import judgement
from hpcml.failures.end import End, parse
from hpcml.failures.evidence import Line, table
from hpcml.forms import Form
from hpcml.kind import Kind
from hpcml.paths import AttemptPaths, RunPaths
from hpcml.report.ledger import Ledger
from hpcml.units import format_seconds, parse_memory

NO_STATUS = "the run's processes exited without writing a status"
_OPENS = (  # the beginning of a profile's name, and the command that opens one
    ("dask.html", "python -m webbrowser"),
    ("memray-script", "memray flamegraph"),
    ("memray-worker", "memray flamegraph"),
    ("nsys-", "nsys-ui"),
    ("rmm_log_", "less"),
)
_UNFINISHED = ".tmp"  # what memray leaves of a process that was killed while it compressed its file


class Ending(NamedTuple):
    """How a run ended, and why, as its report shows it."""

    end: End = End(ended_as="RUNNING", over=False, message="the run has not written how it ended")
    cause: str = ""  # a sentence, empty where it did not fail
    evidence: tuple[Line, ...] = ()  # lines that show the cause
    followed: tuple[Line, ...] = ()  # lines of what followed from it
    next_step: str = ""
    again: str = ""  # the command that tries it again

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON-ready table."""
        table = records.plain(self)
        del table["end"]
        return {**self.end.as_json(), "exit_status": self.end.exit_status if self.end.over else None, **table}


def cause_sentence(cause: judgement.Cause) -> str:
    """Return a cause in one line."""
    nodes, occurrences = cause.nodes, cause.occurrences
    text = cause.what[:1].upper() + cause.what[1:] if cause.known else f"Not known: {cause.what}"
    named = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more nodes" if len(nodes) > 4 else "")
    if cause.ranks:
        text += f" ({cause.where})" if cause.where else ""
    elif occurrences > 1:
        text += f" ({occurrences} times{f' on {named}' if named else ''})"
    elif named:
        text += f" (on {named})"
    return f"{text.rstrip('.')}."


def number(value: object) -> float | None:
    """Return a finite number of a file, None for anything else."""
    whole = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e20
    return float(value) if whole and isinstance(value, (int, float)) else None


def events(paths: RunPaths, attempt: int) -> list[dict[str, Any]]:
    """Return the events of an attempt in order; lines that are none are passed over."""
    try:
        lines = files.read(paths.events).split(b"\n")[:-1]
    except OSError:
        return []
    happened = []
    for line in lines:
        try:
            event = files.parsed(json.loads, line.decode())
        except ValueError:
            continue
        if (
            isinstance(event, dict)
            and isinstance(event.get("event"), str)
            and _is_time(event.get("time"))
            and event.get("attempt", 0) == attempt
        ):
            happened.append(event)
    return happened


def _is_time(value: object) -> bool:
    return 0 < (number(value) or 0) < 1e11


def _code(paths: RunPaths) -> dict[str, object]:
    """Return what was started, as plan.json says."""
    inside = table(paths.plan).get("inside")
    code = inside.get("code") if isinstance(inside, dict) else None
    return code if isinstance(code, dict) else {}


def ending_of(paths: RunPaths, attempt: AttemptPaths, kind: Kind, times: Mapping[str, float]) -> Ending:
    """Return how the run ended by its own status.json, and why, by its logs."""
    try:
        end = parse(table(paths.status))._replace(over=True)  # the report is made while the roles are torn down
    except records.DamagedError:
        return Ending()
    form = Form.read(str(_code(paths).get("form", "")))
    judged = judgement.of_run(paths, attempt, judgement.Case(end, kind, times, form=form))
    if judged is None:
        return Ending(end, next_step=end.hint)
    cause = cause_sentence(judged)
    next_step = judgement.with_run(judged.remedy, paths.directory.name) or end.hint
    return Ending(end, cause, judged.evidence, judged.followed, next_step)


class Attempt(NamedTuple):
    """One attempt: when it had its nodes, how it ended, and what it took."""

    number: int  # from 0
    job: str
    nodes: tuple[str, ...]
    begin: float  # seconds since 1970
    end: float  # seconds since 1970, the last sign of it
    state: str
    exit_status: int | None  # None where nothing was written of its end
    message: str
    hours: float | None = None  # paid, of the ledger's unit; None where the samples have not been added up
    useful: float | None = None  # percent of the hours

    @property
    def outcome(self) -> str:
        """Its state as a person reads it: a script that saves and stops has not failed, though Slurm says so."""
        return "SAVED" if (self.state, self.exit_status) == ("FAILED", STOPPED) else self.state or "UNKNOWN"

    @property
    def seconds(self) -> float:
        """How long it had its nodes."""
        return self.end - self.begin


def numbers(paths: RunPaths) -> list[int]:
    """Return the numbers of the attempts that have begun, in order."""
    try:
        names = os.listdir(paths.directory / "attempts")
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def earlier(paths: RunPaths, than: int) -> tuple[Attempt, ...]:
    """Return the attempts before one, from what each has left."""
    return tuple(one(paths, attempt) for attempt in numbers(paths) if attempt < than)


def last_end(paths: RunPaths, attempt: int) -> dict[str, Any]:
    """Return what is written of an attempt's end, empty if nothing is."""
    kept = table(paths.attempt(attempt).end)
    if kept:
        return kept
    status = table(paths.status)
    return status if status.get("attempt") == attempt else {}


def keep_ledger(paths: RunPaths, attempt: int, counted: Ledger) -> None:
    """Leave the sums of an attempt's ledger beside it, so that later reports need not read its samples again."""
    sums = {name: part for name, part in counted._asdict().items() if name != "of_each"}
    files.write(paths.attempt(attempt).ledger, json.dumps(sums) + "\n")


def one(paths: RunPaths, attempt: int) -> Attempt:
    """Return an attempt from what it has left."""
    happened, end = events(paths, attempt), last_end(paths, attempt)
    allocated = next((one for one in happened if one["event"] == "allocated"), {})
    times = [float(one["time"]) for one in happened]
    begin = begin_of(allocated, min(times, default=0.0))
    status, nodes = end.get("exit_status"), allocated.get("nodes")
    kept = table(paths.attempt(attempt).ledger)
    parts = kept.get("parts")
    paid, useful = number(kept.get("paid")), number(parts.get("useful")) if isinstance(parts, dict) else None
    return Attempt(
        attempt,
        str(allocated.get("job", "")),
        tuple(map(str, nodes)) if isinstance(nodes, list) else (),
        begin,
        max([begin, *times, number(end.get("time")) or 0.0]),
        str(end.get("state", "")),
        status if isinstance(status, int) else None,
        str(end.get("message", "")) or NO_STATUS,
        paid,
        100 * useful / paid if paid and useful is not None else None,
    )


def begin_of(allocated: Mapping[str, Any], first: float) -> float:
    """Return when the batch script began by the event ``allocated``, or ``first`` if that is a day off."""
    began = number(allocated.get("began"))
    return began if began and 0 <= first - began < 86400 else first


def sentence(attempt: Attempt) -> str:
    """Return in a line what became of an attempt."""
    job = f"job {attempt.job}, " if attempt.job else ""
    where = f"on {','.join(attempt.nodes)}, " if 0 < len(attempt.nodes) <= 4 else ""
    ended = f"{attempt.outcome}: {attempt.message}"
    return f"attempt {attempt.number + 1}: {job}{where}{format_seconds(attempt.seconds)}, {ended}"


def directive(plan: Mapping[str, Any], name: str) -> str:
    """Return the value of an option of the batch script, empty if it leaves it to Slurm."""
    directives = plan.get("directives")
    for option in directives if isinstance(directives, list) else ():
        text = " ".join(map(str, option)) if isinstance(option, list) else str(option)
        is_named, _, value = text.replace("=", " ").partition(" ")
        if is_named == name:
            return value.strip()
    return ""


def memory_in_plan(plan: Mapping[str, Any]) -> float:
    """Return the bytes that the batch script asks for on each node, 0 if it leaves them to Slurm."""
    try:
        return float(parse_memory(directive(plan, "--mem")))
    except ValueError:
        return 0.0


def profile_commands(paths: RunPaths) -> list[str]:
    """Return the command that opens each kind of profile that a run has; of several files the first."""
    try:
        with os.scandir(paths.profiles) as entries:
            whole = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        names = sorted(entry.name for entry in whole if not entry.name.endswith(_UNFINISHED))
    except OSError:
        return []
    commands = []
    for start, command in _OPENS:
        if profiles := [name for name in names if name.startswith(start)]:
            others = f"  # and {len(profiles) - 1} more" if profiles[1:] else ""
            commands.append(f"{command} {shlex.quote(str(paths.profiles / profiles[0]))}{others}")
    return commands
