"""The tables of docs/benchmarks/README.md against the files that they are made of."""

from __future__ import annotations

from pathlib import Path

import eight
import limits
import results
import run
import table


def test_tables_show_what_the_files_hold() -> None:
    """docs/benchmarks/README.md against gpu-*.json; `python3 tests/bench/gpu/table.py` writes it."""
    assert table.main(["--check"]) == 0
    assert limits.main(["--check"]) == 0


def test_a_headline_is_compared_with_the_bytes_that_it_must_move() -> None:
    rates = {
        "memory_gib_s": 2000.0,
        "nvlink_gib_s": 100.0,
        "draw_philox_gib_s": 200.0,
        "to_gib_s": 50.0,
        "file_gib_s": 10.0,
    }
    assert max(limits.bounds("array", 4, 800.0, rates).values()) == 1.0, "drawn by four GPUs"
    assert limits.bounds("svd: as published", 1, 100.0, rates) == {"memory, each byte read twice": 0.1}
    join = limits.bounds("join", 4, 16.0, rates)
    assert join["NVLink, the left side moved"] == 0.03, "three quarters of each GPU's 4 GiB"
    assert limits.bounds("join over TCP", 4, 16.0, rates).keys() == {
        "memory, the left side read and the result written"
    }
    assert max(limits.bounds("csv", 2, 10.0, rates).values()) == 1.0
    assert limits.bounds("kmeans, 4", 4, 40.0, {}) == {}
    assert (limits.published("10 to 15 s on 16 V100", 1.0), limits.published("-", 1.0)) == (15.0, None)


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
