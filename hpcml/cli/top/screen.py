"""The terminal while ``hpcml top`` has it: one write for each frame, keys, and all as it was at the end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from hpcml.cli.top.frame import text_of
from hpcml.cli.top.table import Line
from hpcml.terminal import cells

# The other screen, the cursor hidden, long lines not broken; and back. A terminal passes over what it does not know.
_BEGIN, _END = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J", "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOLD, _SHOW = "\x1b[?2026h", "\x1b[?2026l"  # what is between appears at once
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32"}
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class QuitError(Exception):
    """The user has pressed q."""


def painted(line: Line, *, colour: bool) -> str:
    """Return a line as a terminal takes it."""
    if not colour:
        return text_of(line)
    return "".join(
        f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text and style in _STYLES else text for text, style in line
    )


def has_colour(environment: Mapping[str, str]) -> bool:
    """Whether the user's terminal has colours and they are wanted."""
    return environment.get("TERM", "dumb") != "dumb" and not environment.get("NO_COLOR")


class Screen:
    """Standard output as a screen that is drawn again and again.

    Only lines that have changed are written. Ctrl-Z gives the terminal back and takes it again afterwards; SIGTERM and
    SIGHUP end as Ctrl-C does.
    """

    def __init__(self, *, colour: bool) -> None:
        self.colour = colour
        self.output = sys.stdout.fileno()
        self.keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self.reads_keys = self.keys is not None
        self._drawn: list[str] = []
        self._size = (0, 0)
        self._modes: list[Any] | None = None
        self._writes = self._stop_asked = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Take the terminal, and give it back in whatever way this ends."""
        handlers = {number: signal.signal(number, signal.default_int_handler) for number in _SIGNALS}
        handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._asked_to_stop)
        handlers[signal.SIGCONT] = signal.signal(signal.SIGCONT, self._continued)
        try:
            self._take()
            yield
        finally:
            self._give_back()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def size(self) -> tuple[int, int]:
        """Return the terminal's columns and lines."""
        try:
            columns, lines = os.get_terminal_size(self.output)
        except OSError:
            return 80, 24
        return columns or 80, lines or 24

    @property
    def resized(self) -> bool:
        """Whether the terminal has another size than what stands on it."""
        return self.size() != self._size

    def draw(self, frame: Callable[[int, int], Sequence[Line]]) -> None:
        """Draw what ``frame`` makes for the terminal's columns and lines."""
        size = self.size()
        lines = frame(*size)
        painted_lines = [painted(line, colour=self.colour) for line in lines]
        parts = []
        if size != self._size:
            self._size, self._drawn = size, []
            parts.append("\x1b[H\x1b[2J")
        for row, text in enumerate(painted_lines):
            if row >= len(self._drawn) or self._drawn[row] != text:
                # A full line is not erased behind its end, which is its last character on some terminals.
                rest = "\x1b[K" if cells(text_of(lines[row])) < size[0] else ""
                parts.append(f"\x1b[{row + 1}H{text}{rest}")
        if len(painted_lines) < len(self._drawn):
            parts.append(f"\x1b[{len(painted_lines) + 1}H\x1b[J")
        self._drawn = painted_lines
        if parts:
            self._write(f"{_HOLD}{''.join(parts)}{_SHOW}")

    def poll(self, seconds: float = 0.0) -> None:
        """Take in the keys that were pressed, or wait for one so long; raise :class:`QuitError` for q."""
        if self.keys is None:
            if seconds:
                select.select([], [], [], seconds)
            return
        if select.select([self.keys], [], [], seconds)[0]:
            try:
                pressed = os.read(self.keys, 64)
            except OSError:
                pressed = b""
            if not pressed:  # there is nobody at the keys any more
                self.keys = None
            if b"q" in pressed or b"Q" in pressed:
                raise QuitError

    # -- the terminal's own matters ----------------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        self._writes = True
        data = text.encode(errors="backslashreplace")
        try:
            while data:
                data = data[os.write(self.output, data) :]
        finally:
            self._writes = False
        if self._stop_asked:
            self._stop()

    def _take(self) -> None:
        if self.keys is not None:
            self._modes = termios.tcgetattr(self.keys)
            tty.setcbreak(self.keys, termios.TCSANOW)
        sys.stdout.flush()
        self._size = (0, 0)
        self._write(_BEGIN)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError, termios.error):  # a terminal that has gone needs nothing back
            self._write(_END)
            if self.keys is not None and self._modes is not None:
                termios.tcsetattr(self.keys, termios.TCSANOW, self._modes)
        self._modes = None

    def _asked_to_stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stop_asked = True
        if not self._writes:  # else when that is written
            self._stop()

    def _stop(self) -> None:
        """Give the terminal back, stop as the shell expects it, and take the terminal again when it goes on."""
        self._stop_asked = False
        self._give_back()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._take()

    def _continued(self, _number: int, _frame: FrameType | None) -> None:
        """Draw all anew after a stop that could not be noticed (SIGSTOP); what the shell wrote meanwhile is gone."""
        self._size = (0, 0)
