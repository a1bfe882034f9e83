"""What a process leaves of its end in a file.

A role's note is beside its exit status; programs and shell scripts leave it alike. A script leaves its uncaught error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from hpcml import safe_files

_LONGEST, _LONGEST_ERROR = 4096, 32 << 10  # bytes


class Note(NamedTuple):
    """Why a role ended: a line each."""

    reason: str = ""  # of failures.end.Reason, empty if none of them says it
    what: str = ""  # a clause

    def write(self, path: Path) -> None:
        """Put the note in place, as image.sh and step.sh do; OSError if it cannot be written."""
        safe_files.write(path, f"{self.reason}\n{' '.join(self.what.split())}\n")


NONE = Note()


def read_note(path: Path) -> Note:
    """Return a role's note, an empty one if there is none that can be read."""
    try:
        reason, what, *_ = safe_files.read(path, _LONGEST).decode(errors="replace").split("\n")
    except (OSError, ValueError):
        return NONE
    return Note(reason, what)


def table(path: Path, limit: int = safe_files.RECORD) -> dict[str, Any]:
    """Return the table of a JSON file of the run; empty if the file is missing or has no table, and is no evidence."""
    try:
        content = safe_files.read_json(path, limit)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def script_error(path: Path) -> dict[str, Any]:
    """Return a script's uncaught error (script-error.json), empty if it is not there or is damaged.

    Of a rank that could not be started it has no error, but why.
    """
    content = table(path, _LONGEST_ERROR)
    chain = content.get("chain")
    whole = isinstance(chain, list) and all(isinstance(row, dict) and isinstance(row.get("type"), str) for row in chain)
    return content if whole else {}
