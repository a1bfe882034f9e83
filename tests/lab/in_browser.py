"""Opens addresses in Chromium and prints what each page loaded, as JSON; it runs on the lab's laptop.

Its words: for each page an address, and an expression of JavaScript that is true once the page shows what it should.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from typing import Any

SECONDS = 90
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


def visit(page: Any, address: str, shown: str) -> dict[str, Any]:
    """Load a page; return the kinds of what it loaded, what failed, and how many frames its websockets received."""
    loaded: Counter[str] = Counter()
    failed: list[str] = []
    sockets: list[str] = []
    frames: list[str] = []

    def answered(answer: Any) -> None:
        loaded[answer.request.resource_type] += 1
        if answer.status >= 400:
            failed.append(f"{answer.status} {answer.url}")

    def opened(socket: Any) -> None:
        sockets.append(socket.url)
        socket.on("framereceived", lambda frame: frames.append(str(frame)))

    page.on("response", answered)
    page.on("requestfailed", lambda request: failed.append(f"{request.failure} {request.url}"))
    page.on("websocket", opened)
    page.goto(address)
    page.wait_for_function(shown)
    own = address.split("/")[2]
    strange = sorted({url for url in page.evaluate(LOADED) if url.split("/")[2] != own})
    return {"title": page.title(), "loaded": dict(sorted(loaded.items())), "failed": failed, "frames": len(frames),
            "elsewhere": strange}  # fmt: skip


LOADED = "() => performance.getEntriesByType('resource').map(each => each.name).filter(name => name.startsWith('http'))"


def main(words: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            for address, shown in zip(words[::2], words[1::2], strict=True):
                page = browser.new_page()
                page.set_default_timeout(SECONDS * 1000)
                print(json.dumps(visit(page, address, shown)), flush=True)
                page.close()
        finally:
            browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
