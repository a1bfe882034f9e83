"""``hpcml gc``: remove old runs by age, size and room, and interrupted removals."""

from __future__ import annotations

import os
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
    from collections.abc import Sequence


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    parser.epilog = (
        "A run is taken where all that is given holds. One that may still be going on is never taken; "
        "where Slurm does not answer, that is each that Slurm would have to be asked about."
    )
    parser.add_argument("--older-than", metavar="AGE", help="runs submitted longer ago, e.g. 30d or 12h")
    parser.add_argument("--larger-than", metavar="SIZE", help="runs whose files take that or more, e.g. 500M or 2G")
    parser.add_argument("--keep", metavar="N", help="the newest N runs stay, whatever they are")
    parser.add_argument(
        "--until-free", metavar="SIZE", help="the oldest that the others leave, until so much is free, e.g. 500G or 2T"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    common.add_site(parser)
    common.add_json(
        parser, "print facts as JSON: what was removed, the bytes, and what stays because it may be going on"
    )


def run(options: Namespace) -> int:
    """Show what would be removed, how old and how large it is, ask, and remove it."""
    from hpcml.runs import removal

    if all(one is None for one in (options.older_than, options.larger_than, options.keep, options.until_free)):
        hint = "Give --older-than 30d, --larger-than 2G, --keep 20 or --until-free 500G, or several of them."
        raise UsageError("Which runs are to be removed is not said", place="hpcml gc", hint=hint)
    now = time.time()
    before = now - rm.seconds_of(options.older_than, "--older-than")
    least, wanted = _size(options.larger_than, "--larger-than"), _size(options.until_free, "--until-free")
    keep = 0 if options.keep is None else common.whole(options.keep, "--keep")
    folder = common.runs_folder(options)
    ended, staying, why = _ended(folder, keep, before)
    rests = removal.leftovers(folder)
    left = {path: removal.size(path) for _, path in rests}
    missing = None if options.until_free is None else wanted - _free(folder) - sum(left.values())
    sizes = _taken(ended, least, missing)
    if not options.json:
        found = [(path.name, path, size) for path, size in sizes.items()]
        _show([*found, *((f"the rest of {name}", path, left[path]) for name, path in rests)], now)
        _say_what_stays(staying, why)
        if (short := (missing or 0) - sum(sizes.values())) > 0:
            note(f"{units.format_bytes(short)} of {units.format_bytes(wanted)} will not be free even so")
    total = sum(sizes.values()) + sum(left.values())
    also = f" and the rest of {len(rests)}" if rests else ""
    words = f"{units.counted(len(sizes), 'run')}{also}, {units.format_bytes(total)}"
    if (sizes or rests) and not common.confirmed(f"Remove {words}?", options.yes):
        say("Nothing was removed.", sys.stderr)
        return 1
    for path in sizes:
        removal.remove_folder(path)
    for path in left:
        removal.remove_leftover(path)
    if options.json:
        facts = {"removed": [path.name for path in sizes], "staying": staying}
        common.print_json({**facts, "leftovers": len(rests), "bytes": total})
    else:
        say(f"Removed {words}." if sizes or rests else "Nothing was removed.", sys.stderr)
    return 0


def _taken(ended: Sequence[Path], least: int, missing: float | None) -> dict[Path, int]:
    """Return what is to be removed of what has ended, with its bytes: all, or the oldest that have what is missing."""
    from hpcml.runs import removal

    sizes: dict[Path, int] = {}
    for path in ended:
        if missing is not None and sum(sizes.values()) >= missing:
            break
        if (size := removal.size(path)) >= least:
            sizes[path] = size
    return sizes


def _ended(folder: Path, keep: int, before: float) -> tuple[list[Path], list[str], str]:
    """Return what has ended of all but the newest, oldest first, the ids of what may be alive, and why for one."""
    from hpcml.runs import handle

    in_order = directories.newest(folder, directories.ids(folder))
    runs = handle.standings(rm.loaded(folder, in_order[: -keep or None], before))
    ended = [one.run.paths.directory for one in runs if not one.alive]
    why = next((one.problem for one in runs if one.alive and one.problem), "")
    return ended, [one.run.id for one in runs if one.alive], why


def _free(folder: Path) -> int:
    """Return the bytes that the file system of a folder has for this user; 0 if there is no folder."""
    with directories.storage(folder):
        try:
            room = os.statvfs(folder)
        except FileNotFoundError:
            return 0
    return room.f_bavail * room.f_frsize


def _show(found: list[tuple[str, Path, int]], now: float) -> None:
    for name, path, size in found:
        submitted = directories.submitted_at(name)
        age = "-" if submitted is None else units.format_age(now - submitted)
        line = f"{name}  {age:>4}  {units.format_bytes(size):>8}  {common.typed(path, sys.stdout)}"
        say_fitted(line, sys.stdout, rest="  ")
    sys.stdout.flush()  # the list stands before what is said of it, in a file too


def _say_what_stays(staying: Sequence[str], why: str) -> None:
    """Say in one line how many of them stay because they may be alive."""
    if staying:
        reason = f" ({why})" if why else ""
        stay = "stays" if len(staying) == 1 else "stay"
        note(f"{units.counted(len(staying), 'run')} may still be going on and {stay}{reason}")


def _size(text: str | None, option: str) -> int:
    return 0 if text is None else common.parsed(units.parse_memory, text, option, "2G")
