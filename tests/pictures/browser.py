"""What a browser shows of a run: its dashboard and JupyterLab, through ``hpcml tunnel``, and SVG files as PNG."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PATIENCE = 120  # seconds until a page must show what is waited for
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
# The tasks that the page's plots hold, asked of Bokeh's own documents.
DRAWN = """() => Bokeh.documents.flatMap(d => [...d._all_models.values()]).filter(m => m.type == "ColumnDataSource")
    .map(s => ((s.data.start ?? s.data.get?.("start")) || []).length).reduce((a, b) => a + b, 0)"""


@contextlib.contextmanager
def page(width: int, height: int) -> Iterator[Any]:
    """Yield an empty page of Debian's Chromium, which has a profile of its own for as long."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as profile, sync_playwright() as play:
        context = play.chromium.launch_persistent_context(
            profile,
            executable_path=shutil.which("chromium"),
            headless=True,
            args=FLAGS,
            viewport={"width": width, "height": height},
        )
        context.set_default_timeout(PATIENCE * 1000)
        try:
            yield context.pages[0]
        finally:
            context.close()


@contextlib.contextmanager
def tunnel(words: Sequence[str], environment: dict[str, str]) -> Iterator[str]:
    """Hold a command that runs ``hpcml tunnel`` open, and yield the address that it says.

    Raises
    ------
    TimeoutError
        If it says none in time, or ends before.
    """
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               stdin=subprocess.DEVNULL)  # fmt: skip
    assert process.stdout is not None
    try:
        said, end = b"", time.monotonic() + PATIENCE
        while not (found := re.search(rb"(http://\S+)\n", said)):
            if not select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError(f"{' '.join(words)} says no address")
            data = os.read(process.stdout.fileno(), 4096)
            if not data:
                raise TimeoutError(f"{' '.join(words)} has ended")
            said += data
        yield found[1].decode()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)


def dashboard(address: str, picture: Path) -> None:
    """Photograph the dashboard when tasks have been drawn."""
    with page(1100, 640) as shown:
        shown.goto(f"{address.removesuffix('/status')}/status")
        shown.wait_for_function("() => window.Bokeh && Bokeh.documents.length > 0")
        shown.wait_for_function(f"() => ({DRAWN})() > 300")
        shown.wait_for_timeout(1500)  # the plots are animated to their new size
        shown.screenshot(path=str(picture))


def notebook(address: str, token: str, name: str, waited_for: str, picture: Path) -> list[str]:
    """Open a notebook in JupyterLab, run its cells, photograph it when it shows a text, and return the page's lines."""
    with page(1100, 640) as shown:
        shown.goto(f"{address}/tree/{name}?token={token}")
        shown.locator(".jp-Notebook .jp-Cell").first.wait_for()
        shown.get_by_text("| Idle").wait_for()  # the kernel
        with contextlib.suppress(Exception):  # the question about news is asked at the first start, mostly
            shown.get_by_role("button", name="No").click(timeout=10_000)
        cells = shown.locator(".jp-Notebook .jp-Cell")
        cells.first.click()
        for place in range(cells.count()):
            shown.keyboard.press("Shift+Enter")
            cells.nth(place).locator(".jp-InputPrompt", has_text=f"[{place + 1}]").wait_for()
        shown.locator(".jp-OutputArea-output", has_text=waited_for).first.wait_for()
        shown.wait_for_timeout(1500)
        shown.screenshot(path=str(picture))
        return str(shown.evaluate("document.body.innerText")).splitlines()


def photograph(svg: str, width: int, picture: Path, back: str) -> None:
    """Write what a browser shows of SVG pictures."""
    with page(width, 400) as shown:
        shown.set_content(f"<body style='background:{back}'>{svg}</body>")
        shown.screenshot(path=str(picture), full_page=True)


def top_of(path: Path, picture: Path, width: int = 1000, scheme: str = "light") -> list[str]:
    """Write what a browser shows first of a page that is a file, and return the lines of its text."""
    with page(width, 1000) as shown:
        shown.emulate_media(color_scheme=scheme)
        shown.goto(path.as_uri())
        shown.screenshot(path=str(picture))
        return str(shown.evaluate("document.body.innerText")).splitlines()


def as_notebook(cells: Sequence[str]) -> str:
    """Return the file of a notebook with such cells."""
    rows: list[dict[str, Any]] = [{"cell_type": "code", "execution_count": None, "id": f"cell-{place}", "metadata": {}, "outputs": [], "source": text}
            for place, text in enumerate(cells)]  # fmt: skip
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps({"cells": rows, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5})
