"""How a run ended and why, for its report: from its own files, where nobody else has judged it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcml import files, kinds
from hpcml.failures import judgement
from hpcml.failures.end import End, parse
from hpcml.failures.evidence import Line, table
from hpcml.paths import AttemptPaths, RunPaths


class Ending(NamedTuple):
    """How a run ended, and why, as its report shows it."""

    end: End = End(ended_as="RUNNING", over=False, message="the run has not written that it ended")
    cause: str = ""  # a sentence, empty where it did not fail
    evidence: tuple[Line, ...] = ()  # lines that show the cause
    followed: tuple[Line, ...] = ()  # lines of what followed from it
    next_step: str = ""
    again: str = ""  # the command that tries it again

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON-ready table."""
        lines = {name: [line._asdict() for line in getattr(self, name)] for name in ("evidence", "followed")}
        status = self.end.exit_status if self.end.over else None
        facts = {**self.end.as_json(), "exit_status": status, **self._asdict(), **lines}
        del facts["end"]
        return facts


def sentence(cause: str, *, known: bool, occurrences: int = 0, nodes: Sequence[str] = ()) -> str:
    """Return a cause in one line."""
    text = cause[:1].upper() + cause[1:] if known else f"Not known: {cause}"
    named = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more nodes" if len(nodes) > 4 else "")
    if occurrences > 1:
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
    found = []
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
            found.append(event)
    return found


def _is_time(value: object) -> bool:
    return 0 < (number(value) or 0) < 1e11


def of_files(paths: RunPaths, attempt: AttemptPaths, times: Mapping[str, float]) -> Ending:
    """Return how the run ended by its own status.json, and why, by its logs."""
    try:
        end = parse(table(paths.status))._replace(over=True)  # the report is made while the roles are torn down
    except (KeyError, TypeError):
        return Ending()
    inside = table(paths.plan).get("inside", {})
    case = judgement.Case(
        end, kinds.KINDS.get(str(inside.get("kind", "dask"))), times, form=str(inside.get("form", ""))
    )
    found = judgement.of_run(paths, attempt, case)
    if found is None:
        return Ending(end, next_step=end.hint)
    cause = sentence(found.what, known=found.known, occurrences=found.occurrences, nodes=found.nodes)
    return Ending(end, cause, found.evidence, found.followed, found.remedy or end.hint)
