"""The lines of all ranks together: in the order of their times, each whole, and what comes later after them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcml.failures import evidence
from hpcml.paths import RunPaths
from hpcml.runs import directories
from hpcml.runs.merged_rank_logs import Merged, of_ranks


@pytest.fixture
def run(tmp_path: Path) -> directories.Run:
    paths = RunPaths(tmp_path / "r-1")
    paths.logs.mkdir(parents=True)
    event = {"event": "allocated", "time": 1.0, "attempt": 0, "nodes": ["n1", "n-2"]}
    paths.events.write_text(json.dumps(event) + "\n")
    for name, text in {
        "script": "a\nb\nc", "rank-n1": "", "rank-n1-1": "d\ne\n", "rank-n-2": "agent\n", "rank-n-2-2": "f\ng\nh\n",
    }.items():  # fmt: skip
        (paths.logs / f"{name}.log").write_text(text)
    times = "1.0 2 script.log\n3.0 5 script.log\n2.0 3 rank-n1-1.log\n4.0 4 rank-n1-1.log\nno line\n"
    (paths.logs / "rank-n1.times").write_text(times)
    (paths.logs / "rank-n-2.times").write_text("0.5 6 rank-n-2.log\n2.5 4 rank-n-2-2.log\n")
    return directories.Run("r-1", paths, None)


def test_lines_come_in_the_order_of_their_times(run: directories.Run) -> None:
    assert list(of_ranks(run)) == [0, 1, 2]
    logs = Merged(run)
    assert b"".join(logs.lines()).decode().splitlines() == [
        "n-2    | agent", "rank 0 | a", "rank 1 | d", "rank 2 | f", "rank 2 | g", "rank 0 | b", "rank 1 | e", "rank 2 | h",
    ]  # fmt: skip
    with run.paths.script_log.open("a") as file:
        file.write("c\n")
    assert list(logs.lines()) == [b"rank 0 | cc\n"]
    assert list(logs.rest()) == []


def test_evidence_names_the_node_of_a_rank(run: directories.Run) -> None:
    logs = {log.path.stem: (log.node, log.rank) for log in evidence.logs(run.paths, 16) if log.source == "rank"}
    assert logs == {
        "rank-n1": ("n1", None),
        "rank-n1-1": ("n1", 1),
        "rank-n-2": ("n-2", None),
        "rank-n-2-2": ("n-2", 2),
    }


def test_a_last_line_without_an_end_is_shown(run: directories.Run) -> None:
    logs = Merged(run, start=lambda path: 2 if path == run.paths.script_log else path.stat().st_size)
    assert [*logs.lines(), *logs.rest()] == [b"rank 0 | b\n", b"rank 0 | c\n"]
