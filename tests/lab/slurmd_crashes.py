"""Slurm 22.05's slurmd now and then dies of a "double free" of its own and is started anew: such a test runs once more."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

STARTED_ANEW = "slurmd ended by signal"  # lab_services.KEEPER
FAILED = (Exception, pytest.fail.Exception)  # the latter is no Exception to Python


def count(logs: Path) -> int:
    """Return how often a slurmd of the lab has died."""
    return sum(path.read_text(errors="replace").count(STARTED_ANEW) for path in logs.glob("slurmd-*.out"))


def announce() -> None:
    print("\nA slurmd died under a test, which runs once more.", file=sys.__stderr__)


def survive(logs: Path, body: Callable[[], None], prepare: Callable[[], None]) -> None:
    """Call a test, and once more after ``prepare`` if it failed and a slurmd had died under it."""
    before = count(logs)
    try:
        body()
    except FAILED:
        if count(logs) == before:
            raise
        announce()
        prepare()
        body()
