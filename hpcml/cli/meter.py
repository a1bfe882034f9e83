"""How far a transfer is, on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from hpcml.terminal import say
from hpcml.units import format_bytes


@contextlib.contextmanager
def metered(size: int) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many of so many bytes have come through; gives what counts them."""
    meter = _Meter(size)
    try:
        yield meter.add
    finally:
        meter.close()


class _Meter:
    """Shows on a terminal how far it is, two hundred times at most."""

    def __init__(self, size: int) -> None:
        self.size, self.done, self.shown = size, 0, 0

    def add(self, count: int) -> None:
        self.done += count
        if sys.stderr.isatty() and (self.done - self.shown) * 200 >= self.size:
            self.shown = self.done
            sys.stderr.write("\r")
            say(f"  {format_bytes(self.done)} of {format_bytes(self.size)}   ", sys.stderr, end="")

    def close(self) -> None:
        if self.shown:
            say("", sys.stderr)
