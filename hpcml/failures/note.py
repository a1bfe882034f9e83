"""A role's note: why it ended, in a file beside its exit status, which programs and shell scripts leave alike."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hpcml import files

_LONGEST = 4096  # bytes


class Note(NamedTuple):
    """Why a role ended: a line each."""

    reason: str = ""  # of failures.end.Reason, empty if none of them says it
    what: str = ""  # a clause

    def write(self, path: Path) -> None:
        """Put the note in place, as image.sh and step.sh do; OSError if it cannot be written."""
        files.write(path, f"{self.reason}\n{' '.join(self.what.split())}\n")


NONE = Note()


def read_note(path: Path) -> Note:
    """Return a role's note, an empty one if there is none that can be read."""
    try:
        reason, what, *_ = files.read(path, _LONGEST).decode(errors="replace").split("\n")
    except (OSError, ValueError):
        return NONE
    return Note(reason, what)
