"""A folder on a node's own disk that nobody else enters or replaces, and the removal of those that killed roles left.

Such a folder lies where others may make folders too (``/tmp``). What Dask or Python finds in it is code that runs as
its owner, so the folder is made newly with a random name and mode 0700, and only where nobody else can rename it: each
folder above must belong to the user or to root, and others may write to it only if it is sticky.

Whoever lives in a folder holds a shared lock (flock(2)) on the file :data:`LIVES` in it; the kernel gives it back
however the process ends. A folder of the user's whose lock is free is swept by the user's next run on the same node.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing.process
import os
import re
import shutil
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

from hpcml import safe_files

SET_TMPDIR = "set TMPDIR to your own folder, or to a folder like /tmp (owned by root, with the sticky bit)"
SET_SCRATCH = "set paths.scratch in the profile, or TMPDIR, to another folder"
PREFIX = "hpcml_"  # Dask reads DASK_ variables as Python: with "-", a name such as 24if3j2c made it warn
LIVES = ".lives"  # its text is the node's name: on a shared file system the locks of other nodes may not be seen
_SEMAPHORES = Path("/dev/shm")
SWEEP_FOR = 20.0  # seconds after which a sweep leaves the rest to the next
_OURS = re.compile(r"hpcml_[a-z0-9_]{8}|hpcml-[0-9]+-[0-9a-f]{16}")  # of tempfile.mkdtemp, and of templates/stage.sh


class UnsafePlaceError(Exception):
    """A folder in which no folder of the user's alone can be made; the sentence says why."""


class Folder:
    """A new folder in ``place`` for this process and its children alone, removed at the end.

    An UnsafePlaceError if the place cannot be written to, or if somebody else could replace what is in it.
    """

    def __init__(self, place: str | Path) -> None:
        real = os.path.realpath(place)  # from here on no link of anybody's is followed
        if reason := why_not(real):
            raise UnsafePlaceError(reason)
        try:
            self.path, self._lock = _made(real)
        except OSError as error:
            raise UnsafePlaceError(f"no folder can be created in {place}: {error.strerror}") from error
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it with all that is in it; what does not go now is left to the next sweep."""
        if self._lock < 0 or os.getpid() != self._owner:  # a fork of the owner's has no say
            return
        # Dask leaves folders of it on the path, and its name is free for others from here on
        folder_path = str(self.path)
        sys.path[:] = [entry for entry in sys.path if entry != folder_path and not entry.startswith(f"{folder_path}/")]
        with contextlib.suppress(OSError):
            _empty_and_remove(self.path.parent, self.path.name)
        os.close(self._lock)
        self._lock = -1


def name_semaphores(folder: Path) -> None:
    """Have the semaphores of this process and its children carry the folder's name: :func:`sweep` removes both.

    Python gives them random names in ``/dev/shm``, where those of killed processes stay until the node restarts.
    """
    multiprocessing.process.current_process()._config["semprefix"] = f"/{folder.name}"  # type: ignore[attr-defined] # noqa: SLF001


def live_in(folder: Path) -> None:
    """Keep a folder of another process of this run from being swept while this process lives."""
    _lock(os.open(folder / LIVES, os.O_RDWR | os.O_NOFOLLOW))


def why_not(folder: str) -> str:
    """Return the reason why somebody else could replace the content of a folder, in words; nothing if nobody can.

    In a user namespace, as an image's, the users of the host look like one user: only the modes can be judged there.
    """
    trusted = {0, os.geteuid()} | safe_files.unknown_users()
    real = Path(os.path.realpath(folder))
    if not real.is_dir():
        return f"{folder} is not a folder on this node"
    for path in (real, *real.parents):
        status = path.stat()
        if status.st_uid not in trusted:
            return f"{path} belongs to another user, who could replace its contents"
        if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
            return (
                f"other users may replace the contents of {path} (mode {stat.S_IMODE(status.st_mode):04o}, not sticky)"
            )
    return ""


def _made(place: str) -> tuple[Path, int]:
    """Make a folder, take its lock, and say whose it is: a sweep passes over what does not say it yet."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    try:
        descriptor = os.open(path / LIVES, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        _lock(descriptor)
        os.write(descriptor, socket.gethostname().encode())
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise
    return path, descriptor


def _lock(descriptor: int) -> None:
    """Take the shared lock; a file system without locks has none, and nothing on it is ever swept."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # a sweep holds its own for a look at the file only
    except OSError as error:
        if error.errno not in {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}:
            raise


def sweep(place: str | Path) -> list[str]:
    """Remove the folders in a place that roles of this user's left on this node, and return their names.

    Only folders of this user's own, closed to others, with a name as hpcml gives them and a free lock; no link is
    followed. What somebody else has planted under such a name stays.
    """
    swept: list[str] = []
    until = time.monotonic() + SWEEP_FOR
    real = os.path.realpath(place)
    if why_not(real):
        return swept
    try:
        with os.scandir(real) as entries:
            names = [entry.name for entry in entries if _OURS.fullmatch(entry.name)]
    except OSError:
        return swept
    for name in names:
        with contextlib.suppress(OSError):  # it went by itself, or is not this user's
            if time.monotonic() < until and _sweep_one(Path(real), name):
                swept.append(name)
    return swept


def _sweep_one(place: Path, name: str) -> bool:
    status = os.lstat(place / name)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        return False
    descriptor = os.open(place / name / LIVES, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        opened = os.fstat(descriptor)
        if not stat.S_ISREG(opened.st_mode) or opened.st_uid != os.geteuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError if somebody lives there
        if os.read(descriptor, 256).decode(errors="replace").strip() != socket.gethostname():
            return False
        for semaphore in _SEMAPHORES.glob(f"sem.{name}-*"):
            with contextlib.suppress(OSError):  # its process is gone, and so it may be
                semaphore.unlink()
        _empty_and_remove(place, name)
        return True
    finally:
        os.close(descriptor)


def _empty_and_remove(place: Path, name: str) -> None:
    """Remove a folder, its lock's file last: what is interrupted is found again by the next sweep."""
    folder = place / name
    for entry in os.listdir(folder):
        if entry == LIVES:
            continue
        inner = folder / entry
        if inner.is_dir() and not inner.is_symlink():
            shutil.rmtree(inner)
        else:
            inner.unlink()
    (folder / LIVES).unlink()
    folder.rmdir()
