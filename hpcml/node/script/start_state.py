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


def take_of_script(path: list[str], folder: str, umask: int) -> None:
    """In a process that the script started: keep what the script had, as what was changed since is for workers too."""
    BEFORE.update(path=path, folder=folder, umask=umask, environment=_environment_of_script() or BEFORE["environment"])


def _environment_of_script() -> dict[str, str]:
    """Return the variables with which the supervisor started the script: those of the oldest process below it."""
    found: dict[str, str] = {}
    pid = "self"
    while True:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                entries = [os.fsdecode(entry).partition("=") for entry in file.read().split(b"\0") if entry]
        except OSError:  # of another user, or ended
            return found
        variables = {name: value for name, _, value in entries}
        if "HPCML_RUN_DIR" not in variables or "HPCML_PYTHONPATH" in variables:  # the supervisor, or beyond
            return found
        found, pid = variables, _lines(f"../{pid}/status", 6).get("PPid:", "0")


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
