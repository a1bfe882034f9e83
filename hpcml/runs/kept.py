"""How runs have ended, kept in one hidden file of the folder of runs, so that a long listing reads no run twice."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import hpcml
from hpcml import files
from hpcml.request.record import Awaited
from hpcml.runs import directories
from hpcml.runs.status import Status

WORTH = 100  # runs that must be new for the file to be written again
_SETTLED = 60.0  # seconds since a run's folder was changed: what ends a run writes several files
_DEFAULTS = Status("").fields()
_FORM = " ".join(("hpcml", hpcml.__version__, *_DEFAULTS))  # another version reads all runs again
_FROM_JSON: dict[str, Callable[[Any], object]] = {
    **{name: tuple for name, default in _DEFAULTS.items() if isinstance(default, tuple)},
    "after": lambda value: tuple(Awaited(*one) for one in value),
    "clocks": lambda value: {node: tuple(clock) for node, clock in value.items()},
}


class Kept(NamedTuple):
    """A run that has ended: when its folder was changed (ns since 1970), whether it failed, and its status as JSON."""

    changed: int
    failed: bool
    text: str


class Ends:
    """The ends of runs of a folder; a run whose folder was changed since is not known."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / f".ends.{os.geteuid()}"  # others may have runs in the folder
        self.known = self._read()
        self.new: dict[str, Kept] = {}

    def _read(self) -> dict[str, Kept]:
        try:
            form, *lines = files.read(self.path).decode().splitlines()
            known = {}
            for line in lines if form == _FORM else ():
                run, changed, failed, text = line.split(" ", 3)
                known[run] = Kept(int(changed), failed == "1", text)
        except (OSError, ValueError):  # not there, or damaged: the runs themselves are read
            return {}
        return known

    def find(self, run: str, changed: int) -> Kept | None:
        """Return what is known of a run whose folder was changed then (ns since 1970), None if that is not known."""
        kept = self.known.get(run)
        return kept if kept and kept.changed == changed else None

    def status(self, run: str, kept: Kept) -> Status | None:
        """Return a run's status as it was kept, None if that is damaged."""
        try:
            values = json.loads(kept.text)
            values |= {name: of(values[name]) for name, of in _FROM_JSON.items() if name in values}
            return Status.of(run, directory=f"{self.folder}/{run}", **values)
        except (AttributeError, TypeError, ValueError):
            return None

    def keep(self, status: Status, run: directories.Run, changed: int) -> None:
        """Keep the status of a run if nothing of it can change any more: its own files tell that it is over."""
        final = (
            status.over and not status.allocation.job_state and not status.allocation.silent and not run.may_start_again
        )
        if final and time.time() - changed / 1e9 > _SETTLED:
            values = {
                name: value
                for name, value in status.fields().items()
                if name not in ("run", "directory") and value != _DEFAULTS[name]
            }
            self.new[status.run] = Kept(changed, status.failed, json.dumps(values))

    def write(self, there: set[str]) -> None:
        """Write down what is new, if it is much; ``there`` are the runs that the folder has."""
        if len(self.new) < WORTH:
            return
        all_of_them = {run: kept for run, kept in (self.known | self.new).items() if run in there}
        lines = [f"{run} {kept.changed} {kept.failed:d} {kept.text}\n" for run, kept in all_of_them.items()]
        with contextlib.suppress(OSError):  # no room, or nothing may be written here: the listing is none the worse
            files.write(self.path, "".join([_FORM, "\n", *lines]))
