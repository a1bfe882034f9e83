"""Which of several lines was written first, though each has the time of its own node's clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpcml.failures.evidence import Hit, When
from hpcml.failures.rules import Retry

Clocks = Mapping[
    str, tuple[float, float]
]  # of nodes: seconds ahead of the first node, and by how many that may be wrong

_NOT_MEASURED = 1.0  # seconds by which the clock of a node may be wrong that told nothing


def corrected(hit: Hit, clocks: Clocks) -> Hit:
    """Return a line with the time of the first node's clock, as far as its node's is known."""
    line, when = hit.line, hit.when
    if not line.node:
        return hit  # of the first node
    ahead, within = clocks.get(line.node, (0.0, _NOT_MEASURED))
    stamped = line.time != when.changed
    least = when.least - ahead if when.least else 0.0
    moved = line._replace(time=line.time - ahead) if stamped and line.time else line
    return hit._replace(line=moved, when=When(least, when.most - ahead, when.changed), within=within)


def first(hits: Sequence[Hit]) -> Hit | None:
    """Return the line that was written first, of those that may have been the one that began more.

    ``hits`` are in the order of the files. Within a file their order is certain. Lines of several files are in the
    order of their times, if these differ by more than the clocks may; else a fault of a node goes before what programs
    said of it, and that before the end of a process.
    """
    of_file: dict[tuple[str, str], Hit] = {}
    for hit in hits:
        of_file.setdefault((hit.line.file, hit.line.node), hit)
    found = list(of_file.values())
    candidates = [hit for hit in found if not any(_before(other, hit) for other in found)]
    return min(candidates or found, key=lambda hit: (_depth(hit), hit.line.time or math.inf), default=None)


def _before(one: Hit, other: Hit) -> bool:
    """Whether a line was certainly written before another."""
    slack = 0.0 if one.line.node == other.line.node else one.within + other.within
    return _latest(one) + slack < other.when.least


def _latest(hit: Hit) -> float:
    when = hit.when
    if when.most == math.inf and when.changed:
        return max(when.changed, when.least)
    return when.most


def _depth(hit: Hit) -> int:
    if hit.rule.retry is Retry.EXCLUDE:
        return 0
    return 2 if hit.rule.name.startswith("worker-") else 1
