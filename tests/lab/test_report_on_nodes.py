"""The report of a run on four nodes of a real Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Cluster

pytestmark = pytest.mark.lab

WORK = """import time
import hpcml
client = hpcml.connect()
print("works", flush=True)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    client.gather(client.map(lambda x: sum(range(x)), range(100_000, 100_040), pure=False))
"""


def facts(directory: Path) -> Any:
    """Return report.json, whose ledger adds up."""
    found = json.loads((directory / "report.json").read_text())
    ledger = found["ledger"]
    assert sum(ledger["parts"].values()) == pytest.approx(ledger["paid"], rel=0.01)
    return found


def test_a_run_of_four_nodes_leaves_its_report(cluster: Cluster) -> None:
    ended = cluster.submit(WORK.format(seconds=6), "--nodes", "4")
    assert ended.code == 0, ended.err
    found = facts(ended.directory)
    assert found["job"] == ended.events[0]["job"]
    assert found["nodes"] == ["n1", "n2", "n3", "n4"]
    assert sorted(found["ledger"]["of_each"]) == found["nodes"]
    assert found["ledger"]["unit"] == "core"
    assert found["phases"][0]["kind"] == "starting"
    assert found["began"] <= ended.times()["allocated"]
    assert found["end"] >= ended.times()["torn-down"]
    assert found["ledger"]["parts"]["useful"] > 0
    assert "report was not made" not in ended.log("job.log")
