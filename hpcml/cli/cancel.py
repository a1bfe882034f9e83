"""``hpcml cancel``: cancel a run, with those that divide the points of a sweep with it, or all of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpcml import files
from hpcml.cli import common
from hpcml.errors import HpcmlError, StorageError, UsageError
from hpcml.runs import directories
from hpcml.terminal import note, say, say_fitted
from hpcml.units import counted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from pathlib import Path


def add_options(parser: ArgumentParser) -> None:
    """Add the common options."""
    common.add_run(parser, default="")
    parser.add_argument(
        "--all", action="store_true", help="all runs of yours in this folder for runs that have not ended"
    )
    parser.add_argument("--yes", action="store_true", help="with --all: do not ask")
    common.add_site(parser)
    common.add_json(parser)


def run(options: Namespace) -> int:
    """Tell the run to end, or all of them; its driver is told first and has its grace."""
    from hpcml.runs import handle

    if options.all == bool(options.run):
        hint = "Name a run, or give --all. Try hpcml cancel --help."
        raise UsageError(
            "RUN is missing" if not options.all else "RUN and --all exclude each other", place="hpcml cancel", hint=hint
        )
    if options.all:
        return _all(options)
    run = common.find_run(options)
    told, message = handle.cancel(run)
    others, failed = cancel_each(_dividing(run))
    if options.json:
        common.print_json({"run": run.id, "cancelled": told, "words": message} | ({"others": others} if others else {}))
    else:
        say_fitted(message, sys.stdout)
        say_answers(others)
    return failed


def _dividing(run: directories.Run) -> list[directories.Run]:
    """Return the other runs that divide the points of a sweep with this one and have not ended: they would take its."""
    from hpcml.sweeps import record

    return going(run.paths.directory.parent, [other for other in record.given(run).runs if other != run.id])


def going(runs: Path, ids: Sequence[str]) -> list[directories.Run]:
    """Return those of some runs that have not ended, or may not have."""
    from hpcml.runs import handle

    found = [directories.load(runs / run_id) for run_id in ids if files.is_own_folder(runs / run_id)]
    return [one.run for one in handle.standings(found) if one.alive]


def cancel_each(runs: Sequence[directories.Run]) -> tuple[list[dict[str, Any]], int]:
    """Cancel runs; return what became of each, and the status of the last that could not be."""
    from hpcml.runs import handle

    answers: list[dict[str, Any]] = []
    failed = 0
    for run in runs:
        try:
            told, message = handle.cancel(run)
        except HpcmlError as error:
            told, message, failed = False, str(error), error.exit_status
        answers.append({"run": run.id, "cancelled": told, "words": message})
    return answers, failed


def say_answers(answers: Sequence[dict[str, Any]]) -> None:
    """Print what became of each."""
    for answer in answers:
        for line in str(answer["words"]).split("\n"):
            say_fitted(line, sys.stdout)


def _all(options: Namespace) -> int:
    """Cancel all runs of this user that have not ended; return the status of the last that could not be."""
    found = _going(options)
    if not options.json:
        for run in found:
            say(f"{run.id}  {run.job}".rstrip())
    if not found:
        say("No run is going on.", sys.stderr)
    elif not common.confirmed(f"Cancel {counted(len(found), 'run')}?", options.yes):
        say("Nothing was cancelled.", sys.stderr)
        return 1
    answers, failed = cancel_each(found)
    if options.json:
        common.print_json(answers)
    else:
        say_answers(answers)
    return failed


def _going(options: Namespace) -> list[directories.Run]:
    """Return the runs of this user that have not ended, or may not have."""
    from hpcml.runs import handle

    folder = common.runs_folder(options)
    runs = []
    for run_id in directories.newest(folder, directories.ids(folder)):
        try:
            run = directories.load(folder / run_id)
        except StorageError as error:
            note(f"{run_id}: {error.message}")
            continue
        if (
            run.submission
            and (run.submission.key or run.submission.line)
            and (run.may_start_again or not run.paths.status.exists())
        ):
            runs.append(run)
    return [one.run for one in handle.standings(runs) if one.alive]
