"""Show a run's phases while the user waits: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TextIO

from hpcml import attempt_history, kinds, safe_files
from hpcml.failures.end import Reason
from hpcml.kind import Stage
from hpcml.paths import RunPaths
from hpcml.run_files import Recorded
from hpcml.runs import directories
from hpcml.runs.status import NO_CLUSTER, Status, later_stage, optional_stages
from hpcml.states import Phase
from hpcml.terminal import Raw, cells, columns, fit, fitted, has_colour, say, shown
from hpcml.units import format_seconds

_SCRIPT = "script"
_MARKS = {"ok": ("✓", "32"), "bad": ("✗", "31"), "wait": ("·", "1")}  # bold: yellow cannot be read on white


class Tail:
    """Pass on a growing file as it comes, byte for byte but for a terminal (:class:`hpcml.terminal.Raw`).

    ``before`` is written before the first of it; ``clear`` is called before each piece, to clear away what is on the
    terminal's line. ``of_user``: the output is that of the script, which passes unchanged on a terminal too.
    """

    def __init__(
        self,
        path: Path,
        stream: TextIO,
        before: str = "",
        clear: Callable[[], None] = lambda: None,
        *,
        of_user: bool = False,
    ) -> None:
        self.path, self.stream, self.before, self.clear = path, stream, before, clear
        self.raw = Raw(stream, of_user=of_user)
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
        """Write what is new, so many bytes at most; return True if there was something.

        That the reader of this output has gone is no fault of the file, whose faults are a StorageError.
        """
        with directories.storage(self.path):
            try:
                with open(safe_files.open_regular(self.path), "rb") as file:
                    file.seek(self.position)
                    data = file.read(min(most, 1 << 20))
            except FileNotFoundError:
                return False
        if data:
            self.position += len(data)
            self.clear()
            self.stream.write(self.before)
            self.before = ""
            self.raw.write(data)
            self.line_is_open = not data.endswith(b"\n")
        return bool(data)


class _Line(NamedTuple):
    """A line about a run, shown once; ``event`` and ``begin`` name the events that end and begin what took its time."""

    mark: str
    role: str
    text: str
    event: str = ""
    begin: str = ""


def _past(status: Status) -> list[_Line]:
    """Return the ended phases and notes of a run, but for its own end."""
    nodes, reported, cluster = status.allocation.nodes, status.progress, status.cluster
    nodes = nodes if len(nodes) <= 8 else (*nodes[:4], f"… {len(nodes)} nodes in all")
    form = status.planned.form
    script = f"{form.traits.title} {'starts' if form.traits.web_service else 'runs'}"
    first, *others = kinds.get(status.planned.kind).startup
    runtime = "image" if status.planned.in_image else "python"
    is_open = "; open to all users" in cluster.security
    lines = [
        _Line("ok", "image", f"copied to the nodes by {reported.staging}", "image-staged", "image-staging"),
        _Line("ok", "nodes", ", ".join(nodes), "allocated", "seen"),
        *([_Line("ok", "processes", "started before the run", "allocated")] if reported.ahead else []),
        *([_Line("wait", "processes", f"restart: {reported.not_ahead}", "allocated")] if reported.not_ahead else []),
        _Line("wait", "cluster", f"not started: {NO_CLUSTER}", "cluster-waits"),
        _stage_line(status, first),
        *([_Line("wait", "security", cluster.security, first.end)] if is_open else []),
        _Line("ok", runtime, reported.versions, "environment-ready", "allocated"),
        *(_stage_line(status, stage) for stage in others),
        *(_Line("bad", "differ", difference) for difference in reported.differences),
        *(_Line("bad", "warning", warning) for warning in reported.warnings),
        _Line("ok", _SCRIPT, script, "script-started"),
        *(_Line("ok", "service", line.sentence) for line in reported.services if line.ready and line.is_special),
    ]
    begun = status.alone or first.end in reported.times
    over = reported.times if begun else reported.times.keys() - {"environment-ready"}
    return [line for line in lines if not line.event or line.event in over]


def _stage_line(status: Status, stage: Stage) -> _Line:
    """Return the line of a stage of the startup that has ended; all but the optional ones are timed from the start."""
    fields = status.fields()
    mark = "bad" if stage.good and not fields[stage.good] else "ok"
    return _Line(
        mark, stage.name, stage.done.format_map(fields), stage.end, stage.begin if stage.asked else "allocated"
    )


def _present(status: Status) -> tuple[str, str] | None:
    """Return the role and the text of the phase that is going on, if there is something to say."""
    if status.phase == Phase.QUEUED:
        estimate = f", start expected at {status.allocation.estimate}" if status.allocation.estimate else ""
        job = f"job {status.allocation.job}: " if status.allocation.job else ""
        return "queued", f"{job}{status.message}{estimate}"
    kind = kinds.get(status.planned.kind)
    if status.phase == Phase.STARTING and status.alone and "allocated" in status.progress.times:
        return _SCRIPT, status.message
    if status.phase == Phase.STARTING and kind.ready in status.progress.times:
        return next(((stage.name, status.message) for stage in optional_stages(status)), None)
    if status.phase == Phase.STARTING and (stage := later_stage(status)):
        return stage.name, stage.short.format_map(status.fields())
    if status.phase == Phase.STARTING:
        in_stage = "allocated" in status.progress.times or not status.progress.staging
        return kind.startup[0].name if in_stage else "image", status.message
    if status.phase == Phase.RUNNING and status.cluster.workers < status.planned.expected and not status.alone:
        return _SCRIPT, status.message
    return None


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
        self.colour = self.live and has_colour(environment)
        self.shown: set[str] = set()
        self.attempt = 0
        self.line = self.drawn = ""  # the text that goes on changing, and as much of it as the terminal shows
        self.columns = 0
        self.folds = not environment.get("XTERM_VERSION")  # xterm alone cuts its lines when it becomes narrower
        self.since = time.time()

    def show(self, status: Status) -> None:
        """Show a new status: the phases that are over as lines of their own, the present one live."""
        self.show_past(status)
        present = _present(status)
        if status.phase == Phase.ENDED:
            mark, text = "ok" if status.exit_status == 0 else "bad", status.message
            if status.ending.reason != Reason.EXIT:
                text += f" (status {status.exit_status})"
            self._once("end", _Line(mark, "ended", text, "script-ended", "script-started"), status.progress.times)
        elif present and status.phase == Phase.RUNNING:  # the script writes now: no line may stay open beside its own
            self._once(f"now {present}", _Line("wait", *present))
        elif present:
            self._now(*present)
        elif status.hint and status.phase == Phase.RUNNING:
            self._once("hint", _Line("wait", _SCRIPT, status.hint))

    def show_past(self, status: Status) -> None:
        """Show the phases that are over; a run's own end is not among them."""
        if status.progress.attempt != self.attempt:  # Slurm has started the job again: its phases come anew
            self.attempt, self.since = status.progress.attempt, time.time()
            self.shown.clear()
            before = attempt_history.one(Recorded(RunPaths(Path(status.directory))), self.attempt - 1)
            self._once("before", _Line("wait", "before", attempt_history.sentence(before)))
            self._once("attempt", _Line("wait", "attempt", f"{self.attempt} of this run (the first is 0)"))
        for line in _past(status):
            self._once(f"{line.role} {line.event or line.text}", line, {"seen": self.since, **status.progress.times})

    def _once(self, key: str, line: _Line, times: Mapping[str, float] | None = None) -> None:
        if key in self.shown:
            return
        self.shown.add(key)
        self.clear()
        sign, colour = _MARKS[line.mark]
        times = times or {}
        timed = line.begin in times and line.event in times
        took = format_seconds(max(0.0, times[line.event] - times[line.begin])) if timed else ""
        first, *rest = fitted(
            line.text, columns(self.stream), first=f"{sign} {line.role:<10} ", rest=" " * 13, last=took
        )
        self.stream.write(f"\x1b[{colour}m{sign}\x1b[0m" if self.colour else sign)
        for text in (first.removeprefix(sign), *rest):
            say(text, self.stream)

    def _now(self, role: str, words: str) -> None:
        text = shown(f"{_MARKS['wait'][0]} {role:<10} {words}")
        if text == self.line:
            return
        self.clear()
        self.line = text
        if self.live:
            self._draw()
        elif text not in self.shown:  # in a file it still stands above
            self.shown.add(text)
            say(text, self.stream)

    def _draw(self) -> None:
        self.columns = columns(self.stream, 80)
        self.drawn = fit(self.line, self.columns - 1)  # less than a line, so that the terminal does not break it
        self.stream.write(self.drawn)
        self.stream.flush()

    def fit(self) -> None:
        """Draw the changing line again if the terminal has another width now."""
        if self.live and self.line and columns(self.stream, 80) != self.columns:
            line = self.line
            self._clear_changing()
            self.line = line
            self._draw()

    def clear(self) -> None:
        """Take the changing line away, and end the line that the script's output has left open."""
        self._clear_changing()
        if self.output and self.output.line_is_open:
            self.stream.write("\n")
            self.stream.flush()
            self.output.line_is_open = False

    def _clear_changing(self) -> None:
        if self.live and self.line:
            above = (cells(self.drawn) - 1) // columns(self.stream, 80) if self.folds else 0
            self.stream.write(f"\x1b[{above}A\r\x1b[J" if above > 0 else "\r\x1b[K")
        self.stream.flush()
        self.line = ""


def _may_meet(out: TextIO, err: TextIO) -> bool:
    """Whether two streams may end up on one screen or in one file, as far as can be known."""
    try:
        one, other = os.fstat(out.fileno()), os.fstat(err.fileno())
    except (OSError, ValueError):
        return False
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino):
        return True
    kinds = {(stream.isatty(), stat.S_IFMT(stat_result.st_mode)) for stream, stat_result in ((out, one), (err, other))}
    return len(kinds) == 1 and not stat.S_ISREG(one.st_mode)  # two terminals, or two pipes to the same reader


def phases(status: Status) -> list[tuple[str, str]]:
    """Return the time that each phase took, from its events."""
    names = (
        ("staging", "image-staging", "image-staged"),
        ("image" if status.planned.in_image else "versions", "allocated", "environment-ready"),
        *((stage.name, stage.begin, stage.end) for stage in kinds.get(status.planned.kind).startup),
        (_SCRIPT, "script-started", "script-ended"),
        ("teardown", "script-ended", "torn-down"),
    )
    times = status.progress.times
    return [
        ("phase", f"{name:<10} {format_seconds(times[end] - times[begin])}")
        for name, begin, end in names
        if begin in times and end in times
    ]
