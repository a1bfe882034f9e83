"""The tables of docs/benchmarks/README.md against the files that they are made of."""

from __future__ import annotations

import table


def test_tables_show_what_the_files_hold() -> None:
    """docs/benchmarks/README.md against gpu-*.json; `python3 tests/gpu/table.py` writes it."""
    assert table.main(["--check"]) == 0
