"""How a role ended on a node, from its exit status, the note that it left, and the last lines of its log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import safe_files
from hpcml.errors import signal_name, signal_of_status
from hpcml.failures.note import NONE, Note
from hpcml.failures.rule import Where
from hpcml.failures.rules import BY_NAME, COLOURS, ERROR, meaning

CONTAINER_FAILED = 255  # the exit status of all failures of Apptainer and SingularityCE themselves
NOT_EXECUTABLE = 126
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_FORMAT = re.compile(r"(/[^:\n]+): (?:cannot execute binary file: )?Exec format error")
_NOT_THERE = {NOT_EXECUTABLE: "cannot be executed", 127: "was not found"}  # what a shell ends with, POSIX
_LEVEL = re.compile(r"^(WARNING|INFO|ERROR|FATAL|DEBUG):\s+")


class Explanation(NamedTuple):
    """Why something ended: a clause, and what to do and which rule's name, if these are known."""

    what: str
    hint: str = ""
    reason: str = ""


class RoleEnd(NamedTuple):
    """How a role ended on a node."""

    status: int
    why: Explanation
    entered: bool = True  # False where the image was not entered; ``why`` then has a hint


def of_role(status: int, log: Sequence[str], note: Note = NONE) -> Explanation:
    """Return the end of a role, by its exit status, the last lines of its log and its note."""
    last = log[-1].strip() if log else ""
    if status == NOT_EXECUTABLE and (program := _FORMAT.search("\n".join(log))):
        kind = safe_files.architecture_of(Path(program[1]))
        built = f"is built for {kind}, but" if kind else "is built for another processor:"
        why = f"{built} {note.what or 'the node cannot execute it'}"
        clause = f"exited with status {status}: its interpreter {program[1]} {why}"
        return Explanation(clause, "Set runtime.python to an interpreter for the nodes' processors.")
    if status in _NOT_THERE:
        clause = f"exited with status {status}: its interpreter or a program that starts it {_NOT_THERE[status]}"
        return Explanation(clause, "Check that the interpreter exists on the compute nodes (runtime.python).")
    if number := signal_of_status(status):
        return Explanation(f"exited with status {status} (killed by {signal_name(number)})")
    if note.what:
        return Explanation(f"exited with status {status}: {note.what}", _remedy(note), note.reason)
    if status and ERROR.fullmatch(last):
        missing = _NO_MODULE.match(last)
        hint = f"Install {missing[1].partition('.')[0]} in the run's environment (runtime.python)." if missing else ""
        return Explanation(
            f"exited with status {status}: {last[:300]}", hint or "The last line of the log shows the error."
        )
    return Explanation(f"exited with status {status}")


def _remedy(note: Note) -> str:
    return BY_NAME[note.reason].remedy if note.reason in BY_NAME else ""


def not_entered(output: str, status: int, note: Note = NONE) -> Explanation:
    """Return the cause for which an image did not start, with the program's last line if no rule matches."""
    if note.what:
        return Explanation(note.what, _remedy(note), note.reason)
    if rule := meaning(output, Where.IMAGE):
        return Explanation(rule.cause, rule.remedy)
    lines = [line for line in COLOURS.sub("", output).splitlines() if line.strip()]
    fatal = [line for line in lines if line.lstrip().startswith("FATAL")] or lines
    last = _LEVEL.sub("", fatal[-1].strip()).rstrip(".") if fatal else f"exit status {status}"
    return Explanation(f"the image could not be started: {last[:300]}", "Check the image: hpcml image check IMAGE.")
