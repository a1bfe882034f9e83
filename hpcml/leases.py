"""Leases: which of several processes holds a thing, on machines that share a file system, without a server.

A holder has a file that says which process it is. What it holds is that file's name, or a name to which it makes a hard
link to the file: that fails where the name exists, so that one process alone gets it, on every shared file system.

A holder has ended if its process has, where that can be seen from here. One that renews the time of its file has ended
too if it did not do so for :data:`LEASE` seconds of the observer's clock. Another process then removes its file, which
only one can do. No two machines' clocks are compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hpcml import safe_files, typed_json

RENEW = 2.0  # seconds between two signs of life, and between scans of those of others
LEASE = 60.0  # seconds without one after which others reclaim what a run holds

_ALIVE = "alive-"  # how the files of holders begin in a folder of leases
_LARGEST = 1 << 16  # bytes of a holder's file


class LostError(Exception):
    """The run gave no sign of life for so long that others hold what it held."""


class Holder(NamedTuple):
    """A process that holds something."""

    host: str  # the machine's name
    processes: str  # which numbers of processes it counts in (pid_namespaces(7)), empty where the system has one
    pid: int
    began: str  # tells it from a later process with its number, empty where the system does not say
    run: str  # the run that it is, or is to become
    time: float  # when it began to hold, in seconds since 1970


def this_process(run: str) -> Holder:
    """Return this process as a holder."""
    state = safe_files.state_and_start(os.getpid())
    return Holder(socket.gethostname(), _pid_namespace(), os.getpid(), state[1], run, round(time.time(), 3))


def read(path: Path) -> Holder | None:
    """Return the holder of a file, None if there is no such file.

    Raises
    ------
    OSError
        If it cannot be read, is a link, or another account's.
    ValueError
        If it is damaged.
    """
    try:
        table = safe_files.read_json(path, _LARGEST)
    except FileNotFoundError:
        return None
    try:
        holder = typed_json.read(Holder, table)
    except typed_json.DamagedError as error:
        raise ValueError(f"{path} does not name a process: {error}") from error
    if not 0 < holder.pid < 1 << 31:
        raise ValueError(f"{path} contains no valid process id")
    return holder


def place(path: Path, holder: Holder) -> bool:
    """Make the file of a holder, whole; False if there is a file of that name."""
    new = safe_files.beside(path)
    try:
        with os.fdopen(safe_files.create(new), "w") as file:
            file.write(json.dumps(holder._asdict()) + "\n")
        return _linked(new, path)
    finally:
        new.unlink(missing_ok=True)


def _linked(file: Path, name: Path) -> bool:
    """Make a hard link; False if the name is another file's."""
    try:
        os.link(file, name, follow_symlinks=False)
    except FileExistsError:
        return _are_one(file, name)  # a server whose answer was lost is asked twice
    return True


def _are_one(file: Path, other: Path) -> bool:
    try:
        return os.path.samestat(file.lstat(), other.lstat())
    except FileNotFoundError:
        return False


def is_here(holder: Holder) -> bool:
    """Whether this process sees that of a holder: it is of the same machine, and the same container."""
    return (holder.host, holder.processes) == (socket.gethostname(), _pid_namespace())


def has_ended(holder: Holder) -> bool:
    """Whether a holder's process has certainly ended; nobody knows that of one that is not here."""
    if not is_here(holder):
        return False
    try:
        os.kill(holder.pid, 0)
    except (ProcessLookupError, PermissionError):  # its number is another account's now
        return True
    state, began = safe_files.state_and_start(holder.pid)
    return bool(state) and (state in "ZX" or began != holder.began)


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - no path: pid:[4026531836]
    except OSError:
        return ""


def remove(path: Path, holder: Holder, leases: Iterable[Path] = ()) -> bool:
    """Remove the file of a holder, then those of ``leases`` that are links to it; False if another process does so.

    Only the process that has made a link under the holder's own name removes the file. So no process removes the file
    of a holder that came after it, not even for a moment.
    """
    digest = hashlib.sha256(json.dumps(holder).encode()).hexdigest()[:16]
    mark = path.with_name(f".{path.name}-{digest}")
    try:
        os.link(path, mark, follow_symlinks=False)
    except FileNotFoundError:
        return True
    except FileExistsError:
        return False
    try:
        if read(mark) == holder:
            path.unlink(missing_ok=True)
            for lease in leases:
                if _are_one(lease, mark):
                    lease.unlink(missing_ok=True)
    finally:
        mark.unlink(missing_ok=True)
    return True


class Clock(Protocol):
    """A clock that stops while its owner does."""

    def tick(self) -> float:
        """Return the seconds that have passed in all."""


class Leases:
    """What this run holds in a folder that several runs share, and the other runs as seen from here.

    A run's file is ``alive-RUN``. To take a key it makes a link under the key's name, and another one, ``KEY.ended``,
    when that is done. What a run that has ended had not done is free again. A run that finds its file removed, or could
    not renew it for so long, stops: it writes nothing of what it held.
    """

    def __init__(self, folder: Path, run: str, runs: Sequence[str], clock: Clock) -> None:
        """Begin to take part.

        Raises
        ------
        FileNotFoundError
            If the folder does not exist: the sweep has continued without this run.
        LostError
            If another process is this run too.
        """
        self.folder, self.mine, self.clock = folder, folder / f"{_ALIVE}{run}", clock
        self.others = [folder / f"{_ALIVE}{other}" for other in runs if other != run]
        self.scanned = 0.0
        self.seen: dict[Path, tuple[int, float]] = {}  # another run's last sign of life, and when it was noticed
        os.listdir(folder)  # asks the server of a network file system
        if earlier := read(self.mine):  # an earlier attempt of this run, which has ended
            remove(self.mine, earlier, self._not_done())
        self.holder = this_process(run)
        if not place(self.mine, self.holder):
            raise LostError
        self.renewed = time.monotonic()

    def take(self, key: str) -> bool:
        """Take a key; False if another run has it, or it is done; LostError if this run's own lease is gone."""
        try:
            return _linked(self.mine, self.folder / key)
        except FileNotFoundError as error:
            raise LostError from error

    def done(self, key: str, *, failed: bool) -> None:
        """Write down that a key is done, and is not to be given back."""
        for name in (f"{key}.ended", *([f"{key}.failed"] if failed else [])):
            with contextlib.suppress(FileExistsError):
                os.link(self.mine, self.folder / name, follow_symlinks=False)

    def give_back(self, key: str) -> None:
        """Give a key back that is not done."""
        (self.folder / key).unlink(missing_ok=True)

    def count(self, end: str) -> int:
        """Return the number of keys that are done ("ended") or have failed ("failed"), in all runs."""
        return sum(name.endswith(f".{end}") for name in os.listdir(self.folder))

    def free(self, keys: Iterable[str]) -> list[str]:
        """Return those of some keys that no run has taken."""
        names = set(os.listdir(self.folder))
        return [key for key in keys if key not in names]

    def check(self) -> None:
        """Raise LostError if others may hold what this run has taken."""
        silent = time.monotonic() - self.renewed
        if silent > LEASE or (silent > LEASE / 2 and self.mine.name not in os.listdir(self.folder)):
            raise LostError

    def renew(self, *, often: bool = False) -> bool:
        """Give a sign of life when it is time, and scan for those of others, seldom or ``often``.

        Returns True if a run has ended whose keys are free again; raises LostError as :meth:`check`.
        """
        now = self.clock.tick()
        if time.monotonic() - self.renewed < RENEW:
            return False
        self.check()
        try:
            os.utime(self.mine)
        except FileNotFoundError as error:
            raise LostError from error
        self.renewed = time.monotonic()
        if not often and now - self.scanned < LEASE / 4:
            return False
        self.scanned = now
        return bool([other for other in self.others if self._reclaimed(other, now)])

    def scan(self) -> float:
        """Look for all others' signs of life, and return the time of that look, by this object's clock.

        Only a sign that comes after it says that a run lives: one that is noticed now may be its last.
        """
        now = self.clock.tick()
        for other in self.others:
            self._reclaimed(other, now)
        return now

    def silent(self, since: float) -> bool:
        """Whether another run takes part that has given no sign of life since the :meth:`scan` at ``since``."""
        return any(noticed <= since for _, noticed in self.seen.values())

    def end(self) -> None:
        """Take part no more: what is done stays so, and the rest is given back."""
        with contextlib.suppress(FileNotFoundError):
            remove(self.mine, self.holder, self._not_done())

    def _reclaimed(self, other: Path, now: float) -> bool:
        """Look for a sign of life of another run; True if it has ended, and what it had not done is free again."""
        try:
            holder = read(other)  # a network file system asks its server when a file is opened
            sign = other.lstat().st_mtime_ns
        except (safe_files.ForeignError, FileNotFoundError, ValueError):  # not a run's file, or it ended at this moment
            holder = None
        if holder is None:  # it has not begun, or has ended
            self.seen.pop(other, None)
            return False
        before, noticed = self.seen.get(other, (0, now))
        if other not in self.seen or sign != before:
            noticed = now
            self.seen[other] = sign, now
        if now - noticed < LEASE and not has_ended(holder):
            return False
        self.seen.pop(other)
        return remove(other, holder, self._not_done())

    def _not_done(self) -> Iterator[Path]:
        """Yield the keys that some run has taken and not done, as they are when the first is asked for."""
        names = set(os.listdir(self.folder))
        yield from (self.folder / name for name in names if "." not in name and f"{name}.ended" not in names)
