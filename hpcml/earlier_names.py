"""Names that the files of a run had before 0.1.0: readers take them for those of now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

CURRENT = {
    "driver": "supervisor",  # a role, in the names of files
    "driver-started": "script-started",  # events
    "driver-ended": "script-ended",
}
SCRIPT_LOG = "driver.log"
SOURCES = {"driver": "script"}  # of phases in which a run ended, and of lines of logs
_EARLIER = {new: old for old, new in CURRENT.items()}


def current(name: str) -> str:
    """Return the name that an event or a role has now."""
    return CURRENT.get(name, name)


def source(name: str) -> str:
    """Return the source of lines, or the phase, that a name means now."""
    return SOURCES.get(name, name)


def script_log(path: Path) -> Path:
    """Return the script's log: at ``path``, or where an earlier version has written it."""
    earlier = path.with_name(SCRIPT_LOG)
    return earlier if earlier.exists() else path


def of_end(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table of an end with the names of now."""
    names = {"phase": source, "role": current}
    return table | {key: rename(table[key]) for key, rename in names.items() if isinstance(table.get(key), str)}


def both(name: str) -> tuple[str, ...]:
    """Return a name and the one that it had before, if it had another."""
    return (name, _EARLIER[name]) if name in _EARLIER else (name,)


def with_earlier(times: Mapping[str, float]) -> dict[str, float]:
    """Return times by event, each also by the event's earlier name: for programs that read ``--json``."""
    return {**times} | {_EARLIER[name]: time for name, time in times.items() if name in _EARLIER}
