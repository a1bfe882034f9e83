"""The only place outside the allocation that starts processes: argument lists, with a deadline, answers kept whole.

The caller of each function that starts one says who names the ``program``; one that a project's file or a script's line
names is refused (:meth:`hpcml.config_trust.Named.check`). Only jobs start those, and the run on the local site.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import select
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, cast

from hpcml import safe_files
from hpcml.config_trust import Named

NOWHERE, PIPE = subprocess.DEVNULL, subprocess.PIPE  # where a child's standard output goes
_HAS_PROC = Path("/proc/self").exists()  # macOS has none
_MOST = 64 << 20  # bytes that a command may answer
_KEPT = 65536  # bytes of a long command's output that its answer, or its errors, hold
_GRACE = 15.0  # seconds that a command which is asked to end has, before the next and harder signal
_ORPHANS = 2.0  # seconds that what it started has, once it has ended itself
_LAST_WORDS = 5.0  # seconds for what is still to be read when a command has ended


class Answer(NamedTuple):
    """What a command said; ``code`` is None when it did not end within its deadline."""

    code: int | None
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both streams, the errors last."""
        return f"{self.out}{self.err}".strip()


class CommandMissingError(Exception):
    """The program is not on PATH or may not be executed; every function here that starts one raises it."""


class SilentError(Exception):
    """A child that was waited for has not said or taken anything for too long, and was ended."""


@contextlib.contextmanager
def _starting(command: Sequence[str], program: Named) -> Iterator[None]:
    program.check(command[0])
    try:
        yield
    except OSError as error:
        raise CommandMissingError(f"{command[0]}: {error.strerror}") from error


def run(
    command: Sequence[str],
    timeout: float,
    *,
    program: Named,
    data: bytes = b"",
    environment: Mapping[str, str] | None = None,
    umask: int = -1,
    apart: bool = False,
) -> Answer:
    """Run a command with ``data`` as its input and return its answer.

    One that does not end in time, or answers more than any command here does, is killed. Without an ``environment`` or
    a ``umask`` it has this process's. ``apart``: it is in a session of its own, so that the terminal's Ctrl-C reaches
    this process alone, which decides what it means.
    """
    end = time.monotonic() + timeout
    with _starting(command, program):
        process = subprocess.Popen(
            command,
            env=environment,
            umask=umask,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=apart,
        )
    with process:
        try:
            (out, err), whole = _exchange(process, data, end)
            if whole:
                with contextlib.suppress(subprocess.TimeoutExpired):  # then it is killed below, and has no status
                    process.wait(max(0.0, end - time.monotonic()))
        finally:
            code = process.returncode
            if code is None and apart:  # no Ctrl-C reaches what a wrapper has started
                _signal_group(process.pid, signal.SIGKILL)
            if code is None:
                process.kill()
    return Answer(code, out.decode(errors="replace"), err.decode(errors="replace"))


def _exchange(process: subprocess.Popen[bytes], data: bytes, end: float) -> tuple[tuple[bytes, bytes], bool]:
    """Write a command's input and read its output and errors; return them, and whether they ended in time."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    pieces: dict[int, list[bytes]] = {process.stdout.fileno(): [], process.stderr.fileno(): []}
    rest, room = memoryview(data), _MOST
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        for stream in pieces:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and room > 0 and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if key.fileobj is process.stdin:
                    try:
                        rest = rest[os.write(process.stdin.fileno(), rest) if rest else 0 :]
                    except BlockingIOError:
                        continue
                    except OSError:  # it does not read its input
                        rest = rest[:0]
                    if not rest:
                        selector.unregister(process.stdin)
                        with contextlib.suppress(OSError):
                            process.stdin.close()
                elif piece := os.read(key.fd, 65536):
                    pieces[key.fd].append(piece)
                    room -= len(piece)
                else:
                    selector.unregister(key.fd)
        whole = not selector.get_map()
    out, err = (b"".join(parts) for parts in pieces.values())
    return (out, err), whole


def stream(
    command: Sequence[str],
    timeout: float,
    sink: Callable[[bytes], None],
    *,
    program: Named,
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """Run a command and hand on what it says to ``sink``, both streams as one, while it says it; return its end.

    If the deadline passes, or this process is interrupted, the command and what it started are ended.
    """
    end, kept, code = time.monotonic() + timeout, b"", None
    process: subprocess.Popen[bytes] | None = None
    try:
        with signals_held() as signals, _starting(command, program):
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        for number in signals:
            signal.raise_signal(number)
        assert process.stdout is not None
        with process.stdout as out, selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while (left := end - time.monotonic()) > 0:
                if selector.select(left):
                    piece = os.read(out.fileno(), 65536)
                    if not piece:
                        break
                    sink(piece)
                    kept = (kept + piece)[-_KEPT:]
        with contextlib.suppress(subprocess.TimeoutExpired):  # then code stays None, which says so
            code = process.wait(max(0.0, end - time.monotonic()))
    finally:
        if process is not None and process.stdout is not None:
            if process.returncode is None:
                _end_group(process)
            process.stdout.close()
    return Answer(code, kept.decode(errors="replace"), "")


@contextlib.contextmanager
def signals_held(*, second_counts: bool = False) -> Iterator[list[int]]:
    """Keep signals whose handlers may raise for later, so that none comes while something starts that nobody could end.

    Gives the list of those that came. Ignored and default ones stay as they are: a new process inherits them.
    ``second_counts``: the second signal of a number is handled at once, where the first may have to wait for seconds.
    """
    signals: list[int] = []
    before: dict[int, Any] = {}

    def keep(number: int, frame: FrameType | None) -> None:
        again = number in signals
        signals.append(number)
        if second_counts and again and callable(handler := before[number]):
            handler(number, frame)

    held: list[int] = [sig for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if callable(signal.getsignal(sig))]
    if threading.current_thread() is not threading.main_thread():  # handlers run in, and are set by, the main one
        held = []
    before.update((number, signal.signal(number, keep)) for number in held)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_group(
    process: subprocess.Popen[bytes],
    numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL),
    grace: float = _GRACE,
) -> None:
    """End a process and all that it started; those that do not go when asked are killed.

    The first signal is Ctrl-C's: programs that clean up do it for that one.
    """
    for number in numbers:
        if not _signal_group(process.pid, number):
            break
        with contextlib.suppress(subprocess.TimeoutExpired):  # the next signal is for that
            process.wait(grace)
            deadline = time.monotonic() + _ORPHANS
            left = _living(process.pid)  # what it started cleans up too
            while left and time.monotonic() < deadline:
                time.sleep(0.02)
                left = [pid for pid in left if start_time(pid)] or _living(process.pid)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group, 0 for none; return True if a process is left in it that we may signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _living(group: int) -> list[int]:
    """Return the processes of a group that have not ended; without /proc the group itself, while any is left.

    One that has ended stays in its group until it is collected. In a container perhaps nobody does that.
    """
    if not _signal_group(group, 0):
        return []
    return [pid for pid, its_group, _ in _living_processes() if its_group == group] if _HAS_PROC else [group]


def session(leader: int) -> list[int]:
    """Return the processes of a session that have not ended; without /proc only the leader is known."""
    return [pid for pid, _, its_session in _living_processes() if its_session == leader] if _HAS_PROC else [leader]


def _living_processes() -> Iterator[tuple[int, int, int]]:
    """Return the processes of this machine that have not ended, each with its group and session."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it went meanwhile
            state, _, group, its_session = path.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if state not in "ZX":
                yield int(path.parent.name), int(group), int(its_session)


class _WakingPipe(io.RawIOBase):
    """A pipe whose reader wakes each second: a Ctrl-C in the moment before a read would wait for the other side.

    It ends when its last writer has closed it, or after :attr:`patience` seconds without a byte.
    """

    def __init__(self, pipe: io.FileIO) -> None:
        self.pipe = pipe
        self.patience = math.inf
        self.poll = select.poll()
        self.poll.register(pipe, select.POLLIN)

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.pipe.fileno()

    def readinto(self, buffer: Any) -> int | None:
        silent = 0
        while not self.poll.poll(1000):
            silent += 1
            if silent >= self.patience:
                return 0
        return self.pipe.readinto(buffer)

    def close(self) -> None:
        self.pipe.close()
        super().close()


class Child:
    """A command that runs beside this process, in a session of its own: what it says as it comes, and its end.

    Its input is a pipe that ends with this process, so that the other side of an ssh connection sees that we are gone;
    the terminal's Ctrl-C does not reach it.

    Parameters
    ----------
    hear
        Called, in a thread, with each piece of standard error, and with none at its end; where it returns True the
        command is ended. Without it :attr:`errors` holds the last of them.
    out
        Where its standard output goes: NOWHERE, or PIPE, to read it from :attr:`out`.
    """

    def __init__(
        self,
        command: Sequence[str],
        hear: Callable[[bytes], bool] | None = None,
        out: int = NOWHERE,
        *,
        program: Named,
    ) -> None:
        with _starting(command, program):
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        self.errors = ""
        pipe = cast("io.FileIO | None", self.process.stdout)
        self._pipe = _WakingPipe(pipe) if pipe else None
        self.out: io.BufferedReader | None = io.BufferedReader(self._pipe) if self._pipe else None
        self._stopped = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(hear or self._keep,), daemon=True)
        self._reader.start()

    def _keep(self, piece: bytes) -> bool:
        self.errors = (self.errors + piece.decode(errors="replace"))[-_KEPT:]
        return False

    def _read(self, hear: Callable[[bytes], bool]) -> None:
        assert self.process.stderr is not None
        # Closed here: stop() does not wait for a hearer that is slow.
        with _WakingPipe(cast("io.FileIO", self.process.stderr)) as pipe:
            piece = b"first"
            while piece:
                while not pipe.poll.poll(1000):
                    if self._stopped.is_set():  # what it started has its standard error still
                        return
                piece = os.read(pipe.fileno(), 1 << 18)
                if hear(piece):
                    _end_group(self.process, (signal.SIGTERM, signal.SIGKILL), 2.0)
                    return

    @property
    def code(self) -> int | None:
        """The exit status, None while it runs."""
        return self.process.poll()

    def wait(self, seconds: float | None) -> int | None:
        """Wait so many seconds, or until it ends and all that it said is heard; return the exit status, None before."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
            self._reader.join(_LAST_WORDS)
        return self.process.returncode

    def write(self, data: bytes) -> None:
        """Send input; OSError or ValueError if it does not read any more."""
        assert self.process.stdin is not None
        rest = memoryview(data)
        while rest:  # a signal may cut a write short
            rest = rest[os.write(self.process.stdin.fileno(), rest) :]

    def kill(self) -> None:
        """End it and all that it started: by SIGTERM, after 2 s by SIGKILL; a read or write that waits for it ends."""
        if self.code is None:
            _end_group(self.process, (signal.SIGTERM, signal.SIGKILL), 2.0)

    @contextlib.contextmanager
    def patience(self, seconds: float) -> Iterator[Callable[[], None]]:
        """Yield the function to call with each sign of life; a silence of so many seconds in the block ends the child.

        Raises
        ------
        SilentError
            At the end of the block, if that was so.
        """
        over, last, late = threading.Event(), [time.monotonic()], threading.Event()

        def watch() -> None:
            while not over.wait(min(seconds / 4, 1.0)):
                if time.monotonic() - last[0] > seconds:
                    late.set()
                    self.kill()
                    return

        def heard() -> None:
            last[0] = time.monotonic()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield heard
        finally:
            over.set()
            watcher.join()
            if late.is_set():
                raise SilentError

    def expect_end(self, seconds: float) -> None:
        """Take the output for ended after so many seconds without a byte, though somebody else may hold it open."""
        if self._pipe is not None:
            self._pipe.patience = seconds

    def hang_up(self) -> None:
        """End its input."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.close()

    def stop(self) -> None:
        """End it and all that it started: by the end of its input and SIGTERM, after 2 s by SIGKILL."""
        self.hang_up()
        self.kill()
        self.expect_end(0.0)
        self._stopped.set()
        self._reader.join(_LAST_WORDS)
        if self.out is not None:
            self.out.close()


def start_in_background(
    command: Sequence[str],
    log: Path,
    *,
    program: Named,
    environment: Mapping[str, str] | None = None,
    stdin: int = NOWHERE,
    blocked: Collection[int] = (),
) -> int:
    """Start a command in a session of its own, so that it outlives this process; return its pid.

    Signals that are ``blocked`` wait until the command lets them in.
    """
    with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as out, _starting(command, program):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=stdin, stdout=out, stderr=out, start_new_session=True
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    process.returncode = 0  # it is not this process's to wait for: no warning when the object goes
    return process.pid


def lifeline() -> int:
    """Return the end of a pipe to read from that ends with this process, in whatever way; no child has the other."""
    reading, _ = os.pipe()
    return reading


def interactive(command: Sequence[str], *, program: Named) -> int:
    """Run a command on this process's own terminal, so that it can ask the user; return its exit status."""
    with _starting(command, program):
        return subprocess.run(command, check=False).returncode


def become(command: Sequence[str], environment: Mapping[str, str], *, program: Named) -> None:
    """Replace this process by a command: input, output, signals and exit status are then its own."""
    with _starting(command, program):
        os.execvpe(command[0], list(command), dict(environment))  # noqa: S606 - no shell is meant


def start_time(pid: int) -> str:
    """Return a process's start time as the system counts it, or nothing if there is no such process.

    With the pid it names a process for good: a pid alone may be used again. A system without /proc (macOS) only says
    ``alive``.
    """
    if not _HAS_PROC:
        return "alive" if signal_process(pid, 0) else ""
    state, began = safe_files.state_and_start(pid)
    return "" if state in ("", "Z", "X") else began


def signal_process(pid: int, number: int) -> bool:
    """Send a signal; return False if there is no such process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
