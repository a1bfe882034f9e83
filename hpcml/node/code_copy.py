"""What a script has written into the run's copy of its folder, where nobody looks for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_MOST = 10_000  # entries that are looked at
_NAMED = 3


def note(copy: Path, since: int) -> str:
    """Return a sentence about files of the copy that are newer than ``since`` (st_mtime_ns), empty if there is none."""
    written = sorted(_newer(copy, since))
    if not written:
        return ""
    shown = ", ".join(name if name.isprintable() else ascii(name) for name in written[:_NAMED])
    more = f" and {len(written) - _NAMED} more" if len(written) > _NAMED else ""
    words = "The script has written into the run's copy of its folder, not beside the original:"
    return f"{words} {shown}{more} (in {copy}). The current folder and hpcml.run.out are no copies."


def _newer(copy: Path, since: int) -> Iterator[str]:
    waiting, looked_at = [str(copy)], 0
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as found:  # what is being removed, or closed
            for entry in found:
                looked_at += 1
                if looked_at > _MOST:
                    return
                if entry.is_dir(follow_symlinks=False):
                    waiting += [entry.path] if entry.name != "__pycache__" else []
                elif entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime_ns > since:
                    yield os.path.relpath(entry.path, copy)
