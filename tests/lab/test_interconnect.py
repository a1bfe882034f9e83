"""The check of the wire on the lab's nodes, whose only wire is TCP: what it says, what it ends, and how nodes differ."""

from __future__ import annotations

import itertools
import json

import pytest

from conftest import Cluster, directory_of
from hpcml import errors

pytestmark = pytest.mark.lab


def test_a_slow_wire_ends_the_run_where_rdma_is_required(cluster: Cluster) -> None:
    ended = cluster.submit(
        "import dask\nprint('the script ran')",
        "--nodes",
        "2",
        "--set",
        "network.protocol=ucx",
        "--set",
        "interconnect.require=rdma",
    )
    assert ended.code == errors.INTERCONNECT
    assert "the script ran" not in ended.out
    assert "tcp" in ended.err
    assert ended.status["by"] == "hpcml"
    assert ended.status["phase"] == "interconnect"
    assert ended.status["hint"]


def test_every_pair_of_nodes_is_measured_and_a_node_that_differs_is_named(cluster: Cluster) -> None:
    python = cluster.run("sh", "-c", "command -v python").stdout.strip()
    limited = f'#!/bin/sh\n[ "$SLURMD_NODENAME" != n2 ] || ulimit -l 16\nexec {python} "$@"\n'
    interpreter = cluster.write("limited", limited)
    cluster.run("chmod", "755", str(interpreter))
    options = (
        "--nodes",
        "3",
        "--nodelist",
        "n1,n2,n3",
        "--set",
        "network.protocol=ucx",
        "--set",
        f"runtime.python={interpreter}",
    )
    done = cluster.run("hpcml", "interconnect", *options, timeout=150)
    assert done.returncode == 0, done.stderr
    directory = directory_of(done)
    assert "n2: locked memory 16 KiB where the other nodes have" in done.stderr
    facts = json.loads((directory / "attempts/0/interconnect.json").read_text())
    assert [one for one in facts["differences"] if not one.startswith("n2: locked memory")] == []
    pairs = json.loads((directory / "out/interconnect.json").read_text())["measurement"]["pairs"]
    assert {(one["source"], one["target"]) for one in pairs} == set(itertools.permutations(("n1", "n2", "n3"), 2))
    assert all(one["seconds"] > 0 and not one["error"] for one in pairs)
