"""The attempts of a run: when each had its nodes, how it ended, and how many hours of GPUs or cores it took."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from hpcml import files
from hpcml.failures.evidence import table
from hpcml.paths import RunPaths
from hpcml.report.ending import events, number
from hpcml.report.ledger import Ledger
from hpcml.units import format_seconds

NO_WORD = "it left no word of its end"


class Attempt(NamedTuple):
    """One attempt; times in seconds since 1970, ``end`` the last that was heard of it.

    ``exit_status`` is None where nothing was written of its end. ``hours`` are those paid, of the ledger's unit, and
    ``useful`` is their useful share in percent; None where the samples have not been added up.
    """

    number: int
    job: str
    nodes: tuple[str, ...]
    begin: float
    end: float
    state: str
    exit_status: int | None
    message: str
    hours: float | None = None
    useful: float | None = None

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
        str(end.get("message", "")) or NO_WORD,
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
    ended = f"{attempt.state or 'UNKNOWN'}: {attempt.message}"
    return f"attempt {attempt.number + 1}: {job}{where}{format_seconds(attempt.seconds)}, {ended}"
