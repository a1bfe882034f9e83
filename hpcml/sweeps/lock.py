"""One command at a time submits points of a sweep: a file beside its record that says who does.

Making a hard link fails where the name is there already, on every shared file system; there is no database and no
server behind it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hpcml import files
from hpcml.errors import StorageError, UsageError
from hpcml.runs import directories
from hpcml.runs.directories import complete
from hpcml.sweeps import store

_PATIENCE = 10.0  # seconds for another command to remove what is left of one that is gone


class Holder(NamedTuple):
    """Who submits: a process of a machine, since when (seconds since 1970), and the run that it is to become.

    ``began`` tells the process from a later one with its number; empty where that is not known.
    """

    host: str
    pid: int
    began: str
    run: str
    time: float


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
    me = Holder(socket.gethostname(), os.getpid(), _began(os.getpid()), run_id, round(time.time(), 3))
    store.make_folder(runs, name)
    deadline = time.monotonic() + _PATIENCE
    with directories.storage(path):
        while not _taken(path, me):
            if (there := _read(path)) is None:
                continue  # it was given back in between
            late = time.monotonic() > deadline  # who was about to remove it has ended in that moment
            if late or not _is_gone(runs, there):
                raise _refused(path, name, there, gone=late)
            if not _remove(path, there):
                time.sleep(0.01)
    try:
        yield
    finally:
        with directories.storage(path):
            _remove(path, me)


def _taken(path: Path, me: Holder) -> bool:
    new = files.beside(path)
    try:
        with os.fdopen(files.create(new), "w") as file:
            file.write(json.dumps(me._asdict()) + "\n")
        os.link(new, path)
    except FileExistsError:
        return new.stat().st_nlink == 2  # the server's answer was lost, and the link was asked for twice
    finally:
        new.unlink(missing_ok=True)
    return True


def _read(path: Path) -> Holder | None:
    table = directories.read_json(path)
    if table is None:
        return None
    with complete(path.parent):
        word = {name: table.get(name, str) for name in ("host", "began", "run")}
        return Holder(**word, pid=table.get("pid", int), time=table.number("time"))


def _is_gone(runs: Path, there: Holder) -> bool:
    """Whether the command has ended, or has nothing more to do: its run is submitted."""
    if there.host == socket.gethostname():
        return not _lives(there)
    folder = runs / there.run
    return files.is_own_folder(folder) and directories.load(folder).submission is not None


def _lives(there: Holder) -> bool:
    try:
        os.kill(there.pid, 0)
    except (ProcessLookupError, PermissionError):  # its number is another's now
        return False
    return _began(there.pid) == there.began


def _began(pid: int) -> str:
    """Return when a process began (proc(5), stat), empty where the system does not tell."""
    if sys.platform != "linux":
        return ""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _remove(path: Path, there: Holder) -> bool:
    """Remove the file if it is still that of this holder; False if another command is about to do so.

    Only who has made a link under the holder's own name removes its file. So nobody takes away the file of a command
    that has come after it, not even for a moment.
    """
    name = hashlib.sha256(json.dumps(there).encode()).hexdigest()[:16]
    mine = path.with_name(f".lock-{name}")
    try:
        os.link(path, mine)
    except FileNotFoundError:
        return True
    except FileExistsError:
        return False
    try:
        if _read(mine) == there:
            path.unlink(missing_ok=True)
    finally:
        mine.unlink(missing_ok=True)
    return True


def _refused(path: Path, name: str, there: Holder, *, gone: bool) -> UsageError | StorageError:
    since = time.strftime("%H:%M:%S", time.localtime(there.time))
    hint = "Type it again when that one has ended: it runs what is missing then."
    if gone or there.host != socket.gethostname():
        hint += f" If there is no such process any more, remove {path}."
    who = f"process {there.pid} on {there.host}, since {since}"
    return UsageError(f"Another command is submitting points of the sweep '{name}': {who}", place=str(path), hint=hint)
