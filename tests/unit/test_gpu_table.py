"""The tables of docs/benchmarks/README.md against the files that they are made of."""

from __future__ import annotations

from pathlib import Path

import results
import run
import table


def test_tables_show_what_the_files_hold() -> None:
    """docs/benchmarks/README.md against gpu-*.json; `python3 tests/bench/gpu/table.py` writes it."""
    assert table.main(["--check"]) == 0


def test_every_section_has_its_module_columns_limit_and_description() -> None:
    folder = Path(table.__file__).parent
    described = (folder / "README.md").read_text()
    assert set(run.LIMITS) == set(table.COLUMNS) == set(results.SECTIONS)
    for name in results.SECTIONS:
        assert (folder / f"section_{name}.py").is_file()
        assert f"| {name} |" in described, name
