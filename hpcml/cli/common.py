"""What several verbs share: options that mean the same for each of them, and the site and the run that they name."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hpcml.errors import UsageError
from hpcml.request import option as request_option
from hpcml.runs import directories
from hpcml.sites import lookup, settings_layers
from hpcml.states import COLOURS
from hpcml.terminal import has_colour, json_text, say, say_fitted, say_lines
from hpcml.units import format_bytes, parse_seconds

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace, _ActionsContainer
    from typing import TextIO

T = TypeVar("T")
here, load_site, whole = settings_layers.here, lookup.load_here, request_option.whole
FAILED = "only runs that failed or that Slurm refused, not cancelled runs"
SHORTEST_IDLE = 5.0  # seconds; less would end a session before anybody can use it
RUN = "run id or its first part, run name (newest run of that name), Slurm job id, or 'last'"  # what names a run


def add_run(parser: ArgumentParser, *, default: str | None = "last") -> None:
    """Add the word that names a run; without a default it must be given."""
    if default is None:
        parser.add_argument("run", metavar="RUN", help=RUN)
    else:
        parser.add_argument("run", metavar="RUN", help=RUN, nargs="?", default=default)


def add_site(parser: ArgumentParser, text: str = "site whose runs folder (paths.runs) hpcml searches") -> None:
    """Add the site, and single values of its profile."""
    parser.add_argument("--site", metavar="SITE", help=f"{text} (default: the detected site)")
    add_set(parser)


def add_host(parser: ArgumentParser) -> None:
    """Add the login node, for a verb that connects by itself."""
    text = "on a laptop: login node for ssh, or the name of a site whose profile sets login.host"
    parser.add_argument("--host", metavar="HOST", default="", help=text)


def add_set(parser: ArgumentParser) -> None:
    """Add single values of the profile."""
    text = "set a profile key: paths.runs=/scratch/runs"
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", help=text)


def add_json(parser: ArgumentParser, text: str = "print the result as JSON") -> None:
    """Add the answer for programs."""
    parser.add_argument("--json", action="store_true", help=text)


def add_idle(group: _ActionsContainer, what: str, never: str, default: str) -> None:
    """Add the time without use that ends a session or a hold, which :func:`parse_idle` reads."""
    text = f"end a {what} that is unused for TIME; off: {never} (default: {default})"
    group.add_argument("--idle", metavar="TIME", default=default, help=text)


def print_json(content: object) -> None:
    """Print facts for a program to read."""
    say_lines(json_text(content, indent=1))


def say_row(title: str, text: str) -> None:
    """Print on standard error a text after its title, in the column of what is said of a submission."""
    say_fitted(text, sys.stderr, first=f"  {title:<11}", rest=" " * 13)


def submitted(run: directories.Run) -> dict[str, object]:
    """Return the JSON-ready facts of a run that was submitted; a submission in a hold names the hold's run."""
    itself = {"run": run.id, "directory": str(run.paths.directory)}
    return {**itself, **(run.submission.as_json() if run.submission else {}), **itself}


def positive(text: str, option: str) -> int:
    """Return an option's whole number; UsageError if it is none, or less than 1."""
    if (number := whole(text, option)) < 1:
        raise UsageError(f"{option} {number} is too small", place=option, hint="Use a number of at least 1.")
    return number


def parsed(parse: Callable[[str], T], text: str, option: str, example: str) -> T:
    """Return an option's value as a parser reads it; UsageError with an example if it cannot."""
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(str(error), place=option, hint=f"Write {option} {example}.") from error


def parse_idle(text: str) -> float:
    """Return the seconds without use that end a session or a hold, 0 for never; UsageError if too few or none."""
    if text.strip().lower() == "off":
        return 0.0
    hint = "Write --idle 30m, or --idle off for no idle limit."
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise UsageError(str(error), place="--idle", hint=hint) from error
    if seconds < SHORTEST_IDLE:
        raise UsageError(f"'{text}' is less than the minimum of {SHORTEST_IDLE:g} s", place="--idle", hint=hint)
    return seconds


def end_by_signals() -> None:
    """Have SIGTERM and SIGHUP end this command as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def runs_folder(options: Namespace) -> Path:
    """Return the runs folder; no site is needed to look at them, but it may say where."""
    return directories.runs_folder_of(options.site or "", options.set or ())


def find_run(options: Namespace) -> directories.Run:
    """Return the run that the options name."""
    return directories.find(runs_folder(options), options.run)


def host_of(options: Namespace) -> str:
    """Return the name of this machine on the laptop that sent the command, empty where none did."""
    return options.caller.host if options.caller else ""


def from_host(host: str, command: str) -> str:
    """Return a command as it is typed on the laptop that names this machine ``host``; empty: on this machine."""
    if host and command.startswith("hpcml "):
        return f"hpcml --host {shlex.quote(host)} {command.removeprefix('hpcml ')}"
    return command


def has_coloured_output() -> bool:
    """Whether standard output is a terminal with colours, and they are wanted."""
    return sys.stdout.isatty() and has_colour(settings_layers.process_environment())


def state_colours() -> dict[str, str]:
    """Return the colours of states on standard output, none where it shows none."""
    return COLOURS if has_coloured_output() else {}


def typed(path: object, stream: TextIO) -> str:
    """Return a path as a person types it: on a terminal with ``~`` for the home folder, elsewhere whole."""
    home = settings_layers.process_environment().get("HOME", "").rstrip("/")
    text = str(path)
    return f"~{text[len(home) :]}" if home and stream.isatty() and text.startswith(f"{home}/") else text


def confirmed(question: str, yes: bool) -> bool:
    """Return True if the user says yes, on the command line or on the terminal.

    Raises
    ------
    UsageError
        If there is no terminal.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(
            "hpcml cannot ask a question without a terminal",
            place=question,
            hint="Add --yes to continue without a question.",
        )
    say(f"{question} [y/N] ", sys.stderr, end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# -- transfers ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def metered(size: int) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many of so many bytes have come through; gives what counts them."""
    done = shown = 0

    def add(count: int) -> None:
        nonlocal done, shown
        done += count
        if sys.stderr.isatty() and (done - shown) * 200 >= size:
            shown = done
            sys.stderr.write("\r")
            say(f"  {format_bytes(done)} of {format_bytes(size)}   ", sys.stderr, end="")

    try:
        yield add
    finally:
        if shown:
            say("", sys.stderr)
