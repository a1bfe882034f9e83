"""The page of a report in a real browser; what it says of real runs is in the tests of each end."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pictures"))

import browser

import report_samples
from hpcml import kinds
from hpcml.report.page import make

pytestmark = pytest.mark.local

BROWSER = pytest.mark.skipif(not shutil.which("chromium") or importlib.util.find_spec("playwright") is None,
                             reason="Chromium or Playwright for Python is not installed")  # fmt: skip


@BROWSER
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """It asks for nothing, complains of nothing, fits narrow and wide windows, shows values, and prints."""
    page = make(report_samples.write(tmp_path / "run", report_samples.EXAMPLE), 0, kinds.get("dask"))
    with browser.page(1400, 900) as shown:
        said: list[str] = []
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.on("request", lambda request: said.append(request.url) if request.url != page.as_uri() else None)
        for width in (600, 1400):
            shown.set_viewport_size({"width": width, "height": 900})
            shown.goto(page.as_uri())
            assert shown.evaluate("document.documentElement.scrollWidth") <= width
        assert shown.evaluate(
            "[...document.querySelectorAll('svg.lines')].every(s => s.querySelector('polyline, circle'))"
        )
        plots = shown.locator("svg.lines")
        plots.first.hover()
        assert " %" in shown.locator("#tip").inner_text()
        assert shown.locator("#tip").is_visible()
        colours = []
        for scheme in ("light", "dark"):
            shown.emulate_media(color_scheme=scheme)
            colours.append(shown.evaluate("getComputedStyle(document.body).backgroundColor"))
        shown.emulate_media(color_scheme="dark", media="print")
        colours.append(shown.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert colours == ["rgb(255, 255, 255)", "rgb(13, 17, 23)", "rgb(255, 255, 255)"]
        names = "[...document.querySelectorAll('.key')].map(one => getComputedStyle(one).backgroundColor)"
        printed = shown.evaluate(names)
        shown.emulate_media(color_scheme="light", media="screen")
        assert shown.evaluate(names) == printed
        assert said == []
