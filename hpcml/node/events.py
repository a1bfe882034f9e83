"""The run's log of events: one JSON line per event, written by the supervisor, read by ``hpcml status``."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from pathlib import Path


class EventLog:
    """Append events to a file; a line is written in one piece."""

    def __init__(self, path: Path, attempt: int) -> None:
        self.attempt = attempt
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, event: str, **facts: object) -> None:
        """Write one event with its time (seconds since 1970) and the attempt it belongs to."""
        line = json.dumps({"time": round(time.time(), 3), "attempt": self.attempt, "event": event, **facts})
        whole = line.encode() + b"\n"
        try:
            before = os.fstat(self.descriptor).st_size
            if os.write(self.descriptor, whole) < len(whole):
                os.ftruncate(self.descriptor, before)  # a part of a line would spoil the next
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - as the next write would
        except OSError as error:  # a full disk must not end the run
            print(f"hpcml: the log of events cannot be written ({error.strerror}): {line}", file=sys.stderr)
