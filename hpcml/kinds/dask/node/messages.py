"""What scheduler and workers report to the supervisor: over its unix socket, as events of Dask, and by their output."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self

from hpcml import listening
from hpcml.node.processes import readable

TOPIC = "hpcml"  # of Dask's events: what workers and clients tell the supervisor by way of the scheduler
CLOCK_QUESTION = "hpcml_time"  # the scheduler's handler that tells its time
_EXCHANGES = 5  # exchanges, of which the shortest counts
TASK_OUTPUT = "task-output"
NO_GPU = "worker-without-gpu"  # after a CUDA error of a task
_NOT_OF_TASKS = re.compile(r"\s*(?:$|hpcml: |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - (?:distributed|hpcml)\b)")


class Channel:
    """Accept one scheduler, read its lines and send it orders; its death is seen as the end of the stream."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listener = listening.listen_unix(listening.SUPERVISOR, path, backlog=1)
        self.connection: socket.socket | None = None
        self.closed = False
        self.buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.connection is not None:
            self.connection.close()
        self.listener.close()
        self.path.unlink(missing_ok=True)

    def receive(self, timeout: float, others: Sequence[int] = ()) -> list[dict[str, Any]]:
        """Return the lines that arrived, waiting at most ``timeout`` seconds for the first, or for ``others``."""
        own = [] if self.closed else [(self.connection or self.listener).fileno()]
        if not readable([*own, *others], timeout).intersection(own):
            return []
        if self.connection is None:
            self.connection, _ = self.listener.accept()
            return []
        try:
            data = self.connection.recv(65536)
        except OSError:
            data = b""
        self.closed = not data
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines if line]

    def send(self, **order: object) -> None:
        """Send an order; without a scheduler there is nobody to tell."""
        if self.connection is None or self.closed:
            return
        with contextlib.suppress(OSError):  # it dies in this moment, as the next receive() will see
            self.connection.sendall(json.dumps(order).encode() + b"\n")


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


def watch_output(report: Callable[[], object]) -> None:
    """Call ``report`` once, in the thread that writes, when this process writes what is not Dask's or hpcml's own."""
    streams, process = (sys.stdout, sys.stderr), os.getpid()
    waiting = [True]

    def watched(write: Callable[[str], int]) -> Callable[[str], int]:
        def new(text: str) -> int:
            if waiting and not _NOT_OF_TASKS.match(text) and os.getpid() == process:
                waiting.clear()
                report()
            return write(text)

        return new

    for stream in streams:
        setattr(stream, "write", watched(stream.write))  # noqa: B010 - a method of an instance
