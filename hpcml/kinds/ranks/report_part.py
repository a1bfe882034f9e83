"""The ranks' part of the report: the rank of each GPU, and the rank that ended last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hpcml import typed_json
from hpcml.report.ledger import Accounting, Part
from hpcml.run_files import Event
from hpcml.units import format_seconds

_SHORT = 1.0  # seconds between the first and the last end that need no explanation


class _Ended(NamedTuple):
    """What the event ``ranks-ended`` says."""

    first: int  # rank
    last: int  # rank
    apart: float  # seconds between their ends
    node: str = ""  # of the last


def _sentences(events: Sequence[Event]) -> tuple[str, ...]:
    """Return a sentence on the rank that ended last, if all ranks ended well."""
    facts = next((event.facts.facts for event in events if event.name == "ranks-ended"), None)
    try:
        end = typed_json.read(_Ended, facts)
    except typed_json.DamagedError:  # there was no such end, or the line is damaged
        return ()
    if end.apart < _SHORT:
        return ("All ranks ended within a second of each other.",)
    sentence = f"Rank {end.last} on {end.node} ended last, {format_seconds(end.apart)} later."
    return (f"Rank {end.first} ended first. {sentence}",)


ACCOUNTING = Accounting(
    parts={"starting": Part("Starting", "hpcml was starting on all nodes and connecting them.", "#8c959f", "#6e7681")},
    process="rank",
    sentences=_sentences,
)
