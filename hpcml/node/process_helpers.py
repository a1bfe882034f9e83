"""A role as a process: tied to who started it, its time, its garbage collector; children that answer; other pids."""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hpcml.errors import signal_name
from hpcml.safe_files import state_and_start

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MOST_FILES = 1 << 20  # what a process asks for where the hard limit is higher: some programs make a table of all
MOST = 2.0  # seconds between two ticks that count; a longer pause was not this process's own doing
# Thousandths of the memory that Linux counts a process for beyond what it takes.
KILLED_FIRST = 300  # a worker
KILLED_NEXT = 100  # what keeps a node's workers
_SET_PDEATHSIG = 1  # prctl(2)
_THRESHOLDS = tuple(3 * count for count in gc.get_threshold())  # as Dask's own commands do (dask/distributed#1653)


class OwnTime:
    """A clock that stops while its owner does (a suspended job, a node that sleeps).

    The owner calls :meth:`tick` in its loop. A longer time between two ticks counts as :data:`MOST` only.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.last = time.monotonic()

    def tick(self) -> float:
        """Count the time since the last tick, and return the seconds that have passed in all."""
        now = time.monotonic()
        self.seconds += min(now - self.last, MOST)
        self.last = now
        return self.seconds


@contextmanager
def long_import() -> Iterator[None]:
    """Import without looking for garbage, and never look at what was imported again.

    It saves a tenth of the import's time, keeps forked workers from copying those pages, and makes the interpreter's
    end short.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.enable()


_raised: list[int] = []  # the limit of open files that this process began with, once it has been raised


def raise_file_limit() -> None:
    """Let this process have as many open files as it may: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        _raised.append(soft)


def lower_file_limit() -> None:
    """In a child that becomes the user's program: have as many open files as this process began with."""
    if _raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_raised[0], resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """Return the descriptors that can be read, waiting for the first: select() knows none beyond 1,023."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(math.ceil(1000 * seconds))}


def end_with(parent: int) -> None:
    """In a child: have Linux kill this process when the process that forked it ends, in whatever way.

    It holds for the *thread* that forked, so the parent forks from its only one. A parent that ended before this call
    sends nothing any more, which getppid() shows: ``parent`` is its pid, asked for before the fork.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def killed_before_others(share: int) -> None:
    """Where memory runs out, have Linux kill this process before the run's scheduler and supervisor.

    Linux kills the process that takes most (proc(5), oom_score_adj: in thousandths of the memory there is). After a
    worker that is killed the next one may be smaller than the scheduler, without which the run ends. While a killed
    worker's memory is being freed, Linux may kill a second process: the one that keeps the workers can come back.
    """
    with suppress(OSError, ValueError):  # where it may not be written, the largest is killed
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(min(int(score.read_text()) + share, 1000)))


class EndNote:
    """Why a forked process ends, in memory that it shares with its parent.

    hpcml's own code writes it. An exit status would not do: the user's code ends processes with any number. No disk can
    be too full for it.
    """

    AGAIN, RETIRED, NO_GPU = b"a", b"r", b"g"

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 1)

    def write(self, why: bytes) -> None:
        """Write why this process ends: another is to take its place (AGAIN), or none (RETIRED).

        Or it counts as killed and is replaced as such, because CUDA lets it use no GPU any more (NO_GPU).
        """
        self.memory[:] = why

    def take(self) -> bytes:
        """Return the bytes that were written, and remove them; a zero byte if there are none."""
        why, self.memory[:] = self.memory[:], b"\0"
        return why


class Question:
    """Work in a forked process, which may hang or crash; its answer is a table, in which ``error`` says what failed."""

    def __init__(self, name: str, work: Callable[[], dict[str, Any]]) -> None:
        self.name, self.refused, self.began = name, "", time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.reader, writer = Pipe(duplex=False)
        try:
            self.pid = os.fork()
        except OSError as error:
            self.refused = f"{name} was not queried: no process could be started: {error}"
        else:
            if not self.pid:
                self._answer(work, writer, parent)
        writer.close()

    def _answer(self, work: Callable[[], dict[str, Any]], writer: Connection, parent: int) -> NoReturn:
        try:
            end_with(parent)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(2, 1)  # libraries warn on standard output, which may be where our caller writes JSON
            try:
                answer = work()
            except Exception as error:  # noqa: BLE001 - the parent says it
                answer = {"error": f"{type(error).__name__}: {error}"}
            writer.send(answer)
        finally:
            os._exit(0)  # never back into the parent's code, nor through the libraries' own ends

    def answer(self, ends: float) -> dict[str, Any]:
        """Wait for the answer until ``ends`` (of time.monotonic), and end the process; ``late`` if there is none."""
        answer: dict[str, Any] = {}
        with self.reader:
            if self.refused:
                return {"error": self.refused}
            if not self.reader.poll(max(0.0, ends - time.monotonic())):
                os.kill(self.pid, signal.SIGKILL)
                seconds = time.monotonic() - self.began
                answer = {"error": f"{self.name} gave no answer within {seconds:.0f} s", "late": True}
            else:
                with suppress(EOFError, OSError):  # it ended before its answer, or in the middle of it
                    answer = self.reader.recv()
        end = self._end()
        return answer or {"error": f"the process that queried {self.name} {end}"}

    def _end(self) -> str:
        """Reap the process; one that hangs in the kernel is left alone after a second."""
        for _ in range(200):
            try:
                pid, code = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # the caller ignores SIGCHLD
                return "is gone"
            if pid:
                status = os.waitstatus_to_exitcode(code)
                return f"was ended by {signal_name(-status)}" if status < 0 else "gave no answer"
            time.sleep(0.005)
        return "cannot be ended"


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
    def age(self) -> float:
        """The seconds since it began, whatever the clock of the day says; 0 if that is not known."""
        if not self.began.isdecimal():
            return 0.0
        return float(Path("/proc/uptime").read_text().split()[0]) - int(self.began) / os.sysconf("SC_CLK_TCK")

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return bool(self.state)


def pids() -> Iterator[int]:
    """Return the processes of this node that can be seen."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _fields(pid: int) -> tuple[str, str]:
    """Return the state and the start time of a process (proc(5), stat), both empty if there is none."""
    if sys.platform != "linux":
        return _without_proc(pid)
    return state_and_start(pid)


def _without_proc(pid: int) -> tuple[str, str]:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "", ""
    return "S", "unknown"


def output(command: Sequence[str], seconds: float = 15.0) -> str:
    """Return the text that a command prints, nothing if it fails, is missing, or does not end in time."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
