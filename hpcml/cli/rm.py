"""``hpcml rm``: remove runs that have ended, with all their files."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import units
from hpcml.cli import common
from hpcml.errors import CANCELLED, StorageError, UsageError
from hpcml.runs import directories
from hpcml.terminal import note, say, say_fitted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from hpcml.runs import handle


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    parser.epilog = "A run that may still be going on is never removed."
    parser.add_argument("run", metavar="RUN", nargs="*", help=common.RUN)
    parser.add_argument("--older", metavar="AGE", help="all runs submitted longer ago, e.g. 30d or 12h")
    parser.add_argument(
        "--failed",
        action="store_true",
        help="all runs that failed or were refused, not the cancelled ones; with --older: those of them",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    common.add_site(parser)
    common.add_json(parser, "print facts as JSON: the removed runs and the bytes that they took")


def run(options: Namespace) -> int:
    """Show what is to be removed and how large it is, ask, and remove it."""
    from hpcml.runs import handle, removal

    chosen = bool(options.older or options.failed)
    if bool(options.run) == chosen:
        hint = "Name runs, or give --older 30d, --failed or both."
        raise UsageError("Which runs are to be removed is not clear", place="hpcml rm", hint=hint)
    standings = handle.standings(_named(options) if options.run else _old(options))
    wanted = [one for one in standings if _failed(one)] if options.failed else standings
    ended = [one.run for one in wanted if not one.alive]
    staying = {} if chosen else {one.run.id: _why_alive(one) for one in standings if one.alive}
    sizes = [removal.size(one.paths.directory) for one in ended]
    total = f"{units.counted(len(ended), 'run')}, {units.format_bytes(sum(sizes))}"
    if not options.json:
        for one, size in zip(ended, sizes, strict=True):
            folder = common.typed(one.paths.directory, sys.stdout)
            say_fitted(f"{one.id}  {units.format_bytes(size):>10}  {folder}", sys.stdout, rest="  ")
        sys.stdout.flush()  # the list stands before what is said of it, in a file too
    for name, how in staying.items():
        note(f"{name} stays, because it may still be going on ({how})")
    if ended and not common.confirmed(f"Remove {total}?", options.yes):
        say("Nothing was removed.", sys.stderr)
        return 1
    for one in ended:
        removal.remove_folder(one.paths.directory)
    if options.json:
        common.print_json({"removed": [one.id for one in ended], "bytes": sum(sizes)})
    else:
        verb = "stays" if len(staying) == 1 else "stay"
        stay = f"; {units.counted(len(staying), 'run')} {verb}" if staying and ended else ""
        say(f"Removed {total}{stay}." if ended else "Nothing was removed.", sys.stderr)
    return 1 if staying else 0


def _failed(one: handle.Standing) -> bool:
    """Return whether a run failed or was refused; a cancelled one did what its user wanted."""
    status = one.status
    return status is not None and status.failed and status.state != "CANCELLED" and status.exit_status != CANCELLED


def _why_alive(one: handle.Standing) -> str:
    return one.problem or (one.status.message if one.status else "") or "it has not ended"


def _named(options: Namespace) -> list[directories.Run]:
    """Return the runs that are named, each once."""
    folder = common.runs_folder(options)
    runs = [directories.find(folder, word) for word in options.run]
    return list({run.id: run for run in runs}.values())


def _old(options: Namespace) -> list[directories.Run]:
    folder = common.runs_folder(options)
    before = time.time() - seconds_of(options.older, "--older")
    return loaded(folder, directories.newest(folder, directories.ids(folder)), before)


def loaded(folder: Path, run_ids: Sequence[str], before: float) -> list[directories.Run]:
    """Return those of some runs that were submitted before then; one that cannot be read stays, and is named."""
    runs = []
    for run_id in run_ids:
        submitted = directories.submitted_at(run_id)
        if submitted is None or submitted > before:
            continue
        try:
            runs.append(directories.load(folder / run_id))
        except StorageError as error:
            note(f"{run_id} stays: {error.message}")
    return runs


def seconds_of(age: str | None, option: str) -> float:
    """Return the seconds of an option's age, 0 if it was not given."""
    return 0.0 if age is None else common.parsed(units.parse_seconds, age, option, "30d")
