"""A sweep as a picture: the metric against each parameter that differs between the points."""

from __future__ import annotations

import io
from collections.abc import Sequence

from hpcml.errors import NotFoundError, UsageError
from hpcml.sweeps.points import typed
from hpcml.sweeps.table import Row
from hpcml.terminal import shown

_MOST = 12  # parameters
_WIDE = 50  # a parameter's axis is logarithmic if its largest value is so many times its smallest


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
    if not values:
        what = f"No point of the sweep has '{metric}'" if metric else "No point of the sweep has reported a metric"
        raise UsageError(what, place=name, hint="hpcml sweep table shows what they have: choose with --metric.")
    known = [row for row in rows if row.key in values]
    names = [one for one in dict.fromkeys(name for row in known for name in row.values if name != "draw")
             if len({row.values.get(one) for row in known}) > 1][:_MOST]  # fmt: skip
    if not names:
        raise UsageError("All points of the sweep have the same values", place=name, hint="There is nothing to draw.")
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        hint = "Install it: pip install 'hpcml[sweep]'; or write the table: hpcml sweep table NAME --csv."
        raise NotFoundError("A picture needs matplotlib", place="hpcml sweep plot", hint=hint) from None
    best = (max if maximize else min)(
        [row for row in known if row.state == "ok"] or known, key=lambda row: values[row.key]
    )
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "text.parse_math": False}):
        figure = Figure(figsize=(3.2 * len(names), 3.2), layout="constrained")
        figure.suptitle(shown(f"{name}: {metric}, best {values[best.key]:.6g} at {best.point}"), fontsize="medium")
        panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axes, one in zip(panels, names, strict=True):
            there = [row for row in known if one in row.values]
            found = [typed(row.values[one]) for row in there]
            numbers = [value for value in found if isinstance(value, int | float) and not isinstance(value, bool)]
            is_number = len(numbers) == len(found)
            places = numbers if is_number else [shown(row.values[one]) for row in there]
            faces = ["C0" if row.state == "ok" else "none" for row in there]  # hollow: pruned, or failed
            edges = ["C3" if row is best else "C0" for row in there]
            axes.scatter(places, [values[row.key] for row in there], c=faces, edgecolors=edges, linewidths=2)
            if is_number and min(numbers) > 0 and max(numbers) >= _WIDE * min(numbers):
                axes.set_xscale("log")
                axes.xaxis.set_major_formatter("{x:g}")
                axes.xaxis.set_minor_formatter("")
            axes.set_xlabel(shown(one))
        figure.supylabel(shown(metric))
        file = io.BytesIO()
        figure.savefig(file, format=form, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()
