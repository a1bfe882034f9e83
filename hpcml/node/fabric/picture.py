"""Bandwidth between all pairs as a table: an SVG picture, and text for the terminal."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple
from xml.sax.saxutils import escape

from hpcml.node.fabric.measurement import Pair, slow

MOST_NAMES = 64  # more workers than these are put together by node
# Dark blue over grey to yellow, as cividis: its order is one of lightness too, so it can be read without colours
# (Nuñez, Anderton, Renslow: Optimizing colormaps with consideration for color vision deficiency, 2018).
_SCALE = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")
_WIDE = 8  # the scale is logarithmic if the fastest pair is so many times faster than the slowest
_SIZE = 880  # pixels for all columns, at most
_SMALLEST, _LARGEST = 7, 72  # pixels of a cell
_WITH_NUMBER = 26  # pixels from which a cell can hold its number
_LETTER = 0.62  # width of a letter of sans serif, of its height


class _Cell(NamedTuple):
    """One field: GiB per second (0 if the transfers failed), and whether it is slow."""

    speed: float
    slow: bool
    failed: bool


_Cells = dict[tuple[str, str], _Cell]


def matrix_text(pairs: Iterable[Pair], nodes: Mapping[str, str] | None = None) -> str:
    """Return the bandwidth between pairs as aligned text, in GiB per second; parameters as for `matrix_svg`.

    Where names are longer than figures the columns are numbered as the rows are.
    """
    names, cells = _table(pairs, nodes)
    if not names:
        return "Nothing was measured."
    marked = any(cell.slow or cell.failed for cell in cells.values())
    texts = {place: _text(cell, marked=marked) for place, cell in cells.items()}
    width = max(map(len, texts.values()))
    rows, heads = names, names
    if max(map(len, names)) > width + 1:
        heads = [str(index + 1) for index in range(len(names))]
        rows = [f"{number:>{len(heads[-1])}} {name}" for number, name in zip(heads, names, strict=True)]
    width = max(width, *(len(head) + marked for head in heads))
    left = max(len(row) for row in [*rows, "from"])
    lines = [" ".join([f"{'from':{left}}", *(f"{head + ' ' * marked:>{width}}" for head in heads)]).rstrip()]
    for row, source in zip(rows, names, strict=True):
        line = (texts.get((source, target), "·" + " " * marked) for target in names)
        lines.append(" ".join([f"{row:{left}}", *(f"{text:>{width}}" for text in line)]).rstrip())
    legend = "GiB/s from row to column"
    if any(cell.slow for cell in cells.values()):
        legend += "; ! is less than half of the others"
    if any(cell.failed for cell in cells.values()):
        legend += "; x has failed"
    return "\n".join([*lines, legend])


def matrix_svg(pairs: Iterable[Pair], title: str, nodes: Mapping[str, str] | None = None) -> str:
    """Return the bandwidth between pairs as a standalone SVG picture.

    Rows send, columns receive. A slow cell has a frame and a corner, a failed one a cross, so that neither is told by
    colour alone; numbers are in the cells, or in their tooltips where cells are small.

    Parameters
    ----------
    pairs
        The transfers, between at most 64 workers. If there are more, the cells stand for nodes and show the median.
    title
        The heading.
    nodes
        The node of each worker. Without it the ``-0`` of a worker's name is what tells it from its node.
    """
    names, cells = _table(pairs, nodes)
    if not names:
        return _document(
            460, 70, title, [_words(16, 30, title, 16, bold=True), _words(16, 54, "Nothing was measured.", 13)]
        )
    speeds = [cell.speed for cell in cells.values() if cell.speed]
    least, most = min(speeds, default=0.0), max(speeds, default=1.0)
    size = max(_SMALLEST, min(_LARGEST, _SIZE // len(names)))
    font = max(7.0, min(13.0, size * 0.7))
    longest = max(len(name) for name in names) * font * _LETTER
    upright = longest <= size - 4
    every = math.ceil((font + 1) / size)  # where cells are smaller than letters, not every line has its name
    left, top = 34 + longest + 8, 62 + (font + 8 if upright else longest + 10)
    parts = [_words(16, 28, title, 16, bold=True)]
    parts.append(_words(left + size * len(names) / 2, 52, "to", 12, anchor="middle"))
    middle = top + size * len(names) / 2
    parts.append(f'<g transform="rotate(-90 16 {middle:g})">{_words(16, middle + 4, "from", 12, anchor="middle")}</g>')
    for index, name in enumerate(names):
        centre = (index + 0.5) * size
        if index % every == 0:
            parts.append(_words(left - 8, top + centre + font * 0.35, name, font, anchor="end"))
            if upright:
                parts.append(_words(left + centre, top - 8, name, font, anchor="middle"))
            else:
                x, y = left + centre + font * 0.35, top - 8
                parts.append(f'<g transform="rotate(-90 {x:g} {y:g})">{_words(x, y, name, font)}</g>')
        for column, target in enumerate(names):
            place = (left + column * size, top + index * size, size)
            parts += _draw(place, f"{name} to {target}", cells.get((name, target)), least, most)
    right = left + size * len(names)
    bottom = top + size * len(names)
    legend, height = _legend(left, bottom + 26, cells, least, most)
    return _document(max(right + 16, left + 380, 40 + len(title) * 9), bottom + 26 + height, title, parts + legend)


def _table(pairs: Iterable[Pair], nodes: Mapping[str, str] | None) -> tuple[list[str], _Cells]:
    """Return names in the order in which they come, nodes in place of workers if there are too many, and the cells."""
    known = list(pairs)
    names = list(dict.fromkeys(name for pair in known for name in (pair.source, pair.target)))
    above = {name: name for name in names}
    if len(names) > MOST_NAMES:
        above = {name: nodes[name] for name in names} if nodes is not None else _nodes(names)
    too_slow = {id(pair) for pair in slow(known)}
    found: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in known:
        found[above[pair.source], above[pair.target]].append(pair)
    cells = {
        place: _Cell(
            median([pair.bandwidth for pair in own if pair.bandwidth] or [0.0]),
            2 * sum(id(pair) in too_slow for pair in own) >= max(1, sum(bool(pair.bandwidth) for pair in own)),
            not all(pair.bandwidth for pair in own),
        )
        for place, own in found.items()
    }
    return sorted(dict.fromkeys(above.values()), key=_natural), cells


def _nodes(names: Sequence[str]) -> dict[str, str]:
    """Return the nodes of workers called ``NODE-0``, ``NODE-1``, …; the names themselves if they are not called so."""
    groups: dict[str, set[str]] = defaultdict(set)
    for name in names:
        node, _, number = name.rpartition("-")
        groups[node].add(number)
    if all(node and numbers == {str(number) for number in range(len(numbers))} for node, numbers in groups.items()):
        return {name: name.rpartition("-")[0] for name in names}
    return {name: name for name in names}


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that puts n9 before n10."""
    parts: list[tuple[int, str]] = []
    word = ""
    for letter in f"{name}\0":
        if word and word[-1].isdigit() != letter.isdigit():
            parts.append((int(word), "") if word.isdigit() else (-1, word))
            word = ""
        word += letter
    return parts


def _number(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 9.95 or not speed else f"{speed:.1f}" if speed >= 0.095 else f"{speed:.2f}"


def _text(cell: _Cell, *, marked: bool) -> str:
    """Return a figure and its mark; ``marked``: some figure has a mark, and the others leave its column free."""
    mark = "x" if cell.failed else "!" if cell.slow else " " * marked
    return (_number(cell.speed) if cell.speed else "") + mark


def _share(speed: float, least: float, most: float) -> float:
    """Return where a bandwidth lies on the scale, from 0 to 1: logarithmic over a wide range, else linear from 0."""
    if most > _WIDE * least:
        return math.log(speed / least) / math.log(most / least)
    return speed / most


def _colour(share: float) -> tuple[int, int, int]:
    position = min(max(share, 0.0), 1.0) * (len(_SCALE) - 1)
    index = min(int(position), len(_SCALE) - 2)
    ends = [[int(_SCALE[index + step][start : start + 2], 16) for start in (1, 3, 5)] for step in (0, 1)]
    red, green, blue = (round(low + (high - low) * (position - index)) for low, high in zip(*ends, strict=True))
    return red, green, blue


def _draw(place: tuple[float, float, float], what: str, cell: _Cell | None, least: float, most: float) -> list[str]:
    x, y, size = place
    gap = 1 if size < _WITH_NUMBER else 2
    box = f'x="{x + gap / 2:g}" y="{y + gap / 2:g}" width="{size - gap:g}" height="{size - gap:g}"'
    if cell is None:
        return [f'<rect {box} fill="#f3f3f3"/>']
    says = f"{what}: {_number(cell.speed)} GiB/s" if cell.speed else f"{what}:"
    says += ("; slow" if cell.slow else "") + (" failed" if cell.failed else "")
    parts = ["<g>", f"<title>{escape(says)}</title>"]
    if cell.speed:
        red, green, blue = _colour(_share(cell.speed, least, most))
        ink = "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 130 else "#ffffff"
        parts.append(f'<rect {box} fill="#{red:02x}{green:02x}{blue:02x}"/>')
        if size >= _WITH_NUMBER:
            font = min(14.0, size * 0.36)
            parts.append(
                _words(x + size / 2, y + size / 2 + font * 0.35, _number(cell.speed), font, anchor="middle", fill=ink)
            )
    else:
        parts.append(f'<rect {box} fill="#ffffff" stroke="#000000" stroke-width="1"/>')
    if cell.slow:
        parts += _slow_mark(x, y, size)
    if cell.failed:
        parts += _cross(x, y, size, small=bool(cell.speed))
    return [*parts, "</g>"]


def _slow_mark(x: float, y: float, size: float) -> list[str]:
    """A frame, white beside vermilion so that it stands out on any colour, and a corner."""
    line = max(1.0, min(3.0, size / 12))
    inner = f'x="{x + line:g}" y="{y + line:g}" width="{size - 2 * line:g}" height="{size - 2 * line:g}"'
    corner = size * 0.34 - line / 2
    triangle = f"M{x + size - line / 2 - corner:g} {y + line / 2:g}h{corner:g}v{corner:g}z"
    return [
        f'<rect {inner} fill="none" stroke="#ffffff" stroke-width="{line * 2:g}"/>',
        f'<rect {inner} fill="none" stroke="#d55e00" stroke-width="{line:g}"/>',
        f'<path d="{triangle}" fill="#d55e00" stroke="#ffffff" stroke-width="{line / 2:g}"/>',
    ]


def _cross(x: float, y: float, size: float, *, small: bool) -> list[str]:
    length = size * (0.22 if small else 0.5)
    left, top = (x + size * 0.08, y + size * 0.7) if small else (x + size * 0.25, y + size * 0.25)
    path = f"M{left:g} {top:g}l{length:g} {length:g}m{-length:g} 0l{length:g} {-length:g}"
    width = max(1.0, min(3.0, size / 14))
    return [f'<path d="{path}" stroke="#ffffff" stroke-width="{3 * width:g}"/>'] * small + [
        f'<path d="{path}" stroke="#000000" stroke-width="{width:g}"/>'
    ]


def _crossed(x: float, y: float, size: float) -> list[str]:
    return _cross(x, y, size, small=False)


def _legend(x: float, y: float, cells: _Cells, least: float, most: float) -> tuple[list[str], float]:
    """Return the scale and the signs that occur, and the height they need."""
    linear = most <= _WIDE * least
    steps = 40
    low = 0.0 if linear else least
    parts = []
    for step in range(steps):
        red, green, blue = _colour((step + 0.5) / steps)
        parts.append(
            f'<rect x="{x + step * 6:g}" y="{y:g}" width="6.5" height="12" fill="#{red:02x}{green:02x}{blue:02x}"/>'
        )
    middle = most / 2 if linear else math.sqrt(least * most)
    for share, value in ((0.0, low), (0.5, middle), (1.0, most)):
        parts.append(_words(x + share * steps * 6, y + 26, _number(value), 11, anchor="middle"))
    parts.append(_words(x + steps * 6 + 16, y + 11, f"GiB/s{'' if linear else ', logarithmic'}", 12))
    height = 40.0
    signs = []
    if any(cell.slow for cell in cells.values()):
        signs.append((_slow_mark, _SCALE[1], "less than half of the others"))
    if any(cell.failed for cell in cells.values()):
        signs.append((_crossed, "#ffffff", "failed"))
    for draw, fill, words in signs:
        parts.append(f'<rect x="{x:g}" y="{y + height:g}" width="22" height="22" fill="{fill}"/>')
        parts += draw(x, y + height, 22)
        parts.append(_words(x + 30, y + height + 15, words, 12))
        height += 30
    return parts, height + 8


def _words(
    x: float, y: float, text: str, size: float, *, anchor: str = "start", bold: bool = False, fill: str = "#1a1a1a"
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" fill="{fill}"{weight}>'
        f"{escape(text)}</text>"
    )


def _document(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    box = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {box} font-family="Helvetica, Arial, sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )
