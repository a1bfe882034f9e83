"""Processes that must not outlive who started them, and whether another process is still the one that it was."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

COME_BACK = 3  # exit status of a child that is to be started again: a worker that Dask closed (client.restart)
_SET_PDEATHSIG = 1  # prctl(2)


def end_with(parent: int) -> None:
    """In a child: have Linux kill this process when the process that forked it ends, in whatever way.

    It holds for the *thread* that forked, so the parent forks from its only one. A parent that ended before this call
    sends nothing any more, which getppid() shows.

    Parameters
    ----------
    parent
        The parent's own pid, asked for before the fork.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Process:
    """Another process: its pid, and when it began, because a pid is given out again."""

    pid: int
    began: str

    @classmethod
    def named(cls, pid: int) -> Process:
        """Return the process that has this pid now."""
        return cls(pid, _fields(pid)[1])

    @property
    def state(self) -> str:
        """Its state as ps(1) shows it (R, S, D, T), empty once it has ended; a zombie has ended."""
        state, began = _fields(self.pid)
        return state if began == self.began and state not in "ZX" else ""

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return bool(self.state)


def _fields(pid: int) -> tuple[str, str]:
    """Return the state and the start time of a process (proc(5), stat), both empty if there is none."""
    if sys.platform != "linux":
        return _without_proc(pid)
    try:
        words = (
            Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        )  # the name may hold blanks and brackets
    except (FileNotFoundError, ProcessLookupError):
        return "", ""
    return words[0], words[19]


def _without_proc(pid: int) -> tuple[str, str]:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "", ""
    return "S", "unknown"
