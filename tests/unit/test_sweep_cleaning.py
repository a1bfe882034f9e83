"""When workers are restarted between two points of a sweep, and what is kept of what a point reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcml.node.sweep import cleaning, server

MIB, GIB = 1 << 20, 1 << 30


def test_memory_that_was_not_given_back(subtests: pytest.Subtests) -> None:
    for more, limit, expected in ((100 * MIB, 200 * MIB, False), (129 * MIB, 400 * MIB, True), (2 * GIB, 10 * GIB, False),
                                  (3 * GIB, 10 * GIB, True), (129 * MIB, 0, True), (-GIB, GIB, False)):  # fmt: skip
        with subtests.test(more=more, limit=limit):
            assert cleaning.kept_too_much(more, limit) == expected


def test_the_reason_in_words() -> None:
    assert cleaning.reason(0, 0, []) == ""
    assert cleaning.reason(3, 0, []) == "3 tasks of the point could not be released"
    assert cleaning.reason(3, 2, []) == "tasks of the point still ran on 2 of the workers"
    assert cleaning.reason(3, 2, [300 * MIB, GIB]) == "2 of the workers kept up to 1024 MiB"


def test_the_last_value_of_each_metric_counts(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    assert server._reports(path) == {"metrics": {}, "reports": 0}
    path.write_text('{"metrics": {"a": 1, "b": 2}, "step": 1}\n{"metrics": {"a": null}, "step": null}\n{"metr')
    assert server._reports(path) == {"metrics": {"a": None, "b": 2}, "reports": 2, "step": 1}
    path.write_text('{"stopped": true}\n')
    assert server._reports(path)["stopped"] is True
