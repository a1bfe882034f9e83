"""The report of a run as one page: no request to any network, all texts escaped, readable without its script.

Its pictures are SVG, coloured by the page: curves over time, a map of time and device, and bars.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup, escape

from hpcml import attempt_history, safe_files, states
from hpcml.failures.end import Reason
from hpcml.kind import Kind
from hpcml.paths import RunPaths
from hpcml.report import contents, page_template
from hpcml.report.advice import SHORTEST
from hpcml.report.contents import Report
from hpcml.report.ending import Ending
from hpcml.report.ledger import Function, Ledger
from hpcml.run_files import Recorded
from hpcml.states import State
from hpcml.units import counted, format_bytes, format_seconds

GIB = 1024**3
_NONE = "–"
_LEAST_SHARE = 0.05  # percent of the hours that a part must have
SMALL = 1.0  # percent, under which parts of the hours, and functions, share a row
MOST_FUNCTIONS = 16
WIDELY = 20  # times the smallest value: the axis is logarithmic
LEAST_SAMPLES = 3  # of a curve that is drawn
FEW_ROWS = 4  # devices, up to which curves show as much as a map
_CLASSES = {"green": "good", "yellow": "mild"}  # of the page's style, by the terminal's colours
WIDTH, LEFT, RIGHT = 1000.0, 84.0, 8.0  # units of the drawing; the page scales it
BINS = 500  # of a line: two points each
COLUMNS = 400  # of a map
ROWS = 64
MOST_TICKS = 7
HEIGHT = 240.0  # of a picture of lines
BELOW = 34.0  # for the times below it
MOST_PANELS = 4  # of a sweep's picture
LEAST_OF_LIMIT = 0.2  # of a limit, under which its line is left out: the curves would be flat
LEVELS = 10
COLOURS = 8  # lines of one picture that have a colour of their own

Points = list[tuple[float, float]]


def make(
    paths: RunPaths, attempt: int, kind: Kind, ending: Ending | None = None, memory: float = 0.0, most: int = 0
) -> Path:
    """Write report.json and report.html of an attempt, and return the page's path; :func:`contents.load` has the rest.

    Raises
    ------
    OSError
        If they cannot be written.
    """
    recorded = Recorded(paths)
    for before in recorded.attempts:
        if before < attempt and not paths.attempt(before).ledger.exists():  # it was killed, or its report was late
            attempt_history.keep_sums(paths, before, _sums(contents.ledger_of(recorded, before, kind, most)))
    report = contents.load(paths, attempt, kind, ending, memory, most)
    over = report.course.ending.end.over
    if over and (attempt or paths.attempt(attempt).goes_on.exists()):  # another report will count it
        attempt_history.keep_sums(paths, attempt, _sums(report.hours.ledger))
    safe_files.write(paths.report_facts, json.dumps(report.as_json(), indent=1) + "\n")
    safe_files.write(paths.report, html(report))
    return paths.report


def _sums(counted: Ledger) -> attempt_history.Sums:
    return attempt_history.Sums(counted.unit, counted.number, counted.paid, counted.parts)


def html(report: Report) -> str:
    """Return the page."""
    end, ledger = report.course.ending.end, report.hours.ledger
    decimals = 0 if ledger.paid >= 100 or not ledger.paid else max(2, 2 - math.floor(math.log10(ledger.paid)))
    good, unit = end.over and not end.exit_status, ledger.unit
    parts = _parts(report)
    colour = _CLASSES.get(states.COLOURS.get(end.state, "red"), "bad")
    style = _style(report)
    return _TEMPLATE.render(
        decimals=decimals,
        report=report,
        good=good,
        state_class=colour if end.over else "",
        shows_cause=report.course.ending.cause and (report.course.ending.evidence or end.state != State.CANCELLED),
        shows_status=end.over and end.reason != Reason.EXIT,
        unit=unit,
        nodes=counted(len(report.machines.nodes), "node"),
        cards=_cards(report),
        parts=_folded(parts),
        several=len(report.hours.attempts) > 1,
        total=sum(report.hours.total.values()),
        functions=_functions(report.findings.functions),
        ledger=bar(
            [(row.kinds[0], f"{row.title}: {row.share:.1f} %", row.hours) for row in parts],
            name=f"Where the {unit}-hours went",
        ),
        short=report.course.end - report.course.began < SHORTEST,
        columns=[
            list(dict.fromkeys(name for point in report.points.ended for name in getattr(point, which)))
            for which in ("values", "metrics")
        ],
        requested=_requested(report),
        panels=_panels(report),
        pictures=_pictures(report),
        style=Markup(style),  # noqa: S704 - this package's own
        script=Markup(page_template.SCRIPT),  # noqa: S704 - this package's own
        policy=_policy(style),
    )


class _Row(NamedTuple):
    """A row of the table of hours."""

    kinds: tuple[str, ...]  # the parts that it shows
    title: str
    text: str
    hours: float  # of this attempt
    share: float  # of them, percent of the hours paid
    total: float  # hours of all attempts
    is_small: bool


def _parts(report: Report) -> list[_Row]:
    """Return a row for each part of the hours."""
    ledger, total = report.hours.ledger, report.hours.total
    whole = sum(total.values()) or 1.0
    rows = []
    for name, part in report.drawing.parts.items():
        title, text = (words.format(unit=ledger.unit) for words in (part.title, part.text))
        largest = max(ledger.share(name), 100 * total[name] / whole)
        row = _Row((name,), title, text, ledger.parts[name], ledger.share(name), total[name], largest < SMALL)
        rows += [row] if largest >= _LEAST_SHARE else []
    return rows


def _folded(rows: Sequence[_Row]) -> list[_Row]:
    """Return rows with the small ones as one at the end."""
    if not (small := [row for row in rows if row.is_small]):
        return list(rows)
    kinds = tuple(kind for row in small for kind in row.kinds)
    text = ", ".join(f"{row.title}: {row.share:.1f} %" for row in small)
    hours, share, total = (sum(column) for column in zip(*((row[3:6]) for row in small), strict=True))
    title = f"Other parts, each below {SMALL:.0f} %"
    return [row for row in rows if not row.is_small] + [_Row(kinds, title, text, hours, share, total, is_small=True)]


def _functions(functions: Sequence[Function]) -> list[Function]:
    """Return functions with those that took little, if there are several, as one at the end."""
    least = SMALL / 100 * sum(function.seconds for function in functions)
    shown = [function for function in functions[:MOST_FUNCTIONS] if function.seconds >= least]
    rest = functions[len(shown) :]
    if len(rest) < 2:
        return list(functions)
    tasks, seconds = sum(function.tasks for function in rest), sum(function.seconds for function in rest)
    name = f"{len(rest)} other functions"
    return [*shown, Function(name, tasks, seconds, max(function.longest for function in rest))]


def _style(report: Report) -> str:
    """Return the page's style, with the colours of the parts; a style attribute would need 'unsafe-inline'."""
    parts = report.drawing.parts
    rules = [
        *(f".p-{name} {{ fill: var(--{name}); }} .k-{name} {{ background: var(--{name}); }}\n" for name in parts),
        *(
            f".c{place} polyline {{ stroke: var(--c{place}); }} .c{place} circle {{ fill: var(--c{place}); }} "
            f".k{place} {{ background: var(--c{place}); }}\n"
            for place in range(COLOURS)
        ),
        ".h0 { fill: var(--none); }\n",
        *(f".h{row} {{ fill: rgb(var(--heat) / {round(100 * row / LEVELS)}%); }}\n" for row in range(1, LEVELS + 1)),
    ]
    light = " ".join(f"--{name}: {part.light};" for name, part in parts.items())
    dark = " ".join(f"--{name}: {part.dark};" for name, part in parts.items())
    return page_template.STYLE.replace("LIGHT_PARTS", light).replace("DARK_PARTS", dark) + "".join(rules)


def _policy(page_style: str) -> str:
    """Return the page's content security policy: its own style and script by their sums, and nothing else."""
    style, script = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (page_style, page_template.SCRIPT)
    )
    allowed = f"style-src 'sha256-{style}'; script-src 'sha256-{script}'"
    return f"default-src 'none'; img-src data:; {allowed}; base-uri 'none'; form-action 'none'"


def _requested(report: Report) -> str:
    """Return in a line what the run requested, without what it left to the site."""
    requested = {what: asked for what, asked, _ in report.findings.asked if asked}
    number, _, partition = requested.get("Nodes", "").partition(" of partition ")
    parts = (
        counted(int(number), "node") if number.isdecimal() else "",
        f"partition {partition}" if partition else "",
        f"{requested['GPUs']} GPUs" if "GPUs" in requested else "",
        f"{requested['Memory of a node']} of memory per node" if report.findings.figures.get("memory_asked") else "",
        f"time limit {requested['Time']}" if requested.get("Time", "no limit") != "no limit" else "",
    )
    return ", ".join(filter(None, parts))


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "nothing ran"


def _cards(report: Report) -> list[tuple[str, str]]:
    """Return the figures at the top, each with its title; what is not known has none."""
    figures, ledger, course = report.findings.figures, report.hours.ledger, report.course
    cards = [("elapsed", format_seconds(course.end - course.began))] if course.began else []
    if ledger.paid:
        cards.append((f"{ledger.unit}-hours paid", f"{ledger.paid:.3g}"))
    if ledger.parts["unknown"] < ledger.paid / 2:
        cards.append(("useful part of the paid hours", f"{figures.get('useful', 0):.0f} %"))
    if "memory_peak" in figures:
        cards.append(("highest memory use of a node", format_bytes(figures["memory_peak"])))
    if "energy_kwh" in figures:
        energy = figures["energy_kwh"]
        cards.append(("energy of the GPUs", f"{energy:.3g} kWh" if energy >= 0.1 else f"{1000 * energy:.3g} Wh"))
    if "imbalance" in figures:
        cards.append(("least used GPU, below the median", f"{figures['imbalance']:.0f} %"))
    return cards


# -- pictures --------------------------------------------------------------------------------------------------------


class Curve(NamedTuple):
    """A curve of a picture."""

    title: str
    t: Sequence[float]  # seconds since the run's start
    values: Sequence[float | None]  # None where nothing is known


class _Picture(NamedTuple):
    """What a picture of curves shows."""

    title: str
    curves: list[Curve]
    unit: str
    note: str = ""
    top: float = 0.0  # of the axis; 0: as the curves need it
    limit: float = 0.0  # that the run had, where a line is drawn; 0: none
    always: bool = False  # drawn also where all values are zero


_Drawn = tuple[str, str, Markup, list[str]]  # title, note, picture, names of its curves


def _pictures(report: Report) -> list[_Drawn]:
    """Return the pictures over time; none that would be empty."""
    seconds = report.course.end - report.course.began
    gap = max([20.0, *(4 * node.every for node in report.drawing.series.values())])
    both_ways = "Data sent and received by each"
    nodes = report.drawing.series.values()
    gpus = [gpu for node in nodes for gpu in node.gpus]
    cores, memory = (max([0.0, *(getattr(node, name) for node in nodes)]) for name in ("cores", "memory"))
    of_gpus = (
        _Picture("GPU use", _of_gpus(report, "use"), "%", top=100, always=True),
        _Picture("GPU memory", _of_gpus(report, "memory"), "GiB", limit=max([0.0, *(gpu.memory for gpu in gpus)])),
        _Picture("GPU power", _of_gpus(report, "power"), "W"),
        _Picture("NVLink", _of_gpus(report, "nvlink"), "GiB/s", f"{both_ways} GPU."),
        _Picture("PCIe", _of_gpus(report, "pcie"), "GiB/s", f"{both_ways} GPU."),
    )
    of_nodes = (
        _Picture("Cores in use", _of_nodes(report, "cpu"), "", limit=cores, always=True),
        _Picture("Memory of the nodes", _of_nodes(report, "memory"), "GiB", limit=memory),
        _Picture("InfiniBand", _of_nodes(report, "ib"), "GiB/s", f"{both_ways} node."),
        _Picture(
            "Network", _of_nodes(report, "net"), "GiB/s", "Data sent and received by each node's network interfaces."
        ),
        _Picture("Disk", _of_nodes(report, "disk"), "GiB/s", "Data read and written by each node."),
    )
    drawn = [
        _map("Use of each GPU", _of_gpus(report, "use"), "GPU", seconds, gap),
        *(_plot(picture, seconds, gap) for picture in of_gpus),
        _map("Use of each node's cores", _shares_of_cores(report), "node", seconds, gap),
        *(_plot(picture, seconds, gap) for picture in (*of_nodes, *_of_kind(report))),
    ]
    return [row for row in drawn if row[2]]


def _of_gpus(report: Report, column: str) -> list[Curve]:
    return [
        Curve(f"{name}:{gpu.number}", [at - report.course.began for at in node.t], getattr(gpu.columns, column))
        for name, node in report.drawing.series.items()
        for gpu in node.gpus
    ]


def _of_nodes(report: Report, column: str) -> list[Curve]:
    return [
        Curve(name, [at - report.course.began for at in node.t], getattr(node.columns, column))
        for name, node in report.drawing.series.items()
    ]


def _shares_of_cores(report: Report) -> list[Curve]:
    """Return the use of each node's cores in percent."""
    return [
        curve._replace(values=[None if value is None else 100 * value / node.cores for value in curve.values])
        for curve, node in zip(_of_nodes(report, "cpu"), report.drawing.series.values(), strict=True)
    ]


def _of_kind(report: Report) -> list[_Picture]:
    """Return the pictures of what the kind's own processes did."""
    activity = report.drawing.activity
    if activity is None:
        return []
    t = [at - report.course.began for at in activity.t]
    return [
        _Picture(plot.title, [Curve(plot.label, t, activity.columns[plot.column])], plot.unit, always=plot.always)
        for plot in report.drawing.plots
    ]


def _map(title: str, curves: Sequence[Curve], row: str, seconds: float, gap: float) -> _Drawn:
    if len(curves) <= FEW_ROWS:  # the curves show it
        return title, "", Markup(), []
    note = f"Each row is a {row}. The stronger the color, the higher the use, from 0 to 100 %."
    return title, note, heat(curves, seconds, name=f"{title} over time", gap=gap), []


def _plot(picture: _Picture, seconds: float, gap: float) -> _Drawn:
    title, unit, scale = picture.title, picture.unit, 1
    shown = [curve for curve in spread(picture.curves) if _samples(curve) >= LEAST_SAMPLES]
    highest = max((value for curve in shown for value in curve.values if value is not None), default=0.0)
    if not highest and not picture.always:
        return title, "", Markup(), []  # nothing but zero
    if unit.startswith("GiB"):
        unit, scale = (unit, GIB) if highest >= GIB / 8 else (unit.replace("GiB", "MiB"), 1 << 20)
    limit = picture.limit if highest >= LEAST_OF_LIMIT * picture.limit else 0.0
    top = picture.top or (limit / scale if 1.02 * limit >= highest else 0.0)
    drawn = lines(shown, seconds, name=title, unit=unit, top=top, scale=scale, gap=gap, limit=limit)
    place = "Dashed: the limit" if limit else "The limit is above the top of the chart:"
    note = f"{place} {picture.limit / scale:.4g} {unit}".rstrip() + "." if picture.limit else picture.note
    return f"{title}, {unit}" if unit else title, note, drawn, [curve.title for curve in shown]


def _samples(curve: Curve) -> int:
    """Return the number of known values of a curve."""
    return sum(value is not None for value in curve.values)


def thin(points: Points, bins: int = BINS) -> Points:
    """Return at most two points for each of so many equal pieces of time: the lowest and the highest, in order."""
    if len(points) <= 2 * bins:
        return points
    begin, width = points[0][0], (points[-1][0] - points[0][0]) / bins or 1.0
    kept: Points = []
    piece: Points = []
    number = 0
    for point in [*points, (math.inf, 0.0)]:
        at = bins if point[0] == math.inf else min(bins - 1, int((point[0] - begin) / width))
        if at != number and piece:
            low, high = min(piece, key=lambda one: one[1]), max(piece, key=lambda one: one[1])
            kept += [low] if low == high else sorted((low, high))
            piece = []
        number = at
        piece.append(point)
    return kept


def pieces(curve: Curve, gap: float) -> list[Points]:
    """Return the points of a curve, divided where nothing is known for longer than ``gap`` seconds."""
    parts: list[Points] = []
    last = -math.inf
    for at, value in zip(curve.t, curve.values, strict=False):
        if value is None:
            continue
        if at - last > gap:
            parts.append([])
        parts[-1].append((at, value))
        last = at
    whole = sum(map(len, parts))
    return [thin(piece, max(1, round(BINS * len(piece) / whole))) for piece in parts]


def nice(highest: float) -> float:
    """Return the round number at or above a value: 1, 2, 2.5 or 5 times a power of ten."""
    if highest <= 0 or not math.isfinite(highest):
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= highest * (1 - 1e-9))


def clock(seconds: float) -> str:
    """Return a time since the run's start: 45 s, 12:30 (minutes), 2:05:00 (hours)."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def ticks(seconds: float) -> list[float]:
    """Return round times from 0 to the run's end."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
    whole_days = math.ceil(seconds / MOST_TICKS / 86400) * 86400
    step = next((size for size in steps if seconds / size <= MOST_TICKS), whole_days)
    return [at * step for at in range(int(seconds / step) + 1)]


def _x(at: float, seconds: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, at / seconds)), 1)


def _axis(seconds: float, height: float) -> Iterable[str]:
    for place, at in enumerate(ticks(seconds)):
        x = _x(at, seconds)
        anchor = "middle" if x < WIDTH - 40 else "end"
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="4" y2="{height}"/>'
        often = ' class="often"' if place % 2 else ""
        yield f'<text{often} x="{x}" y="{height + 6}" text-anchor="{anchor}">{clock(at)}</text>'


def lines(curves: Sequence[Curve], seconds: float, *, name: str, unit: str, top: float = 0.0, scale: float = 1.0,
          gap: float = 20.0, limit: float = 0.0) -> Markup:  # fmt: skip
    """Return a picture of lines over the run's time; empty if nothing is known of any.

    Parameters
    ----------
    top
        The highest value of the axis; 0: as the lines need it.
    scale
        What a value is divided by to be in ``unit``.
    gap
        Seconds without a value after which a curve is interrupted.
    limit
        A value at which a dashed line is drawn.
    """
    drawn = [(curve, pieces(curve, gap)) for curve in curves]
    drawn = [(curve, parts) for curve, parts in drawn if parts]
    if not drawn or seconds <= 0:
        return Markup()
    highest = max(value for _, parts in drawn for part in parts for _, value in part) / scale
    top = top or nice(max(highest, limit / scale))
    steps = [0.0, top / 2, top]
    size = f'viewBox="0 0 {WIDTH:g} {HEIGHT + BELOW:g}" data-top="{top:g}" data-height="{HEIGHT:g}"'
    labels = f'data-seconds="{seconds:.2f}" data-unit="{escape(unit)}" aria-label="{escape(name)}"'
    out = [f'<svg class="lines" role="img" {size} {labels}>']
    out += _axis(seconds, HEIGHT)
    for step in steps:
        y = round(HEIGHT - (HEIGHT - 8) * step / top, 1)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        out.append(f'<text class="up" x="{LEFT - 6}" y="{y + 6}" text-anchor="end">{step:.4g}</text>')
    if limit:
        y = round(HEIGHT - (HEIGHT - 8) * limit / scale / top, 1)
        out.append(f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
    for place, (curve, parts) in enumerate(drawn):
        out.append(f'<g class="c{place % COLOURS}" data-title="{escape(curve.title)}">')
        for part in parts:
            points = " ".join(
                f"{_x(at, seconds):g},{HEIGHT - (HEIGHT - 8) * min(1.0, max(0.0, value / scale / top)):.1f}"
                for at, value in part
            )
            if len(part) == 1:
                across, _, down = points.partition(",")
                out.append(f'<circle cx="{across}" cy="{down}" r="2"/>')
            else:
                out.append(f'<polyline points="{points}"/>')
        out.append("</g>")
    out.append("</svg>")
    return Markup("".join(map(str, out)))  # noqa: S704 - every text in it was escaped above


def spread(curves: Sequence[Curve]) -> list[Curve]:
    """Return three lines in the place of many: the highest, the mean and the lowest at each time of the first."""
    drawn = [curve for curve in curves if any(value is not None for value in curve.values)]
    if len(drawn) <= COLOURS:
        return drawn
    apart = max((curve.t[-1] - curve.t[0]) / max(1, len(curve.t) - 1) for curve in drawn)  # a value of each in each bin
    width = max(max(curve.t[-1] for curve in drawn) / (2 * BINS), apart) or 1.0
    columns: dict[int, list[float]] = {}
    for curve in drawn:
        for at, value in zip(curve.t, curve.values, strict=False):
            if value is not None:
                columns.setdefault(int(at / width), []).append(value)
    t = [(place + 0.5) * width for place in sorted(columns)]
    rows = [columns[place] for place in sorted(columns)]
    return [
        Curve("highest", t, [max(row) for row in rows]),
        Curve("mean", t, [sum(row) / len(row) for row in rows]),
        Curve("lowest", t, [min(row) for row in rows]),
    ]


def heat(curves: Sequence[Curve], seconds: float, *, name: str, gap: float = 20.0) -> Markup:
    """Return a map of time and device of values in percent, the mean of each field; empty if there is nothing.

    More than ROWS devices share rows, whose names are those of the first and the last.
    """
    drawn = [curve for curve in curves if any(value is not None for value in curve.values)]
    if len(drawn) < 2 or seconds <= 0:
        return Markup()
    share = math.ceil(len(drawn) / ROWS)
    rows = [drawn[at : at + share] for at in range(0, len(drawn), share)]
    high = max(8.0, min(34.0, 480.0 / len(rows)))
    height = high * len(rows)
    width = (WIDTH - LEFT - RIGHT) / COLUMNS
    out = [f'<svg viewBox="0 0 {WIDTH:g} {height + 4 + BELOW:g}" class="heat" role="img" aria-label="{escape(name)}">']
    paths: dict[int, list[str]] = {}
    every = max(1, math.ceil(24 / high))
    for place, row in enumerate(rows):
        y = 4 + place * high
        for level, begin, end in _runs(_levels(row, seconds, gap)):
            wide = (end - begin) * width
            field = f"M{LEFT + begin * width:.1f} {y:.1f}h{wide:.1f}v{high - 1:.1f}h-{wide:.1f}z"
            paths.setdefault(level, []).append(field)
        label = row[0].title if len(row) == 1 else f"{row[0].title} …"
        if place % every == 0:
            out.append(
                f'<text class="up" x="{LEFT - 6}" y="{y + high / 2 + 6:.1f}" text-anchor="end">'
                f"{escape(label[:9])}</text>"
            )
    out += [f'<path class="h{level}" d="{"".join(fields)}"/>' for level, fields in sorted(paths.items())]
    out += [part for part in _axis(seconds, height + 4) if part.startswith("<text")]
    out.append("</svg>")
    return Markup("".join(map(str, out)))  # noqa: S704 - every text in it was escaped above


def _levels(row: Sequence[Curve], seconds: float, gap: float) -> list[int | None]:
    """Return the level of each column of a row, None where nothing is known; a value holds since the one before it."""
    sums, counts = [0.0] * COLUMNS, [0] * COLUMNS
    for curve in row:
        before = 0.0
        for at, value in zip(curve.t, curve.values, strict=False):
            if value is not None and 0 <= at <= seconds * 1.001:
                begin = before if 0 < at - before <= gap else at
                first, last = (min(COLUMNS - 1, int(COLUMNS * moment / seconds)) for moment in (max(0.0, begin), at))
                for column in range(min(first + 1, last), last + 1):
                    sums[column] += value
                    counts[column] += 1
            before = at
    means = [total / count if count else None for total, count in zip(sums, counts, strict=True)]
    return [None if mean is None else min(LEVELS, math.ceil(mean * LEVELS / 100)) for mean in means]


def _runs(levels: Sequence[int | None]) -> Iterable[tuple[int, int, int]]:
    """Yield each level with the first column that has it, and the first that has not."""
    begin = 0
    for place in range(1, len(levels) + 1):
        if place == len(levels) or levels[place] != levels[begin]:
            level = levels[begin]
            if level is not None:
                yield level, begin, place
            begin = place


def bar(parts: Sequence[tuple[str, str, float]], *, name: str) -> Markup:
    """Return a bar of parts, each a class, a title and its size; those of nothing are left out."""
    whole = sum(size for _, _, size in parts)
    if whole <= 0:
        return Markup()
    x = 0.0
    size = f'viewBox="0 0 {WIDTH:g} 10" preserveAspectRatio="none"'
    out = [f'<svg {size} class="bar" role="img" aria-label="{escape(name)}">']
    for kind, title, size_of_it in parts:
        wide = WIDTH * size_of_it / whole
        if wide > 0:
            place = f'x="{x:.1f}" y="0" width="{max(wide, 1):.1f}" height="10"'
            out.append(f'<rect class="p-{escape(kind)}" {place}><title>{escape(title)}</title></rect>')
        x += wide
    out.append("</svg>")
    return Markup("".join(map(str, out)))  # noqa: S704 - every text in it was escaped above


def _panels(report: Report) -> list[tuple[str, Markup]]:
    """Return a picture of a sweep's metric for each value that differs between points, with the value's name."""
    metric = report.points.metric
    measured = [point for point in report.points.ended if point.metrics.get(metric) is not None]
    names = dict.fromkeys(name for point in measured for name in point.values)
    given = {name: [point for point in measured if name in point.values] for name in names}
    differing = [name for name, those in given.items() if len({str(point.values[name]) for point in those}) > 1]
    heights = {name: [point.metrics[metric] or 0.0 for point in given[name]] for name in differing}
    return [
        (name, scatter([str(point.values[name]) for point in given[name]], heights[name], name=f"{metric} by {name}"))
        for name in differing[:MOST_PANELS]
    ]


def _places(texts: Sequence[str]) -> list[float]:
    """Return the places of texts on an axis: numbers, or their logarithms if these differ much, else their order."""
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        numbers = []
    if not numbers or not all(map(math.isfinite, numbers)):
        order = list(dict.fromkeys(texts))
        return [float(order.index(text)) for text in texts]
    return [*map(math.log10, numbers)] if min(numbers) > 0 and max(numbers) >= WIDELY * min(numbers) else numbers


def _round_values(low: float, high: float) -> list[float]:
    """Return up to five round numbers from the one at or below ``low`` to the one at or above ``high``."""
    step = nice((high - low) / 3 or abs(high) or 1.0)
    first = math.floor(low / step + 1e-9)
    return [place * step for place in range(first, max(math.ceil(high / step - 1e-9), first + 1) + 1)]


def scatter(texts: Sequence[str], heights: Sequence[float], *, name: str) -> Markup:
    """Return a picture of points, the best first."""
    across, marks = _places(texts), _round_values(min(heights), max(heights))
    left, right, low, high = min(across), max(across), marks[0], marks[-1]
    wide = (WIDTH - LEFT - 80) / ((right - left) or 1.0)
    x_of = {at: round(LEFT + 40 + wide * (at - left), 1) for at in across}
    y_of = {value: round(HEIGHT - 12 - (HEIGHT - 40) * (value - low) / (high - low), 1) for value in (*marks, *heights)}
    out = [f'<svg class="c0" viewBox="0 0 {WIDTH:g} {HEIGHT + BELOW:g}" role="img" aria-label="{escape(name)}">']
    for value in marks:
        y = y_of[value]
        out.append(f'<text class="up" x="{LEFT - 6}" y="{y + 6:g}" text-anchor="end">{value:.3g}</text>')
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:g}" y2="{y:g}"/>')
    shown = [(x_of[at], text) for at, text in sorted(set(zip(across, texts, strict=True)))]
    for place, (x, text) in enumerate(shown):
        if place % math.ceil(len(shown) / MOST_TICKS) == 0:
            out.append(f'<text x="{x}" y="{HEIGHT + 6}" text-anchor="middle">{escape(text[:9])}</text>')
    for place, (at, value, text) in reversed(list(enumerate(zip(across, heights, texts, strict=True)))):
        best, title = ' class="best"' if not place else "", escape(f"{text}: {value:.6g}")
        out.append(f'<circle{best} cx="{x_of[at]}" cy="{y_of[value]:.1f}" r="9"><title>{title}</title></circle>')
    return Markup("".join([*out, "</svg>"]))  # noqa: S704 - every text in it was escaped above


_ENVIRONMENT = jinja2.Environment(autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined)
_ENVIRONMENT.filters |= {
    "moment": _moment,
    "duration": format_seconds,
    "hours": lambda hours, decimals: f"{hours:.{decimals}f}",
    "count": lambda number: f"{number:,.6g}",
    "percent": lambda share: _NONE if share is None else f"{share:.0f} %",
    "short": lambda seconds: format_seconds(seconds) if seconds >= 0.9995 else f"{1000 * seconds:.3g} ms",
    "size": lambda size: _NONE if size is None else format_bytes(size),
}
_TEMPLATE = _ENVIRONMENT.from_string(page_template.PAGE)  # compiled at the import, beside the end of the processes
