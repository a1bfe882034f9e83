"""A worker that never comes: the job is over within the deadline, names the node, quotes its log, frees the nodes."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from conftest import ALL_NODES, Cluster, Ended
from hpcml import errors

pytestmark = pytest.mark.lab

SCRIPT = "import hpcml\nhpcml.connect()\nprint('the script ran')\n"
DEADLINE = 15.0
OPTIONS = ("--nodes", "4", "--set", f"deadlines.workers={DEADLINE:g}s")
AT_ONCE = ("--nodes", "4", "--set", "deadlines.workers=200s")  # what is known at once does not wait for it


@pytest.fixture
def interpreter(cluster: Cluster) -> Iterator[str]:
    """An interpreter at a path that is private to each node, so that n3's can be another."""
    path = "/tmp/hpcml-test-python"
    for node in ALL_NODES:
        put(cluster, node, path, 'exec "$(command -v python)" "$@"')
    yield path
    for node in ALL_NODES:
        cluster.run("rm", "-f", path, node=node)


def put(cluster: Cluster, node: str, path: str, line: str) -> None:
    cluster.lab.exec(["tee", path], node=node, input=f"#!/bin/sh\n{line}\n")
    cluster.run("chmod", "755", path, node=node)


def without_workers(cluster: Cluster, ended: Ended) -> None:
    """Check how the run ended; one that knew its cause at once names no deadline."""
    assert "the script ran" not in ended.out
    cluster.wait_idle(30)
    assert (f"did not come within {DEADLINE:g} s" in ended.err) or " within " not in ended.status["message"]
    assert (ended.code, ended.status["phase"], ended.status["by"]) == (errors.WORKERS_NEVER_CAME, "workers", "hpcml")


def test_an_interpreter_missing_on_one_node(cluster: Cluster, interpreter: str) -> None:
    cluster.run("rm", interpreter, node="n3")
    ended = cluster.submit(SCRIPT, *AT_ONCE, "--set", f"runtime.python={interpreter}")
    without_workers(cluster, ended)
    assert "n3: the worker task ended with exit status 127" in ended.err
    assert "not found" in ended.err
    assert "n2" not in ended.status["message"]


def test_dask_missing_on_one_node(cluster: Cluster, interpreter: str) -> None:
    put(cluster, "n3", interpreter, 'exec /usr/bin/python3 "$@"')
    ended = cluster.submit(SCRIPT, *AT_ONCE, "--set", f"runtime.python={interpreter}")
    assert "the script ran" not in ended.out
    assert ended.code == errors.VERSIONS, ended.err
    assert "dask is 20" in ended.err
    assert "missing in the workers on n3" in ended.err
    cluster.wait_idle(30)


def test_an_interpreter_that_hangs_on_one_node(cluster: Cluster, interpreter: str) -> None:
    put(cluster, "n3", interpreter, "echo thinking; sleep 1000")
    ended = cluster.submit(SCRIPT, *OPTIONS, "--set", f"runtime.python={interpreter}")
    without_workers(cluster, ended)
    assert f"1 of 4 workers did not come within {DEADLINE:g} s: n3: the worker task did not start" in ended.err
    assert "thinking" in ended.err


def test_an_import_error_in_every_worker(cluster: Cluster) -> None:
    """The worker processes start, fail and are started again, as under Dask's Nanny for ever; here it is counted."""
    ended = cluster.submit(SCRIPT, *AT_ONCE, "--set", "environment.DASK_DISTRIBUTED__WORKER__PRELOAD=no_such_module")
    without_workers(cluster, ended)
    assert "ended again and again (exit status 1" in ended.err
    assert "No module named 'no_such_module'" in ended.err


def test_the_scheduler_never_comes(cluster: Cluster) -> None:
    ended = cluster.submit(SCRIPT, *OPTIONS, "--set", "environment.DASK_DISTRIBUTED__SCHEDULER__PRELOAD=no_such_module")
    assert ended.code == errors.START_FAILED
    assert "No module named 'no_such_module'" in ended.err


def test_no_interpreter_at_all(cluster: Cluster) -> None:
    done = cluster.run(*cluster.command(SCRIPT, "--wait", "--nodes", "2", "--set", "runtime.python=/opt/gone/python"))
    assert done.returncode == errors.START_FAILED
    assert "/opt/gone/python: not found" in done.stderr
    assert "runtime.python" in done.stderr


def test_an_interface_that_is_not_there(cluster: Cluster) -> None:
    ended = cluster.submit(SCRIPT, *OPTIONS, "--set", "network.interface=ib7")
    assert ended.code == errors.START_FAILED
    assert "interface ib7 has no IPv4 address on this node" in ended.err


def test_a_node_that_slurm_knows_is_down(cluster: Cluster) -> None:
    """The job waits and says why; when the node is back, it runs."""
    cluster.lab.node_down("n3", tell=True)
    try:
        _, directory = cluster.detach(SCRIPT, "--nodes", "4", "--name", "waits")
        deadline = time.monotonic() + 120
        while "down, drained or reserved" not in (said := cluster.run("hpcml", "status", "waits").stdout):
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
        assert "PENDING" in said
    finally:
        cluster.lab.node_up("n3")
    assert cluster.wait_status(directory)["exit_status"] == 0


def test_a_node_that_dies_unnoticed_before_the_start(cluster: Cluster) -> None:
    """Slurm still hands out the node: its task cannot be launched, and the run names it within the deadline."""
    cluster.lab.node_down("n3")
    try:
        ended = cluster.submit(SCRIPT, *AT_ONCE)
        assert ended.code == errors.WORKERS_NEVER_CAME
        assert re.match(
            r"\d of 4 workers did not come: n3: the worker task could not be launched", ended.status["message"]
        )
    finally:
        cluster.lab.node_up("n3")


def test_a_share_of_memory_that_is_too_small_is_named_before_a_worker_dies_of_it(cluster: Cluster) -> None:
    """The profile does not know what Slurm gives a job that asks for no memory; the node does."""
    options = ("--site", "slurm", "--nodes", "2", "--set", "workers.per_node=64", "--set", "deadlines.workers=200s")
    ended = cluster.submit(SCRIPT, *options)
    assert ended.code == errors.WORKERS_NEVER_CAME, ended.err
    reason = ended.status["message"]
    assert "128 of 128 workers did not come" in reason
    each = r"the memory of this node gives each of its 64 workers \d+ MiB, and a worker needs \d+ MiB to start"
    assert re.search(f"n[12]: {each}", reason), reason
    assert "workers.per_node" in reason
    assert "ended" not in reason.partition("did not come")[2]
    assert " within " not in reason
