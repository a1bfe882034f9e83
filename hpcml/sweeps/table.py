"""The table of a sweep: a row for each point, the best metric first."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

from hpcml.sweeps.store import Standing, Sweep

STATES = ("ok", "pruned", "failed", "under way", "missing")


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
    """Return the rows: by the metric, then what has none, then what was pruned, failed, is under way and missing."""
    found = []
    for planned in sweep.points:
        values = {value.name: value.text for value in planned.point}
        if one := standing.ended.get(planned.key):
            state, out = (
                "ok" if one.ok else "pruned" if one.pruned else "failed",
                f"{runs}/{one.run}/out/{planned.key}",
            )
            if "draw" in dict(one.values):  # of a search, which chose the values when the point began
                values = {name: str(value) for name, value in one.values}
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
        f"{number} {state}"
        for state in ("ok", "pruned", "failed", "running", "waiting", "missing")
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


def causes(table: Sequence[Row]) -> list[tuple[str, str, int, str]]:
    """Return each cause of failed points, its kind, how many failed by it, and one of them; the most frequent first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in table:
        if row.state == "failed":
            found.setdefault((row.cause, row.kind), []).append(row)
    rows = [(cause, kind, len(failed), failed[0].point) for (cause, kind), failed in found.items()]
    return sorted(rows, key=lambda one: -one[2])
