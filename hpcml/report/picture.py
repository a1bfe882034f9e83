"""The pictures of a report as SVG: lines over time, a map of time and device, and bars, coloured by the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH, LEFT, RIGHT = 1000.0, 62.0, 8.0  # units of the drawing; the page scales it
BINS = 500  # of a line: two points each
COLUMNS = 400  # of a map
ROWS = 64
MOST_TICKS = 8
HEIGHT = 130.0  # of a picture of lines
LEVELS = 10
COLOURS = 8  # lines of one picture that have a colour of their own

Points = list[tuple[float, float]]


class Line(NamedTuple):
    """A line of a picture: times in seconds since the run's start; None where nothing is known."""

    title: str
    t: Sequence[float]
    values: Sequence[float | None]


def thin(points: Points, bins: int = BINS) -> Points:
    """Return at most two points for each of so many equal pieces of time: the lowest and the highest, in order."""
    if len(points) <= 2 * bins:
        return points
    begin, width = points[0][0], (points[-1][0] - points[0][0]) / bins or 1.0
    found: Points = []
    piece: Points = []
    number = 0
    for point in [*points, (math.inf, 0.0)]:
        at = bins if point[0] == math.inf else min(bins - 1, int((point[0] - begin) / width))
        if at != number and piece:
            low, high = min(piece, key=lambda one: one[1]), max(piece, key=lambda one: one[1])
            found += [low] if low == high else sorted((low, high))
            piece = []
        number = at
        piece.append(point)
    return found


def pieces(line: Line, gap: float) -> list[Points]:
    """Return the points of a line, divided where nothing is known for longer than ``gap`` seconds."""
    found: list[Points] = []
    last = -math.inf
    for at, value in zip(line.t, line.values, strict=False):
        if value is None:
            continue
        if at - last > gap:
            found.append([])
        found[-1].append((at, value))
        last = at
    whole = sum(map(len, found))
    return [thin(piece, max(1, round(BINS * len(piece) / whole))) for piece in found]


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
    step = next((one for one in steps if seconds / one <= MOST_TICKS), math.ceil(seconds / MOST_TICKS / 86400) * 86400)
    return [at * step for at in range(int(seconds / step) + 1)]


def _x(at: float, seconds: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, at / seconds)), 1)


def _axis(seconds: float, height: float) -> Iterable[str]:
    places = ticks(seconds)
    for at in places:
        x = _x(at, seconds)
        anchor = "middle" if x < WIDTH - 40 else "end"
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="4" y2="{height}"/>'
        yield f'<text x="{x}" y="{height + 15}" text-anchor="{anchor}">{clock(at)}</text>'


def lines(found: Sequence[Line], seconds: float, *, name: str, unit: str, top: float = 0.0, scale: float = 1.0,
          gap: float = 20.0) -> Markup:  # fmt: skip
    """Return a picture of lines over the run's time; empty if nothing is known of any.

    Parameters
    ----------
    top
        The highest value of the axis; 0: as the lines need it.
    scale
        What a value is divided by to be in ``unit``.
    gap
        Seconds without a value after which a line is interrupted.
    """
    drawn = [(line, pieces(line, gap)) for line in found]
    drawn = [(line, parts) for line, parts in drawn if parts]
    if not drawn or seconds <= 0:
        return Markup()
    highest = max(value for _, parts in drawn for part in parts for _, value in part) / scale
    top = top or nice(highest)
    steps = [0.0, top / 2, top]
    size = f'viewBox="0 0 {WIDTH:g} {HEIGHT + 22:g}" data-top="{top:g}" data-height="{HEIGHT:g}"'
    told = f'data-seconds="{seconds:.2f}" data-unit="{escape(unit)}" aria-label="{escape(name)}"'
    out = [f'<svg class="lines" role="img" {size} {told}>']
    out += _axis(seconds, HEIGHT)
    for step in steps:
        y = round(HEIGHT - (HEIGHT - 8) * step / top, 1)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{step:g}</text>')
    for place, (line, parts) in enumerate(drawn):
        out.append(f'<g class="c{place % COLOURS}" data-title="{escape(line.title)}">')
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


def spread(found: Sequence[Line]) -> list[Line]:
    """Return three lines in the place of many: the highest, the mean and the lowest at each time of the first."""
    known = [line for line in found if any(value is not None for value in line.values)]
    if len(known) <= COLOURS:
        return known
    apart = max((line.t[-1] - line.t[0]) / max(1, len(line.t) - 1) for line in known)  # a value of each in each bin
    width = max(max(line.t[-1] for line in known) / (2 * BINS), apart) or 1.0
    columns: dict[int, list[float]] = {}
    for line in known:
        for at, value in zip(line.t, line.values, strict=False):
            if value is not None:
                columns.setdefault(int(at / width), []).append(value)
    t = [(place + 0.5) * width for place in sorted(columns)]
    rows = [columns[place] for place in sorted(columns)]
    return [
        Line("highest", t, [max(row) for row in rows]),
        Line("mean", t, [sum(row) / len(row) for row in rows]),
        Line("lowest", t, [min(row) for row in rows]),
    ]


def heat(found: Sequence[Line], seconds: float, *, name: str, gap: float = 20.0) -> Markup:
    """Return a map of time and device of values from 0 to 1, the mean of each field; empty if there is nothing.

    More than ROWS devices share rows, whose names are those of the first and the last.
    """
    known = [line for line in found if any(value is not None for value in line.values)]
    if len(known) < 2 or seconds <= 0:
        return Markup()
    share = math.ceil(len(known) / ROWS)
    rows = [known[at : at + share] for at in range(0, len(known), share)]
    high = max(6.0, min(18.0, 360.0 / len(rows)))
    height = high * len(rows)
    width = (WIDTH - LEFT - RIGHT) / COLUMNS
    out = [f'<svg viewBox="0 0 {WIDTH:g} {height + 26:g}" class="heat" role="img" aria-label="{escape(name)}">']
    paths: dict[int, list[str]] = {}
    every = max(1, math.ceil(11 / high))
    for place, row in enumerate(rows):
        y = 4 + place * high
        for level, begin, end in _runs(_levels(row, seconds, gap)):
            wide = (end - begin) * width
            field = f"M{LEFT + begin * width:.1f} {y:.1f}h{wide:.1f}v{high - 1:.1f}h-{wide:.1f}z"
            paths.setdefault(level, []).append(field)
        label = row[0].title if len(row) == 1 else f"{row[0].title} …"
        if place % every == 0:
            out.append(f'<text x="{LEFT - 6}" y="{y + high / 2 + 3:.1f}" text-anchor="end">{escape(label[:9])}</text>')
    out += [f'<path class="h{level}" d="{"".join(fields)}"/>' for level, fields in sorted(paths.items())]
    out += [part for part in _axis(seconds, height + 4) if part.startswith("<text")]
    out.append("</svg>")
    return Markup("".join(map(str, out)))  # noqa: S704 - every text in it was escaped above


def _levels(row: Sequence[Line], seconds: float, gap: float) -> list[int | None]:
    """Return the level of each column of a row, None where nothing is known; a value holds since the one before it."""
    sums, counts = [0.0] * COLUMNS, [0] * COLUMNS
    for line in row:
        before = 0.0
        for at, value in zip(line.t, line.values, strict=False):
            if value is not None and 0 <= at <= seconds * 1.001:
                begin = before if 0 < at - before <= gap else at
                first, last = (min(COLUMNS - 1, int(COLUMNS * moment / seconds)) for moment in (max(0.0, begin), at))
                for column in range(min(first + 1, last), last + 1):
                    sums[column] += value
                    counts[column] += 1
            before = at
    means = [total / count if count else None for total, count in zip(sums, counts, strict=True)]
    return [None if mean is None else min(LEVELS, math.ceil(mean * LEVELS)) for mean in means]


def _runs(levels: Sequence[int | None]) -> Iterable[tuple[int, int, int]]:
    """Yield each level with the first column that has it, and the first that has not."""
    begin = 0
    for place in range(1, len(levels) + 1):
        if place == len(levels) or levels[place] != levels[begin]:
            level = levels[begin]
            if level is not None:
                yield level, begin, place
            begin = place


def bar(parts: Sequence[tuple[str, str, float]], *, name: str, height: float = 26.0) -> Markup:
    """Return a bar of parts, each a class, a title and its size; those of nothing are left out."""
    whole = sum(size for _, _, size in parts)
    if whole <= 0:
        return Markup()
    x = 0.0
    out = [f'<svg viewBox="0 0 {WIDTH:g} {height:g}" class="bar" role="img" aria-label="{escape(name)}">']
    for kind, title, size in parts:
        wide = WIDTH * size / whole
        if wide > 0:
            out.append(
                f'<rect class="p-{escape(kind)}" x="{x:.1f}" y="0" width="{max(wide, 1):.1f}" height="{height:g}">'
                f"<title>{escape(title)}</title></rect>"
            )
            if wide > 60:
                place = f'x="{x + wide / 2:.1f}" y="{height / 2 + 4:.1f}" text-anchor="middle"'
                out.append(f'<text class="on" {place}>{100 * size / whole:.0f} %</text>')
        x += wide
    out.append("</svg>")
    return Markup("".join(map(str, out)))  # noqa: S704 - every text in it was escaped above
