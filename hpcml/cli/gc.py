"""``hpcml gc``: remove old runs by age and size, and what an interrupted removal left."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import units
from hpcml.cli import common, rm
from hpcml.errors import UsageError
from hpcml.runs import directories
from hpcml.terminal import note, say, say_fitted

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.runs.handle import Standing


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    parser.epilog = (
        "A run is taken where all that is given holds. One that may still be going on is never taken; where Slurm does "
        "not answer, that is each that Slurm would have to be asked about."
    )
    parser.add_argument("--older-than", metavar="AGE", help="runs submitted longer ago, e.g. 30d or 12h")
    parser.add_argument("--larger-than", metavar="SIZE", help="runs whose files take that or more, e.g. 500M or 2G")
    parser.add_argument("--keep", metavar="N", help="the newest N runs stay, whatever they are")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    common.add_site(parser)
    common.add_json(parser)


def run(options: Namespace) -> int:
    """Show what would be removed, how old and how large it is, ask, and remove it."""
    from hpcml.runs import handle, removal

    if options.older_than is None and options.larger_than is None and options.keep is None:
        hint = "Give --older-than 30d, --larger-than 2G or --keep 20, or several of them."
        raise UsageError("Which runs are to be removed is not said", place="hpcml gc", hint=hint)
    now = time.time()
    before = now - rm.seconds_of(options.older_than, "--older-than")
    least = _size(options.larger_than)
    keep = 0 if options.keep is None else common.whole(options.keep, "--keep")
    folder = common.runs_folder(options)
    old = rm.loaded(folder, directories.newest(folder, directories.ids(folder))[: -keep or None], before)
    standings = handle.standings(old)
    sizes = {one.run.id: removal.size(one.run.paths.directory) for one in standings if not one.alive}
    taken = [one.run for one in standings if sizes.get(one.run.id, -1) >= least]
    rests = removal.leftovers(folder)
    left = {path: removal.size(path) for _, path in rests}
    if not options.json:
        found = [(run.id, run.paths.directory, sizes[run.id]) for run in taken]
        _show([*found, *((f"the rest of {name}", path, left[path]) for name, path in rests)], now)
        _say_what_stays(standings)
    total = sum(sizes[run.id] for run in taken) + sum(left.values())
    words = f"{rm.count(taken)}{f' and the rest of {len(rests)}' if rests else ''}, {units.format_bytes(total)}"
    if (taken or rests) and not common.confirmed(f"Remove {words}?", options.yes):
        say("Nothing was removed.", sys.stderr)
        return 1
    for run in taken:
        removal.remove(run)
    for path in left:
        removal.remove_leftover(path)
    if options.json:
        facts = {"removed": [run.id for run in taken], "staying": [one.run.id for one in standings if one.alive]}
        common.print_json({**facts, "leftovers": len(rests), "bytes": total})
    else:
        say(f"Removed {words}." if taken or rests else "Nothing was removed.", sys.stderr)
    return 0


def _show(found: list[tuple[str, Path, int]], now: float) -> None:
    for name, path, size in found:
        submitted = directories.submitted_at(name)
        age = "-" if submitted is None else units.format_age(now - submitted)
        line = f"{name}  {age:>4}  {units.format_bytes(size):>8}  {common.typed(path, sys.stdout)}"
        say_fitted(line, sys.stdout, rest="  ")
    sys.stdout.flush()  # the list stands before what is said of it, in a file too


def _say_what_stays(standings: list[Standing]) -> None:
    """Say in one line how many runs stay because they may be alive."""
    staying = [one for one in standings if one.alive]
    if staying:
        why = next((f" ({one.problem})" for one in staying if one.problem), "")
        note(f"{rm.count(staying)} may still be going on and stay{'s' if len(staying) == 1 else ''}{why}")


def _size(text: str | None) -> int:
    if text is None:
        return 0
    try:
        return units.parse_memory(text)
    except ValueError as error:
        raise UsageError(str(error), place="--larger-than", hint="Write --larger-than 2G.") from error
