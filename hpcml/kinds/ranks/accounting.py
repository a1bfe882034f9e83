"""The ranks' part of the report: the rank of each GPU, and the rank that ended last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcml.report.attempts import number
from hpcml.report.ledger import Accounting, Part
from hpcml.units import format_seconds

_SHORT = 1.0  # seconds between the first and the last end that need no explanation


def _sentences(events: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return a sentence on the rank that ended last, if all ranks ended well."""
    end = next((one for one in events if one["event"] == "ranks-ended"), None)
    first, last, apart = (number(end.get(name)) if end else None for name in ("first", "last", "apart"))
    if end is None or first is None or last is None or apart is None:
        return ()
    if apart < _SHORT:
        return ("All ranks ended within a second of each other.",)
    sentence = f"Rank {last:.0f} on {end.get('node', '')} ended last, {format_seconds(apart)} later."
    return (f"Rank {first:.0f} ended first. {sentence}",)


ACCOUNTING = Accounting(
    parts={"starting": Part("Starting", "hpcml was starting on all nodes and connecting them.", "#8c959f", "#6e7681")},
    process="rank",
    sentences=_sentences,
)
