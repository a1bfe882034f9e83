"""Which line of a run's logs was written first, though each has the time of its own node's clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpcml.failures.end import End
from hpcml.failures.evidence import Hit, When
from hpcml.failures.rule import Retry
from hpcml.paths import SCRIPT

# By node: seconds ahead of the first node's, and by how many that may be wrong.
Clocks = Mapping[str, tuple[float, float]]
_NOT_MEASURED = 1.0  # seconds by which a node's clock may be wrong that was not measured


def with_ranks(end: End, hits: Sequence[Hit]) -> list[Hit]:
    """Return lines with the rank that wrote them, and whether that is the process which ended the run."""
    marked = []
    are_ranks = end.rank is not None or any(hit.line.rank is not None for hit in hits)
    for hit in hits:
        own = hit.line.file == f"logs/{end.log}" if end.log else hit.line.source == SCRIPT
        line = hit.line
        if are_ranks and line.source == SCRIPT:  # the script's log is that of rank 0
            line = line._replace(rank=0, node=end.node if end.rank == 0 else line.node)
        marked.append(hit._replace(line=line, own=own))
    return marked


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


def first_of(hits: Sequence[Hit]) -> Hit | None:
    """Return the line that was written first, of those that may have been the one that began more.

    ``hits`` are in the order of the files. Within a file their order is certain. Lines of several files are in the
    order of their times, if these differ by more than the clocks may; else a fault of a node goes before what programs
    said of it, and that before the end of a process.
    """
    of_file: dict[tuple[str, str], Hit] = {}
    for hit in hits:
        of_file.setdefault((hit.line.file, hit.line.node), hit)
    first_hits = list(of_file.values())
    candidates = [hit for hit in first_hits if not any(_before(other, hit) for other in first_hits)]
    return min(candidates or first_hits, key=lambda hit: (_depth(hit), hit.line.time or math.inf), default=None)


def _before(one: Hit, other: Hit) -> bool:
    """Whether a line was certainly written before another."""
    slack = 0.0 if one.line.node == other.line.node else one.within + other.within
    when = one.when
    latest = max(when.changed, when.least) if when.most == math.inf and when.changed else when.most
    return latest + slack < other.when.least


def _depth(hit: Hit) -> int:
    if hit.rule.retry is Retry.EXCLUDE:
        return 0
    return 2 if hit.rule.name.startswith("worker-") else 1
