"""A click on + NEW of JupyterLab's Dask sidebar, in a real browser on the login node, starts a cluster and ends it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from conftest import Cluster
from lab_state import wait_for

CHROMIUM = shutil.which("chromium") or ""
missing = not CHROMIUM or importlib.util.find_spec("playwright") is None
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(missing, reason="Chromium or Playwright for Python is not installed"),
]

SETTINGS = """
labextension:
  factory: {module: hpcml, class: ElasticCluster, args: [], kwargs: {time: 10m, cpus_per_node: 2, memory_per_node: 1G}}
  default: {workers: 1, adapt: null}
"""

# JupyterLab takes any free port, and leaves in its runtime folder which.
LAB = ("jupyter", "lab", "--no-browser", "--ip=127.0.0.1", "--port=0")

BROWSE = """
import sys
from playwright.sync_api import sync_playwright
url, token, picture, program = sys.argv[1:]
with sync_playwright() as play:
    browser = play.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(120000)
    page.goto(f"{url}lab?reset&token={token}")
    page.click('[data-id="dask-dashboard-launcher"]')
    page.click(".dask-DaskClusterManager >> text=NEW")
    item = page.locator(".dask-ClusterListingItem").first
    item.locator("text=Number of Workers: 1").wait_for()
    page.screenshot(path=picture)
    print(item.inner_text().replace("\\n", " "), flush=True)
    sys.stdin.readline()
    item.locator("text=SHUTDOWN").click()
    item.wait_for(state="detached")
    browser.close()
"""


def test_a_click_starts_a_cluster_that_is_closed_to_others(cluster: Cluster) -> None:
    folder = cluster.write("sidebar/dask/labextension.yaml", SETTINGS).parent.parent
    browse = cluster.write("sidebar/browse.py", BROWSE)
    runtime = folder / "runtime"
    own = {
        "DASK_CONFIG": str(folder / "dask"),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
    }
    lab = cluster.lab.popen(LAB, cwd=folder, env=own)
    browser = None
    try:
        assert wait_for(lambda: any(runtime.glob("jpserver-*.json")) or lab.poll() is not None, 120, 0.2)
        assert lab.poll() is None, lab.communicate()
        facts = json.loads(next(runtime.glob("jpserver-*.json")).read_text())
        words = [sys.executable, str(browse), facts["url"], facts["token"], str(folder / "sidebar.png"), CHROMIUM]
        browser = cluster.lab.popen(words, cwd=folder, stdin=-1)
        assert browser.stdout is not None
        said = browser.stdout.readline()
        assert "Scheduler Address: tls://" in said, said + "".join(browser.communicate())
        [opened] = [one for one in json.loads(cluster.run("hpcml", "ls", "--json").stdout) if one["state"] == "GOES ON"]
        assert (opened["kind"], opened["message"]) == ("cluster", "its program goes on")
        keys = Path(opened["directory"]) / "secret"
        assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600}
        assert cluster.run("squeue", "--noheader", "--me").stdout
        _, errors = browser.communicate("go on\n", timeout=300)
        assert browser.returncode == 0, errors
        assert wait_for(lambda: not cluster.run("squeue", "--noheader", "--me").stdout, 120, 0.2)
        assert not list(keys.iterdir())
    finally:
        for process in (browser, lab):
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.communicate(timeout=120)
