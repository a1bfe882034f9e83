"""Why a role ended, or an image could not be entered: the words of the log or program, and no guess beside them."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import files
from hpcml.failures.rules import COLOURS, Where, meaning

CONTAINER_FAILED = 255  # the exit status of all failures of Apptainer and SingularityCE themselves
_OWN = "hpcml: "
ERROR = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning)(?::\s.*)?")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
NOT_EXECUTABLE = 126
_FORMAT = re.compile(r"(/[^:\n]+): (?:cannot execute binary file: )?Exec format error")
_NODE = re.compile(r"hpcml: (\S+) is (\w+)$")  # what step.sh says then
_NOT_THERE = {NOT_EXECUTABLE: "cannot be executed", 127: "is not there"}  # what a shell ends with, POSIX
_LEVEL = re.compile(r"^(WARNING|INFO|ERROR|FATAL|DEBUG):\s+")


class Cause(NamedTuple):
    """Why something ended: a clause, and what to do, if that is known."""

    what: str
    hint: str = ""


def of_role(status: int, log: Sequence[str]) -> Cause:
    """Return how a role ended whose last words are ``log``."""
    last = log[-1].strip() if log else ""
    if status == NOT_EXECUTABLE and (program := _FORMAT.search("\n".join(log))):
        node = next((f"{match[1]} is {match[2]}" for match in map(_NODE.match, log) if match), "the node is not")
        kind = files.architecture_of(Path(program[1])) or "another processor"
        what = f"ended with exit status {status}: its interpreter {program[1]} is for {kind}, {node}"
        return Cause(what, "Set runtime.python to an interpreter for the nodes' processors.")
    if status in _NOT_THERE:
        what = f"ended with exit status {status}: its interpreter or something before it {_NOT_THERE[status]}"
        return Cause(what, "Does the interpreter exist on the compute nodes (runtime.python)?")
    if status > 128 and status - 128 in signal.valid_signals():
        return Cause(f"ended with exit status {status} (killed by {signal.Signals(status - 128).name})")
    if last.startswith(_OWN):
        return Cause(f"ended with exit status {status}: {last.removeprefix(_OWN).rstrip('.')}")
    if status and ERROR.fullmatch(last):
        missing = _NO_MODULE.match(last)
        hint = (
            f"Is {missing[1].partition('.')[0]} installed in the run's environment (runtime.python)?" if missing else ""
        )
        return Cause(f"ended with exit status {status}: {last[:300]}", hint or "The last line of the log is the error.")
    return Cause(f"ended with exit status {status}")


def not_entered(output: str, status: str) -> Cause:
    """Return why an image was not entered, with the program's last line where its meaning is not known."""
    if known := meaning(output, Where.IMAGE):
        return Cause(known.cause, known.remedy)
    lines = [line for line in COLOURS.sub("", output).splitlines() if line.strip()]
    fatal = [line for line in lines if line.lstrip().startswith("FATAL")] or lines
    last = _LEVEL.sub("", fatal[-1].strip()).rstrip(".") if fatal else f"exit status {status}"
    return Cause(f"the image could not be entered: {last[:300]}", "Look at the image: hpcml image check IMAGE.")
