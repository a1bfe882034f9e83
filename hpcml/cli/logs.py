"""``hpcml logs``: show a run's logs."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import earlier_names, features_by_point, kinds, safe_files
from hpcml.cli import common
from hpcml.errors import NotFoundError, UsageError
from hpcml.paths import SCRIPT
from hpcml.runs import directories
from hpcml.terminal import Raw, note, say, say_fitted, shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_BEGIN = "allocated"  # the event with which an attempt begins
_PIECE = 65536  # bytes that are read at once


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    common.add_run(parser)
    common.add_site(parser)
    common.add_json(parser, argparse.SUPPRESS)
    names = [f"{role.name} ({role.log})" if role.log else role.name for role in kinds.roles().values()]
    roles = ", ".join([f"{SCRIPT} (the script's output; default for runs without --ranks)", *names])
    text = f"log to show: {roles}, rank:N (only rank N), point:N (of a sweep) or job (the batch script's output)"
    parser.add_argument("role", metavar="LOG", nargs="?", help=text)
    parser.add_argument("-f", "--follow", action="store_true", help="follow the log until the run ends")
    parser.add_argument("-n", "--lines", metavar="N", help="start with the last N lines of each log")
    parser.add_argument(
        "--attempt",
        metavar="N",
        help="show only the script's output of attempt N (the first attempt is 0, as in hpcml.run.attempt)",
    )


def run(options: Namespace) -> int:
    """Print a role's log, and what comes to it; NotFoundError if there is none yet."""
    from hpcml.runs import record as records
    from hpcml.runs import status as run_status
    from hpcml.runs import waiting

    most = None if options.lines is None else common.whole(options.lines, "-n")
    run, role, word = _meant(options)
    ranks = kinds.get(records.load(run).planned.kind).ranks if options.attempt is None else None
    if ranks and options.role is None:
        role = ranks.name
    if options.attempt is not None:
        return _attempt_alone(options, run, role)
    logs = (_RanksTogether if ranks and role == ranks.name else _OneByOne)(run, role, most)
    if options.follow:
        for _ in waiting.follow(run, logs.copy):
            pass
    else:
        logs.copy()
    logs.end()
    if role in (SCRIPT, ranks and ranks.name) and (end := records.Record(run.paths).end) and end.by != "script":
        say(f"hpcml: {end.message}.", sys.stderr)  # the log itself is the script's alone
    if role == SCRIPT and run.paths.points.exists():
        own = common.from_host(common.host_of(options), f"hpcml logs {run.id} point:N")
        say_fitted(f"hpcml: Each point has its own log: {own} (N: hpcml sweep table).", sys.stderr)
    if not logs.has_any and not options.follow:
        state = run_status.status(records.adopt(run) if records.is_prepared(run) else run)
        hint = f"The run is {state.state}: {state.message}."
        raise NotFoundError(f"The run has no {word} log{'' if state.over else ' yet'}", place=run.id, hint=hint)
    return 0


class _OneByOne:
    """The logs of a role, each from its last so many lines on."""

    def __init__(self, run: directories.Run, role: str, most: int | None) -> None:
        from hpcml.cli.waiting_display import Tail

        self.run, self.role, self.most = run, role, most
        self.tails: dict[Path, Tail] = {}

    @property
    def has_any(self) -> bool:
        return bool(self.tails)

    def copy(self) -> None:
        """Print what is new."""
        from hpcml.cli.waiting_display import Tail
        from hpcml.runs import handle

        for path in handle.log_files(self.run, self.role):
            header = f"==> {shown(path.name)} <==\n" if handle.on_every_node(self.role) else ""
            if path not in self.tails:
                self.tails[path] = Tail(path, sys.stdout, header)
                self.tails[path].position = 0 if self.most is None else _start_of_last(path, self.most)
            while self.tails[path].copy():
                pass

    def end(self) -> None:
        """Say so if all of the logs are empty."""
        if self.tails and not any(map(safe_files.size_of, self.tails)):
            note("the log is empty")


class _RanksTogether:
    """The lines of all ranks, each after its rank."""

    def __init__(self, run: directories.Run, _: str, most: int | None) -> None:
        from hpcml.runs import merged_rank_logs

        self.raw = Raw(sys.stdout)
        self.logs = merged_rank_logs.Merged(run, lambda path: 0 if most is None else _start_of_last(path, most))

    @property
    def has_any(self) -> bool:
        return any(path.exists() for path in self.logs.names)

    def copy(self) -> None:
        """Print the lines that are new."""
        for line in self.logs.lines():
            self.raw.write(line)

    def end(self) -> None:
        """Print the lines that have not ended."""
        for line in self.logs.rest():
            self.raw.write(line)


def _role(options: Namespace) -> str:
    """Return the role whose log is meant: ``hpcml logs worker`` names one of the last run."""
    from hpcml.runs import handle, merged_rank_logs

    if options.role is None and (options.run in handle.LOGS or merged_rank_logs.OF_ONE.fullmatch(options.run)):
        options.run, options.role = "last", options.run
    if earlier_names.SOURCES.get(options.role) == SCRIPT:
        note(f"the log {options.role} is now called {SCRIPT}")
    return handle.role_of(options.role or SCRIPT)


def _meant(options: Namespace) -> tuple[directories.Run, str, str]:
    """Return the run and the role of the log that is meant, and the role's word for messages."""
    from hpcml.runs import handle

    if point := re.fullmatch(rf"{handle.OF_POINT}(\d{{1,9}})", options.role or options.run):
        return *_of_point(options, int(point[1])), point[0]
    role = _role(options)
    return common.find_run(options), role, role


def _of_point(options: Namespace, number: int) -> tuple[directories.Run, str]:
    """Return the run that ran a point last, and the word of its log; a sweep, or a run of it, was typed."""
    from hpcml.runs import handle
    from hpcml.runs import record as records

    runs = common.runs_folder(options)
    name = options.run if options.role else "last"
    if name not in features_by_point.collected("names of sweeps", runs):
        request = records.Record(directories.find(runs, name).paths).request
        if not (request and request.spec.sweep):
            raise UsageError("Only a sweep has points", place=name, hint="List your sweeps: hpcml sweep status.")
        name = request.spec.sweep
    key, run_id = features_by_point.only("log of a point")(runs, name, number)
    return directories.find(runs, run_id), f"{handle.OF_POINT}{key}"


def _attempt_alone(options: Namespace, run: directories.Run, role: str) -> int:
    """Print what the script wrote in one attempt; NotFoundError if the run has had no such attempt."""
    from hpcml.cli.waiting_display import Tail
    from hpcml.runs import record as records
    from hpcml.runs.directories import complete

    number = common.whole(options.attempt, "--attempt")
    if role != SCRIPT or options.follow or options.lines is not None:
        hint = "Remove LOG, -f and -n."
        raise UsageError("--attempt cannot be combined with LOG, -f or -n", place="--attempt", hint=hint)
    events = records.Record(run.paths).events
    with complete(run.paths.directory):
        begins = {event.attempt: event.facts.get("log", int, 0) for event in events if event.name == _BEGIN}
    if number not in begins:
        attempts = ", ".join(map(str, sorted(begins)))
        hint = f"The run's attempts: {attempts}." if begins else "The run has not started."
        raise NotFoundError(f"The run has no attempt {number}", place=run.id, hint=hint)
    tail = Tail(run.paths.script_log, sys.stdout)
    tail.mark()
    tail.position = begins[number]
    tail.seen = min([begin for one, begin in begins.items() if one > number], default=tail.seen)
    tail.copy_marked()
    return 0


def _start_of_last(path: Path, lines: int) -> int:
    """Return the position at which the last lines of a log begin; one that is not ended yet counts."""
    with directories.storage(path), open(safe_files.open_regular(path), "rb") as file:
        start = end = file.seek(0, os.SEEK_END)
        breaks = 0
        while start > 0:
            piece_start = max(0, start - _PIECE)
            file.seek(piece_start)
            piece = file.read(start - piece_start)
            for position in range(len(piece) - 1, -1, -1):
                if piece[position] == 10 and piece_start + position < end - 1:
                    breaks += 1
                if breaks == lines:
                    return piece_start + position + 1
            start = piece_start
    return 0
