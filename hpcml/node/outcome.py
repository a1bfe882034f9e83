"""What a run tells of itself: its log of events, its words in the job's log, and how it ended."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml import errors
from hpcml.node import storage
from hpcml.node.settings import Context


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended: the exit status, who decided it, one sentence, a next step and lines that show it."""

    exit_status: int
    phase: str
    by: str
    reason: str
    hint: str = ""
    quote: tuple[str, ...] = ()

    def write(self, context: Context, state: str, warnings: Sequence[str] = ()) -> None:
        """Write status.json, the first source of how a run ended; ``state`` is ending or ended."""
        facts = {
            "state": state,
            "time": round(time.time(), 3),
            "attempt": context.number,
            "status": self.exit_status,
            "phase": self.phase,
            "by": self.by,
            "reason": self.reason,
            "hint": self.hint,
            "quote": list(self.quote),
            "warnings": list(warnings),
        }
        storage.write_end(context.run, context.run.status, facts)

    def or_a_full_disk(self, context: Context) -> Outcome:
        """Return it with a full disk as its cause where that is what hpcml or the script could not live with."""
        if self.exit_status in (0, errors.STORAGE) or self.by not in ("hpcml", "script"):
            return self
        if not (why := storage.trouble(context.run.directory)):
            return self
        if self.by == "script":  # it may have failed for another reason: its status stays its own
            return dataclasses.replace(self, reason=f"{self.reason}; {why}", hint=storage.HINT)
        return dataclasses.replace(self, exit_status=errors.STORAGE, reason=f"{why}; {self.reason}", hint=storage.HINT)

    def report(self, context: Context) -> None:
        """Say in the job's log why hpcml ended the run; status.json has the lines that show it."""
        say(context, str(errors.HpcmlError(self.reason, place=self.phase, hint=self.hint)))


class RunEndedError(Exception):
    """Raised inside a phase when the run has to end now."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def say(context: Context, words: str) -> None:
    """Write hpcml's own words into the job's log: the driver's log is the script's, and may be any bytes."""
    try:
        with context.run.job_log.open("a") as log:
            log.write(f"hpcml: {words}\n")
    except OSError as error:
        print(f"hpcml: {words} ({context.run.job_log} cannot be written: {error.strerror})", file=sys.stderr)
