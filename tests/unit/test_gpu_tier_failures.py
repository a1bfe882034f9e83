"""The GPU tier's section failures: its rows can be run, and its verdicts tell a named cause from the program's own text."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

TIER = Path(__file__).resolve().parents[2] / "bench/gpu"


@pytest.fixture
def section(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the section as run.py sees it."""
    monkeypatch.setattr(sys, "path", [str(TIER), str(TIER.parents[1] / "tests/lab"), *sys.path])
    before = set(sys.modules)
    yield importlib.import_module("section_failures")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(TIER)):
            del sys.modules[name]


def test_every_row_can_be_run(section: Any) -> None:
    rows = section.read_failures()
    assert sum(row.counted for row in rows) == 22
    assert len({row.script for row in rows}) == len({row.name for row in rows}) == len(rows)
    for row in rows:
        compile(row.code, row.script, "exec")
        for pattern in (
            *row.cause,
            *row.remedy,
            *row.facts,
            *row.wrong,
            *row.output,
            *row.clean,
            *row.live,
            *row.stacks,
        ):
            re.compile(pattern)
        assert row.wave in section.SECONDS


def test_words_without_a_gpu_ask_for_none(section: Any, tmp_path: Path) -> None:
    known = {"python": "python3", "stubs": "s", "older": "o"}
    for row in section.read_failures():
        words = section.submit_words(row, tmp_path, known, gpu=False)
        assert not {"--gpus-per-node", "gpu", "SCRIPT"} & set(words)
        assert words.count(str(tmp_path / row.script)) == 1


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        ({"cause": "GPU code stopped at an assertion (`i < n`): an index", "next_step": "--env CUDA_LAUNCH_BLOCKING=1", "rank": 0, "node": "n1"}, "named"),
        ({"cause": "GPU code stopped at an assertion (`i < n`): an index", "next_step": "--env CUDA_LAUNCH_BLOCKING=1"}, "raw"),
        ({"cause": "GPU code stopped at an assertion (`i < n`): an index", "next_step": "--env CUDA_LAUNCH_BLOCKING=1", "rank": 1, "node": "n1"}, "misleading"),
        ({"cause": "the script raised AcceleratorError: CUDA error: device-side assert triggered", "next_step": "See the traceback", "rank": 0, "node": "n1"}, "raw"),
        ({"cause": "the program exited with status 1; the last line of its output: =====", "next_step": "", "rank": 0, "node": "n1"}, "misleading"),
        ({"cause": "", "next_step": ""}, "silent"),
    ],
)  # fmt: skip
def test_a_verdict_by_what_why_says(section: Any, why: dict[str, Any], expected: str) -> None:
    row = next(row for row in section.read_failures() if row.name == "rank: device-side assert")
    assert section.verdict(row, section.Answer(1, 1.0, "", why))[0] == expected
