"""What a run tells of itself: its log of events, its words in the job's log, and how it ended."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from hpcml import errors
from hpcml.failures.end import End
from hpcml.failures.note import Note
from hpcml.kind import Hindrance
from hpcml.node import full_disk
from hpcml.node.context import Context
from hpcml.paths import SCRIPT


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

    def write(self, event: str, **fields: object) -> None:
        """Write one event with its time (seconds since 1970) and the attempt it belongs to."""
        self.times[event] = time.time()
        line = json.dumps({"time": round(self.times[event], 3), "attempt": self.attempt, "event": event, **fields})
        whole = line.encode() + b"\n"
        try:
            before = os.fstat(self.descriptor).st_size
            if os.write(self.descriptor, whole) < len(whole):
                os.ftruncate(self.descriptor, before)  # a part of a line would spoil the next
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - as the next write would
        except OSError as error:  # a full disk must not end the run
            print(f"hpcml: the log of events cannot be written ({error.strerror}): {line}", file=sys.stderr)


def write_status(
    end: End, context: Context, warnings: Sequence[str] = (), *, over: bool = True, cause: str = ""
) -> bool:
    """Write status.json, the first source of how a run ended; return True if that was possible."""
    written = end._replace(over=over, cause=cause, attempt=context.number, time=round(time.time(), 3))
    record = written._replace(warnings=tuple(warnings)).as_json()
    return full_disk.write_end(context.run, context.run.status, record)


def or_a_full_disk(end: End, context: Context) -> End:
    """Return the end with a full disk as its cause where hpcml or the script could not work without room."""
    asked = end.exit_status not in (0, errors.STORAGE) and end.by in ("hpcml", "script")
    if not asked or not (why := full_disk.trouble(context.run.directory)):
        return end
    if end.by == "script":  # it may have failed for another reason: its status stays its own
        return end._replace(message=f"{end.message}; {why}", hint=full_disk.HINT, reason="")
    return end._replace(exit_status=errors.STORAGE, message=f"{why}; {end.message}", hint=full_disk.HINT)


def report_end(end: End, context: Context) -> None:
    """Write into the job's log why hpcml ended the run; status.json has the lines that show it."""
    say(context, str(errors.HpcmlError(end.message, place=end.phase, hint=end.hint)))


class RunEndedError(Exception):
    """Raised inside a phase when the run has to end now."""

    def __init__(self, end: End) -> None:
        super().__init__(end.message)
        self.end = end


def end_of_hindrance(hindrance: Hindrance) -> End:
    """Return the end of a run whose script could not do its work."""
    end = End(hindrance.status, SCRIPT, "hpcml", hindrance.reason, hindrance.hint)
    return end._replace(**hindrance.failed._asdict())


def leave_note(context: Context, role: str, what: str, reason: str = "") -> None:
    """Say in a role's log why it ends, and leave it where the supervisor looks.

    ``reason`` names the row of failures.rules that knows it, empty if none does.
    """
    print(f"hpcml: {what}.", file=sys.stderr, flush=True)
    try:
        Note(reason, what).write(context.attempt.note_of(role, context.node))
    except OSError as error:
        print(f"hpcml: this reason cannot be written for the supervisor: {error}", file=sys.stderr, flush=True)


def say(context: Context, message: str) -> None:
    """Write hpcml's own words into the job's log: the script's log is the script's, and may be any bytes."""
    try:
        with context.run.job_log.open("a") as log:
            log.write(f"hpcml: {message}\n")
    except OSError as error:
        print(f"hpcml: {message} ({context.run.job_log} cannot be written: {error.strerror})", file=sys.stderr)
