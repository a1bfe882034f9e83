"""Files below a folder as bytes: a list of them, which the other side checks, then one after the other.

rsync and tarfile do not replace it. A host in other hands may send rsync more than was announced; rsync fails where a
shell prints a greeting, and is not everywhere. tarfile keeps a header of any size in memory, and has no filter in the
first Pythons 3.11.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcml.errors import StorageError
from hpcml.remote import answers

MOST_FILES = 200_000  # of a listing
_MOST_FIELDS = 8  # of a file, with the commas in its name
_DEEPEST = 100  # folders of a name
PIECE = 1 << 18  # bytes
_PART = ".hpcml-part-"  # begins the name of a file that is being written
_PARTS = re.compile(rf"{re.escape(_PART)}[0-9a-f]{{16}}")
_YOUNG = 60.0  # seconds in which its writer has locked it
_LARGEST = 1 << 62  # bytes of a file, and nanoseconds to its time: what a system call takes


class CutShortError(StorageError):
    """The other side ended before a file was whole; it, or the link, knows why."""


class Entry(NamedTuple):
    """A file that is sent: its name below the folder (``/`` between parts), size, time of change and permissions."""

    name: str
    size: int
    changed: int
    mode: int


def listing(folder: Path) -> tuple[list[Entry], int]:
    """Return the regular files below a folder, and how many links and special files there are, which are not sent.

    Raises
    ------
    StorageError
        If a folder cannot be read.
    """
    regular, others, waiting = [], 0, [""]
    while waiting:
        below = waiting.pop()
        with files(folder / below):
            entries = sorted(os.scandir(folder / below), key=lambda entry: entry.name)
        for entry in entries:
            name = f"{below}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{name}/")
            elif entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):  # gone since
                    status = entry.stat(follow_symlinks=False)
                    regular.append(Entry(name, status.st_size, status.st_mtime_ns, status.st_mode & 0o777))
            else:
                others += 1
    return sorted(regular), others


def entries_of(rows: Any, place: str) -> list[Entry]:
    """Return the listing that the other side sent; no name in it leads out of a folder.

    Raises
    ------
    StorageError
        If it is malformed, or a name is absolute, holds ``..``, an empty part or a zero byte.
    """
    if isinstance(rows, list) and len(rows) > MOST_FILES:
        raise too_many(len(rows), place)
    try:
        entries = [Entry(str(name), int(size), int(changed), int(mode) & 0o777) for name, size, changed, mode in rows]
    except (TypeError, ValueError, OverflowError) as error:
        raise StorageError(f"The other machine sent an invalid list of files: {error}", place=place) from error
    for entry in entries:
        parts_of(entry.name)
        if not 0 <= entry.size < _LARGEST or abs(entry.changed) >= _LARGEST:
            message = "The other machine announced a file with an impossible size or time; no file was written"
            raise StorageError(message, place=repr(entry.name))
    if len({entry.name for entry in entries}) != len(entries):
        raise StorageError("The other machine announced the same file twice; no file was written", place=place)
    return entries


def too_many(count: int, place: str) -> StorageError:
    """Return the error for more files than are sent one by one."""
    hint = "Pack the files with tar, and send the archive."
    return StorageError(
        f"There are {count} files to send, but hpcml sends at most {MOST_FILES} files one by one",
        place=place,
        hint=hint,
    )


class Offer(NamedTuple):
    """What a run has for :command:`hpcml fetch`; ``others`` are links and special files, which are not sent."""

    run: str
    files: list[Entry]
    others: int
    ended: bool


def offer_of(line: bytes, host: str) -> Offer:
    """Return the offer of the other side; StorageError if it has too many files."""
    if (fields := line.count(b",")) > _MOST_FIELDS * MOST_FILES:  # before it is taken apart, which costs memory
        raise too_many(fields // len(Entry._fields), host)
    offer = answers.of_offer(line, host)
    return Offer(
        offer["run"], entries_of(offer["files"], offer["run"]), offer.get("others", 0), offer.get("ended", False)
    )


def parts_of(name: str) -> list[str]:
    """Return the parts of a relative name; StorageError if it is invalid, or leads out of the folder."""
    parts = name.split("/")
    if len(parts) > _DEEPEST:
        hint = "Pack the folder with tar, and transfer the archive."
        message = f"A file is more than {_DEEPEST} folders deep in the transferred folder"
        raise StorageError(message, place=repr(name[:200]), hint=hint)
    try:
        os.fsencode(name)
        bad = "\0" in name
    except UnicodeEncodeError:
        bad = True  # half a character, which no file system holds
    if bad or any(part in ("", ".", "..") for part in parts):
        hint = (
            "The file was not written. Check the source folder and hpcml on the other machine: "
            "someone may have changed them."
        )
        raise StorageError(
            "hpcml refused a file whose name is invalid or leads out of the target folder", place=repr(name), hint=hint
        )
    return parts


@contextlib.contextmanager
def files(path: Path) -> Iterator[None]:
    """Turn what can go wrong with files below a path into a StorageError that names it."""
    try:
        yield
    except OSError as error:
        hint = "Check the free space, your quota and your permissions."
        raise StorageError(
            f"The file cannot be read or written: {error.strerror}", place=str(path), hint=hint
        ) from error


def receive(
    folder: Path, entry: Entry, read: Callable[[int], bytes], received: Callable[[int], None] = lambda _: None
) -> None:
    """Write one file below a folder, whole or not at all: under another name first, then renamed.

    No link is followed below the folder, so nothing is written elsewhere; a file of that name is replaced.

    Parameters
    ----------
    read
        Returns at most so many bytes, none at the end of the stream.
    received
        Called with the number of bytes of each piece.

    Raises
    ------
    StorageError
        If it cannot be written, or the stream ends too early.
    """
    *above, last = parts_of(entry.name)
    place = folder / entry.name
    with files(place):
        inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in above:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=inside)
                deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=inside)
                os.close(inside)
                inside = deeper
            new = f"{_PART}{secrets.token_hex(8)}"
            try:
                _write(inside, new, entry, read, received)
                os.rename(new, last, src_dir_fd=inside, dst_dir_fd=inside)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(new, dir_fd=inside)
                raise
        finally:
            os.close(inside)


def _write(inside: int, name: str, entry: Entry, read: Callable[[int], bytes], received: Callable[[int], None]) -> None:
    # The umask counts, and no program of another user's is made: neither set-user-id nor writing for others.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(name, flags, (entry.mode | stat.S_IWUSR | stat.S_IRUSR) & 0o755, dir_fd=inside)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: then nobody removes it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        left = entry.size
        while left:
            piece = read(min(left, PIECE))
            if not piece:
                message = "The file arrived incomplete and was removed"
                hint = "Run the command again. Files that arrived are not sent again."
                raise CutShortError(message, place=entry.name, hint=hint)
            left -= len(piece)
            received(len(piece))
            while piece:  # a file system that fills up takes a part first and says so at the next write
                piece = piece[os.write(descriptor, piece) :]
        os.utime(descriptor, ns=(entry.changed, entry.changed))
    finally:
        os.close(descriptor)


def remove_parts(folder: Path, entries: Sequence[Entry]) -> int:
    """Remove the parts that transfers which were killed have left among these files; return their number.

    Who still writes a part has locked it. A part that is young may not be locked yet.
    """
    removed = 0
    for above in {folder, *((folder / entry.name).parent for entry in entries)}:
        for path in sorted(above.glob(f"{_PART}*")):
            with contextlib.suppress(OSError):  # it is locked, a link, or not ours
                removed += _removed(path)
    return removed


def _removed(part: Path) -> bool:
    """Remove a part if nobody writes it any more; return True if it was removed."""
    if not _PARTS.fullmatch(part.name):
        return False
    descriptor = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        young = time.time() - status.st_ctime < _YOUNG
        if young or not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part.unlink()
    finally:
        os.close(descriptor)
    return True


def send(folder: Path, entries: Sequence[Entry], write: Callable[[bytes], object]) -> None:
    """Write the bytes of files, in order and without anything between them.

    Raises
    ------
    StorageError
        If a file has become shorter, or cannot be read; the other side then sees that it did not come whole.
    """
    for entry in entries:
        path = folder / entry.name
        with files(path):
            source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            left = entry.size
            while left:
                with files(path):
                    piece = os.read(source, min(left, PIECE))
                if not piece:
                    hint = "Run the command again. Files that arrived are not sent again."
                    raise StorageError("The file became shorter while it was sent", place=str(path), hint=hint)
                left -= len(piece)
                write(piece)
        finally:
            os.close(source)
