"""Data reaches a worker beside tasks that compute in Python.

Each read of a socket releases Python's lock, and a task can then keep it for 5 ms (``sys.setswitchinterval``). A read
of a TLS socket returns at most 16 KiB, so a worker may receive only 4 MiB a second. While large data arrives, threads
switch after 0.5 ms. Several threads in Python then use up to a third more processor time, so the short interval ends
with the read. Figures: ``bench/encrypted.py``.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from typing import Any

from hpcml import repairs

LARGE = 1 << 20  # bytes of data that is worth a short interval
INTERVAL = 0.0005  # seconds


class _Interval:
    """Python's switch interval: short while at least one large read is in progress."""

    def __init__(self) -> None:
        self.lock, self.reads = threading.Lock(), 0
        self.usual = self.short = 0.0

    @contextlib.contextmanager
    def shortened(self) -> Iterator[None]:
        with self.lock:
            if not self.reads:
                self.usual = sys.getswitchinterval()
                sys.setswitchinterval(min(INTERVAL, self.usual))
                self.short = sys.getswitchinterval()
            self.reads += 1
        try:
            yield
        finally:
            with self.lock:
                self.reads -= 1
                if not self.reads and sys.getswitchinterval() == self.short:  # else a task has changed it
                    sys.setswitchinterval(self.usual)


def install() -> None:
    """Shorten the interval during the large reads of this process; a second call has no effect."""
    if not repairs.is_on("switching"):
        return
    from distributed.comm import tcp

    read = tcp.read_bytes_rw
    if hasattr(read, "__wrapped__"):
        return
    interval = _Interval()

    @functools.wraps(read)
    async def read_bytes_rw(stream: Any, n: int) -> Any:
        with interval.shortened() if n >= LARGE else contextlib.nullcontext():
            return await read(stream, n)

    tcp.read_bytes_rw = read_bytes_rw
