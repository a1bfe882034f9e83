"""The run's file system fills up, or the quota is used up: it is noticed, said, and the run's end still written.

The end goes into files that were made and filled at submission (``reserve/``): they need neither block nor
inode any more, only to be written over and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from hpcml.node import shared_files
from hpcml.paths import RESERVE_COUNT, RESERVE_SIZE, RunPaths
from hpcml.safe_files import create, write

FULL = {errno.ENOSPC: "the file system is full", errno.EDQUOT: "the quota is used up"}
LITTLE = 65536  # bytes that a file system must take to count as not full
HINT = "Free space, or choose another runs folder (--set paths.runs=…). Then submit again."


def is_full(error: OSError) -> bool:
    """Whether an error says that there is no room, neither for bytes nor for files."""
    return error.errno in FULL


def explanation(error: OSError, folder: Path) -> str:
    """Return a sentence that there is no room, and for what: bytes, files, or what the quota allows."""
    cause = FULL[error.errno or 0]
    with contextlib.suppress(OSError):  # who cannot be asked has been heard already
        room = os.statvfs(folder)
        if room.f_files and not room.f_favail and room.f_bavail:
            cause = "the file system can hold no more files (no inodes are left)"
    return f"{cause} ({folder})"


def trouble(folder: Path) -> str:
    """Return the reason why a folder takes no more data, empty if it does: a little is written and taken away."""
    path = folder / f".room.{os.getpid()}"
    try:
        descriptor = create(path)
        try:
            left = LITTLE
            while left:
                left -= os.write(descriptor, bytes(left))
            os.fsync(descriptor)  # a network file system may say it only now
        finally:
            with contextlib.suppress(OSError):  # said with the same words by close(2) of a network file system
                os.close(descriptor)
            path.unlink(missing_ok=True)
    except OSError as error:
        return explanation(error, folder) if is_full(error) else ""
    return ""


def scarce(folder: Path) -> str:
    """Return a sentence if a file system says itself that it is full, without a write; quotas it mostly hides."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return ""
    no_bytes = room.f_blocks and room.f_bavail * room.f_frsize < LITTLE  # some FUSE file systems tell nothing
    full = no_bytes or (room.f_files and not room.f_favail)
    return explanation(OSError(errno.ENOSPC, ""), folder) if full else ""


def write_end(run: RunPaths, path: Path, end: dict[str, Any]) -> bool:
    """Write a file of the run's end, into the reserve if there is no room; a full disk must not keep the nodes.

    Return True if it could be written.
    """
    try:
        shared_files.write_json(path, end)
        return True
    except OSError as error:
        failed = error
    text = json.dumps(end).encode()
    if len(text) > RESERVE_SIZE:
        text = json.dumps({**end, "quote": []}).encode()[:RESERVE_SIZE]
    for name in sorted(shared_files.listed(run.reserve)):
        try:
            _write_over(run.reserve / name, text)
            (run.reserve / name).rename(path)
        except OSError as error:
            failed = error
        else:
            return True
    print(f"hpcml: {path} cannot be written ({failed.strerror}): {end}", file=sys.stderr)
    return False


def _write_over(path: Path, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        written = os.write(descriptor, text)
        if written < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.ftruncate(descriptor, written)
    finally:
        os.close(descriptor)


def renew(run: RunPaths) -> None:
    """Make the reserve again that an earlier attempt of the run has used; without room there is none."""
    try:
        run.reserve.mkdir(mode=0o700, exist_ok=True)
        for number in range(RESERVE_COUNT):
            if not (run.reserve / str(number)).exists():
                write(run.reserve / str(number), " " * RESERVE_SIZE)
    except OSError as error:
        print(f"hpcml: no disk space can be reserved for the run's final status: {error}", file=sys.stderr)


def release(run: RunPaths) -> None:
    """Remove what is left of the reserve: the end is written."""
    with contextlib.suppress(OSError):  # not there, somebody keeps a file in it, or the file system is read-only
        for name in shared_files.listed(run.reserve):
            (run.reserve / name).unlink(missing_ok=True)
        run.reserve.rmdir()


class _Patient(io.FileIO):
    """A log that takes what it can; what it cannot is lost."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:  # there is nobody left to tell; see events_and_end.or_a_full_disk()
            return memoryview(data).nbytes


def patient(descriptor: int) -> TextIO:
    """Return a stream on one of a role's logs that never raises: a full disk must not end a scheduler or a worker."""
    raw = _Patient(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=True)
