"""``hpcml sweep status``, ``table``, ``plot``, ``cancel``: how sweeps stand, what their points gave, and their end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml import files
from hpcml.cli import common
from hpcml.errors import UsageError
from hpcml.runs import directories
from hpcml.sites import layers
from hpcml.sweeps import store, table
from hpcml.terminal import Raw, columns, fit, say, say_fitted, shown
from hpcml.units import format_seconds

if TYPE_CHECKING:
    from argparse import Namespace


def look(options: Namespace, verb: str, words: list[str]) -> int:
    """Show how sweeps stand, or one sweep's table or picture, or cancel it."""
    runs = common.runs_folder(options)
    if len(words) > 1 or (verb != "status" and not words):
        hint = "NAME stands before options. List them: hpcml sweep status."
        raise UsageError("One sweep's NAME is wanted", place=f"hpcml sweep {verb}", hint=hint)
    if verb != "status":
        return {"table": _table, "plot": _plot, "cancel": _cancel}[verb](options, runs, words[0])
    found = [store.find(runs, name) for name in words] or [store.find(runs, name) for name in store.names(runs)]
    answers = []
    for sweep in found:
        standing = store.standing(runs, sweep)
        rows = _rows(options, runs, sweep, standing)
        answers.append({"sweep": sweep.name, **_facts(rows), "runs": list(sweep.runs)})
        if options.json:
            continue
        say_fitted(table.counts(rows), sys.stdout, first=f"{sweep.name}  ", rest="  ")
        for text in standing.problems:
            say_fitted(text, sys.stdout, first="  ", rest="    ")
        if words:
            _tell_causes(rows)
            say_fitted(" ".join(sweep.runs[-4:]), sys.stdout, first="  runs     ", rest=" " * 11)
    if options.json:
        common.print_json(answers[0] if words else answers)
    return 0


def _facts(rows: Sequence[table.Row]) -> dict[str, int]:
    return {"points": len(rows), **{state: sum(row.state == state for row in rows) for state in table.STATES}}


def _cancel(options: Namespace, runs: Path, name: str) -> int:
    """Cancel all runs of a sweep that go on, and say how its points stand."""
    from hpcml.cli import cancel

    sweep = store.find(runs, name)
    answers, failed = cancel.cancel_each(cancel.going(runs, sweep.runs))
    rows = _rows(options, runs, sweep, store.standing(runs, sweep))
    if options.json:
        common.print_json({"sweep": name, **_facts(rows), "cancelled": answers})
        return failed
    if not answers:
        say("No run of it goes on.", sys.stderr)
    cancel.say_answers(answers)
    say_fitted(table.counts(rows), sys.stdout, first=f"{name}  ", rest="  ")
    return failed


def _rows(options: Namespace, runs: Path, sweep: store.Sweep, standing: store.Standing) -> list[table.Row]:
    metric = options.metric or table.metric_of(sweep, standing)
    return table.rows(sweep, standing, str(runs), metric, maximize=options.maximize or sweep.maximize)


def _table(options: Namespace, runs: Path, name: str) -> int:
    sweep = store.find(runs, name)
    standing = store.standing(runs, sweep)
    rows = _rows(options, runs, sweep, standing)
    if options.json:
        common.print_json([row._asdict() for row in rows])
    elif options.parquet:
        path = _target(options, "--parquet", options.parquet)
        with directories.storage(path):
            table.write_parquet(rows, sweep, path)
        say(common.typed(path, sys.stdout))
    elif options.csv == "-":
        for line in table.as_csv(rows).splitlines():
            say(line)
    elif options.csv:
        _write(_target(options, "--csv", options.csv), table.as_csv(rows))
    else:
        metric = options.metric or table.metric_of(sweep, standing)
        for line in _lines(rows, metric, columns(sys.stdout)):
            say(line)
        say_fitted(f"{table.counts(rows)}.", sys.stderr)
    return 0


def _plot(options: Namespace, runs: Path, name: str) -> int:
    """Draw the sweep into a file."""
    from hpcml.sweeps import plot

    sweep = store.find(runs, name)
    standing = store.standing(runs, sweep)
    metric = options.metric or table.metric_of(sweep, standing)
    typed = {one.key: {value.name: value.typed for value in one.point} for one in sweep.points}
    rows = _rows(options, runs, sweep, standing)
    points = [plot.Point(typed[row.key], row.state, row.metrics.get(metric)) for row in rows]
    picture = plot.picture(name, points, metric, maximize=options.maximize or sweep.maximize)
    if options.output == "-":
        Raw(sys.stdout).write(picture.encode(), last=True)
    else:
        _write(_target(options, "--output", options.output or f"{name}.svg"), picture)
    return 0


def _target(options: Namespace, option: str, text: str) -> Path:
    """Return the file that an option names; a laptop's is not on this machine."""
    if options.caller:
        printed = "plot NAME -o - > NAME.svg" if option == "--output" else "table NAME --csv > NAME.csv"
        hint = f"Have it printed: hpcml --host HOST sweep {printed}."
        raise UsageError("The file would be on the login node", place=option, hint=hint)
    path = common.here() / layers.user_path(text)
    if path.is_dir():
        raise UsageError("That is a folder", place=f"{option} {text}", hint="Name a file in it.")
    return path


def _write(path: Path, text: str) -> None:
    """Put a file in place, whole or not at all, and say where it is."""
    with directories.storage(path):
        files.write(path, text, 0o666 & ~layers.user_umask())
    say(common.typed(path, sys.stdout))


def _lines(rows: Sequence[table.Row], metric: str, width: int) -> list[str]:
    """Return the table for a terminal: metric, state, time, point; below what failed its cause."""
    if not rows:
        return []
    cells = [(metric, "state", "time", "point", "")]
    for row in rows:
        value = row.metrics.get(metric)
        number = "nan" if metric in row.metrics and value is None else "" if value is None else f"{value:.6g}"
        spent = "" if row.seconds is None else format_seconds(row.seconds)
        stopped = row.state == "stopped" and row.cause.replace(" by halving", "")
        cells.append((number, stopped or row.state, spent, row.point, "" if stopped else row.cause))
    wide = [max(len(line[column]) for line in cells) for column in range(3)]
    lines = []
    for number, state, spent, point, cause in cells:
        first = f"{number:>{wide[0]}}  " if wide[0] else ""
        lines.append(f"{first}{state:<{wide[1]}}  {spent:>{wide[2]}}  {point}")
        lines += [f"  {cause}"] if cause else []
    return [fit(shown(line), width) if width else shown(line) for line in lines]


def _tell_causes(rows: Sequence[table.Row]) -> None:
    for cause, kind, number, example in table.causes(rows):
        how = f"failed ({kind})" if kind else "failed"
        say_fitted(f"{number} {how}: {cause} (as {example})", sys.stdout, first="  ", rest="    ")
