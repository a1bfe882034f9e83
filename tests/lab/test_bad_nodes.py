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

PYTHON = "/tmp/hpcml-one-node-python"  # n3 has none


@pytest.fixture
def broken_there(cluster: Cluster) -> Iterator[Path]:
    """An interpreter that n3 does not have, and the file of alice's that remembers nodes."""
    cluster.program("n1", PYTHON, 'exec "$(command -v python)" "$@"')
    cluster.run("rm", "-f", PYTHON, node="n3")
    memory = cluster.lab.home("alice") / ".hpcml/nodes/lab.json"
    cluster.run("rm", "-f", str(memory))
    yield memory
    cluster.run("rm", "-f", str(memory))
    cluster.run("rm", "-f", PYTHON, node="n1")


def test_the_next_submission_names_the_node(cluster: Cluster, broken_there: Path) -> None:
    there = ("--set", f"paths.runs={cluster.work}/one-node-runs")  # where no other test's nodes have failed
    python = ("--set", f"runtime.python={PYTHON}", "--set", "deadlines.workers=200s")
    ended = cluster.submit("print('hello')\n", "--nodes", "2", "--nodelist", "n1,n3", *PART, *python, *there)
    assert ended.code == errors.WORKERS_NEVER_CAME, ended.err
    assert "not found" in ended.err
    assert "hello" not in ended.out
    end = ended.status
    assert (end["exit_status"], end["phase"], end["by"]) == (errors.WORKERS_NEVER_CAME, "workers", "hpcml")
    assert "n3: the workers' parent process exited with status 127" in end["message"]
    assert " within " not in end["message"], "it is known at once, and no deadline is named"
    assert "n1" not in end["message"]
    again = ("--nodes", "3", "--dry-run=script", *there)
    told = cluster.run(*cluster.command("print('hello')\n", *again))
    assert "exclude the node with --exclude n3" in " ".join(told.stderr.split()), told.stderr
    assert "--exclude" not in told.stdout
    without = cluster.run(*cluster.command("print('hello')\n", *again, "--set", "slurm.exclude_failed=true"))
    assert "#SBATCH --exclude=n3\n" in without.stdout
    known = cluster.run("cat", str(broken_there))
    assert known.returncode == 0, known.stderr
    assert [one["node"] for one in json.loads(known.stdout)["nodes"]] == ["n3"]
    assert cluster.run("stat", "-c", "%a", str(broken_there)).stdout.strip() == "600"
