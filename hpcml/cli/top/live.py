"""A run live: looked at again and again, and shown on the screen, as lines or as JSON."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from hpcml.cli import common
from hpcml.cli.top.frame import UNLIMITED, Line, duration, frame, per_second, text_of
from hpcml.errors import UsageError
from hpcml.sites import settings_layers
from hpcml.terminal import CODES, cells, columns, has_colour, json_text, say
from hpcml.units import format_bytes, parse_seconds

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.runs import directories
    from hpcml.runs import status as run_status
    from hpcml.runs.top_view import Node, View

_SHORTEST, _ON_A_TERMINAL, _ELSEWHERE = 0.5, 2.0, 10.0  # seconds between looks
_SILENCE = re.compile(r"(?<= a CPU for )\d+(?= s: hpcml)|(?<=no heartbeat for )\d+(?= s)")  # a new line each 30 s
_PIPE_COLUMNS = 100  # of one frame that goes to no terminal
# The other screen, the cursor hidden, long lines not broken; and back. A terminal passes over what it does not know.
_BEGIN, _END = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J", "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOLD, _SHOW = "\x1b[?2026h", "\x1b[?2026l"  # what is between appears at once
_STYLES = {"bold": "1", "dim": "2", **CODES}
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    common.add_run(parser)
    common.add_site(parser)
    common.add_json(parser, "print JSON, one line per update")
    parser.add_argument("--once", action="store_true", help="show one update")
    parser.add_argument(
        "--interval", metavar="TIME", help="time between updates, 0.5s or more (default: 2s on a terminal, else 10s)"
    )


def run(options: Namespace) -> int:
    """Show the run until it has ended, or once."""
    every = interval(options)
    run = common.find_run(options)
    if options.once:
        view = _now(run)
        if options.json:
            _print_json(view)
        else:
            print_frame(view)
        return 0
    return watch(run, options, every)


def interval(options: Namespace) -> float:
    """Return the seconds between looks; UsageError for what is none."""
    if options.interval is None:
        return _ON_A_TERMINAL if is_live(options) else _ELSEWHERE
    seconds = common.parsed(parse_seconds, options.interval, "--interval", "5s")
    if seconds < _SHORTEST:
        raise UsageError(
            f"'{options.interval}' is too short", place="--interval", hint=f"Write {_SHORTEST:g}s or more."
        )
    return seconds


def is_live(options: Namespace) -> bool:
    """Whether this terminal shows the view."""
    environment = settings_layers.process_environment()
    return not options.json and sys.stdout.isatty() and environment.get("TERM", "dumb") != "dumb"


def print_frame(view: View, height: int = UNLIMITED) -> None:
    """Print one frame as it is, in at most so many lines."""
    for line in frame(view, columns(sys.stdout, _PIPE_COLUMNS), height, whole=not sys.stdout.isatty()):
        say(text_of(line).rstrip())


def _print_json(view: View) -> None:
    say(json_text(view.as_json()))


def watch(run: directories.Run, options: Namespace, every: float) -> int:
    """Show a run at each interval, and at once when its phase changes, until it has ended or the user leaves."""
    if options.json:
        _follow(run, every, _print_json)
        return 0
    if not is_live(options):
        lines = Lines()
        _follow(run, every, lambda view: lines.print(view, time.time()))
        return 0
    return on_screen(lambda show, poll: _follow(run, every, show, poll, eager=True))


def on_screen(work: Callable[[Callable[[View], None], Callable[[float], None]], object]) -> int:
    """Do the work with the terminal taken; return the exit status.

    The last view stays on the terminal when the work has ended by itself: the run is over.

    Parameters
    ----------
    work
        Gets two functions: one shows a view, the other waits so many seconds at most for a key.
    """
    screen = Screen(colour=has_colour(settings_layers.process_environment()))
    last: list[View] = []

    def show(view: View) -> None:
        last[:] = [view]
        screen.draw(lambda width, height: frame(view, width, height, live=screen.reads_keys))

    def poll(seconds: float) -> None:
        if last and screen.resized:
            show(last[0])
        screen.poll(seconds)

    try:
        with screen.opened():
            work(show, poll)
    except QuitError:
        return 0
    except KeyboardInterrupt:
        say("Stopped watching. The run continues.", sys.stderr)
        return 130
    if last:
        print_frame(last[0], screen.size()[1] - 1)
    return 0


def _follow(
    run: directories.Run,
    every: float,
    show: Callable[[View], None],
    poll: Callable[[float], None] = lambda _: None,
    *,
    eager: bool = False,
) -> None:
    """Show a run at each interval until it has ended, at once where its phase changes, ``eager`` at each change."""
    from hpcml.runs import waiting

    view_of = _source(run)
    statuses: list[run_status.Status] = []
    due = 0.0

    def each() -> None:
        nonlocal due
        poll(0.0)
        if statuses and time.monotonic() >= due:
            due = time.monotonic() + every
            show(view_of(statuses[0]))

    for status in waiting.follow(run, each):
        if eager or not statuses or statuses[0].phase != status.phase:
            due = 0.0
        statuses[:] = [status]


def _source(run: directories.Run) -> Callable[[run_status.Status], View]:
    """Return the function that makes views of a run from its status."""
    from hpcml import kinds
    from hpcml.cli.why import cause_of
    from hpcml.runs import merged_rank_logs, record, top_view

    reader = top_view.Reader(kinds.get(record.planned(run).kind))

    def view_of(status: run_status.Status) -> View:
        look = reader.look(run, status.progress.attempt, merged_rank_logs.of_failed(run, status))
        return top_view.view(status, look, time.time(), cause_of(run, status))

    return view_of


def _now(run: directories.Run) -> View:
    """Return the view of one look."""
    from hpcml.runs import status as run_status

    run, status = run_status.now(run)
    return _source(run)(status)


# -- for a pipe or a file: lines that each tell all by themselves, for grep and awk ----------------------------------


class Lines:
    """Prints a line for the run and one for each node at each look; state and warnings only when they are new."""

    def __init__(self) -> None:
        self._state = ""
        self._warned: set[str] = set()

    def print(self, view: View, now: float) -> None:
        """Print a view, each line behind the time of day."""
        clock = time.strftime("%H:%M:%S", time.localtime(now))
        for line in self.of(view):
            say(f"{clock} {line}")

    def of(self, view: View) -> list[str]:
        """Return the lines of a view."""
        lines = []
        state = f"state {view.status.state} {view.status.message}{f'; {view.cause}' if view.cause else ''}"
        if state != self._state:
            self._state = state
            lines.append(state)
        for warning in view.warnings:
            if (known := _SILENCE.sub(lambda since: f"{int(since[0]) // 30}", warning)) not in self._warned:
                self._warned.add(known)
                lines.append(f"warning {warning}")
        nodes = view.nodes if any(node.sampled for node in view.nodes) else ()
        return [*lines, f"run {_joined(_of_run(view))}", *(f"node {node.name} {_of_node(node)}" for node in nodes)]


def _of_run(view: View) -> dict[str, str]:
    values = {
        "state": view.status.state,
        "phase": view.status.phase,
        "for": "" if view.elapsed is None else duration(view.elapsed),
        "left": "" if view.left is None else duration(view.left),
    }
    if view.status.alone:
        values["cluster"] = "none"
    elif view.status.planned.expected:
        values[f"{view.status.noun}s"] = f"{view.status.cluster.workers}/{view.status.planned.expected}"
    if (work := view.work) is not None:
        values |= {
            "tasks": "" if work.known is None or work.done is None else f"{work.done}/{work.known}",
            "rate": "" if work.rate is None else f"{work.rate:.3g}/s",
            "failed": f"{work.erred or ''}",
            "spilled": _size(work.spilled),
            "spill": per_second(work.spill),
            "transfers": per_second(work.transfer),
        }
    return values


def _of_node(node: Node) -> str:
    if not node.sampled:
        return "no data"
    values = {
        "silent": duration(node.silent) if node.silent else "",
        "workers": "" if node.workers is None else str(node.workers),
        "cpu": "" if node.cpu is None else f"{node.cpu:.1f}/{node.cores:g}" if node.cores else f"{node.cpu:.1f}",
        "memory": _part(node.memory, node.memory_size),
        "spilled": _size(node.spilled),
        "net": per_second(node.net),
        "ib": per_second(node.ib),
        "disk": per_second(node.disk),
    }
    for gpu in node.gpus:
        name = f"gpu{gpu.number}"
        values |= {
            name: "" if gpu.use is None else f"{gpu.use:.0f}%",
            f"{name}-memory": _part(gpu.memory, gpu.memory_size),
            f"{name}-power": "" if gpu.power is None else f"{gpu.power:.0f}W",
            f"{name}-nvlink": per_second(gpu.nvlink),
        }
    return _joined(values)


def _joined(values: dict[str, str]) -> str:
    """Return values without spaces in them, so that each is one word; what is not known is left out."""
    return " ".join(f"{name}={value.replace(' ', '')}" for name, value in values.items() if value)


def _size(value: float | None) -> str:
    return "" if value is None else format_bytes(value)


def _part(part: float | None, whole: float | None) -> str:
    return "" if part is None else _size(part) + (f"/{_size(whole)}" if whole else "")


# -- the terminal while hpcml top has it: one write for each frame, keys, and all as before at the end ----------------


class QuitError(Exception):
    """The user has pressed q."""


def painted(line: Line, *, colour: bool) -> str:
    """Return a line as a terminal takes it."""
    if not colour:
        return text_of(line)
    return "".join(
        f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text and style in _STYLES else text for text, style in line
    )


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
        """Whether the terminal has another size than what it shows."""
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
        """Give the terminal back, stop as the shell expects it, and take the terminal again when it continues."""
        self._stop_asked = False
        self._give_back()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._take()

    def _continued(self, _number: int, _frame: FrameType | None) -> None:
        """Draw all again after a stop that could not be noticed (SIGSTOP); what the shell wrote meanwhile is gone."""
        self._size = (0, 0)
