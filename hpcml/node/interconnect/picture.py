"""Bandwidth between all pairs as a table: an SVG picture, and text for the terminal."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from hpcml.node.interconnect.measurement import Pair, slow

MOST_NAMES = 64  # more workers than these are put together by node
_NOTHING = "Nothing was measured."
_SLOW, _FAILED = "less than half of the others' bandwidth", "failed"
_VERMILION = "#d55e00"
_WIDE = 8  # the scale is logarithmic if the fastest pair is so many times faster than the slowest
_SIZE = 880  # points for all columns, at most
_SMALLEST, _LARGEST = 7, 72  # points of a cell
_WITH_NUMBER = 26  # points from which a cell can hold its number
_TOOLTIP = "cell "  # begins the identifier of what is drawn for a cell; the rest becomes its tooltip


class _Cell(NamedTuple):
    """One field: GiB per second (0 if the transfers failed), and whether it is slow."""

    speed: float
    slow: bool
    failed: bool


_Cells = dict[tuple[str, str], _Cell]


def matrix_text(pairs: Sequence[Pair], nodes: Mapping[str, str]) -> str:
    """Return the bandwidth between pairs as aligned text, in GiB per second; ``nodes`` is the node of each worker.

    Where names are longer than figures the columns are numbered as the rows are.
    """
    names, cells = _table(pairs, nodes)
    if not names:
        return _NOTHING
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
        legend += f"; ! marks {_SLOW}"
    if any(cell.failed for cell in cells.values()):
        legend += "; x marks a failed transfer"
    return "\n".join([*lines, legend])


def matrix_svg(pairs: Sequence[Pair], title: str, nodes: Mapping[str, str]) -> str:
    """Return the bandwidth between pairs as a standalone SVG picture.

    Rows send, columns receive. A slow cell has a frame and a corner, a failed one a cross, so that neither is shown by
    colour alone; numbers are in the cells, or in their tooltips where cells are small. Of more than 64 workers the
    cells represent nodes and show the median; ``nodes`` is the node of each worker.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    names, cells = _table(pairs, nodes)
    size = max(_SMALLEST, min(_LARGEST, _SIZE // max(1, len(names))))
    side = size * max(4, len(names)) / 72
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "text.parse_math": False}):
        figure = Figure(figsize=(side, side))
        heading = textwrap.fill(title, max(50, int(side * 10)))
        if names:
            _draw(figure, names, cells, size, heading)
        else:
            figure.text(0, 1.1, heading, weight="bold")
            figure.text(0, 1, _NOTHING)
        file = io.StringIO()
        figure.savefig(file, format="svg", bbox_inches="tight", pad_inches=0.2, metadata={"Title": title, "Date": None})
    picture = file.getvalue()
    return re.sub(rf'<g id="{_TOOLTIP}([^"]*)">', r"<g><title>\1</title>", picture[picture.index("<svg") :])


def _draw(figure: Any, names: list[str], cells: _Cells, size: int, heading: str) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    count = len(names)
    speeds = [cell.speed for cell in cells.values() if cell.speed] or [1.0]
    least, most = min(speeds), max(speeds)
    wide = most > _WIDE * least
    scale: Any = ScalarMappable(LogNorm(least, most) if wide else Normalize(0, most), colormaps["cividis"])
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, count), ylim=(count, 0), aspect="equal", facecolor="#f3f3f3")
    for row, source in enumerate(names):
        for column, target in enumerate(names):
            if cell := cells.get((source, target)):
                gid = f"{_TOOLTIP}{source} to {target}:{_in_words(cell)}"
                _draw_cell(axes, cell, scale.to_rgba(cell.speed) if cell.speed else None, (column, row), size, gid)
    _label(axes, names, size, heading)
    bar = figure.colorbar(scale, ax=axes, orientation="horizontal", fraction=0.03, pad=0.04, anchor=(0, 1))
    shown = (least, math.sqrt(least * most), most) if wide else (0.0, most / 2, most)
    bar.set_ticks(shown, labels=[_number(speed) for speed in shown])
    bar.minorticks_off()
    bar.set_label(f"GiB/s{', logarithmic' if wide else ''}")
    signs: list[Any] = [Patch(fc="none", ec=_VERMILION, lw=2, label=_SLOW)] * any(cell.slow for cell in cells.values())
    crossed = Line2D([], [], marker="x", c="black", ls="", label=_FAILED)
    signs += [crossed] * any(cell.failed for cell in cells.values())
    if signs:
        bar.ax.legend(handles=signs, loc="upper left", bbox_to_anchor=(1.05, 1.5), frameon=False)


def _in_words(cell: _Cell) -> str:
    """Return the text of a cell's tooltip."""
    speed = f" {_number(cell.speed)} GiB/s" if cell.speed else ""
    return speed + ("; slow" if cell.slow else "") + (" failed" if cell.failed else "")


def _draw_cell(axes: Any, cell: _Cell, fill: Any, at: tuple[int, int], size: int, gid: str) -> None:
    """Draw a pair of nodes: its colour, None without a speed, a frame if it is slow, a cross if it failed."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Polygon, Rectangle

    column, row = at
    node_json: dict[str, Any] = {"gid": gid, "in_layout": False}
    axes.add_artist(Rectangle(at, 1, 1, fc=fill or "white", ec="white" if fill else "black", **node_json))
    if cell.slow:
        frame, corner = (column + 0.06, row + 0.06), [(column + 0.66, row), (column + 1, row)]
        axes.add_artist(Rectangle(frame, 0.88, 0.88, fill=False, ec=_VERMILION, lw=size / 12, **node_json))
        axes.add_artist(Polygon([*corner, (column + 1, row + 0.34)], fc=_VERMILION, ec="white", **node_json))
    if cell.failed:
        place, length = ((column + 0.2, row + 0.8), 0.25) if fill else ((column + 0.5, row + 0.5), 0.5)
        mark: dict[str, Any] = {"marker": "x", "c": "black", "mec": "black", "ls": "", **node_json}
        axes.add_artist(Line2D([place[0]], [place[1]], ms=size * length, **mark))
    if fill and cell.speed and size >= _WITH_NUMBER:
        light = sum(part * weight for part, weight in zip(fill, (0.299, 0.587, 0.114), strict=False))
        style: dict[str, Any] = {"ha": "center", "va": "center", "size": min(14.0, size * 0.36), **node_json}
        ink = "black" if light > 0.5 else "white"
        axes.text(column + 0.5, row + 0.5, _number(cell.speed), c=ink, **style)


def _label(axes: Any, names: list[str], size: int, heading: str) -> None:
    font = max(7.0, min(13.0, size * 0.7))
    places = range(0, len(names), math.ceil((font + 1) / size))  # where cells are smaller than letters, not every one
    ticks = [place + 0.5 for place in places], [names[place] for place in places]
    upright = max(map(len, names)) * font * 0.62 <= size - 4
    axes.set_xticks(*ticks, fontsize=font, rotation=0 if upright else 90)
    axes.set_yticks(*ticks, fontsize=font)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.xaxis.set_label_position("top")
    axes.set(xlabel="to", ylabel="from")
    axes.set_title(heading, loc="left", weight="bold")


def _table(pairs: Sequence[Pair], nodes: Mapping[str, str]) -> tuple[list[str], _Cells]:
    """Return names in the order in which they come, nodes in place of workers if there are too many, and the cells."""
    names = list(dict.fromkeys(name for pair in pairs for name in (pair.source, pair.target)))
    label = {name: nodes[name] if len(names) > MOST_NAMES else name for name in names}
    too_slow = {id(pair) for pair in slow(pairs)}
    by_place: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_place[label[pair.source], label[pair.target]].append(pair)
    cells = {
        place: _Cell(
            median([pair.bandwidth for pair in pairs_here if pair.bandwidth] or [0.0]),
            2 * sum(id(pair) in too_slow for pair in pairs_here)
            >= max(1, sum(bool(pair.bandwidth) for pair in pairs_here)),
            not all(pair.bandwidth for pair in pairs_here),
        )
        for place, pairs_here in by_place.items()
    }
    return sorted(dict.fromkeys(label.values()), key=_natural), cells


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that puts n9 before n10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name) if part]


def _number(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 9.95 or not speed else f"{speed:.{1 if speed >= 0.995 else 2}f}"


def _text(cell: _Cell, *, marked: bool) -> str:
    """Return a figure and its mark; ``marked``: some figure has a mark, and the others leave its column free."""
    mark = "x" if cell.failed else "!" if cell.slow else " " * marked
    return (_number(cell.speed) if cell.speed else "") + mark
