"""A terminal of a given width: what it shows while a command runs in it, and at the end."""

from __future__ import annotations

import codecs
import copy
import fcntl
import os
import pty
import select
import shutil
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyte

ROWS = 400  # so many that nothing leaves the screen
_OTHER_SCREEN = 1049  # the private mode in which a full-screen program draws
_SETSID = shutil.which("setsid") or "/usr/bin/setsid"  # makes the terminal the command's own, so that Ctrl-C reaches it


class Cell(NamedTuple):
    """One place of the screen."""

    text: str = " "
    colour: str = "default"
    bold: bool = False


Line = tuple[Cell, ...]


class _Terminal(pyte.Screen):  # type: ignore[misc]
    """A screen that remembers which of its lines it broke."""

    def __init__(self, columns: int, lines: int) -> None:
        self.draws, self.breaks = False, set[int]()
        self.below: tuple[Any, int, int] | None = None  # what stands on the first screen while the other is shown
        super().__init__(columns, lines)

    def set_mode(self, *modes: int, **options: Any) -> None:
        super().set_mode(*modes, **options)
        if options.get("private") and _OTHER_SCREEN in modes and self.below is None:
            self.below = copy.deepcopy(self.buffer), self.cursor.y, self.cursor.x

    def reset_mode(self, *modes: int, **options: Any) -> None:
        super().reset_mode(*modes, **options)
        if options.get("private") and _OTHER_SCREEN in modes and self.below is not None:
            self.buffer, self.cursor.y, self.cursor.x = self.below
            self.below = None

    def draw(self, data: str) -> None:
        self.draws = True
        super().draw(data)
        self.draws = False

    def linefeed(self) -> None:
        if self.draws:
            self.breaks.add(self.cursor.y)
        super().linefeed()


class Result(NamedTuple):
    """What was seen: the lines at the end and at each moment asked for, without empty cells at their ends.

    ``broken``: the lines that were wider than the terminal, which broke them.
    """

    lines: list[Line]
    moments: dict[str, list[Line]]
    status: int
    broken: list[str]

    @property
    def text(self) -> list[str]:
        return plain(self.lines)


def plain(lines: Sequence[Line]) -> list[str]:
    """Return lines as text."""
    return ["".join(cell.text for cell in line) for line in lines]


def run(
    words: Sequence[str],
    columns: int,
    environment: dict[str, str],
    folder: Path,
    *,
    moments: Sequence[str] = (),
    keys: dict[str, bytes] | None = None,
    actions: dict[str, Callable[[int], object]] | None = None,
    sizes: dict[str, tuple[int, int]] | None = None,
    rows: int = ROWS,
    timeout: float = 120,
) -> Result:
    """Run a command in a terminal; a moment is the first time that the screen holds a text.

    ``keys`` are pressed, ``actions`` called with the command's pid, and the terminal gets one of ``sizes`` (columns,
    rows), at their moments.

    Raises
    ------
    TimeoutError
        If the command has not ended in time; what the screen shows is in the message.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    screen, keys, actions, sizes = _Terminal(columns, rows), keys or {}, actions or {}, sizes or {}
    moments = [*moments, *keys, *actions, *sizes]
    stream, decoder = pyte.Stream(screen), codecs.getincrementaldecoder("utf-8")("replace")
    process = subprocess.Popen([_SETSID, "--ctty", *words], stdin=theirs, stdout=theirs, stderr=theirs, env={"TERM": "xterm-256color", **environment},
                               cwd=folder)  # fmt: skip
    os.close(theirs)
    seen: dict[str, list[Line]] = {}
    end = time.monotonic() + timeout
    try:
        while data := _read(ours, end):
            for character in decoder.decode(data):  # one by one: a moment may pass within what is read at once
                stream.feed(character)
                if character in "\r\n\x1b" or not moments:
                    continue
                row = screen.buffer[screen.cursor.y]
                line = "".join(row[column].data for column in range(screen.columns))
                for moment in moments:
                    if moment not in seen and moment in line:
                        seen[moment] = _lines(screen)
                        if moment in sizes:
                            screen.resize(*sizes[moment][::-1])
                            fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", *sizes[moment][::-1], 0, 0))
                        os.write(ours, keys.get(moment, b""))
                        actions.get(moment, int)(process.pid)
        lines = _lines(screen)
        broken = [text for row, text in enumerate(plain(lines)) if row in screen.breaks]
        return Result(lines, seen, process.wait(timeout=60), broken)
    except TimeoutError as error:
        raise TimeoutError("\n".join(plain(_lines(screen)))) from error
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read(descriptor: int, end: float) -> bytes:
    if not select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
        raise TimeoutError
    try:
        return os.read(descriptor, 65536)
    except OSError:  # EIO: the other end is closed
        return b""


def _lines(screen: Any) -> list[Line]:
    lines = []
    for row in range(screen.lines):
        cells = [screen.buffer[row][column] for column in range(screen.columns)]
        while cells and cells[-1].data == " ":
            cells.pop()
        lines.append(tuple(Cell(cell.data, cell.fg, cell.bold) for cell in cells))
    while lines and not lines[-1]:
        lines.pop()
    return lines
