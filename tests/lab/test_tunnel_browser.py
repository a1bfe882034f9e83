"""The dashboard in a real browser on the laptop, through each route: its pages draw, and the task stream moves.

It needs Chromium and Playwright for Python (`pip install playwright`; no browser of Playwright's own). The pictures stay in
the lab's folder (`laptop-home/…/pictures`), for people to look at.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from laptop import Outside

CHROMIUM = shutil.which("chromium") or ""
pytestmark = pytest.mark.skipif(not CHROMIUM or importlib.util.find_spec("playwright") is None,
                                reason="Chromium or Playwright for Python is not installed")  # fmt: skip

# How much has been drawn is asked of Bokeh's own documents in the page.
BROWSE = """
import json, sys
from playwright.sync_api import sync_playwright
url, picture, program = sys.argv[1:]
COUNT = '''() => Bokeh.documents.flatMap(d => [...d._all_models.values()]).filter(m => m.type == "ColumnDataSource")
    .map(s => (s.data.start || s.data.get?.("start") || []).length).reduce((a, b) => a + b, 0)'''
LAST = '''() => Math.max(0, ...Bokeh.documents.flatMap(d => [...d._all_models.values()]).filter(m => m.type == "ColumnDataSource")
    .flatMap(s => [...((s.data.start ?? s.data.get?.("start")) || [])]))'''
with sync_playwright() as play:
    browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    frames = []
    page.on("websocket", lambda ws: ws.on("framereceived", lambda data: frames.append(1)))
    page.goto(url, timeout=60000)
    page.wait_for_function("() => window.Bokeh && Bokeh.documents.length > 0", timeout=60000)
    page.wait_for_function(f"() => ({LAST})() > 0", timeout=60000)
    first, seen = page.evaluate(LAST), len(frames)
    page.wait_for_function(f"first => ({LAST})() > first", arg=first, timeout=60000)
    page.wait_for_timeout(1500)
    page.screenshot(path=picture)
    print(json.dumps({"title": page.title(), "first": first, "later": page.evaluate(LAST), "frames": len(frames), "seen": seen}))
    browser.close()
"""


@pytest.mark.parametrize("route", ["direct", "twohop", "srun"])
def test_the_task_stream_moves(outside: Outside, dashboard: tuple[str, Path], route: str) -> None:
    port = outside.tunnel(dashboard[0], "--route", route).up()["port"]
    folder = outside.lab.home("alice") / "pictures"  # as the laptop sees it
    outside.laptop("mkdir", "-p", str(folder))
    packages = str(Path(importlib.util.find_spec("playwright").origin).parent.parent)  # type: ignore[union-attr,arg-type]
    words = ["env", f"PYTHONPATH={packages}", sys.executable if Path(sys.executable).exists() else "python3", "-c", BROWSE,
             f"http://127.0.0.1:{port}/status", str(folder / f"{route}.png"), CHROMIUM]  # fmt: skip
    done = outside.laptop(*words, timeout=200)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["title"] == "Dask: Status"
    assert facts["later"] > facts["first"] > 0
    assert facts["frames"] > facts["seen"] > 0
