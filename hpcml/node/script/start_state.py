"""The script's process before the script's first line: what workers and scheduler have too."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BEFORE: dict[str, Any] = {}  # empty in a process that the run did not start


def take() -> None:
    """Keep the state of this process as the one before the script. Nothing is imported for it."""
    BEFORE.clear()
    BEFORE.update(current())


def current() -> dict[str, Any]:
    """Return what a child of this process inherits, and what multiprocessing gives to one."""
    try:
        folder = os.getcwd()  # noqa: PTH109 - pathlib is not loaded before a script
    except FileNotFoundError:
        folder = ""
    return {
        "environment": dict(os.environ),
        "path": list(sys.path),
        "folder": folder,
        "argv": list(sys.argv),
        "umask": int(_lines("status", 6).get("Umask:", "77"), 8),
        "nice": os.nice(0),
        "limits": _lines("limits", 26),
    }


def _lines(name: str, width: int) -> dict[str, str]:
    """Return lines of what Linux tells of this process, by their first characters."""
    try:
        with open(f"/proc/self/{name}") as file:
            return {line[:width].strip(): line[width:].strip() for line in file}
    except OSError:
        return {}
