"""A node that alone cannot start its workers, or dies, is named at the next submissions; one that is well is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ALL_NODES, Cluster
from hpcml import errors

pytestmark = pytest.mark.lab

PYTHON = "/tmp/hpcml-one-node-python"  # on each node another file


@pytest.fixture
def broken_there(cluster: Cluster) -> Iterator[Path]:
    """An interpreter that n3 does not have, and the file of alice's that remembers nodes."""
    for node in ALL_NODES:
        cluster.program(node, PYTHON, 'exec "$(command -v python)" "$@"' if node != "n3" else "exit 127")
    memory = cluster.lab.home("alice") / ".hpcml/nodes/lab.json"
    cluster.run("rm", "-f", str(memory))
    yield memory
    cluster.run("rm", "-f", str(memory))
    for node in ALL_NODES:
        cluster.run("rm", "-f", PYTHON, node=node)


def test_the_next_submission_names_the_node(cluster: Cluster, broken_there: Path) -> None:
    there = ("--set", f"paths.runs={cluster.work}/one-node-runs")  # where no other test's nodes have failed
    ended = cluster.submit("print('hello')\n", "--nodes", "4", "--set", f"runtime.python={PYTHON}", *there)
    assert ended.code == errors.WORKERS_NEVER_CAME, ended.err
    told = cluster.run(*cluster.command("print('hello')\n", "--nodes", "3", "--dry-run", *there))
    assert "leave it out with --exclude n3" in " ".join(told.stderr.split()), told.stderr
    known = json.loads(cluster.run("cat", str(broken_there)).stdout)
    assert [one["node"] for one in known["nodes"]] == ["n3"]
    assert cluster.run("stat", "-c", "%a", str(broken_there)).stdout.strip() == "600"
    again = cluster.submit(
        "import hpcml\nprint(hpcml.run.nodes, hpcml.connect().submit(pow, 2, 3).result())\n",
        *("--nodes", "3", "--set", f"runtime.python={PYTHON}", "--set", "slurm.exclude_failed=true", *there),
    )
    assert again.code == 0, again.err
    assert "3 8" in again.out
    assert "#SBATCH --exclude=n3" in (again.directory / "job.sh").read_text()
