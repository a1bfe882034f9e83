"""The page of a report in a real browser, and what it says first of real runs that are slow for one reason each."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pictures"))

import browser

from homes import Here, here, report
from hpcml import kinds
from hpcml.report.page import make
from tests import report_samples

pytestmark = pytest.mark.local
__all__ = ["here"]
SLOW = Path(__file__).with_name("slow")
# A script, the first words of the first advice, and the function that its table must name.
CAUSES = {
    "serial_loop": ("The script itself took ", "lambda"),
    "shared_file": ("Tasks waited for the file system ", "append"),
}


@pytest.mark.parametrize("name", CAUSES)
def test_the_page_names_first_why_a_script_is_slow(here: Here, name: str) -> None:
    """However fast the machine is, nearly all of the script's time has one cause."""
    cause, function = CAUSES[name]
    words = ("--set", "workers.threads=1", "--set", "workers.per_node=4")
    done = here.run("submit", "--wait", *words, str(SLOW / f"{name}.py"))
    assert done.returncode == 0, done.stderr
    report(run := Path(here.status()["directory"]))
    text = (run / "report.html").read_text()
    first = re.findall(r'<p class="advice">(.*?)</p>', text)[:1]
    assert first, text
    assert first[0].startswith(cause), here.run("report", "--json").stdout
    assert text.index(first[0]) < text.index('class="cards"')
    assert re.search(rf"<tr><td>{function}</td>", text)


@pytest.mark.skipif(not shutil.which("chromium") or importlib.util.find_spec("playwright") is None,
                    reason="Chromium or Playwright for Python is not installed")  # fmt: skip
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """It asks for nothing, complains of nothing, fits narrow and wide windows, and shows values."""
    page = make(report_samples.write(tmp_path / "run", report_samples.EXAMPLE), 0, kinds.get("dask"))
    with browser.page(1400, 900) as shown:
        said: list[str] = []
        shown.on("console", lambda message: said.append(message.text))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.on("request", lambda request: said.append(request.url) if request.url != page.as_uri() else None)
        for width in (380, 600, 1400):
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
        assert said == []
