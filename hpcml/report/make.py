"""Make the report of a run: the page and its facts, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

from hpcml import files
from hpcml.paths import RunPaths
from hpcml.report import attempts, facts, page
from hpcml.report.ending import Ending


def make(paths: RunPaths, attempt: int, end: Ending | None = None, memory: float = 0.0, most: int = 0) -> Path:
    """Write report.json and report.html of an attempt, and return the page's path; :func:`facts.load` has the others.

    Raises
    ------
    OSError
        If they cannot be written.
    """
    for before in attempts.numbers(paths):
        if before < attempt and not paths.attempt(before).ledger.exists():  # it was killed, or its report was late
            attempts.keep_ledger(paths, before, facts.ledger_of(paths, before, most))
    found = facts.load(paths, attempt, end, memory, most)
    if found.ending.end.over and (attempt or paths.attempt(attempt).goes_on.exists()):  # another report will count it
        attempts.keep_ledger(paths, attempt, found.ledger)
    files.write(paths.report_facts, json.dumps(found.as_json(), indent=1) + "\n")
    files.write(paths.report, page.html(found))
    return paths.report
