"""What scheduler and workers report to the supervisor: over the link, as events of Dask, and by their output."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable

from hpcml.node.link.messages import NUMBER, Events

TOPIC = "hpcml"  # of Dask's events: what workers and clients tell the supervisor by way of the scheduler
CLOCK_QUESTION = "hpcml_time"  # the scheduler's handler that tells its time
_EXCHANGES = 5  # exchanges, of which the shortest counts
TASK_OUTPUT = "task-output"
NO_GPU = "worker-without-gpu"  # after a CUDA error of a task
IMPORT = "hpcml-import"  # the order to a scheduler, and from it to workers: import what the script will need
START = "start"  # the order to a scheduler, and to workers of a late cluster: the keys are there
SCHEDULER_IS_UP = "register"  # the order to agents, with the addresses of the scheduler and of those of other shares
EVENTS: Events = {  # of the scheduler, beside those of every kind
    "scheduler-up": {"address": str, "protocol": str, "shares": list},
    "scheduler-closed": {},
    "worker-added": {"worker": str},
    "worker-removed": {"worker": str},
    "worker-task-stopped": {"node": str},
    "client-added": {},
    "use": {"connected": bool, "idle": NUMBER, "waited": NUMBER, "stuck": int, "silent": dict},
    "clock": {"node": str, "ahead": NUMBER, "within": NUMBER},
    "interconnect-checked": {},
    "ucx-up": {},
    "ucx-failed": {"problem": str},
    "gpu-pool": {"worker": str, "node": str, "pid": int, "pool": int},
    "memory-reduced": {"worker": str, "pool": int, "wanted": int},
    "remarks": {"sentences": list},  # on tasks for which the script did not wait
    NO_GPU: {"worker": str, "node": str, "error": str},
    TASK_OUTPUT: {},
}
_NOT_OF_TASKS = re.compile(r"\s*(?:$|hpcml: |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - (?:distributed|hpcml)\b)")


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
