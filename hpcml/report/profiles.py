"""The profiles in a run's directory, and the command that opens each."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from hpcml.paths import RunPaths

_OPENS = (  # the beginning of a file's name, and the command that opens one
    ("dask.html", "python -m webbrowser"),
    ("memray-script", "memray flamegraph"),
    ("memray-worker", "memray flamegraph"),
    ("nsys-", "nsys-ui"),
    ("rmm_log_", "less"),
)
_UNFINISHED = ".tmp"  # what memray leaves of a process that was killed while it compressed its file


def commands(paths: RunPaths) -> list[str]:
    """Return the command that opens each kind of profile that a run has; of several files the first."""
    try:
        with os.scandir(paths.profiles) as entries:
            whole = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        names = sorted(entry.name for entry in whole if not entry.name.endswith(_UNFINISHED))
    except OSError:
        return []
    found = []
    for start, command in _OPENS:
        if files := [name for name in names if name.startswith(start)]:
            others = f"  # and {len(files) - 1} more" if files[1:] else ""
            found.append(f"{command} {_quoted(paths.profiles / files[0])}{others}")
    return found


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
