"""The only place outside the allocation that starts processes: argument lists, with a deadline, answers kept whole."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_KEPT = 65536  # bytes of a streamed command's output that its answer holds
_GRACE = 15.0  # seconds that a command which is asked to end has, before the next and harder signal


@dataclass(frozen=True, slots=True)
class Answer:
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


def run(command: Sequence[str], environment: Mapping[str, str], timeout: float) -> Answer:
    """Run a command and return its answer.

    Raises
    ------
    CommandMissingError
        If the program cannot be started.
    """
    try:
        done = subprocess.run(
            command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as late:
        return Answer(None, _text(late.stdout), _text(late.stderr))
    except OSError as error:
        raise CommandMissingError(f"{command[0]}: {error.strerror}") from error
    return Answer(done.returncode, _text(done.stdout), _text(done.stderr))


def stream(
    command: Sequence[str], environment: Mapping[str, str], timeout: float, sink: Callable[[bytes], None]
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
    try:
        process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise CommandMissingError(f"{command[0]}: {error.strerror}") from error
    assert process.stdout is not None
    end, kept, code = time.monotonic() + timeout, b"", None
    try:
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
        if process.returncode is None:
            _end_group(process)
    return Answer(code, _text(kept), "")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started; those that do not go when asked are killed.

    The first signal is Ctrl-C's: programs that clean up do it for that one.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):  # it went by itself
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the next signal is for that
            process.wait(_GRACE)


def _text(data: bytes | str | None) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""


def start_in_background(command: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
    """Start a command in a session of its own, so that it outlives this process; return its pid.

    Raises
    ------
    CommandMissingError
        If the program cannot be started.
    """
    with log.open("ab") as out:
        try:
            process = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
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
