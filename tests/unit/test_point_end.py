"""The record of a point that has ended: what is written is read again, also what older versions wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcml import safe_files
from hpcml.failures import point
from hpcml.failures.point import PointEnd
from hpcml.typed_json import plain

OLDER = {"key": "a", "values": {"k": 1}, "status": "failed", "exit_status": 1, "cause": "x", "kind": "oom", "rule": "",
         "nodes": ["n1"], "seconds": 2, "metrics": {"loss": None}, "reports": 1, "began": 3.5, "node": "n1"}  # fmt: skip


def written(folder: Path, table: Any) -> Path:
    safe_files.write(folder / "a.json", json.dumps(table))
    return folder / "a.json"


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A loss may have diverged, and be a whole number."""
    values: dict[str, point.Typed] = {"k": 1, "x": 0.5, "name": "a", "flag": True}
    end = PointEnd(values, point.PRUNED, 1.25, {"loss": 1e30, "count": 3, "nan": None}, step=7, memory_limit="node")
    read = point.read(written(tmp_path, plain(end, brief=True)), "run")
    assert read == end._replace(run="run")
    assert [type(value) for value in read.metrics.values()] == [float, int, type(None)]


def test_a_record_of_another_version(tmp_path: Path) -> None:
    end = point.read(written(tmp_path, OLDER), "run")
    assert (end.state, end.failed, end.nodes, end.memory_limit) == ("failed", True, ("n1",), "")
    newer = point.read(written(tmp_path, OLDER | {"status": "lost", "new": 1}), "run")
    assert newer.failed, "a state that only a newer version knows is no success"


@pytest.mark.parametrize("change", [
    {"metrics": {"loss": "low"}}, {"values": {"k": []}}, {"seconds": "2"}, {"status": 1}, {"nodes": "n1"}, {"values": None},
])  # fmt: skip
def test_a_damaged_record_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(change))}"):
        point.read(written(tmp_path, OLDER | change), "run")
