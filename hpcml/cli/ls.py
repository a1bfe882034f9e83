"""``hpcml ls``: list the runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.errors import SlurmUnreachableError, StorageError
from hpcml.runs import directories
from hpcml.terminal import say, say_lines, shown

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from hpcml.runs import status as run_status


def add_options(parser: ArgumentParser) -> None:
    """Add what only this verb takes, and the common options."""
    common.add_site(parser)
    common.add_json(parser)
    parser.add_argument("--last", default="20", metavar="N", help="how many runs, newest last (default 20)")
    parser.add_argument("--all", action="store_true", help="all of them")


def run(options: Namespace) -> int:
    """Show the newest runs, newest last, with one question to Slurm for those that have not ended."""
    folder = common.runs_folder(options)
    most = common.whole(options.last, "--last")
    run_ids = directories.ids(folder)
    wanted = directories.newest(folder, run_ids, None if options.all else most)
    rows = _rows([folder / name for name in wanted])
    if options.json:
        common.print_json([row.as_json() for row in rows])
        return 0
    width = max([len(row.run) for row in rows], default=3)
    if rows:
        say(f"{'RUN':<{width}}  {'SITE':<10} {'JOB':>8}  {'STATE':<13} {'EXIT':>4}  WHAT")
    for row in rows:
        code = "" if row.exit_status is None else str(row.exit_status)
        site, job = shown(row.site), shown(row.job)
        say(f"{row.run:<{width}}  {site:<10} {job:>8}  {row.state:<13} {code:>4}  {row.message[:60]}")
    if len(wanted) == most and (older := run_ids.index(wanted[0]) if wanted else len(run_ids)):
        say(f"{older} older runs are not shown (hpcml ls --all).", sys.stderr)
    return 0


def _rows(paths: list[Path]) -> list[run_status.Status]:
    """Return the state of many runs; what cannot be read or asked is unknown and keeps no other from being shown."""
    from hpcml import schedulers
    from hpcml.runs import status as run_status

    runs: list[directories.Run | run_status.Status] = []
    for directory in paths:
        try:
            runs.append(directories.load(directory))
        except StorageError as error:
            runs.append(run_status.unreadable(directory, error))
    silent = ""
    states: dict[str, schedulers.JobState] = {}
    open_runs = {
        run.id: run.submission
        for run in runs
        if isinstance(run, directories.Run)
        and run.submission
        and run.job
        and (run.may_start_again or not run.paths.status.exists())
    }
    try:
        states = schedulers.states(open_runs)
    except SlurmUnreachableError as error:
        say_lines(f"hpcml: {error}", sys.stderr)
        silent = error.message
    rows = []
    for run in runs:
        if isinstance(run, run_status.Status):
            rows.append(run)
            continue
        written = schedulers.UNKNOWN if run.job and run.id not in open_runs else None  # such an end needs no question
        try:
            row = run_status.status(run, states.get(run.id, written), ask=not run.job)
        except StorageError as error:
            row = run_status.unreadable(run.paths.directory, error)
        if silent and run.id in open_runs:  # what its own files tell is still true
            row = row._replace(silent=silent, message=row.message or silent)
        rows.append(row)
    return rows
