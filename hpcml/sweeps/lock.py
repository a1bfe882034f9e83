"""One command at a time submits points of a sweep: a file beside its record that says who does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from hpcml import files, leases
from hpcml.errors import UsageError
from hpcml.leases import Holder
from hpcml.runs import directories
from hpcml.runs.tables import complete
from hpcml.sweeps import store

_PATIENCE = 10.0  # seconds for another command to remove what is left of one that is gone


@contextlib.contextmanager
def held(runs: Path, name: str, run_id: str) -> Iterator[None]:
    """Keep other commands from submitting points of this sweep meanwhile.

    Raises
    ------
    UsageError
        If another command does so; one that is gone, or has submitted its run, holds nothing.
    StorageError
        If the file cannot be written or read.
    """
    path = store.path_of(runs, name).with_name("lock")
    me = leases.this_process(run_id)
    store.make_folder(runs, name)
    deadline = time.monotonic() + _PATIENCE
    with directories.storage(path), complete(path.parent):
        while not leases.place(path, me):
            if (holder := leases.read(path)) is None:
                continue  # it was given back in between
            late = time.monotonic() > deadline  # the process that was about to remove it has ended in that moment
            if late or not (leases.has_ended(holder) or _has_submitted(runs, holder)):
                raise _refused(path, name, holder, gone=late)
            if not leases.remove(path, holder):
                time.sleep(0.01)
    try:
        yield
    finally:
        with directories.storage(path), complete(path.parent):
            leases.remove(path, me)


def _has_submitted(runs: Path, holder: Holder) -> bool:
    """Whether a command of another machine has nothing more to do: its run is submitted."""
    folder = runs / holder.run
    return (
        not leases.is_here(holder) and files.is_own_folder(folder) and directories.load(folder).submission is not None
    )


def _refused(path: Path, name: str, holder: Holder, *, gone: bool) -> UsageError:
    since = time.strftime("%H:%M:%S", time.localtime(holder.time))
    hint = "Type it again when that one has ended: it runs what is missing then."
    if gone or not leases.is_here(holder):
        hint += f" If there is no such process any more, remove {path}."
    who = f"process {holder.pid} on {holder.host}, since {since}"
    return UsageError(f"Another command is submitting points of the sweep '{name}': {who}", place=str(path), hint=hint)
