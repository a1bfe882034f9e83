"""A worker that never comes because of its node: the job is over at once, and names it."""

from __future__ import annotations

import re

import pytest

from conftest import Cluster
from hpcml import errors
from lab_state import wait_for

pytestmark = pytest.mark.lab

SCRIPT = "import hpcml\nhpcml.connect()\nprint('the script ran')\n"
AT_ONCE = (
    "--nodes", "2", "--nodelist", "n2,n3", "--set", "deadlines.workers=200s",
)  # what is known at once does not wait  # fmt: skip


def test_a_node_that_slurm_knows_is_down(cluster: Cluster) -> None:
    """The job waits and says why; when the node is back, it runs."""
    cluster.lab.node_down("n3", tell=True)
    try:
        _, directory = cluster.detach(SCRIPT, "--nodes", "4", "--name", "waits")

        def shown() -> str:
            return cluster.run("hpcml", "status", "waits").stdout

        assert wait_for(lambda: "down, drained or reserved" in shown(), 60, 0.2), shown()
        assert "PENDING" in shown()
    finally:
        cluster.lab.node_up("n3")
    assert cluster.wait_status(directory)["exit_status"] == 0


def test_a_node_that_dies_unnoticed_before_the_start(cluster: Cluster) -> None:
    """Slurm still hands out the node: its task cannot be launched, and the run names it within the deadline."""
    cluster.lab.node_down("n3")
    try:
        ended = cluster.submit(SCRIPT, *AT_ONCE)
        assert ended.code == errors.WORKERS_NEVER_CAME, ended.err
        message = ended.status["message"]
        assert re.match(r"[12] of 2 workers did not start: ", message), message
        assert "n3: the workers' parent process could not be launched" in message
    finally:
        cluster.lab.node_up("n3")


def test_a_share_of_memory_that_is_too_small_is_named_before_a_worker_dies_of_it(cluster: Cluster) -> None:
    """The profile does not know what Slurm gives a job that asks for no memory; the node does."""
    options = ("--site", "slurm", "--nodes", "2", "--set", "workers.per_node=64", "--set", "deadlines.workers=200s")
    ended = cluster.submit(SCRIPT, *options)
    assert ended.code == errors.WORKERS_NEVER_CAME, ended.err
    reason = ended.status["message"]
    assert "128 of 128 workers did not start" in reason
    each = r"each of this node's 64 workers can use \d+ MiB, but a worker needs \d+ MiB to start"
    assert re.search(f"n[12]: {each}", reason), reason
    assert "workers.per_node" in reason
    assert "ended" not in reason.partition("did not start")[2]
    assert " within " not in reason
