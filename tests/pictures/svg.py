"""A terminal's screen as an SVG file of a few kilobytes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from screen import Line

SIZE = 14  # of the letters, pixels
WIDE, HIGH = SIZE * 0.6, SIZE * 1.4  # of a cell
MARGIN = 12
HEX = re.compile("[0-9a-f]{6}")  # one of the 256 colours, which is the same in each theme
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Theme(NamedTuple):
    """Colours of a terminal: those of GitHub's pages."""

    back: str
    edge: str
    default: str
    dim: str
    colours: dict[str, str]


THEMES = {
    "dark": Theme("#0d1117", "#30363d", "#e6edf3", "#8b949e", {"red": "#ff7b72", "green": "#3fb950", "brown": "#d29922",
                  "blue": "#58a6ff", "magenta": "#bc8cff", "cyan": "#39c5cf"}),
    "light": Theme("#ffffff", "#d0d7de", "#1f2328", "#656d76", {"red": "#cf222e", "green": "#116329", "brown": "#9a6700",
                   "blue": "#0969da", "magenta": "#8250df", "cyan": "#1b7c83"}),
}  # fmt: skip


def render(lines: Sequence[Line], columns: int, theme: Theme, typed: Sequence[int] = ()) -> str:
    """Return the picture of a screen; ``typed`` are the lines that a person typed behind a ``$``."""
    width, height = 2 * MARGIN + columns * WIDE, 2 * MARGIN + len(lines) * HIGH
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="{escape(FONTS)}" font-size="{SIZE}">',
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="6" fill="{theme.back}" stroke="{theme.edge}"/>',
    ]
    for row, line in enumerate(lines):
        bottom = MARGIN + row * HIGH + SIZE
        for (colour, bold), cells in itertools.groupby(enumerate(line), lambda one: (one[1].colour, one[1].bold)):
            places = list(cells)
            text = "".join(cell.text for _, cell in places)
            if not text.strip():
                continue
            fill = theme.colours.get(colour, f"#{colour}" if HEX.fullmatch(colour) else theme.default)
            weight = ' font-weight="bold"' if bold or row in typed else ""
            # Its length holds it to the columns, whatever font there is.
            parts.append(
                f'<text x="{MARGIN + places[0][0] * WIDE:.1f}" y="{bottom:.1f}" fill="{fill}"{weight} '
                f'textLength="{len(text) * WIDE:.1f}" lengthAdjust="spacingAndGlyphs" xml:space="preserve">'
                f"{escape(text)}</text>"
            )
    return "\n".join([*parts, "</svg>", ""])
