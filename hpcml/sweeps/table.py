"""The table of a sweep: a row for each point, the best metric first."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import files
from hpcml.errors import NotFoundError
from hpcml.sweeps.store import Standing, Sweep

STATES = ("ok", "stopped", "failed", "under way", "missing")  # stopped: by halving


class Row(NamedTuple):
    """A point as the table shows it; ``state`` is one of :data:`STATES`, ``kind`` that of a failure."""

    key: str
    values: dict[str, str]
    state: str
    metrics: dict[str, float | None]
    seconds: float | None
    cause: str
    run: str
    out: str
    kind: str = ""
    running: bool = False

    @property
    def point(self) -> str:
        """The values on one line."""
        return " ".join(f"{name}={text}" for name, text in self.values.items())


def rows(sweep: Sweep, standing: Standing, runs: str, metric: str, *, maximize: bool) -> list[Row]:
    """Return the rows: by the metric, then what has none, then what was stopped, failed, is under way and missing."""
    found = []
    for planned in sweep.points:
        values = {value.name: value.text for value in planned.point}
        if one := standing.ended.get(planned.key):
            state, out = (
                "ok" if one.ok else "stopped" if one.stopped else "failed",
                f"{runs}/{one.run}/out/{planned.key}",
            )
            row = Row(planned.key, values, state, dict(one.metrics), one.seconds, one.cause, one.run, out, one.kind)
        else:
            run = standing.under_way.get(planned.key, "")
            row = Row(planned.key, values, "under way" if run else "missing", {}, None, "", run, "")
            row = row._replace(running=planned.key in standing.running)
        found.append(row)

    def place(row: Row) -> tuple[int, bool, float]:
        value = row.metrics.get(metric)
        return STATES.index(row.state), value is None, 0.0 if value is None else -value if maximize else value

    return sorted(found, key=place)


def metric_of(sweep: Sweep, standing: Standing) -> str:
    """Return the metric that sorts the table: the chosen one, else the first that a point has reported."""
    reported = (name for one in standing.ended.values() for name in one.metrics)
    return sweep.metric or next(reported, "")


def counts(table: Sequence[Row]) -> str:
    """Return how many points there are of each state, in words."""
    states = [row.state if row.state != "under way" else "running" if row.running else "waiting" for row in table]
    words = [
        f"{number} {state}{' by halving' if state == 'stopped' else ''}"
        for state in ("ok", "stopped", "failed", "running", "waiting", "missing")
        if (number := states.count(state))
    ]
    return f"{len(table)} points: {', '.join(words)}" if words else "no points"


def grid(table: Sequence[Row]) -> list[list[str]]:
    """Return all rows as texts below a line of names, with every value and metric in a column of its own."""
    names = list(dict.fromkeys(name for row in table for name in row.values))
    metrics = list(dict.fromkeys(name for row in table for name in row.metrics))
    head = [*names, *metrics, "state", "seconds", "cause", "kind", "key", "run", "out"]
    body = [
        [
            *(row.values.get(name, "") for name in names),
            *(_number(row.metrics, name) for name in metrics),
            row.state,
            "" if row.seconds is None else str(row.seconds),
            row.cause,
            row.kind,
            row.key,
            row.run,
            row.out,
        ]
        for row in table
    ]
    return [head, *body]


def _number(metrics: dict[str, float | None], name: str) -> str:
    if name not in metrics:
        return ""
    value = metrics[name]
    return "nan" if value is None else repr(value)


def as_csv(table: Sequence[Row]) -> str:
    """Return the table as CSV (RFC 4180)."""
    text = io.StringIO()
    csv.writer(text).writerows(grid(table))
    return text.getvalue()


def write_parquet(table: Sequence[Row], sweep: Sweep, path: Path) -> None:
    """Write the table as Parquet: numbers as numbers, a column that holds numbers and texts as texts.

    Raises
    ------
    NotFoundError
        If pyarrow is not installed.
    OSError
        If the file cannot be written; nothing is left of it.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        hint = "Install it: pip install pyarrow; or write CSV: --csv FILE."
        raise NotFoundError("A table in Parquet needs pyarrow", place="--parquet", hint=hint) from None
    typed = {one.key: {value.name: value.typed for value in one.point} for one in sweep.points}
    names = list(dict.fromkeys(name for row in table for name in row.values))
    columns: dict[str, object] = {}
    for name in names:
        values = [typed[row.key].get(name) for row in table]
        kinds = {type(value) for value in values if value is not None}
        if len(kinds) > 1:
            numbers = kinds == {int, float}
            values = [None if one is None else float(one) if numbers else row.values[name]
                      for one, row in zip(values, table, strict=True)]  # fmt: skip
        columns[name] = values
    for name in dict.fromkeys(name for row in table for name in row.metrics):
        found = [
            math.nan if name in row.metrics and row.metrics[name] is None else row.metrics.get(name) for row in table
        ]
        columns[name if name not in columns else f"{name} (metric)"] = pyarrow.array(found, pyarrow.float64())
    for fact, kind in (
        ("state", str),
        ("seconds", float),
        ("cause", str),
        ("kind", str),
        ("key", str),
        ("run", str),
        ("out", str),
    ):
        of = pyarrow.float64() if kind is float else pyarrow.string()
        columns[fact if fact not in columns else f"{fact} (point)"] = pyarrow.array(
            [getattr(row, fact) for row in table], of
        )
    new = files.beside(path)
    try:
        parquet.write_table(pyarrow.table(columns), new)
        new.rename(path)
    finally:
        new.unlink(missing_ok=True)


def causes(table: Sequence[Row]) -> list[tuple[str, str, int, str]]:
    """Return each cause of failed points, its kind, how many failed by it, and one of them; the most frequent first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in table:
        if row.state == "failed":
            found.setdefault((row.cause, row.kind), []).append(row)
    rows = [(cause, kind, len(failed), failed[0].point) for (cause, kind), failed in found.items()]
    return sorted(rows, key=lambda one: -one[2])
