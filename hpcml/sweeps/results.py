"""The results of a sweep: a table with a row for each point, the best metric first, and a picture of the metric."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcml.errors import NotFoundError, UsageError
from hpcml.sweeps.points import Typed
from hpcml.sweeps.record import Progress, Sweep
from hpcml.terminal import shown
from hpcml.units import counted

STATES = ("ok", "pruned", "failed", "under way", "missing")
_MOST = 12  # parameters in a picture
_WIDE = 50  # a parameter's axis is logarithmic if its largest value is so many times its smallest


class Row(NamedTuple):
    """A point as the table shows it."""

    key: str
    texts: dict[str, str]  # of the values, as the script got them
    state: str  # one of STATES
    metrics: dict[str, float | None]
    seconds: float | None  # None for a point that has not ended
    cause: str
    run: str  # its id, empty without one
    out: str  # the folder of its results, empty for a point that has not ended
    kind: str = ""  # of a failure
    running: bool = False  # it is under way, and has begun
    number: int = 0  # of the point in the sweep, from 1 on
    values: Mapping[str, Typed] = {}  # as hpcml.run.point has them

    @property
    def point(self) -> str:
        """The values on one line."""
        return " ".join(f"{name}={text}" for name, text in self.texts.items())


def rows(sweep: Sweep, progress: Progress, runs: str, metric: str, *, maximize: bool) -> list[Row]:
    """Return the rows: by the metric, then what has none, then what was pruned, failed, is under way and missing."""
    table = []
    for number, planned in enumerate(sweep.points, 1):
        texts = {value.name: value.text for value in planned.point}
        values = {value.name: value.typed for value in planned.point}
        if one := progress.ended.get(planned.key):
            out = f"{runs}/{one.run}/out/{planned.key}"
            if "draw" in one.values:  # of a search, which chose the values when the point began
                values, texts = dict(one.values), {name: str(value) for name, value in one.values.items()}
            row = Row(planned.key, texts, one.state, dict(one.metrics), one.seconds, one.cause, one.run, out, one.kind)
        else:
            run = progress.under_way.get(planned.key, "")
            row = Row(planned.key, texts, "under way" if run else "missing", {}, None, "", run, "")
            row = row._replace(running=planned.key in progress.running)
        table.append(row._replace(number=number, values=values))

    def place(row: Row) -> tuple[int, bool, float]:
        value = row.metrics.get(metric)
        return STATES.index(row.state), value is None, 0.0 if value is None else -value if maximize else value

    return sorted(table, key=place)


def omitted(sweep: Sweep, progress: Progress) -> int:
    """Return the number of points that runs of the sweep have, but its last command did not ask for."""
    return len((progress.ended.keys() | progress.under_way.keys()) - {planned.key for planned in sweep.points})


def metric_of(sweep: Sweep, progress: Progress) -> str:
    """Return the metric that sorts the table: the chosen one, else the first that a point has reported."""
    reported = (name for end in progress.ended.values() for name in end.metrics)
    return sweep.metric or next(reported, "")


def counts(table: Sequence[Row]) -> str:
    """Return the number of points of each state, in words."""
    states = [row.state if row.state != "under way" else "running" if row.running else "waiting" for row in table]
    parts = [
        f"{number} {state}"
        for state in ("ok", "pruned", "failed", "running", "waiting", "missing")
        if (number := states.count(state))
    ]
    return f"{counted(len(table), 'point')}: {', '.join(parts)}" if parts else "no points"


def grid(table: Sequence[Row]) -> list[list[str]]:
    """Return all rows as texts below a line of names, with every value and metric in a column of its own."""
    names = list(dict.fromkeys(name for row in table for name in row.texts))
    metrics = list(dict.fromkeys(name for row in table for name in row.metrics))
    head = [*names, *metrics, "state", "seconds", "cause", "kind", "key", "run", "out"]
    body = [
        [
            *(row.texts.get(name, "") for name in names),
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
    value = metrics.get(name, "")
    return "nan" if value is None else f"{value}"


def as_csv(table: Sequence[Row]) -> str:
    """Return the table as CSV (RFC 4180)."""
    text = io.StringIO()
    csv.writer(text).writerows(grid(table))
    return text.getvalue()


def causes(table: Sequence[Row]) -> list[tuple[str, str, int, str]]:
    """Return each cause of failed points, its kind, how many failed by it, and one of them; the most frequent first."""
    rows_by_cause: dict[tuple[str, str], list[Row]] = {}
    for row in table:
        if row.state == "failed":
            rows_by_cause.setdefault((row.cause, row.kind), []).append(row)
    rows = [(cause, kind, len(failed), failed[0].point) for (cause, kind), failed in rows_by_cause.items()]
    return sorted(rows, key=lambda one: -one[2])


# -- the picture -----------------------------------------------------------------------------------------------------


def picture(name: str, rows: Sequence[Row], metric: str, *, maximize: bool, form: str = "svg") -> bytes:
    """Return the picture of a sweep in a format of matplotlib's.

    Raises
    ------
    NotFoundError
        If matplotlib is not installed.
    UsageError
        If no point has the metric, or nothing differs between the points.
    """
    values = {row.key: value for row in rows if (value := row.metrics.get(metric)) is not None}
    measured = [row for row in rows if row.key in values]
    names = _varied(measured)
    if not names:
        raise _no_picture(name, metric, measured)
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        hint = "Install matplotlib: pip install 'hpcml[sweep]'. Or write the table: hpcml sweep table NAME --csv."
        raise NotFoundError("A picture needs matplotlib", place="hpcml sweep plot", hint=hint) from None
    best = (max if maximize else min)(
        [row for row in measured if row.state == "ok"] or measured, key=lambda row: values[row.key]
    )
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "text.parse_math": False}):
        figure = Figure(figsize=(3.2 * len(names), 3.2), layout="constrained")
        figure.suptitle(shown(f"{name}: {metric}, best {values[best.key]:.6g} at {best.point}"), fontsize="medium")
        panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axes, one in zip(panels, names, strict=True):
            _draw_panel(axes, one, [row for row in measured if one in row.values], values, best)
        figure.supylabel(shown(metric))
        file = io.BytesIO()
        figure.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()


def _varied(measured: Sequence[Row]) -> list[str]:
    """Return the parameters that differ between points, as many as a picture has panels."""
    names = dict.fromkeys(name for row in measured for name in row.texts if name != "draw")
    return [candidate for candidate in names if len({row.texts.get(candidate) for row in measured}) > 1][:_MOST]


def _no_picture(name: str, metric: str, measured: Sequence[Row]) -> UsageError:
    """Return the reason for which a sweep has no picture."""
    if measured:
        hint = "A picture needs a parameter with at least two different values."
        return UsageError("All points of the sweep have the same parameter values", place=name, hint=hint)
    what = f"the metric '{metric}'" if metric else "a metric"
    hint = "hpcml sweep table shows the metrics of the points. Choose a metric with --metric."
    return UsageError(f"No point of the sweep has reported {what}", place=name, hint=hint)


def _draw_panel(axes: Any, name: str, rows: Sequence[Row], values: Mapping[str, float], best: Row) -> None:
    """Draw the metric over one parameter; points that were pruned or failed are hollow."""
    chosen = [row.values[name] for row in rows]
    numbers = [value for value in chosen if isinstance(value, int | float) and not isinstance(value, bool)]
    is_number = len(numbers) == len(chosen)
    places = numbers if is_number else [shown(row.texts[name]) for row in rows]
    faces = ["C0" if row.state == "ok" else "none" for row in rows]
    edges = ["C3" if row is best else "C0" for row in rows]
    axes.scatter(places, [values[row.key] for row in rows], c=faces, edgecolors=edges, linewidths=2)
    if is_number and min(numbers) > 0 and max(numbers) >= _WIDE * min(numbers):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    axes.set_xlabel(shown(name))
