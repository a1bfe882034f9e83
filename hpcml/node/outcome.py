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
from typing import Self

from hpcml import errors
from hpcml.node import storage
from hpcml.node.settings import Context


class EventLog:
    """Append events to a file; a line is written in one piece."""

    def __init__(self, path: Path, attempt: int) -> None:
        self.attempt = attempt
        self.times: dict[str, float] = {}
        self.descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def write(self, event: str, **facts: object) -> None:
        """Write one event with its time (seconds since 1970) and the attempt it belongs to."""
        self.times[event] = time.time()
        line = json.dumps({"time": round(self.times[event], 3), "attempt": self.attempt, "event": event, **facts})
        whole = line.encode() + b"\n"
        try:
            before = os.fstat(self.descriptor).st_size
            if os.write(self.descriptor, whole) < len(whole):
                os.ftruncate(self.descriptor, before)  # a part of a line would spoil the next
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - as the next write would
        except OSError as error:  # a full disk must not end the run
            print(f"hpcml: the log of events cannot be written ({error.strerror}): {line}", file=sys.stderr)


_STATES = {errors.TIME_LIMIT: "TIMEOUT", errors.CANCELLED: "CANCELLED", errors.PREEMPTED: "PREEMPTED"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended: the exit status, who decided it, one sentence, a next step and lines that show it.

    ``ended_as`` is Slurm's word for it where exit status and ``by`` do not tell: OUT_OF_MEMORY, or CANCELLED of a
    script that was told to end and ended with 0.
    """

    exit_status: int
    phase: str
    by: str
    reason: str
    hint: str = ""
    quote: tuple[str, ...] = ()
    ended_as: str = ""

    @property
    def state(self) -> str:
        """The run's state in Slurm's words."""
        if self.ended_as or not self.exit_status:
            return self.ended_as or "COMPLETED"
        if self.by == "scheduler" and self.exit_status == errors.ALLOCATION_LOST:
            return "NODE_FAIL"
        return "FAILED" if self.by == "script" else _STATES.get(self.exit_status, "FAILED")

    def write(self, context: Context, warnings: Sequence[str] = (), *, over: bool = True, cause: str = "") -> bool:
        """Write status.json, the first source of how a run ended; it is not over while the roles are torn down.

        ``cause`` is why it failed, in six words at most. Return whether the file could be written.
        """
        facts = {
            "over": over,
            "state": self.state,
            "time": round(time.time(), 3),
            "attempt": context.number,
            "exit_status": self.exit_status,
            "phase": self.phase,
            "by": self.by,
            "message": self.reason,
            "hint": self.hint,
            "cause": cause,
            "quote": list(self.quote),
            "warnings": list(warnings),
        }
        return storage.write_end(context.run, context.run.status, facts)

    def or_a_full_disk(self, context: Context) -> Outcome:
        """Return it with a full disk as its cause where that is what hpcml or the script could not live with."""
        asked = self.exit_status not in (0, errors.STORAGE) and self.by in ("hpcml", "script")
        if not asked or not (why := storage.trouble(context.run.directory)):
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
