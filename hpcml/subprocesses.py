"""The only place outside the allocation that starts processes: argument lists, with a deadline, answers kept whole."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_MOST = 64 << 20  # bytes that a command may answer
_LONGEST_LINE = 4 << 20  # bytes of a line of a command that speaks in lines
_AT_ONCE = 1 << 20  # bytes that are read before what they say is looked at
_KEPT = 65536  # bytes of a streamed command's output that its answer holds
_GRACE = 15.0  # seconds that a command which is asked to end has, before the next and harder signal
_ORPHANS = 2.0  # seconds that what it started has, once it has ended itself


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
    """The program is not on PATH or may not be executed."""


def run(
    command: Sequence[str], timeout: float, *, data: bytes = b"", environment: Mapping[str, str] | None = None
) -> Answer:
    """Run a command with ``data`` as its input and return its answer.

    One that does not end in time, or answers more than any command here does, is killed.

    Raises
    ------
    CommandMissingError
        If the program cannot be started.
    """
    end = time.monotonic() + timeout
    try:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise CommandMissingError(f"{command[0]}: {error.strerror}") from error
    with process:
        try:
            said, whole = _exchange(process, data, end)
            if whole:
                with contextlib.suppress(subprocess.TimeoutExpired):  # then it is killed below, and has no status
                    process.wait(max(0.0, end - time.monotonic()))
        finally:
            code = process.returncode
            if code is None:
                process.kill()
    return Answer(code, _text(said[0]), _text(said[1]))


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
    environment: Mapping[str, str] | None = None,
) -> Answer:
    """Run a command and hand on what it says, both streams as one, while it says it; return the end of that.

    If the deadline passes, or this process is interrupted, the command and what it started are ended.

    Parameters
    ----------
    timeout
        Seconds for the whole command.
    sink
        Called with each piece of output.

    Raises
    ------
    CommandMissingError
        If the program cannot be started.
    """
    end, kept, code = time.monotonic() + timeout, b"", None
    process: subprocess.Popen[bytes] | None = None
    try:
        with _signals_held() as came:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        for number in came:
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
    except OSError as error:
        if process is not None:
            raise
        raise CommandMissingError(f"{command[0]}: {error.strerror}") from error
    finally:
        if process is not None and process.stdout is not None:
            if process.returncode is None:
                _end_group(process)
            process.stdout.close()
    return Answer(code, _text(kept), "")


@contextlib.contextmanager
def _signals_held() -> Iterator[list[int]]:
    """Keep signals whose handlers may raise for later, so that none comes while a process starts that nobody could end.

    Gives the list of those that came. Ignored and default ones stay as they are: the new process inherits them.
    """
    came: list[int] = []
    held = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if callable(signal.getsignal(number))]
    if threading.current_thread() is not threading.main_thread():  # handlers run in, and are set by, the main one
        held = []
    before = {number: signal.signal(number, lambda caught, _: came.append(caught)) for number in held}
    try:
        yield came
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
            while _signal_group(process.pid, 0) and time.monotonic() < deadline:  # what it started cleans up too
                time.sleep(0.02)


def _signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group, 0 for none; return whether any process is left in it that we may signal."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _text(data: bytes | str | None) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""


def start_in_background(command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None) -> int:
    """Start a command in a session of its own, so that it outlives this process; return its pid.

    Raises
    ------
    CommandMissingError
        If the program cannot be started.
    """
    with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        except OSError as error:
            raise CommandMissingError(f"{command[0]}: {error.strerror}") from error
    process.returncode = 0  # it is not this process's to wait for: no warning when the object goes
    return process.pid


def start_time(pid: int) -> str:
    """Return a process's start time as the system counts it, or nothing if there is no such process.

    With the pid it names a process for good: a pid alone may be used again. A system without /proc (macOS) only says
    ``alive``.
    """
    if not Path("/proc/self").exists():
        return "alive" if signal_process(pid, 0) else ""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def signal_process(pid: int, number: int) -> bool:
    """Send a signal; return False if there is no such process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def interactive(command: Sequence[str]) -> int:
    """Run a command on this process's own terminal, so that it can ask the user; return its exit status.

    Raises
    ------
    CommandMissingError
        If the program cannot be started.
    """
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as error:
        raise CommandMissingError(f"{command[0]}: {error.strerror}") from error


class Child:
    """A command that runs beside this process, in a session of its own: its lines as they come, and its end.

    Its input is a pipe that ends with this process, so that the other side of an ssh connection sees that we are gone.

    Raises
    ------
    CommandMissingError
        If the program cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        try:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise CommandMissingError(f"{command[0]}: {error.strerror}") from error
        self.errors, self._rest = "", b""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.streams = {self.process.stderr.fileno(), self.process.stdout.fileno()}
        for stream in self.streams:
            os.set_blocking(stream, False)

    @property
    def code(self) -> int | None:
        """The exit status, None while it runs."""
        return self.process.poll()

    def lines(self) -> list[str]:
        """Return the whole lines that have come since the last call, and keep what it says of errors."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        if self.process.stderr.closed:
            return []
        self.errors = (self.errors + _text(self._drain(self.process.stderr.fileno())))[-_KEPT:]
        data = self._drain(self.process.stdout.fileno())
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest, self.errors = b"", f"{self.errors}\na line of more than {_LONGEST_LINE} bytes"
            self.process.kill()
        return [_text(line) for line in whole]

    def _drain(self, stream: int) -> bytes:
        pieces: list[bytes] = []
        while stream in self.streams and sum(map(len, pieces)) < _AT_ONCE:
            try:
                piece = os.read(stream, 65536)
            except BlockingIOError:
                break
            if not piece:
                self.streams.discard(stream)
            pieces.append(piece)
        return b"".join(pieces)

    def end(self, grace: float = 2.0) -> None:
        """End it and all that it started: by the end of its input and SIGTERM, after ``grace`` seconds by SIGKILL."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(grace)
        self.lines()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self.streams = set()


def converse(command: Sequence[str], *, capture: bool) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, to talk with it: by pipes for input and errors, and output if asked.

    Else its output is this process's own. The terminal's Ctrl-C does not reach it; the end of its input does.

    Raises
    ------
    CommandMissingError
        If the program cannot be started.
    """
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if capture else None,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        raise CommandMissingError(f"{command[0]}: {error.strerror}") from error


def ended(process: subprocess.Popen[bytes], seconds: float | None) -> int | None:
    """Wait for a process, so many seconds or until it ends; return its exit status, None if it has not ended."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that :func:`converse` started, if it has not; its pipes are the caller's to close."""
    if process.poll() is None:
        _end_group(process, (signal.SIGTERM, signal.SIGKILL), 2.0)


def wait(children: Sequence[Child], timeout: float) -> None:
    """Wait until one of the children says something or ends, at most ``timeout`` seconds; keep what they said."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            for stream in child.streams:
                selector.register(stream, selectors.EVENT_READ)
        if not selector.get_map():
            time.sleep(min(timeout, 0.05))
            return
        selector.select(timeout)


def become(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Replace this process by a command: input, output, signals and exit status are then its own.

    Raises
    ------
    CommandMissingError
        If the program cannot be started.
    """
    try:
        os.execvpe(command[0], list(command), dict(environment))  # noqa: S606 - no shell is meant
    except OSError as error:
        raise CommandMissingError(f"{command[0]}: {error.strerror}") from error
