"""A node that alone cannot start its workers is named at the next submissions, and left out; one that is well is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from beside import PART
from conftest import Cluster
from hpcml import errors

pytestmark = pytest.mark.lab

PYTHON = "/tmp/hpcml-one-node-python"  # on each node another file


@pytest.fixture
def broken_there(cluster: Cluster) -> Iterator[Path]:
    """An interpreter that n3 does not have, and the file of alice's that remembers nodes."""
    cluster.program("n1", PYTHON, 'exec "$(command -v python)" "$@"')
    cluster.program("n3", PYTHON, "exit 127")
    memory = cluster.lab.home("alice") / ".hpcml/nodes/lab.json"
    cluster.run("rm", "-f", str(memory))
    yield memory
    cluster.run("rm", "-f", str(memory))
    for node in ("n1", "n3"):
        cluster.run("rm", "-f", PYTHON, node=node)


def test_the_next_submission_names_the_node(cluster: Cluster, broken_there: Path) -> None:
    there = ("--set", f"paths.runs={cluster.work}/one-node-runs")  # where no other test's nodes have failed
    python = ("--set", f"runtime.python={PYTHON}")
    ended = cluster.submit("print('hello')\n", "--nodes", "2", "--nodelist", "n1,n3", *PART, *python, *there)
    assert ended.code == errors.WORKERS_NEVER_CAME, ended.err
    again = ("--nodes", "3", "--dry-run=script", *there)
    told = cluster.run(*cluster.command("print('hello')\n", *again))
    assert "exclude it with --exclude n3" in " ".join(told.stderr.split()), told.stderr
    assert "--exclude" not in told.stdout
    without = cluster.run(*cluster.command("print('hello')\n", *again, "--set", "slurm.exclude_failed=true"))
    assert "#SBATCH --exclude=n3\n" in without.stdout
    known = cluster.run("cat", str(broken_there))
    assert known.returncode == 0, known.stderr
    assert [one["node"] for one in json.loads(known.stdout)["nodes"]] == ["n3"]
    assert cluster.run("stat", "-c", "%a", str(broken_there)).stdout.strip() == "600"
