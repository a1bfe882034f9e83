"""Which of several runs takes which point of a sweep: hard links in a folder that they share.

A run has a file there, ``alive-RUN``, whose time it renews. To take a point it makes a link to it under the point's
key, which only one run can do, and another one, ``KEY.ended``, when the point has ended. A run whose file is not
renewed for :data:`LEASE` seconds of another's own clock has died: the other takes that file away, which only one can
do, and what it had not ended is free again. A run that finds its file gone, or could not renew it for so long, ends
its points and writes nothing of them. No clocks are compared, and no server or database is asked.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from hpcml import files
from hpcml.node.processes import OwnTime

RENEW = 2.0  # seconds between two signs of life, and between looks at those of others
LEASE = 60.0  # seconds without one after which a run's points are given to others

_ALIVE = "alive-"


class LostError(Exception):
    """The run was silent for so long that others have its points by now."""


class Claims:
    """The points that this run has taken, and the other runs of the sweep as seen from here."""

    def __init__(self, folder: Path, run: str, runs: Sequence[str]) -> None:
        """Begin to take part.

        Raises
        ------
        OSError
            If the folder is not there: the sweep has gone on without this run.
        """
        self.folder, self.mine = folder, folder / f"{_ALIVE}{run}"
        self.others = [folder / f"{_ALIVE}{other}" for other in runs if other != run]
        self.clock = OwnTime()
        self.looked = 0.0
        self.seen: dict[Path, tuple[int, float]] = {}  # of another run: its last sign of life, and when it was noticed
        if self.mine.name in os.listdir(folder):
            self._bury(self.mine)  # of an earlier attempt of this run, which has ended
        os.close(files.create(self.mine))
        self.renewed = time.monotonic()

    def take(self, key: str) -> bool:
        """Take a point; False if another run has it, or it has ended."""
        claim = self.folder / key
        try:
            os.link(self.mine, claim)
        except FileExistsError:
            return False
        except FileNotFoundError as error:
            raise LostError from error
        return True

    def ended(self, key: str, *, failed: bool) -> None:
        """Write down that a point has ended, and is not to be given back."""
        for name in (f"{key}.ended", *([f"{key}.failed"] if failed else [])):
            with contextlib.suppress(FileExistsError):
                os.link(self.mine, self.folder / name)

    def give_back(self, key: str) -> None:
        """Give a point back that has not ended."""
        (self.folder / key).unlink(missing_ok=True)

    def failures(self) -> int:
        """Return how many points have failed, in all runs."""
        return sum(name.endswith(".failed") for name in os.listdir(self.folder))

    def any_free(self, keys: Iterable[str]) -> bool:
        """Whether nobody has taken one of these points."""
        there = set(os.listdir(self.folder))
        return any(key not in there for key in keys)

    def check(self) -> None:
        """Find out whether this run still has what it took.

        Raises
        ------
        LostError
            If others may have it by now.
        """
        silent = time.monotonic() - self.renewed
        if silent > LEASE or (silent > LEASE / 2 and self.mine.name not in os.listdir(self.folder)):
            raise LostError

    def look(self, *, often: bool = False) -> bool:
        """Give a sign of life when it is time, and look for those of others, seldom or ``often``.

        Returns True if points of a run that has died are free again; raises LostError as :meth:`check`.
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
        if not often and now - self.looked < LEASE / 4:
            return False
        self.looked = now
        return bool([other for other in self.others if self._judge(other, now)])

    def roll_call(self) -> float:
        """Look at all others' signs of life, and return when that was, of this object's clock.

        Only a sign that comes after it says that a run lives: one that is noticed now may be its last.
        """
        now = self.clock.tick()
        for other in self.others:
            self._judge(other, now)
        return now

    def silent(self, since: float) -> bool:
        """Whether another run takes part that has given no sign of life since the :meth:`roll_call` at ``since``."""
        return any(noticed <= since for _, noticed in self.seen.values())

    def end(self) -> None:
        """Take part no more: what has ended stays so, and the rest is given back."""
        with contextlib.suppress(FileNotFoundError):
            self._bury(self.mine)

    def _judge(self, other: Path, now: float) -> bool:
        """Look for a sign of life of another run; True if it has died, and its points are free again."""
        try:
            with other.open("rb") as file:  # a network file system asks its server when a file is opened
                sign = os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:  # it has not begun, or has ended
            self.seen.pop(other, None)
            return False
        before, noticed = self.seen.get(other, (0, now))
        if other not in self.seen or sign != before:
            self.seen[other] = sign, now
            return False
        if now - noticed < LEASE:
            return False
        self.seen.pop(other)
        try:
            return self._bury(other)
        except FileNotFoundError:
            return True  # a third run was faster

    def _bury(self, run: Path) -> bool:
        """Take a run's file away, which only one can do, and free what it had not ended; True if that is something."""
        aside = files.beside(run)
        run.rename(aside)
        inode, there = aside.stat().st_ino, set(os.listdir(self.folder))
        freed = False
        for key in there:
            if "." in key or f"{key}.ended" in there:
                continue
            claim = self.folder / key
            with contextlib.suppress(FileNotFoundError):
                if claim.stat().st_ino == inode:
                    claim.unlink()
                    freed = True
        aside.unlink()
        return freed
