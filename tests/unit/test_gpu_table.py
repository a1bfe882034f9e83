"""The tables of docs/benchmarks/README.md against the files that they are made of."""

from __future__ import annotations

from pathlib import Path

import eight
import results
import run
import table


def test_tables_show_what_the_files_hold() -> None:
    """docs/benchmarks/README.md against gpu-*.json; `python3 tests/bench/gpu/table.py` writes it."""
    assert table.main(["--check"]) == 0


def test_the_two_calls_for_eight_gpus_name_sections_and_fit_their_budget() -> None:
    for number, steps in eight.CALLS.items():
        assert {step.section for step in steps} <= set(results.SECTIONS)
        assert all(step.seconds <= run.LIMITS[step.section] for step in steps)
        assert run.parse(["--eight", str(number)]).steps == steps


def test_every_section_has_its_module_columns_limit_and_description() -> None:
    folder = Path(table.__file__).parent
    described = (folder / "README.md").read_text()
    assert set(run.LIMITS) == set(table.COLUMNS) == set(results.SECTIONS)
    for name in results.SECTIONS:
        assert (folder / f"section_{name}.py").is_file()
        assert f"| {name} |" in described, name
