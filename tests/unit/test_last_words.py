"""How a role ended: what its log says, and a question only where the log leaves one."""

from __future__ import annotations

import pytest

from hpcml.failures import exit_causes

TRACEBACK = ("Traceback (most recent call last):", '  File "x.py", line 1, in <module>')


@pytest.mark.parametrize(
    ("status", "last", "how", "hint"),
    [
        (127, "step.sh: 12: /nope/python: not found", "is not there", "Does the interpreter exist"),
        (126, "step.sh: 12: /tmp: Permission denied", "cannot be executed", "Does the interpreter exist"),
        (1, "ModuleNotFoundError: No module named 'distributed.core'", "distributed.core'", "Is distributed installed"),
        (1, "ImportError: cannot import name 'shuffle' from 'random' (/home/me/random.py)", "/home/me/random.py", "last line"),
        (1, "AttributeError: partially initialized module 'select' has no attribute 'poll'", "'select'", "last line"),
        (1, "KeyboardInterrupt", ": KeyboardInterrupt", "last line"),
        (80, "hpcml: nope0 has no address.", "status 80: nope0 has no address", ""),
        (1, "the shell said something", "ended with exit status 1", ""),
        (137, "ImportError: of the script's, long ago", "(killed by SIGKILL)", ""),
        (0, "ImportError: caught", "ended with exit status 0", ""),
    ],
)  # fmt: skip
def test_the_log_s_own_cause_is_told(status: int, last: str, how: str, hint: str) -> None:
    found = exit_causes.of_role(status, (*TRACEBACK, last))
    assert how in found.what
    assert hint in found.hint
    assert bool(hint) == bool(found.hint)


def test_without_a_log_only_the_status_is_told() -> None:
    assert exit_causes.of_role(1, ()) == exit_causes.Cause("ended with exit status 1")
