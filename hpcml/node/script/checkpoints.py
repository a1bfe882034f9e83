"""A script's checkpoints: whole or not there, also after a kill, and saved once more before the run ends."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from hpcml.errors import STOPPED
from hpcml.node.shared_files import write_json
from hpcml.safe_files import ForeignError, account, folder_is_ours
from hpcml.units import parse_seconds

_LONGEST_NAME = 200  # bytes: file systems allow 255, and the name of what is being written is longer
_NEW, _OLD = ".new", ".old"  # begin the hidden names of what is being written, and of what was there before
_TICK = 0.5  # seconds between looks whether the run is about to end
_POKE = signal.SIGURG  # wakes the main thread; a process without an answer to it ignores it

_open: set[object] = set()  # the saves that are under way in this process
_costs: dict[str, Any] = {"count": 0, "longest": 0.0, "last": {}}
_stopper: Stopper | None = None


def save(folder: Path, record: Path | None, name: str, writer: Callable[[Path], object]) -> Path:
    """Have a checkpoint written beside the last one, and put it in its place when it is whole.

    ``record`` is where the time that it took is written down.
    """
    path = folder / _checked(name)
    token = object()
    _open.add(token)
    try:
        began = time.monotonic()
        _clean(path)
        new = path.with_name(
            f"{_NEW}.{os.urandom(8).hex()}.{path.name}"
        )  # it ends as the name does: writers look at that
        try:
            writer(new)
            size = _synced(new)
            _replace(new, path)
        except BaseException:
            _remove(new)
            raise
        _sync(folder)
        _write_down(record, path.name, time.monotonic() - began, size)
    finally:
        _open.discard(token)
        if _stopper:
            _stopper.poke()
    return path


def saved(folder: Path, name: str) -> Path | None:
    """Return the newest whole checkpoint of a name, None if there is none."""
    path = folder / _checked(name)
    places = (path, path.with_name(f"{_OLD}.{path.name}"))  # a kill between two renames left the older one
    newest = next((place for place in places if place.exists()), None)
    if newest is not None:
        check_owner(newest)
    return newest


def check_owner(path: Path) -> None:
    """Raise ForeignError if a checkpoint, or their folder, is another account's: many scripts unpickle it."""
    for stat_result in (path.lstat(), path.stat()):
        if not folder_is_ours(stat_result):
            raise ForeignError(f"this file or folder belongs to {account(stat_result.st_uid)} and is not trusted", path)


def _checked(name: str) -> str:
    """Return a checkpoint's name; a ValueError if a file cannot be called so."""
    if not name or "/" in name or "\0" in name or name.startswith(".") or len(os.fsencode(name)) > _LONGEST_NAME:
        reason = f"a file name that has at most {_LONGEST_NAME} bytes, contains no '/' and does not begin with '.'"
        raise ValueError(f"hpcml.run.save: {name!r} is not a valid name: use {reason}")
    return name


def _clean(path: Path) -> None:
    """Remove what a save that was killed has left, and give what it had put aside its place again."""
    old = path.with_name(f"{_OLD}.{path.name}")
    if old.exists() and not path.exists():
        old.rename(path)
    _remove(old)
    for left in os.listdir(path.parent):
        if left.startswith(f"{_NEW}.") and left[len(_NEW) + 18 :] == path.name:
            _remove(path.parent / left)


def _replace(new: Path, path: Path) -> None:
    """Put a file or a folder in its place: a folder cannot be renamed over another."""
    if path.is_dir() or (new.is_dir() and path.exists()):
        old = path.with_name(f"{_OLD}.{path.name}")
        path.rename(old)
        new.rename(path)
        _sync(path.parent)
        _remove(old)
    else:
        new.rename(path)


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _synced(path: Path) -> int:
    """Have a file, or all of a folder, written to the disk; return its bytes."""
    status = path.stat()  # a writer that wrote nothing has an error here
    if not stat.S_ISDIR(status.st_mode):
        _sync(path)
        return status.st_size
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            size += (Path(folder) / name).stat().st_size
            _sync(Path(folder) / name)
        _sync(Path(folder))
    return size


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_down(record: Path | None, name: str, seconds: float, size: int) -> None:
    """Note what a save has cost: the supervisor tells the script to stop so much earlier."""
    _costs["count"] += 1
    _costs["longest"] = max(_costs["longest"], round(seconds, 3))
    _costs["last"] = {"name": name, "seconds": round(seconds, 3), "bytes": size, "time": round(time.time(), 3)}
    if record is not None:
        try:
            write_json(record, _costs)
        except OSError as error:  # the checkpoint itself is whole
            print(f"hpcml: {record} cannot be written: {error.strerror}", file=sys.stderr)


class Stopper:
    """Calls a function in the main thread when the run is about to end, and then ends the script; or now and then.

    A thread looks for the time limit's note and wakes the main thread by a signal that means nothing else. Python
    answers signals between two of its instructions: a long call into compiled code delays the function until it
    returns.
    """

    def __init__(self, function: Callable[[], object], every: float, near: Callable[[], bool]) -> None:
        self.function, self.every, self.near = function, every, near
        self.process, self.main = os.getpid(), threading.main_thread().ident or 0
        self.wanted = self.due = self.busy = self.over = False
        self.next = time.monotonic() + every
        self.before: Any = signal.SIG_DFL
        self.mask = threading.local()  # of the thread that forks

    def begin(self) -> None:
        """Answer the signals from now on, in this process and in none that it forks."""
        before = signal.signal(signal.SIGTERM, self._told)
        self.before = earlier.before if isinstance(earlier := getattr(before, "__self__", None), Stopper) else before
        os.register_at_fork(before=self._hold_back, after_in_parent=self._let_in, after_in_child=self._as_before)
        signal.signal(_POKE, self._act)
        threading.Thread(target=self._watch, name="hpcml-on-stop", daemon=True).start()

    def poke(self) -> None:
        """Have the main thread look; nothing in a process that the script has forked."""
        if os.getpid() == self.process:
            signal.pthread_kill(self.main, _POKE)

    def _hold_back(self) -> None:
        """Have SIGTERM wait: what a fork is sent before it answers as before would be lost."""
        self.mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _let_in(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask.before)

    def _as_before(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._told:
            signal.signal(signal.SIGTERM, self.before or signal.SIG_DFL)
        self._let_in()

    def _told(self, *_: object) -> None:
        self.wanted = True
        self._act()

    def _watch(self) -> None:
        while not self.over and _stopper is self:
            time.sleep(_TICK)
            self.wanted = self.wanted or self.near()
            self.due = self.due or bool(self.every and time.monotonic() >= self.next)
            if self.wanted or self.due:
                self.poke()

    def _act(self, *_: object) -> None:
        """Save if that is wanted, unless a save is under way: the signal comes again at its end."""
        if self.busy or self.over or _open or os.getpid() != self.process:
            return
        self.busy = True
        try:
            if self.due and not self.wanted:
                self._now_and_then()
            if self.wanted:
                self.over = True
                self.function()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what comes now would cut Python's own end short
                stop()
        finally:
            self.busy = False

    def _now_and_then(self) -> None:
        try:
            self.function()
        except Exception:  # noqa: BLE001 - the script's own work goes on; the last whole checkpoint stays
            print(
                "hpcml: hpcml.run.on_stop(every=…) could not save a checkpoint; the script continues:", file=sys.stderr
            )
            traceback.print_exc()
        finally:
            self.due, self.next = False, time.monotonic() + self.every


def on_stop(function: Callable[[], object], every: str | float, near: Callable[[], bool]) -> None:
    """Have a function called before the run ends, the last one named; RuntimeError outside the main thread."""
    global _stopper  # noqa: PLW0603 - signals have one answer in a process
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("call hpcml.run.on_stop in the script's main thread, which receives signals")
    stopper = Stopper(function, _seconds(every), near)
    _stopper = stopper
    stopper.begin()


def _seconds(every: str | float) -> float:
    """Return a period in seconds, 0 for none; a ValueError if it is no duration."""
    seconds = parse_seconds(every) if isinstance(every, str) and every else float(every or 0)
    if seconds < 0:
        raise ValueError(f"hpcml.run.on_stop: every={every!r} is negative")
    return seconds


def stop() -> NoReturn:
    """Raise SystemExit with the status that says: saved, to be continued."""
    raise SystemExit(STOPPED)
