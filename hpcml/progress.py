"""Show a run's phases while the user waits: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from hpcml.units import format_seconds
from hpcml.watch import Status

_MARKS = {"ok": ("✓", "32"), "bad": ("✗", "31"), "wait": ("·", "33")}


class Progress:
    """Print what happens to a stream; ``live`` keeps the present phase on one changing line."""

    def __init__(self, stream: TextIO, environment: Mapping[str, str]) -> None:
        self.stream = stream
        self.live = stream.isatty() and environment.get("TERM", "dumb") != "dumb"
        self.colour = self.live and not environment.get("NO_COLOR")
        self.shown: set[str] = set()
        self.line = ""
        self.since = time.time()

    def show(self, status: Status) -> None:
        """Show a new status: the phases that are over as lines of their own, the present one live."""
        self._show_past(status)
        present = self._present(status)
        if status.state == "ended":
            self._end(status)
        elif present:
            self._now(*present)
        elif status.hint and status.state == "running":
            self._once("hint", "wait", "driver", status.hint, None)

    def _show_past(self, status: Status) -> None:
        times = status.times
        begin = times.get("allocated")
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
        if "driver-started" in times:
            self._once("driver", "ok", "driver", "JupyterLab starts" if status.service else "the script runs", None)
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
        if status.state == "queued":
            estimate = f", Slurm expects a start at {status.estimate}" if status.estimate else ""
            return "queued", f"job {status.job}: {status.words}{estimate}"
        if status.state == "starting" and "workers-ready" in status.times:
            return None if "fabric-checked" in status.times else ("fabric", status.words)
        if status.state == "starting" and "scheduler-up" in status.times:
            return "workers", f"{status.workers}/{status.expected}"
        if status.state == "starting":
            return "scheduler" if "allocated" in status.times or not status.staging else "image", status.words
        if status.state == "running" and status.workers < status.expected:
            return "driver", status.words
        return None

    def _end(self, status: Status) -> None:
        started, ended = status.times.get("driver-started"), status.times.get("driver-ended")
        took = ended - started if started and ended else None
        mark = "ok" if status.exit_status == 0 else "bad"
        self._once("end", mark, "ended", f"{status.words} (status {status.exit_status})", took)

    def say(self, role: str, words: str) -> None:
        """Print a line that is not a phase."""
        self._clear()
        print(f"{'':2}{role:<10} {words}", file=self.stream, flush=True)

    def _once(self, key: str, mark: str, role: str, words: str, seconds: float | None) -> None:
        if key in self.shown:
            return
        self.shown.add(key)
        self._clear()
        sign, colour = _MARKS[mark]
        if self.colour:
            sign = f"\x1b[{colour}m{sign}\x1b[0m"
        took = f"  {format_seconds(max(0.0, seconds))}" if seconds is not None else ""
        print(f"{sign} {role:<10} {words}{took}", file=self.stream, flush=True)

    def _now(self, role: str, words: str) -> None:
        text = f"{_MARKS['wait'][0]} {role:<10} {words}"
        if text == self.line:
            return
        if self.live:
            self.stream.write(f"\r\x1b[K{text}")
            self.stream.flush()
        else:
            print(text, file=self.stream, flush=True)
        self.line = text

    def _clear(self) -> None:
        if self.live and self.line:
            self.stream.write("\r\x1b[K")
        self.line = ""

    def close(self) -> None:
        """Leave the terminal with a clean line."""
        self._clear()
        self.stream.flush()


def _short(nodes: list[str]) -> list[str]:
    return nodes if len(nodes) <= 8 else [*nodes[:4], f"… {len(nodes)} in all"]


def phases(found: Status) -> list[tuple[str, str]]:
    """Return how long each phase took, from its events."""
    names = (
        ("staging", "image-staging", "image-staged"),
        ("image" if found.in_image else "versions", "allocated", "environment-ready"),
        ("scheduler", "allocated", "scheduler-up"),
        ("workers", "scheduler-up", "workers-ready"),
        ("fabric", "workers-ready", "fabric-checked"),
        ("driver", "driver-started", "driver-ended"),
        ("teardown", "driver-ended", "torn-down"),
    )
    times = found.times
    return [
        ("phase", f"{name:<10} {format_seconds(times[end] - times[begin])}")
        for name, begin, end in names
        if begin in times and end in times
    ]


class Tail:
    """Pass on a growing file's text as it comes."""

    def __init__(self, path: Path, stream: TextIO, before: str = "") -> None:
        self.path, self.stream, self.before = path, stream, before
        self.position = 0

    def copy(self) -> bool:
        """Write what is new; return whether there was something."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.position)
                data = file.read(1 << 20)
        except FileNotFoundError:
            return False
        if not data:
            return False
        self.position += len(data)
        if self.before:
            self.stream.write(self.before)
            self.before = ""
        self.stream.write(data.decode(errors="replace"))
        self.stream.flush()
        return True
