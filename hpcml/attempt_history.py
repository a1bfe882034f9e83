"""The attempts of a run by its own files: what happened, how each ended, and what it took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from hpcml import safe_files, typed_json
from hpcml.errors import STOPPED
from hpcml.paths import RunPaths
from hpcml.run_files import Allocated, Event, Recorded
from hpcml.states import State
from hpcml.units import format_seconds

NO_STATUS = "the run's processes exited without writing a status"


def events(recorded: Recorded, attempt: int) -> list[Event]:
    """Return the events of an attempt in order."""
    return [event for event in recorded.events_of(attempt) if 0 < event.time < 1e11]


def allocated(happened: Sequence[Event]) -> Allocated:
    """Return the record of an attempt's allocation, an empty one if that is missing or damaged."""
    facts = next((event.facts.facts for event in happened if event.name == "allocated"), {})
    return typed_json.salvage(Allocated, facts)[0]


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
    """The sums of an attempt's time accounting."""

    unit: str = ""  # GPU, core or node
    number: float = 0.0  # of units
    paid: float | None = None  # hours
    parts: dict[str, float] = {}  # hours by part


def keep_sums(paths: RunPaths, attempt: int, sums: Sums) -> None:
    """Write the sums of an attempt's time accounting, so that later reports need not read its samples again."""
    safe_files.write(paths.attempt(attempt).ledger, json.dumps(typed_json.plain(sums)) + "\n")


def sums(recorded: Recorded, attempt: int) -> Sums:
    """Return the sums of an attempt's time accounting, none where nobody has left them."""
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
    """Return the begin of the batch script, as the event ``allocated`` has it, or ``first`` if that is a day off."""
    return began if began and 0 <= first - began < 86400 else first


def sentence(attempt: Attempt) -> str:
    """Return in a line what became of an attempt."""
    job = f"job {attempt.job}, " if attempt.job else ""
    where = f"on {','.join(attempt.nodes)}, " if 0 < len(attempt.nodes) <= 4 else ""
    ended = f"{attempt.outcome}: {attempt.message}"
    return f"attempt {attempt.number}: {job}{where}{format_seconds(attempt.seconds)}, {ended}"
