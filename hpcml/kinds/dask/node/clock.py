"""By how much a worker's clock is ahead of the scheduler's, which it asks."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable

_EXCHANGES = 5  # exchanges, of which the shortest counts


def time_here() -> float:
    """Return the time here, as the scheduler answers it."""
    return time.time()


async def measure_clock(ask: Callable[[], Awaitable[float]]) -> tuple[float, float]:
    """Return by how many seconds this clock is ahead of the one that is asked, and by how many that may be wrong.

    The other was read between question and answer: in their middle, give or take half of the time between them.
    """
    ahead, within = 0.0, math.inf
    for _ in range(_EXCHANGES):
        asked, began = time.time(), time.monotonic()
        other = await ask()
        half = (time.monotonic() - began) / 2
        if half < within:
            ahead, within = asked + half - other, half
    return ahead, within
