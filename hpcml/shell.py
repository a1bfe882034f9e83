"""The only place outside the allocation that starts processes: argument lists, with a deadline, answers kept whole."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


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
