"""Names that hpcml had before 0.1.0, in files of a run and elsewhere: readers take them for those of now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
CURRENT = {
    "driver": "supervisor",  # a role, in the names of files
    "driver.log": "script.log",  # files
    "fabric.json": "interconnect.json",
    "driver-started": "script-started",  # events
    "driver-ended": "script-ended",
    "fabric-checking": "interconnect-checking",
    "fabric-checked": "interconnect-checked",
    "fabric-seen": "interconnect-seen",
    "fabric": "interconnect",  # a command, a form, a page of the documentation, and keys of --json
    "fabric_ok": "interconnect_ok",
    "fabric_remedy": "interconnect_remedy",
}
SOURCES = {"driver": "script", "fabric": "interconnect"}  # of phases in which a run ended, and of lines of logs
_EARLIER = {new: old for old, new in CURRENT.items()}


def current(name: str) -> str:
    """Return the name that an event, a role, a command or a form has now."""
    return CURRENT.get(name, name)


def source(name: str) -> str:
    """Return the source of lines, or the phase, that a name means now."""
    return SOURCES.get(name, name)


def file(path: Path) -> Path:
    """Return a file's place: ``path``, or where an earlier version has written it."""
    earlier = path.with_name(_EARLIER[path.name])
    return earlier if earlier.exists() else path


def of_end(table: dict[str, Any]) -> dict[str, Any]:
    """Return the table of an end with the names of now."""
    names = {"phase": source, "role": current}
    return table | {key: rename(table[key]) for key, rename in names.items() if isinstance(table.get(key), str)}


def earlier(name: str) -> str:
    """Return the name that something had before, or the one of now."""
    return _EARLIER.get(name, name)


def both(name: str) -> tuple[str, ...]:
    """Return a name and the one that it had before, if it had another."""
    return (name, _EARLIER[name]) if name in _EARLIER else (name,)


def with_earlier(table: Mapping[str, T]) -> dict[str, T]:
    """Return a table, each value also by its key's earlier name: for programs that read ``--json``."""
    return {**table} | {_EARLIER[name]: value for name, value in table.items() if name in _EARLIER}
