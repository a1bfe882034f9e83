"""What a role's exit status and the end of its log say of its end: the log's own words, and no guess beside them."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import NamedTuple

_OWN = "hpcml: "
_ERROR = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt|Warning)(?::\s.*)?")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_NOT_THERE = {126: "cannot be executed", 127: "is not there"}  # what a shell ends with, POSIX


class Ended(NamedTuple):
    """How a role ended: a clause that begins with a verb, and what to do, if that is known."""

    how: str
    hint: str = ""


def of(status: int, log: Sequence[str]) -> Ended:
    """Return how a role ended whose last words are ``log``."""
    last = log[-1].strip() if log else ""
    if status in _NOT_THERE:
        how = f"ended with exit status {status}: its interpreter or something before it {_NOT_THERE[status]}"
        return Ended(how, "Does the interpreter exist on the compute nodes (runtime.python)?")
    if status > 128 and status - 128 in signal.valid_signals():
        return Ended(f"ended with exit status {status} (killed by {signal.Signals(status - 128).name})")
    if last.startswith(_OWN):
        return Ended(f"ended with exit status {status}: {last.removeprefix(_OWN).rstrip('.')}")
    if status and _ERROR.fullmatch(last):
        missing = _NO_MODULE.match(last)
        hint = (
            f"Is {missing[1].partition('.')[0]} installed in the run's environment (runtime.python)?" if missing else ""
        )
        return Ended(f"ended with exit status {status}: {last[:300]}", hint or "The last line of the log is the error.")
    return Ended(f"ended with exit status {status}")
