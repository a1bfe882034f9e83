"""Golden files: compared with what is made now, and rewritten by `make bless`."""

from __future__ import annotations

from pathlib import Path

import pytest


def compare(file: Path, made: str, request: pytest.FixtureRequest) -> None:
    """Compare a golden file with its new content; with ``--bless``, write the content first."""
    if request.config.getoption("--bless"):
        file.write_text(made, encoding="utf-8")
    assert file.is_file(), "it is new: make bless, and read the difference"
    assert made == file.read_text(encoding="utf-8"), "if that is meant: make bless, read the difference"
