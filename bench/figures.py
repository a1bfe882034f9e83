"""The files of figures in docs/benchmarks, as the pages show them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Folders of benchmarks in commands that were recorded before they had their present names.
FORMER = {"tests/bench/": "bench/", "tests/gpu/": "bench/gpu/"}


def read_figures(path: Path) -> Any:
    """Return the content of a file, with the folders in its recorded commands as they are now."""
    text = path.read_text(encoding="utf-8")
    for former, now in FORMER.items():
        text = text.replace(former, now)
    return json.loads(text)
