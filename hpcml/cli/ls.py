"""``hpcml ls``: list the runs."""

from __future__ import annotations

import datetime
import fnmatch
import shlex
import sys
import time
from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.errors import UsageError, did_you_mean, nearest
from hpcml.failures.end import Reason
from hpcml.runs import directories
from hpcml.states import Phase
from hpcml.terminal import columns, say, say_state, shown
from hpcml.units import counted, format_age, format_time_limit, parse_seconds
from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from hpcml.options.parser import Parser
    from hpcml.runs import status as run_status

HEADER = ("RUN", "STATE", "EXIT", "NODES", "AGE", "TIME", "JOB", "SITE", "WHAT", "COMMAND")
_NUMBERS = {HEADER.index(title) for title in ("EXIT", "NODES", "AGE", "TIME", "JOB")}  # aligned to the right
_LEAST_WANTED = [HEADER.index(title) for title in ("SITE", "JOB", "AGE", "EXIT", "NODES", "TIME")]
_LESS_THAN_COMMAND, _LESS_THAN_ITS_START = _LEAST_WANTED[:3], _LEAST_WANTED[3:5]
_WHAT, _COMMAND = HEADER.index("WHAT"), HEADER.index("COMMAND")
_SHORTEST = 12  # characters of COMMAND; less tells nothing
_ENOUGH = 16  # characters of COMMAND, for which less wanted columns go
_DATE = len("-20260131-235959-ffff")  # the end of an id
_USUAL_RUN = 32  # characters; a longer id stands on a line of its own where the terminal is narrow


def add_options(parser: Parser) -> None:
    """Add what only this verb takes, and the common options."""
    parser.epilog = (
        "AGE is the time since the submission. TIME is the duration of all attempts together. "
        "WHAT, a column or a line below the row, is the reason why a run waits or failed."
    )
    parser.suggest = lambda _given, _known, unknown: (
        "" if unknown[0].startswith("-") else f"To search for {unknown[0]}: hpcml ls --grep {shlex.quote(unknown[0])}."
    )
    common.add_site(parser)
    common.add_json(parser)
    parser.add_argument(
        "--last", default="20", metavar="N", help="show the newest N runs that match all other options (default: 20)"
    )
    parser.add_argument("--all", action="store_true", help="show all matching runs, not only the newest N (see --last)")
    parser.add_argument("--failed", action="store_true", help=common.FAILED)
    parser.add_argument(
        "--since",
        metavar="WHEN",
        help="only runs submitted within the last 7d, 12h, …, or since a date, e.g. 2026-11-20",
    )
    add_name(parser)
    parser.add_argument(
        "--grep",
        default="",
        metavar="TEXT",
        help="only runs with TEXT in their id, script or arguments (ignores case)",
    )


def add_name(parser: ArgumentParser) -> None:
    """Add the option that chooses runs by their names."""
    parser.add_argument(
        "--name", metavar="PATTERN", help="only runs with this name; PATTERN may be a shell pattern: 'kmeans*'"
    )


def run(options: Namespace) -> int:
    """Show the newest runs, newest last, with one question to Slurm for those that have not ended."""
    folder = common.runs_folder(options)
    most = None if options.all else common.whole(options.last, "--last")
    all_ids = directories.ids(folder)
    run_ids = _chosen(options, all_ids)
    rows: list[run_status.Status] = []
    rest: list[str] = []
    if run_ids:
        from hpcml.runs import listing

        rows, rest = listing.newest(folder, run_ids, most, failed=options.failed, text=options.grep)
    if options.json:
        common.print_json([row.as_json() for row in rows])
        return 0
    if rows:
        now = time.time()
        lines = [cells(row, now) for row in rows]
        head, *texts = table(lines, columns(sys.stdout))
        say(head)
        position, colours = head.index("STATE"), common.state_colours()
        for text in texts:
            is_row = " " not in text[:position].strip()  # not a line below its row
            say_state(text, position, colours if is_row else {}, flush=False)
        sys.stdout.flush()
    if not all_ids:
        say("You have no runs yet. Submit a run: hpcml submit SCRIPT.", sys.stderr)
    elif not rows and most != 0:
        say(_no_match(options, all_ids), sys.stderr)
    elif rest and (options.failed or options.grep):
        matching = "match" if options.grep else "failed"
        say(f"hpcml did not search for older runs that {matching} (to search all runs: --all).", sys.stderr)
    elif rest:
        verb = "is" if len(rest) == 1 else "are"
        say(f"{counted(len(rest), 'older run')} {verb} not shown (hpcml ls --all).", sys.stderr)
    return 0


def _chosen(options: Namespace, run_ids: Sequence[str]) -> list[str]:
    """Return the runs that their ids alone do not rule out, oldest first."""
    since, pattern = _moment(options.since), options.name
    return [
        run_id
        for run_id in run_ids
        if (pattern is None or is_named(directories.name_of(run_id), pattern))
        and (not since or (directories.submitted_at(run_id) or 0) >= since)
    ]


def is_named(name: str, pattern: str) -> bool:
    """Whether a run has a name; that of its script, ``train.py``, may be given too."""
    return any(fnmatch.fnmatchcase(name, spelling) for spelling in (pattern, pattern.removesuffix(".py")))


def _no_match(options: Namespace, run_ids: Sequence[str]) -> str:
    """Return a sentence that no run has what the options ask for, with the existing names if none has this one."""
    given = [
        f"--{option} {value}" if isinstance(value, str) else f"--{option}"
        for option in ("name", "grep", "since", "failed")
        if (value := getattr(options, option))
    ]
    names = list(dict.fromkeys(map(directories.name_of, reversed(run_ids))))
    if options.name is None or any(is_named(name, options.name) for name in names):
        return f"No run matches {' '.join(given)}."
    near = nearest(options.name, names)
    hint = did_you_mean(near and f"--name {near}", f"Names of runs: {', '.join(names[:4])}.")
    return f"No run matches {' '.join(given)}. {hint}"


def _moment(text: str | None) -> float:
    """Return the time of a duration ago, or of a local date, in seconds since 1970; 0 if nothing was given."""
    if text is None:
        return 0.0
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        try:
            return time.time() - parse_seconds(text)
        except ValueError:
            hint = "Write --since 7d, --since 12h or --since 2026-11-20."
            raise UsageError(f"'{text}' is not an age or a date", place="--since", hint=hint) from None


def cells(row: run_status.Status, now: float) -> tuple[str, ...]:
    """Return a run's cells under ``HEADER``; what is not known is ``-``.

    ``WHAT`` is empty where state and exit status show all: the script ended by itself, or runs with all its processes.
    """
    submitted, seconds = directories.submitted_at(row.run), row.seconds(now)
    is_whole = not row.alone and row.cluster.workers >= row.planned.expected and row.planned.form is not Form.HOLD
    is_repeated = row.ending.reason == Reason.EXIT or (row.phase == Phase.RUNNING and is_whole)
    details = (
        row.run,
        row.state,
        row.exit_status,
        max(len(row.allocation.nodes), row.planned.node_count) or None,
        None if submitted is None else format_age(now - submitted),
        None if seconds is None else _duration(seconds + row.progress.seconds_before),
        row.allocation.job,
        row.planned.site,
    )
    what = shown(_cause(row)) or ("" if is_repeated else shown(row.message))
    what = "; ".join(filter(None, ("" if what.upper() == row.state else what, row.idling)))
    return (*("-" if fact in (None, "") else shown(fact) for fact in details), what, shown(row.planned.command))


def _cause(row: run_status.Status) -> str:
    """Return the cause of a run's failure in some words, empty where its record has none."""
    if row.phase != Phase.REFUSED:
        return row.ending.cause
    from hpcml.failures import rules

    rule = rules.of_refusal(row.message, row.ending.quote)
    return rule.rule.short if rule else ""


def table(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return a header and rows in aligned columns of two spaces between; ``width`` 0 is as wide as they are.

    Where they are too wide, what a run waits for or why it failed is a line below its row, and the command gets the
    room. Then a long id takes a line of its own, then whole columns go to make room for the command: site, job, age,
    exit status and nodes. The time goes last. An id is cut only where the terminal is narrower than itself.
    """
    lines = [HEADER, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    kept = list(range(len(HEADER)))
    if width and not any(row[_WHAT] for row in rows):
        kept.remove(_WHAT)
    if width and _sum(widths, kept) > width:
        kept = [column for column in kept if column not in (_WHAT, _COMMAND)]
        _fit(rows, widths, kept, width)
    return [text for line in lines for text in _texts(line, widths, kept, width)]


def _texts(line: Sequence[str], widths: Sequence[int], kept: Sequence[int], width: int) -> Iterator[str]:
    """Yield the texts of a row: an id that is too long, the row, and below it what has no column."""
    cells_by_column = {column: cut(line[column], widths[column]) for column in kept}
    if len(line[0]) > widths[0]:
        yield cut_name(line[0], width)
        cells_by_column[0] = ""
    aligned = [
        f"{text:>{widths[column]}}" if column in _NUMBERS else f"{text:<{widths[column]}}"
        for column, text in cells_by_column.items()
    ]
    yield "  ".join(aligned).rstrip()
    if _WHAT not in kept and line[_WHAT] and line is not HEADER:
        yield cut(f"  {line[_WHAT]}", width)


def _fit(rows: Sequence[Sequence[str]], widths: list[int], kept: list[int], width: int) -> None:
    """Choose columns and their widths, so that the rows fit."""
    command = min(widths[_COMMAND], _ENOUGH) + 2 if any(row[_COMMAND] for row in rows) else 0
    if _sum(widths, kept) > width:
        widths[0] = max(len(line[0]) for line in (HEADER, *rows) if len(line[0]) <= _USUAL_RUN)
    start = min(command, _SHORTEST + 2)
    for column in _LEAST_WANTED:
        room = command if column in _LESS_THAN_COMMAND else start if column in _LESS_THAN_ITS_START else 0
        if _sum(widths, kept) + room > width:
            kept.remove(column)
    room = width - _sum(widths, kept) - 2
    if command and room >= min(widths[_COMMAND], _SHORTEST):
        widths[_COMMAND] = min(widths[_COMMAND], room)
        kept.append(_COMMAND)


def _sum(widths: Sequence[int], kept: Sequence[int]) -> int:
    return sum(widths[column] + 2 for column in kept) - 2


def cut(text: str, width: int) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def cut_name(run_id: str, width: int) -> str:
    """Return a run's id with as much of its name as there is room for; the date and what follows stay."""
    name, date = run_id[:-_DATE], run_id[-_DATE:]
    return run_id if len(run_id) <= width else cut(name, width - _DATE) + date


def _duration(seconds: int) -> str:
    """Return a duration as squeue writes it: ``0:12``, ``1:02:05``, ``2-01:00:00``."""
    text = format_time_limit(seconds).removeprefix("00:")
    return text.removeprefix("0")
