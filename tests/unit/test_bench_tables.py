"""The tables of the benches in the pages, against the files that they are made of."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import mutations
import newcomer
import readers
import suite
import tables
from tests import run_tiers


def test_pages_show_what_the_files_hold() -> None:
    """`python3 tests/bench/tables.py` writes them."""
    assert tables.main(["--check"]) == 0


def test_each_example_is_counted() -> None:
    """`tests/bench/readers.py NAME` counts all, and runs the named."""
    counted = json.loads(readers.FIGURES.read_text())["examples"]
    assert list(counted) == sorted(path.stem for path in readers.JOBS.glob("*.py"))


def test_each_planted_fault_can_be_planted() -> None:
    assert mutations.check(mutations.ROOT) == []


def test_a_page_without_its_place_is_refused() -> None:
    with pytest.raises(ValueError, match="the page lacks"):
        tables.page_with("nothing here", "start", "a table")


def test_the_suite_s_table_names_what_failed_and_in_which_round() -> None:
    run = {"tiers": "unit+cli", "busy": 4, "load_before": 0.1, "seconds": 60.0, "processor": 90.0, "cases": 3, "lines": 7,
           "failed": [], "date": "today", "command": "suite.py", "machine": {"cores": 2, "processor": "P"}}  # fmt: skip
    shown = suite.table({"runs": [run, {**run, "seconds": 120.0, "failed": ["cli: test_a"]}]}).splitlines()
    assert shown[2] == "| unit, cli | 4 | 3 | 7 | 1.5 (1.0 to 2.0) | 1.5 (1.5 to 1.5) | 0.1 | 1 of 2 |"
    assert shown[4:] == ["* unit+cli, 4 busy loops, round 2: cli: test_a", "* today, 2 cores, P; `suite.py`"]


def test_busy_loops_are_counted_and_end() -> None:
    with suite.loops(1) as pids:
        end = time.monotonic() + 60
        while suite.seconds_of(pids) < 0.02 and time.monotonic() < end:
            time.sleep(0.01)
        assert suite.seconds_of(pids) >= 0.02
    with pytest.raises(FileNotFoundError):
        suite.seconds_of(pids)


def test_a_test_s_parts_are_one_case_and_one_that_fails_fails_it(tmp_path: Path) -> None:
    report = tmp_path / "tier.xml"
    cli, run = next(tier for tier in run_tiers.TIERS if tier.name == "cli"), run_tiers.Run(1, report, 1.0)
    assert run_tiers.of_tier(cli, [run]).passed == 0
    parts = (
        '<testcase classname="tests.cli.m" name="a"/><testcase classname="tests.cli.m" name="a"><failure/></testcase>'
    )
    report.write_text(f'<testsuites><testsuite>{parts}<testcase classname="tests.cli.m" name="b"><skipped/></testcase>'
                      '<testcase classname="tests.clients.m" name="c"/></testsuite></testsuites>')  # fmt: skip
    assert run_tiers.of_tier(cli, [run]) == (0, ["tests.cli.m.a"], 1, 0.0)


def test_the_newcomer_s_path_is_that_of_the_page() -> None:
    """What was typed and timed is what docs/first-run.md says today."""
    typed = json.loads(newcomer.FIGURES.read_text())["steps"]
    assert [(row["node"], row["command"]) for row in typed] == newcomer.steps()
