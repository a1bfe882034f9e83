"""A run live: looked at again and again, and shown on the screen, as lines or as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.cli.top.frame import UNLIMITED, frame, text_of
from hpcml.errors import UsageError
from hpcml.sites import layers
from hpcml.terminal import columns, json_text, say
from hpcml.units import parse_seconds

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.runs import directories
    from hpcml.runs import status as run_status
    from hpcml.runs.view import View

_SHORTEST, _ON_A_TERMINAL, _ELSEWHERE = 0.5, 2.0, 10.0  # seconds between looks
_PIPE_COLUMNS = 100  # of one frame that goes to no terminal


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    common.add_run(parser)
    common.add_site(parser)
    common.add_json(parser, "print facts as JSON, a line for each look")
    parser.add_argument("--once", action="store_true", help="look once")
    parser.add_argument(
        "--interval", metavar="TIME", help="between looks, 0.5s or more (default 2s on a terminal, else 10s)"
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
    environment = layers.process_environment()
    return not options.json and sys.stdout.isatty() and environment.get("TERM", "dumb") != "dumb"


def print_frame(view: View, height: int = UNLIMITED) -> None:
    """Print one frame as it is, in at most so many lines."""
    for line in frame(view, columns(sys.stdout, _PIPE_COLUMNS), height):
        say(text_of(line).rstrip())


def _print_json(view: View) -> None:
    say(json_text(view.as_json()))


def watch(run: directories.Run, options: Namespace, every: float) -> int:
    """Show a run at each interval, and at once when its phase changes, until it has ended or the user leaves."""
    if options.json:
        _follow(run, every, _print_json)
        return 0
    if not is_live(options):
        from hpcml.cli.top.lines import Lines

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
    from hpcml.cli.top import screen as screens

    screen = screens.Screen(colour=screens.has_colour(layers.process_environment()))
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
    except screens.QuitError:
        return 0
    except KeyboardInterrupt:
        say("Stopped looking; the run goes on.", sys.stderr)
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
    known: list[run_status.Status] = []
    due = 0.0

    def each() -> None:
        nonlocal due
        poll(0.0)
        if known and time.monotonic() >= due:
            due = time.monotonic() + every
            show(view_of(known[0]))

    for status in waiting.follow(run, each):
        if eager or not known or known[0].phase != status.phase:
            due = 0.0
        known[:] = [status]


def _source(run: directories.Run) -> Callable[[run_status.Status], View]:
    """Return what makes views of a run from how it stands."""
    from hpcml.cli.why import cause_of
    from hpcml.runs import view

    reader = view.Reader()
    return lambda status: view.view(
        status, reader.look(run, status.progress.attempt), time.time(), cause_of(run, status)
    )


def _now(run: directories.Run) -> View:
    """Return the view of one look."""
    from hpcml.runs import status as run_status

    run, status = run_status.now(run)
    return _source(run)(status)
