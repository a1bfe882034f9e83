"""The attempts of a run by its own files: what happened, how each ended and why, what it took, and what it left."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcml import files, records
from hpcml.errors import STOPPED
from hpcml.failures import judgement
from hpcml.failures.end import End
from hpcml.failures.evidence import Line
from hpcml.kind import Kind
from hpcml.paths import AttemptPaths, RunPaths
from hpcml.recorded import Allocated, Event, Recorded
from hpcml.report.ledger import Ledger
from hpcml.states import State
from hpcml.units import format_seconds

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

    end: End = End(ended_as=State.RUNNING, over=False, message="the run has not written how it ended")
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


def events(recorded: Recorded, attempt: int) -> list[Event]:
    """Return the events of an attempt in order."""
    return [event for event in recorded.events_of(attempt) if 0 < event.time < 1e11]


def allocated(happened: Sequence[Event]) -> Allocated:
    """Return what is written of an attempt's allocation, nothing where that is missing or damaged."""
    facts = next((event.facts.facts for event in happened if event.name == "allocated"), {})
    return records.salvage(Allocated, facts)[0]


def ending_of(recorded: Recorded, attempt: AttemptPaths, kind: Kind, times: Mapping[str, float]) -> Ending:
    """Return how the run ended by its own status.json, and why, by its logs."""
    if recorded.end is None:
        return Ending()
    end = recorded.end._replace(over=True)  # the report is made while the roles are torn down
    paths, form = recorded.paths, recorded.plan.inside.code.form
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
        return "SAVED" if (self.state, self.exit_status) == (State.FAILED, STOPPED) else self.state or State.UNKNOWN

    @property
    def seconds(self) -> float:
        """How long it had its nodes."""
        return self.end - self.begin


def earlier(recorded: Recorded, than: int) -> tuple[Attempt, ...]:
    """Return the attempts before one, from what each has left."""
    return tuple(one(recorded, attempt) for attempt in recorded.attempts if attempt < than)


class Sums(NamedTuple):
    """The sums of an attempt's ledger."""

    unit: str = ""  # GPU, core or node
    number: float = 0.0  # of units
    paid: float | None = None  # hours
    parts: dict[str, float] = {}  # hours by part


def keep_ledger(paths: RunPaths, attempt: int, counted: Ledger) -> None:
    """Leave the sums of an attempt's ledger beside it, so that later reports need not read its samples again."""
    sums = Sums(counted.unit, counted.number, counted.paid, counted.parts)
    files.write(paths.attempt(attempt).ledger, json.dumps(records.plain(sums)) + "\n")


def sums(recorded: Recorded, attempt: int) -> Sums:
    """Return the sums of an attempt's ledger, none where nobody has left them."""
    path = recorded.paths.attempt(attempt).ledger
    return recorded.record(Sums, recorded.table(path) or {}, path)


def one(recorded: Recorded, attempt: int) -> Attempt:
    """Return an attempt from what it has left."""
    count = len(recorded.problems)
    happened, end, kept = events(recorded, attempt), recorded.end_of(attempt), sums(recorded, attempt)
    no_end = (*recorded.problems[count:], NO_STATUS)[0].rstrip(".")
    begun, times = allocated(happened), [event.time for event in happened]
    begin = begin_of(begun.began, min(times, default=0.0))
    useful = kept.parts.get("useful")
    return Attempt(
        attempt,
        begun.job,
        begun.nodes,
        begin,
        max([begin, *times, end.time if end else 0.0]),
        end.state if end else "",
        end.exit_status if end else None,
        end.message if end and end.message else no_end,
        kept.paid,
        100 * useful / kept.paid if kept.paid and useful is not None else None,
    )


def begin_of(began: float | None, first: float) -> float:
    """Return when the batch script began, as the event ``allocated`` has it, or ``first`` if that is a day off."""
    return began if began and 0 <= first - began < 86400 else first


def sentence(attempt: Attempt) -> str:
    """Return in a line what became of an attempt."""
    job = f"job {attempt.job}, " if attempt.job else ""
    where = f"on {','.join(attempt.nodes)}, " if 0 < len(attempt.nodes) <= 4 else ""
    ended = f"{attempt.outcome}: {attempt.message}"
    return f"attempt {attempt.number + 1}: {job}{where}{format_seconds(attempt.seconds)}, {ended}"


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
