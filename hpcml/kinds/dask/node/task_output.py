"""Notice that tasks print: their lines, warnings and log records go into the workers' logs, where nobody looks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

EVENT = "task-output"
_OWN = re.compile(r"\s*(?:$|hpcml: |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - (?:distributed|hpcml)\b)")


def watch(report: Callable[[], object]) -> None:
    """Call ``report`` once, in the thread that writes, when this process writes what is not Dask's or hpcml's own."""
    streams, process = (sys.stdout, sys.stderr), os.getpid()
    waiting = [True]

    def watched(write: Callable[[str], int]) -> Callable[[str], int]:
        def new(text: str) -> int:
            if waiting and not _OWN.match(text) and os.getpid() == process:
                waiting.clear()
                report()
            return write(text)

        return new

    for stream in streams:
        setattr(stream, "write", watched(stream.write))  # noqa: B010 - a method of an instance
