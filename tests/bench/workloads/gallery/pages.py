"""Write a report as one self-contained HTML page: words, tables and pictures, with nothing to fetch from elsewhere."""

from __future__ import annotations

import base64
import html
import io
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light; font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff }
body { max-width: 90rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.7rem; margin-bottom: .2rem } h2 { margin: 2.2rem 0 .4rem; border-bottom: 2px solid #0072B2 }
nav a { margin-right: 1rem; color: #0072B2 }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums }
caption { text-align: left; color: #555; padding: .2rem 0 }
th, td { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid #e3e3e3 }
th:first-child, tbody th { text-align: left } thead th { border-bottom: 1px solid #888 }
img { max-width: 100%; margin: .6rem 0; display: block }
.wide { overflow-x: auto; display: inline-block; vertical-align: top; margin-right: 2.5rem; max-width: 100% }
"""


class Page:
    """A page that grows by headings, words, tables and pictures, in this order of calls."""

    def __init__(self, title: str, about: str) -> None:
        self.title = title
        self.parts = [f"<h1>{html.escape(title)}</h1><p>{html.escape(about)}</p>"]
        self.headings: list[str] = []

    def heading(self, words: str) -> None:
        """Begin a section; the page's navigation names it."""
        self.headings.append(words)
        self.parts.append(f'<h2 id="{_anchor(words)}">{html.escape(words)}</h2>')

    def words(self, text: str) -> None:
        self.parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, frame: Any, caption: str) -> None:
        """Add a pandas frame, its index as the first column; figures to five digits."""
        shown = pd.DataFrame(frame).to_html(border=0, float_format=lambda value: f"{value:,.5g}", na_rep="")
        named = shown.replace("<thead>", f"<caption>{html.escape(caption)}</caption><thead>", 1)
        self.parts.append(f'<div class="wide">{named}</div>')

    def picture(self, drawn: Figure, what: str) -> None:
        """Add a figure; ``what`` is said where it cannot be seen."""
        held = io.BytesIO()
        drawn.savefig(held, format="png", dpi=100)
        data = base64.b64encode(held.getvalue()).decode()
        self.parts.append(f'<img alt="{html.escape(what)}" src="data:image/png;base64,{data}">')

    def html(self) -> str:
        """Return the page."""
        links = "".join(f'<a href="#{_anchor(words)}">{html.escape(words)}</a>' for words in self.headings)
        head = f'<meta charset="utf-8"><title>{html.escape(self.title)}</title><style>{STYLE}</style>'
        first, *rest = self.parts
        body = "\n".join([first, f"<nav>{links}</nav>", *rest])
        return f'<!doctype html><html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _anchor(words: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in words.lower())
