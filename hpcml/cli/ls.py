"""``hpcml ls``: list the runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.errors import SlurmUnreachableError, StorageError
from hpcml.runs import directories
from hpcml.terminal import columns, say, say_message, shown
from hpcml.units import format_time_limit

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from hpcml.runs import status as run_status
    from hpcml.schedulers import Submission

HEADER = ("RUN", "STATE", "EXIT", "NODES", "AGE", "TIME", "JOB", "SITE", "WHAT")
_NUMBERS = {HEADER.index(title) for title in ("EXIT", "NODES", "AGE", "TIME", "JOB")}  # aligned to the right
_LEAST_WANTED = [HEADER.index(title) for title in ("SITE", "JOB", "TIME", "AGE", "NODES")]
_WHAT = HEADER.index("WHAT")
_SHORTEST_WHAT = 12  # characters; less tells nothing
_DATE = len("-20260131-235959-ffff")  # the end of an id
_USUAL_RUN = 32  # characters; a longer id stands on a line of its own where the terminal is narrow


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
    if rows:
        now = time.time()
        for line in table([cells(row, now) for row in rows], columns(sys.stdout)):
            say(line)
    if len(wanted) == most and (older := run_ids.index(wanted[0]) if wanted else len(run_ids)):
        say(f"{older} older runs are not shown (hpcml ls --all).", sys.stderr)
    return 0


def cells(row: run_status.Status, now: float) -> tuple[str, ...]:
    """Return a run's cells under ``HEADER``; what is not known is ``-``.

    ``WHAT`` is empty where a script has ended by itself: its state and exit status tell all.
    """
    submitted, begin = directories.submitted_at(row.run), row.times.get("allocated")
    end = row.times.get("torn-down", row.times.get("driver-ended")) if row.over else now
    told = row.by == "script" and row.message.endswith(f" exit status {row.exit_status}")  # by STATE and EXIT
    facts = (
        row.run,
        row.state,
        row.exit_status,
        len(row.nodes) or row.node_count or None,
        None if submitted is None else _age(max(0, int(now - submitted))),
        None if begin is None or end is None else _duration(max(0, round(end - begin))),
        row.job,
        row.site,
    )
    what = shown(row.cause) or ("" if told else shown(row.message))
    return (*("-" if fact in (None, "") else shown(fact) for fact in facts), what)


def table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return a header and rows in aligned columns of two spaces between; ``width`` 0 is as wide as they are.

    Where they are too wide, what a run waits for or how it ended is cut, then a long id takes a line of its own, then
    whole columns go. An id is cut only where the terminal is narrower than itself.
    """
    lines = [HEADER, *rows]
    says_what = any(row[_WHAT] for row in rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    kept = [column for column in range(len(HEADER)) if column != _WHAT or not width]
    if width:
        if _sum(widths, kept) > width:
            widths[0] = max(len(line[0]) for line in lines if len(line[0]) <= _USUAL_RUN)
        for column in _LEAST_WANTED:
            if _sum(widths, kept) > width:
                kept.remove(column)
        if (room := width - _sum(widths, kept) - 2) >= _SHORTEST_WHAT and says_what:
            widths[_WHAT] = min(widths[_WHAT], room)
            kept.append(_WHAT)
    texts = []
    for line in lines:
        parts = [cut(line[column], widths[column]) for column in kept]
        if len(line[0]) > widths[0]:
            texts.append(cut_name(line[0], width))
            parts[0] = ""
        aligned = [
            f"{part:>{widths[column]}}" if column in _NUMBERS else f"{part:<{widths[column]}}"
            for column, part in zip(kept, parts, strict=True)
        ]
        texts.append("  ".join(aligned).rstrip())
    return texts


def _sum(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[column] + 2 for column in kept) - 2


def cut(text: str, width: int) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def cut_name(run_id: str, width: int) -> str:
    """Return a run's id with as much of its name as there is room for; the date and what follows stay."""
    name, date = run_id[:-_DATE], run_id[-_DATE:]
    return run_id if len(run_id) <= width else cut(name, width - _DATE) + date


def _age(seconds: int) -> str:
    """Return an age in its largest unit: ``12s``, ``5m``, ``3h``, ``40d``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _duration(seconds: int) -> str:
    """Return a duration as squeue writes it: ``0:12``, ``1:02:05``, ``2-01:00:00``."""
    text = format_time_limit(seconds).removeprefix("00:")
    return text.removeprefix("0")


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
    try:
        runs = _with_jobs(runs)
        states = schedulers.states(_open_runs(runs))
    except SlurmUnreachableError as error:
        say_message(f"hpcml: {error}")
        silent = error.message
    open_runs = _open_runs(runs)
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
        if silent and (run.id in open_runs or row.phase == "prepared"):  # what its own files tell is still true
            row = row._replace(silent=silent, message=row.message or silent)
        rows.append(row)
    return rows


def _with_jobs(runs: list[directories.Run | run_status.Status]) -> list[directories.Run | run_status.Status]:
    """Return the runs with the jobs of those that were prepared and are submitted by now."""
    from hpcml.runs import adoption

    jobs = adoption.of_prepared(run for run in runs if isinstance(run, directories.Run))
    return [jobs.get(run.id, run) if isinstance(run, directories.Run) else run for run in runs]


def _open_runs(runs: list[directories.Run | run_status.Status]) -> dict[str, Submission]:
    """Return those of which Slurm has to be asked."""
    return {
        run.id: run.submission
        for run in runs
        if isinstance(run, directories.Run)
        and run.submission
        and run.job
        and (run.may_start_again or not run.paths.status.exists())
    }
