"""By how much a node's clock differs from that of the first node, where the scheduler is: asked over the network."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable

QUESTION = "hpcml_time"  # the scheduler's handler that tells its time
_TIMES = 5  # exchanges, of which the shortest counts


def answer() -> float:
    """Return the time here, as the scheduler answers it."""
    return time.time()


async def measure(ask: Callable[[], Awaitable[float]]) -> tuple[float, float]:
    """Return by how many seconds this clock is ahead of the one that is asked, and by how many that may be wrong.

    The other was read between question and answer: in their middle, give or take half of the time between them.
    """
    ahead, within = 0.0, math.inf
    for _ in range(_TIMES):
        asked, began = time.time(), time.monotonic()
        other = await ask()
        half = (time.monotonic() - began) / 2
        if half < within:
            ahead, within = asked + half - other, half
    return ahead, within
