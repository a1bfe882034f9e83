"""The site is built from the documentation without a warning, finds errors by their text, and asks no other machine."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from failure_texts import TEXTS

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = shutil.which("chromium") or ""
PATIENCE = 120_000  # milliseconds
# What somebody who meets it pastes, and the section of docs/troubleshooting.md that must be found. The programs' texts are
# recorded ones.
ERRORS = {
    TEXTS["account"][0]: "slurm-refuses-the-job-account-qos-partition",
    TEXTS["step-memory"][0]: "a-step-inside-the-job-gets-no-memory-or-processors",
    TEXTS["killed-worker"][0]: "killedworker-workers-died-one-after-another",
    TEXTS["gpu-memory"][0]: "a-gpu-is-out-of-memory",
    TEXTS["ib-retry"][0]: "ucx-and-infiniband",
    "its interpreter or something before it is not there": "the-interpreter-is-missing",
    "No module named 'cryptography'": "no-module-named-distributed-or-cryptography",
    "has no IPv4 address on this node": "an-interface-has-no-ipv4-address-on-a-node",
    "It is not known whether Slurm took the job": "it-is-not-known-whether-slurm-took-the-job",
    "DependencyNeverSatisfied": "the-job-does-not-start",
}
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("material") is None, reason="MkDocs is not installed (make site installs it)"
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the site and serve it on loopback."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
    for page in folder.rglob("*.html"):  # what a page loads; a link that a reader may follow loads nothing
        text = page.read_text(encoding="utf-8")
        loads = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?(https?://[^\s\">]+)", text)
        loads += re.findall(r"<link[^>]* href=\"?(https?://[^\s\">]+)[^>]*rel=\"?stylesheet", text)
        assert not loads, page


@pytest.mark.skipif(
    not CHROMIUM or importlib.util.find_spec("playwright") is None, reason="Chromium or Playwright is not installed"
)
def test_the_search_finds_errors_and_nothing_is_asked_outside(site: str, subtests: pytest.Subtests) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        asked: list[str] = []
        page.context.on("request", lambda request: asked.append(request.url))
        for text, section in ERRORS.items():
            with subtests.test(text=text):
                page.goto(f"{site}/index.html")
                page.fill(".md-search__input", text)
                page.wait_for_selector(".md-search-result__item a")
                links = [
                    link.get_attribute("href") or "" for link in page.locator("a.md-search-result__link:visible").all()
                ]
                found = [re.sub(r"\?[^#]*", "", link.removeprefix(f"{site}/")) for link in links]
                assert f"docs/troubleshooting.html#{section}" in found[:3], found[:5]
        browser.close()
    assert any("search_index.json" in url for url in asked)
    assert not [url for url in asked if not url.startswith((site, "data:", "blob:"))]
