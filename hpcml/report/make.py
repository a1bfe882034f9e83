"""Make the report of a run: the page and its facts, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from hpcml import files
from hpcml.paths import RunPaths
from hpcml.report import facts, page
from hpcml.report.ending import End


def make(paths: RunPaths, attempt: int, end: End | None = None) -> Path:
    """Write report.json and report.html of an attempt, and return the page's path.

    Raises
    ------
    OSError
        If they cannot be written.
    """
    found = facts.load(paths, attempt, end)
    files.write(paths.report_facts, json.dumps(found.as_json(), indent=1) + "\n")
    files.write(paths.report, page.html(found))
    return paths.report
