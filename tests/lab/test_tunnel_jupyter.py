"""JupyterLab in a real browser on the laptop, through each route: a cell computes on the workers of its run, and is saved."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lab_ssh
from laptop import Outside, until

CHROMIUM = shutil.which("chromium") or ""
pytestmark = pytest.mark.skipif(not CHROMIUM or importlib.util.find_spec("playwright") is None,
                                reason="Chromium or Playwright for Python is not installed")  # fmt: skip

CELL = """import hpcml, dask.array as da
client = hpcml.connect()
total = int(da.ones((1000, 100), chunks=(100, 100)).sum().compute())
nodes = sorted(set(client.run(lambda: __import__("os").environ["SLURMD_NODENAME"]).values()))
print("computed", total, "on", *nodes, "by ROUTE")"""

# JupyterLab drops a cell that is run before its kernel is connected: look, and run it again.
BROWSE = """
import os, sys, time
from playwright.sync_api import sync_playwright
url, token, picture, program, name, cell = sys.argv[1:]
with sync_playwright() as play:
    browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(60000)
    page.goto(f"{url}/workspaces/{name}?reset&token={open(token).read()}")
    page.click('.jp-LauncherCard[data-category="Notebook"][title*="hpcml (this run)"]')
    page.wait_for_selector('#jp-main-statusbar :text("hpcml (this run) | Idle")')
    page.click(".jp-Notebook .jp-Cell:last-child .cm-content")
    page.keyboard.insert_text(cell)
    deadline = time.monotonic() + 120
    while page.locator('.jp-Cell:first-child .jp-InputPrompt:has-text("[ ]")').count():
        assert time.monotonic() < deadline, "the cell was never run"
        page.click(".jp-Notebook .jp-Cell:first-child .cm-content")
        page.keyboard.press("Control+Enter")
        page.wait_for_timeout(1000)
    output = page.locator('.jp-OutputArea-output:has-text("computed")').first
    output.wait_for()
    page.keyboard.press("Control+s")
    page.click('.jp-Dialog button:has-text("Rename and Save")')
    page.wait_for_selector(".jp-Dialog", state="detached")
    page.wait_for_selector(".jp-mod-dirty", state="detached")
    page.screenshot(path=picture)
    print(output.inner_text())
    browser.close()
"""


@pytest.fixture(scope="module")
def notebook(outside: Outside) -> Iterator[Path]:
    """A Jupyter run of alice's on two nodes; gives its directory."""
    if outside.cluster.run("python", "-c", "import jupyterlab").returncode != 0:
        pytest.skip("the lab's environment has no JupyterLab: lab.py env")
    outside.lab.wait_idle(60)
    outside.cluster.write("readme.txt", "where notebooks go")
    done = outside.cluster.run("hpcml", "jupyter", "--detach", "--json", "--nodes", "2", "--time", "30")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    directory = Path(said["directory"])
    until((directory / "attempts/0/services/jupyter.json").exists, 90)
    yield directory
    outside.cluster.run("scancel", "--quiet", said["job"])
    outside.lab.wait_idle(60)


@pytest.mark.parametrize("route", ["direct", "twohop", "srun"])
def test_a_cell_computes_in_its_run(outside: Outside, notebook: Path, route: str) -> None:
    opened = outside.tunnel(notebook.name, "--service", "jupyter", "--route", route).up()
    assert opened["route"] == route
    pictures = outside.lab.home("alice") / "pictures"  # as the laptop sees it
    outside.laptop("mkdir", "-p", str(pictures))
    token = outside.on("login", "cat", opened["token_file"]).stdout
    copied = pictures / f"token-{route}"
    outside.on(lab_ssh.LAPTOP, "sh", "-c", 'umask 077; cat >"$1"', "sh", str(copied), input=token)
    packages = str(Path(importlib.util.find_spec("playwright").origin).parent.parent)  # type: ignore[union-attr,arg-type]
    words = ["env", f"PYTHONPATH={packages}", sys.executable if Path(sys.executable).exists() else "python3", "-c", BROWSE,
             opened["url"], str(copied), str(pictures / f"jupyter-{route}.png"), CHROMIUM, route,
             CELL.replace("ROUTE", route)]  # fmt: skip
    done = outside.laptop(*words, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"computed 100000 on n1 n2 by {route}"
    saved = [path.read_text() for path in outside.cluster.work.glob("Untitled*.ipynb")]
    assert any(f"by {route}" in text for text in saved)
