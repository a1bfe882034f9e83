"""Show a run's phases while the user waits: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import stat
import time
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from hpcml import files
from hpcml.runs import directories
from hpcml.runs.status import Status
from hpcml.terminal import Raw, say, shown
from hpcml.units import format_seconds

_MARKS = {"ok": ("✓", "32"), "bad": ("✗", "31"), "wait": ("·", "33")}


class Tail:
    """Pass on a growing file as it comes, byte for byte but for a terminal (:class:`hpcml.terminal.Raw`).

    Parameters
    ----------
    before
        Words that stand before the first of it.
    clear
        Called before each piece, to clear away what stands on the terminal's line.
    own
        Whether it is what the user's own script writes, which passes unchanged on a terminal too.
    """

    def __init__(
        self,
        path: Path,
        stream: TextIO,
        before: str = "",
        clear: Callable[[], None] = lambda: None,
        *,
        own: bool = False,
    ) -> None:
        self.path, self.stream, self.before, self.clear = path, stream, before, clear
        self.raw = Raw(stream, own=own)
        self.position = self.seen = 0
        self.line_is_open = False

    def mark(self) -> None:
        """Remember how much there is: what :meth:`copy_marked` may pass on."""
        with directories.storage(self.path):
            try:
                self.seen = self.path.stat().st_size
            except FileNotFoundError:
                self.seen = 0

    def copy_marked(self) -> None:
        """Write what was there at the last :meth:`mark`."""
        while self.position < self.seen and self.copy(self.seen - self.position):
            pass

    def copy(self, most: int = 1 << 20) -> bool:
        """Write what is new, so many bytes at most; return whether there was something.

        Raises
        ------
        StorageError
            If the file cannot be read.
        """
        with directories.storage(
            self.path
        ):  # but not what follows: that the reader of this output has gone is no fault of it
            try:
                with open(files.open_regular(self.path), "rb") as file:
                    file.seek(self.position)
                    data = file.read(min(most, 1 << 20))
            except FileNotFoundError:
                return False
        if not data:
            return False
        self.position += len(data)
        self.clear()
        self.stream.write(self.before)
        self.before = ""
        self.raw.write(data)
        self.line_is_open = not data.endswith(b"\n")
        return True


class Progress:
    """Print what happens to a stream; ``live`` keeps the present phase on one changing line.

    The script's output may go to the same place: ``output`` is its tail, whose unfinished line is ended before a line
    of this kind, and which clears the changing line before it writes.
    """

    def __init__(self, stream: TextIO, environment: Mapping[str, str], output: Tail | None = None) -> None:
        self.stream = stream
        self.output = output if output and _may_meet(output.stream, stream) else None
        if output:
            output.clear = self._clear_changing
        self.live = stream.isatty() and environment.get("TERM", "dumb") != "dumb"
        self.colour = self.live and not environment.get("NO_COLOR")
        self.shown: set[str] = set()
        self.attempt = 0
        self.line = ""
        self.since = time.time()

    def show(self, status: Status) -> None:
        """Show a new status: the phases that are over as lines of their own, the present one live."""
        self.show_past(status)
        present = self._present(status)
        if status.phase == "ended":
            self._end(status)
        elif present and status.phase == "running":  # the script writes now: no line may stay open beside its own
            self._once(f"now {present}", "wait", *present, None)
        elif present:
            self._now(*present)
        elif status.hint and status.phase == "running":
            self._once("hint", "wait", "driver", status.hint, None)

    def show_past(self, status: Status) -> None:
        """Show the phases that are over; a run's own end is not among them."""
        times = status.times
        begin = times.get("allocated")
        if status.attempt != self.attempt:  # Slurm has started the job again: its phases come anew
            self.attempt, self.since = status.attempt, time.time()
            self.shown.clear()
        if "image-staged" in times:
            took = times["image-staged"] - times["image-staging"]
            self._once("staged", "ok", "image", f"copied to the nodes by {status.staging}", took)
        if begin:
            self._show_start(status, begin)
        if "fabric-checked" in times:
            took = times["fabric-checked"] - times.get("workers-ready", times["fabric-checked"])
            self._once("fabric", "ok" if status.fabric_ok else "bad", "fabric", status.fabric, took)
        for difference in status.differences:
            self._once(difference, "bad", "differ", difference, None)
        for warning in status.warnings:
            self._once(warning, "bad", "warning", warning, None)
        if "driver-started" in times:
            started = "JupyterLab starts" if status.service == "jupyter" else "the script runs"
            self._once("driver", "ok", "driver", started, None)
        if status.jupyter:
            self._once("jupyter", "ok", "jupyter", status.jupyter, None)

    def _show_start(self, status: Status, begin: float) -> None:
        """Show what of the start is over; ``begin`` is when the nodes were there."""
        times = status.times
        self._once("nodes", "ok", "nodes", ", ".join(_short(status.nodes)), begin - self.since)
        if "scheduler-up" in times:
            words = f"up, {status.protocol}" if status.protocol else "up"
            self._once("scheduler", "ok", "scheduler", words, times["scheduler-up"] - begin)
            if "open to whoever reaches it" in status.security:
                self._once("security", "wait", "security", status.security, None)
        if "environment-ready" in times and "scheduler-up" in times:
            took = times["environment-ready"] - begin
            self._once("environment", "ok", "image" if status.in_image else "python", status.versions, took)
        if "workers-ready" in times:
            words = f"{status.expected}/{status.expected}"
            self._once("workers", "ok", "workers", words, times["workers-ready"] - begin)

    @staticmethod
    def _present(status: Status) -> tuple[str, str] | None:
        """Return the role and the words of the phase that is going on, if there is something to say."""
        if status.phase == "queued":
            estimate = f", expected at {status.estimate}" if status.estimate else ""
            return "queued", f"job {status.job}: {status.message}{estimate}"
        if status.phase == "starting" and "workers-ready" in status.times:
            checking = "fabric-checking" in status.times and "fabric-checked" not in status.times
            return ("fabric", status.message) if checking else None
        if status.phase == "starting" and "scheduler-up" in status.times:
            return "workers", f"{status.workers}/{status.expected}"
        if status.phase == "starting":
            return "scheduler" if "allocated" in status.times or not status.staging else "image", status.message
        if status.phase == "running" and status.workers < status.expected:
            return "driver", status.message
        return None

    def _end(self, status: Status) -> None:
        started, ended = status.times.get("driver-started"), status.times.get("driver-ended")
        took = ended - started if started and ended else None
        mark = "ok" if status.exit_status == 0 else "bad"
        self._once("end", mark, "ended", f"{status.message} (status {status.exit_status})", took)

    def _once(self, key: str, mark: str, role: str, text: str, seconds: float | None) -> None:
        if key in self.shown:
            return
        self.shown.add(key)
        self.clear()
        sign, colour = _MARKS[mark]
        self.stream.write(f"\x1b[{colour}m{sign}\x1b[0m" if self.colour else sign)
        took = f"  {format_seconds(max(0.0, seconds))}" if seconds is not None else ""
        say(f" {role:<10} {text}{took}", self.stream)

    def _now(self, role: str, words: str) -> None:
        text = shown(f"{_MARKS['wait'][0]} {role:<10} {words}")
        if text == self.line:
            return
        self.clear()
        if self.live:
            self.stream.write(_fitted(text, _columns(self.stream)))
            self.stream.flush()
        else:
            say(text, self.stream)
        self.line = text

    def clear(self) -> None:
        """Take the changing line away, and end the line that the script's output has left open."""
        self._clear_changing()
        if self.output and self.output.line_is_open:
            self.stream.write("\n")
            self.stream.flush()
            self.output.line_is_open = False

    def _clear_changing(self) -> None:
        if self.live and self.line:
            self.stream.write("\r\x1b[K")
        self.stream.flush()
        self.line = ""


def _may_meet(out: TextIO, err: TextIO) -> bool:
    """Whether two streams may end up on one screen or in one file, as far as can be told."""
    try:
        one, other = os.fstat(out.fileno()), os.fstat(err.fileno())
    except (OSError, ValueError):
        return False
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino):
        return True
    kinds = {(stream.isatty(), stat.S_IFMT(facts.st_mode)) for stream, facts in ((out, one), (err, other))}
    return len(kinds) == 1 and not stat.S_ISREG(one.st_mode)  # two terminals, or two pipes to the same reader


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _fitted(text: str, columns: int) -> str:
    """Return a text cut to less than a line, so that the terminal does not break it and all of it can be cleared."""
    left = columns - 2
    for position, character in enumerate(text):
        left -= 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if left < 0:
            return f"{text[:position]}…"
    return text


def _short(nodes: tuple[str, ...]) -> tuple[str, ...]:
    return nodes if len(nodes) <= 8 else (*nodes[:4], f"… {len(nodes)} in all")


def phases(status: Status) -> list[tuple[str, str]]:
    """Return how long each phase took, from its events."""
    names = (
        ("staging", "image-staging", "image-staged"),
        ("image" if status.in_image else "versions", "allocated", "environment-ready"),
        ("scheduler", "allocated", "scheduler-up"),
        ("workers", "scheduler-up", "workers-ready"),
        ("fabric", "workers-ready", "fabric-checked"),
        ("driver", "driver-started", "driver-ended"),
        ("teardown", "driver-ended", "torn-down"),
    )
    times = status.times
    return [
        ("phase", f"{name:<10} {format_seconds(times[end] - times[begin])}")
        for name, begin, end in names
        if begin in times and end in times
    ]
