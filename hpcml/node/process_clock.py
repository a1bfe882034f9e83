"""Time in which a process itself ran: what hangs is told from what was suspended by this clock, not by the wall's."""

from __future__ import annotations

import time

MOST = 2.0  # seconds between two ticks that count; a longer pause was not this process's own doing


class OwnTime:
    """A clock that stands still while its owner does (a suspended job, a node that sleeps).

    The owner calls :meth:`tick` in its loop. A longer time between two ticks counts as :data:`MOST` only.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.last = time.monotonic()

    def tick(self) -> float:
        """Count the time since the last tick, and return the seconds that have passed in all."""
        now = time.monotonic()
        self.seconds += min(now - self.last, MOST)
        self.last = now
        return self.seconds
