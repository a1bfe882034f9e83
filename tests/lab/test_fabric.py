"""The check of the wire on the lab's nodes, whose only wire is TCP: what it says, what it ends, and how nodes differ."""

from __future__ import annotations

import json

import pytest

from conftest import Cluster
from hpcml import errors

pytestmark = pytest.mark.lab


def test_a_slow_wire_ends_the_run_where_rdma_is_required(cluster: Cluster) -> None:
    ended = cluster.submit(
        "print('the script ran')", "--nodes", "2", "--protocol", "ucx", "--set", "fabric.require=rdma"
    )
    assert ended.code == errors.FABRIC
    assert "the script ran" not in ended.out
    assert "tcp" in ended.err
    assert ended.status["by"] == "hpcml"
    assert ended.status["phase"] == "fabric"
    assert ended.status["hint"]


def test_a_node_that_differs_is_named(cluster: Cluster) -> None:
    python = cluster.run("sh", "-c", "command -v python").stdout.strip()
    limited = f'#!/bin/sh\n[ "$SLURMD_NODENAME" != n2 ] || ulimit -l 16\nexec {python} "$@"\n'
    interpreter = cluster.write("limited", limited)
    cluster.run("chmod", "755", str(interpreter))
    options = ("--nodes", "3", "--protocol", "ucx", "--set", f"runtime.python={interpreter}")
    ended = cluster.submit("print('the script ran')", *options)
    assert ended.code == 0, ended.err
    assert "n2: locked memory 16 KiB where the others have" in ended.err
    shown = cluster.run("hpcml", "status", ended.directory.name).stdout
    assert "n2: locked memory 16 KiB where the others have" in shown
    facts = json.loads((ended.directory / "attempts/0/fabric.json").read_text())
    pairs, names = facts["measurement"]["pairs"], ("n1", "n2", "n3")
    assert {(one["source"], one["target"]) for one in pairs} == {
        (one, other) for one in names for other in names if one != other
    }
    assert all(one["seconds"] > 0 and not one["error"] for one in pairs)
    assert [one for one in facts["differences"] if not one.startswith("n2: locked memory")] == []
