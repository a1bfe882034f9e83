"""A worker that never comes because of its node: the job is over at once, and names it."""

from __future__ import annotations

import re

import pytest

from conftest import Cluster
from hpcml import errors

pytestmark = pytest.mark.lab

SCRIPT = "import hpcml\nhpcml.connect()\nprint('the script ran')\n"
AT_ONCE = ("--nodes", "2", "--set", "deadlines.workers=200s")  # what is known at once does not wait for that


def test_a_node_that_dies_unnoticed_before_the_start(cluster: Cluster) -> None:
    """Slurm still hands out the node: its task cannot be launched, and the run names it within the deadline."""
    cluster.lab.node_down("n3")
    try:
        ended = cluster.submit(SCRIPT, *AT_ONCE, "--nodelist", "n2,n3")
        assert ended.code == errors.WORKERS_NEVER_CAME, ended.err
        message = ended.status["message"]
        assert re.match(r"[12] of 2 workers did not start: ", message), message
        assert "parent process could not be launched" in message
    finally:
        cluster.lab.node_up("n3")


def test_a_share_of_memory_that_is_too_small_is_named_before_a_worker_dies_of_it(cluster: Cluster) -> None:
    """The profile does not know what Slurm gives a job that asks for no memory; the node does."""
    ended = cluster.submit(SCRIPT, *AT_ONCE, "--site", "slurm", "--set", "workers.per_node=64")
    assert ended.code == errors.WORKERS_NEVER_CAME, ended.err
    reason = ended.status["message"]
    assert "128 of 128 workers did not start" in reason
    each = r"each of this node's 64 workers can use \d+ MiB, but a worker needs \d+ MiB to start"
    assert re.search(f"n[12]: {each}", reason), reason
    assert "workers.per_node" in reason
    assert " within " not in reason
