"""A sweep as a picture (SVG): a line for one parameter, a map for two, parallel axes beyond."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from hpcml.errors import UsageError
from hpcml.sweeps import scale
from hpcml.sweeps.points import Typed
from hpcml.sweeps.scale import Scale
from hpcml.terminal import shown

WIDTH, HEIGHT = 760.0, 480.0
_TOP, _BOTTOM, _LEFT, _RIGHT = 64.0, 88.0, 84.0, 24.0
_BAR = 96.0  # at the right: the colours and their values
_MOST_CELLS = 40  # values of a parameter in a map of fields; beyond, a point each
_MOST_AXES = 12
_LETTER = 6.6  # width of one, about
_COLOURS = ("#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725")
_STYLE = (
    "text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#333}"
    ".title{font-size:15px;font-weight:600}.note{fill:#666}.axis{font-weight:600}"
    ".grid{stroke:#e4e4e4}.frame{stroke:#999;fill:none}.line{stroke:#2c728e;stroke-width:2;fill:none}"
    ".dot{fill:#2c728e;stroke:#fff}.stopped{fill:#fff;stroke:#2c728e;stroke-width:1.5}"
    ".best{fill:none;stroke:#d62728;stroke-width:2.5}.failed{stroke:#d62728;stroke-width:1.8}"
    ".missing{fill:none;stroke:#888;stroke-width:1.3}.empty{fill:#f3f3f3}"
)


class Point(NamedTuple):
    """A point of the sweep: its values, its state (as in the table), and its metric if it has one."""

    values: dict[str, Typed]
    state: str
    metric: float | None


class _Area(NamedTuple):
    """Where the data is drawn."""

    left: float
    top: float
    width: float
    height: float

    def x(self, at: float) -> float:
        return round(self.left + self.width * at, 1)

    def y(self, at: float) -> float:
        return round(self.top + self.height * (1 - at), 1)


def picture(name: str, points: Sequence[Point], metric: str, *, maximize: bool) -> str:
    """Return the picture of a sweep as SVG.

    Raises
    ------
    UsageError
        If no point has the metric, or nothing differs between the points.
    """
    known = [point for point in points if point.metric is not None]
    if not known:
        what = f"No point of the sweep has '{metric}'" if metric else "No point of the sweep has reported a metric"
        raise UsageError(what, place=name, hint="hpcml sweep table shows what they have: choose with --metric.")
    names = list(dict.fromkeys(name for point in points for name in point.values))
    varying = [one for one in names if len({_key(point.values.get(one)) for point in points}) > 1]
    if not varying:
        raise UsageError("All points of the sweep have the same values", place=name, hint="There is nothing to draw.")
    whole = [point for point in points if all(one in point.values for one in varying)]
    known = [point for point in whole if point.metric is not None]
    if not known:
        hint = "Make a sweep of points that have the same names."
        raise UsageError("No point with a metric has all the names that the points have", place=name, hint=hint)
    fixed = [f"{one}={_text(whole[0].values[one])}" for one in names if one not in varying]
    ends = [point for point in known if point.state == "ok"] or known
    best = (max if maximize else min)(ends, key=lambda point: point.metric or 0.0)
    told = " ".join(f"{one}={_text(best.values[one])}" for one in varying if one in best.values)
    notes = [f"best: {scale.written(best.metric or 0.0)} at {told}", *([f"all: {' '.join(fixed)}"] if fixed else [])]
    if len(whole) < len(points):
        notes.append(f"not shown: {len(points) - len(whole)} points that lack a name")
    points = whole
    if len(varying) == 1:
        return _lines(f"{name}: {metric}", notes, points, varying[0], metric, best)
    if len(varying) == 2:
        if all(len({_key(point.values.get(one)) for point in points}) <= _MOST_CELLS for one in varying):
            counts = [len({_key(point.values.get(one)) for point in points}) for one in varying]
            if len(points) * 3 >= counts[0] * counts[1]:
                return _fields(f"{name}: {metric}", notes, points, varying, metric, best)
        return _scatter(f"{name}: {metric}", notes, points, varying, metric, best)
    if len(varying) > _MOST_AXES:
        notes.append(f"not shown: {', '.join(varying[_MOST_AXES:])}")
    return _parallel(f"{name}: {metric}", notes, points, varying[:_MOST_AXES], metric, best)


def _key(value: Typed | None) -> tuple[str, Typed | None]:
    """Return what tells values apart: True is not 1 here, and 8 is 8.0."""
    return ("number" if value is not None and scale.is_number(value) else type(value).__name__), value


def _text(value: Typed) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# -- one parameter -----------------------------------------------------------------------------------------------------


def _lines(title: str, notes: Sequence[str], points: Sequence[Point], name: str, metric: str, best: Point) -> str:
    area = _Area(_LEFT, _TOP, WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM - 22)
    across = scale.of(_values(points, name))
    up = scale.of([point.metric for point in points if point.metric is not None], margin=0.06, rounded=True)
    out = [*_axes(area, across, up, name, metric)]
    there = sorted((point for point in points if point.metric is not None), key=lambda one: across.at(one.values[name]))
    whole = [point for point in there if point.state == "ok"]
    if across.kind != "names" and len(whole) > 1:
        places = " ".join(f"{area.x(across.at(one.values[name]))},{area.y(up.at(_number(one)))}" for one in whole)
        faint = "" if scale.is_even(_values(points, name), across) else ' style="opacity:.4;stroke-width:1"'
        out.append(f'<polyline class="line" points="{places}"{faint}/>')
    for point in points:
        x = area.x(across.at(point.values[name]))
        y = area.y(up.at(point.metric)) if point.metric is not None else area.top + area.height + 11
        out.append(_mark(point, x, y, "dot"))
    out.append(_ring(area.x(across.at(best.values[name])), area.y(up.at(_number(best))), 8))
    return _whole(title, notes, out, WIDTH, HEIGHT, _legend(points))


def _mark(point: Point, x: float, y: float, kind: str, colour: str = "") -> str:
    """Return a point's mark: filled, hollow if it was stopped, a cross if it failed, a small ring if it is missing."""
    told = f"<title>{_xml(_told(point))}</title>"
    if point.metric is None or point.state == "failed":
        if point.state == "failed":
            return f'<path class="failed" d="M{x - 4} {y - 4}l8 8m0 -8l-8 8">{told}</path>'
        return f'<circle class="missing" cx="{x}" cy="{y}" r="3.2">{told}</circle>'
    style = f' style="{"stroke" if point.state == "stopped" else "fill"}:{colour}"' if colour else ""
    kind = "stopped" if point.state == "stopped" else kind
    return f'<circle class="{kind}" cx="{x}" cy="{y}" r="4.5"{style}>{told}</circle>'


def _ring(x: float, y: float, radius: float) -> str:
    return f'<circle class="best" cx="{x}" cy="{y}" r="{radius}"/>'


def _told(point: Point) -> str:
    values = " ".join(f"{name}={_text(value)}" for name, value in point.values.items())
    return f"{values}: {point.state}" + ("" if point.metric is None else f", {point.metric:.6g}")


def _number(point: Point) -> float:
    return 0.0 if point.metric is None else point.metric


def _values(points: Sequence[Point], name: str) -> list[Typed]:
    return [point.values[name] for point in points if name in point.values]


# -- two parameters ----------------------------------------------------------------------------------------------------


def _fields(title: str, notes: Sequence[str], points: Sequence[Point], names: Sequence[str], metric: str,
            best: Point) -> str:  # fmt: skip
    """Return a map with a field for each pair of values; the steps of an axis are equal, whatever its values are."""
    columns, rows = (_in_order([point.values[name] for point in points]) for name in names)
    longest = max(len(_text(value)) for value in rows)
    left = max(_LEFT, 44 + longest * _LETTER)
    area = _Area(left, _TOP, WIDTH - left - _BAR - _RIGHT, HEIGHT - _TOP - _BOTTOM)
    wide, high = area.width / len(columns), area.height / len(rows)
    colours = _Colours(points)
    found = {(_key(point.values[names[0]]), _key(point.values[names[1]])): point for point in points}
    texts = {id(point): _short(point) for point in points}
    roomy = wide > max(map(len, texts.values())) * _LETTER + 6 and high > 16
    out: list[str] = []
    for column, one in enumerate(columns):
        for row, other in enumerate(rows):
            x, y = area.left + column * wide, area.top + area.height - (row + 1) * high
            box = f'x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{wide - 1:.1f}" height="{high - 1:.1f}"'
            point = found.get((_key(one), _key(other)))
            if point is None:
                continue
            if point.metric is None:
                out.append(f'<rect class="empty" {box}/>')
                out.append(_mark(point, round(x + wide / 2, 1), round(y + high / 2, 1), "dot"))
                continue
            colour = colours.of(point.metric)
            out.append(f'<rect {box} fill="{colour}"><title>{_xml(_told(point))}</title></rect>')
            if roomy:
                ink = "#fff" if _is_dark(colour) else "#222"
                out.append(_word(x + wide / 2, y + high / 2 + 4, texts[id(point)], style=f"fill:{ink}"))
            if point is best:
                out.append(f'<rect class="best" {box}/>')
    out.append(f'<rect class="frame" x="{area.left}" y="{area.top}" width="{area.width}" height="{area.height}"/>')
    across = Scale(
        "names", 0, 1, tuple(scale.Tick((at + 0.5) / len(columns), _text(one)) for at, one in enumerate(columns))
    )
    up = Scale("names", 0, 1, tuple(scale.Tick((at + 0.5) / len(rows), _text(one)) for at, one in enumerate(rows)))
    out += _ticks_below(area, across, names[0], grid=False)
    out += _ticks_beside(area, up, names[1], grid=False)
    out += colours.bar(area, metric)
    legend = [(kind, text) for kind, text in _legend(points) if kind != "stopped"]
    stars = "* stopped by halving" if roomy and any(point.state == "stopped" for point in points) else ""
    return _whole(title, notes, out, WIDTH, HEIGHT, legend, stars)


def _short(point: Point) -> str:
    """Return the metric of a point as its field has it."""
    text = "" if point.metric is None else scale.written(float(f"{point.metric:.3g}"))
    return text + {"stopped": "*", "failed": "!"}.get(point.state, "")


def _in_order(values: Sequence[Typed]) -> list[Typed]:
    """Return the distinct values: numbers by size, others as they came."""
    distinct = list({_key(value): value for value in values}.values())
    return sorted(distinct, key=float) if all(map(scale.is_number, distinct)) else distinct


def _scatter(title: str, notes: Sequence[str], points: Sequence[Point], names: Sequence[str], metric: str,
             best: Point) -> str:  # fmt: skip
    """Return a map with a point for each, where they lie on no grid."""
    area = _Area(_LEFT, _TOP, WIDTH - _LEFT - _BAR - _RIGHT, HEIGHT - _TOP - _BOTTOM - 14)
    across, up = (scale.of(_values(points, name)) for name in names)
    colours = _Colours(points)
    out = [*_axes(area, across, up, *names)]
    for point in sorted(points, key=lambda one: one.metric is not None):
        x, y = area.x(across.at(point.values[names[0]])), area.y(up.at(point.values[names[1]]))
        out.append(_mark(point, x, y, "dot", "" if point.metric is None else colours.of(point.metric)))
        if point is best:
            out.append(_ring(x, y, 8))
    out += colours.bar(area, metric)
    return _whole(title, notes, out, WIDTH, HEIGHT, _legend(points))


# -- more --------------------------------------------------------------------------------------------------------------


def _parallel(title: str, notes: Sequence[str], points: Sequence[Point], names: Sequence[str], metric: str,
              best: Point) -> str:  # fmt: skip
    """Return parallel axes: a line through each point's values to its metric; one without a metric has none."""
    width = max(WIDTH, 120.0 * (len(names) + 1))
    area = _Area(56.0, _TOP + 22, width - 56.0 - 76.0, HEIGHT - _TOP - _BOTTOM + 20)
    drawn = [point for point in points if point.metric is not None]
    scales = [scale.of(_values(points, name)) for name in names]
    up = scale.of([_number(point) for point in drawn], rounded=True)
    colours = _Colours(drawn)
    places = [area.x(at / len(names)) for at in range(len(names) + 1)]
    out: list[str] = []

    def path(point: Point) -> str:
        heights = [one.at(point.values[name]) for one, name in zip(scales, names, strict=True)]
        ends = zip(places, [*heights, up.at(_number(point))], strict=True)
        return "M" + "L".join(f"{x} {area.y(at)}" for x, at in ends)

    worst_first = sorted(drawn, key=lambda point: point is best)
    for point in worst_first:
        strong = point is best
        style = f"stroke:{'#d62728' if strong else colours.of(_number(point))};stroke-width:{3 if strong else 1.6}"
        dashes = ' stroke-dasharray="5 4"' if point.state == "stopped" else ""
        opacity = "" if strong or len(drawn) < 30 else ";opacity:.6"
        told = f"<title>{_xml(_told(point))}</title>"
        out.append(f'<path d="{path(point)}" style="fill:none;{style}{opacity}"{dashes}>{told}</path>')
    for x, one, name in zip(places, [*scales, up], [*names, metric], strict=True):
        out.append(f'<line class="frame" x1="{x}" x2="{x}" y1="{area.top}" y2="{area.top + area.height}"/>')
        out.append(_word(x, area.top - 12, _cut(name, 17), kind="axis"))
        last = x == places[-1]
        for tick in _apart(one.ticks, area.height, 14.0):
            side, anchor = (7, "start") if last else (-7, "end")
            halo = "paint-order:stroke;stroke:#fff;stroke-width:3px"
            out.append(_word(x + side, area.y(tick.at) + 4, _cut(tick.text), anchor=anchor, style=halo))
    left = len(points) - len(drawn)
    under = [f"{left} of {len(points)} points have no {metric}"] if left else []
    under += ["dashed: stopped by halving"] if any(point.state == "stopped" for point in drawn) else []
    return _whole(title, notes, out, width, HEIGHT, [("best-line", "best")], "; ".join(under))


# -- what all have -----------------------------------------------------------------------------------------------------


class _Colours:
    """The colours of the metric's values, and the bar that shows them."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.scale = scale.of([point.metric for point in points if point.metric is not None], margin=0.0)

    def of(self, value: float) -> str:
        at = min(1.0, max(0.0, self.scale.at(value))) * (len(_COLOURS) - 1)
        place = min(int(at), len(_COLOURS) - 2)
        low, high = ([int(text[index : index + 2], 16) for index in (1, 3, 5)] for text in _COLOURS[place : place + 2])
        share = at - place
        return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high, strict=True))

    def bar(self, area: _Area, metric: str) -> Iterable[str]:
        x = area.left + area.width + 22
        stops = "".join(
            f'<stop offset="{place / (len(_COLOURS) - 1):.3f}" stop-color="{colour}"/>'
            for place, colour in enumerate(_COLOURS)
        )
        yield f'<defs><linearGradient id="metric" x1="0" y1="1" x2="0" y2="0">{stops}</linearGradient></defs>'
        size = f'y="{area.top}" width="14" height="{area.height}"'
        yield f'<rect x="{x}" {size} fill="url(#metric)"/>'
        yield _word(x - 4, area.top - 9, _cut(metric), anchor="start", kind="axis")
        ends = (self.scale.low, self.scale.high)
        numbers = scale.round_numbers(*ends, log=self.scale.kind == "log", most=6)
        for number in numbers:
            at = self.scale.at(number)
            if -1e-9 <= at <= 1 + 1e-9:
                y = area.y(at)
                yield f'<line class="frame" x1="{x + 14}" x2="{x + 18}" y1="{y}" y2="{y}"/>'
                yield _word(x + 21, y + 4, scale.written(number), anchor="start")


def _is_dark(colour: str) -> bool:
    red, green, blue = (int(colour[index : index + 2], 16) for index in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 140


def _axes(area: _Area, across: Scale, up: Scale, name: str, other: str) -> Iterable[str]:
    yield from _ticks_below(area, across, name)
    yield from _ticks_beside(area, up, other)
    yield f'<rect class="frame" x="{area.left}" y="{area.top}" width="{area.width}" height="{area.height}"/>'


def _ticks_below(area: _Area, one: Scale, name: str, *, grid: bool = True) -> Iterable[str]:
    each = area.width / max(1, len(one.ticks))  # is what a name has
    most = max(14, int((each - 8) / _LETTER)) if one.kind == "names" else 14
    widest = max((len(_cut(tick.text, most)) for tick in one.ticks), default=1) * _LETTER
    turned = one.kind == "names" and not all(map(_looks_like_a_number, one.ticks)) and widest > each - 8
    bottom = area.top + area.height
    gap = 22 if grid else 0  # for the marks of points that have no value
    for tick in _apart(one.ticks, area.width, 14.0 if turned else widest + 6):
        x = area.x(tick.at)
        if grid:
            yield f'<line class="grid" x1="{x}" x2="{x}" y1="{area.top}" y2="{bottom}"/>'
        if turned:
            yield _word(x + 4, bottom + gap + 13, _cut(tick.text), anchor="end", turn=-30)
        else:
            yield _word(x, bottom + gap + 16, _cut(tick.text, most))
    far = gap + (max(38.0, 22 + 0.5 * widest) if turned else 38)
    yield _word(area.x(0.5), bottom + far, _label(one, name), kind="axis")


def _ticks_beside(area: _Area, one: Scale, name: str, *, grid: bool = True) -> Iterable[str]:
    widest = 0.0
    for tick in _apart(one.ticks, area.height, 15.0):
        y = area.y(tick.at)
        widest = max(widest, len(_cut(tick.text)) * _LETTER)
        if grid:
            yield f'<line class="grid" x1="{area.left}" x2="{area.left + area.width}" y1="{y}" y2="{y}"/>'
        yield _word(area.left - 8, y + 4, _cut(tick.text), anchor="end")
    yield _word(max(16.0, area.left - widest - 20), area.y(0.5), _label(one, name), kind="axis", turn=-90)


def _looks_like_a_number(tick: scale.Tick) -> bool:
    return tick.text[:1] in "−-0123456789" and tick.text != ""


def _label(one: Scale, name: str) -> str:
    return f"{_cut(name, 40)} (logarithmic)" if one.kind == "log" else _cut(name, 40)


def _xml(text: str) -> Markup:
    """Return a text for the picture, with characters that XML does not allow shown as on the terminal."""
    return escape(shown(text))


def _word(
    x: float, y: float, text: str, *, anchor: str = "middle", kind: str = "", turn: int = 0, style: str = ""
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    place += f' class="{kind}"' if kind else ""
    place += f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    place += f' style="{style}"' if style else ""
    return f"<text {place}>{_xml(text)}</text>"


def _apart(ticks: Sequence[scale.Tick], length: float, least: float) -> list[scale.Tick]:
    """Return the ticks that do not touch each other."""
    found: list[scale.Tick] = []
    for tick in sorted(ticks):
        if not found or (tick.at - found[-1].at) * length >= least:
            found.append(tick)
    return found


def _cut(text: str, most: int = 14) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _legend(points: Sequence[Point]) -> list[tuple[str, str]]:
    """Return what marks mean that are not told otherwise: those that the picture has."""
    found = [("best", "best")]
    if any(point.state == "stopped" and point.metric is not None for point in points):
        found.append(("stopped", "stopped by halving"))
    if any(point.state == "failed" for point in points):
        found.append(("failed", "failed"))
    if any(point.metric is None and point.state != "failed" for point in points):
        found.append(("missing", "no value"))
    return found


def _whole(
    title: str, notes: Sequence[str], drawn: Iterable[str], width: float, height: float,
    legend: Sequence[tuple[str, str]], under: str = "",
) -> str:  # fmt: skip
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{_xml(title)}">',
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        _word(16, 26, _cut(title, 90), anchor="start", kind="title"),
        _word(16, 45, _cut("; ".join(notes), round(width / _LETTER)), anchor="start", kind="note"),
        *drawn,
    ]
    x, y = 16.0, height - 14
    for kind, text in legend:
        if kind == "best-line":
            out.append(
                f'<line x1="{x}" x2="{x + 18}" y1="{y - 4}" y2="{y - 4}" style="stroke:#d62728;stroke-width:3"/>'
            )
            x += 10
        elif kind == "failed":
            out.append(f'<path class="failed" d="M{x} {y - 8}l8 8m0 -8l-8 8"/>')
        else:
            out.append(f'<circle class="{kind}" cx="{x + 5}" cy="{y - 4}" r="{3.2 if kind == "missing" else 4.5}"/>')
        out.append(_word(x + 15, y, text, anchor="start", kind="note"))
        x += 34 + len(text) * _LETTER
    if under:
        out.append(_word(x, y, under, anchor="start", kind="note"))
    return "\n".join([*out, "</svg>"]) + "\n"
