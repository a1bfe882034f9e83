"""The check of the wire on the lab's nodes, whose only wire is TCP: what it says, what it ends, and how nodes differ."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_tls_is_not_rdma_either(cluster: Cluster) -> None:
    ended = cluster.submit("print('the script ran')", "--nodes", "2", "--set", "fabric.require=rdma")
    assert ended.code == errors.FABRIC
    assert "TLS" in ended.err


def test_hpcml_fabric_measures_every_pair_of_nodes(cluster: Cluster) -> None:
    done = cluster.run("hpcml", "fabric", "--nodes", "3", timeout=120)
    assert done.returncode == 0, done.stderr
    directory = Path(next(line for line in done.stderr.splitlines() if line.startswith("  run ")).split()[-1])
    facts = json.loads((directory / "out/fabric.json").read_text())
    pairs = {(pair["source"], pair["target"]) for pair in facts["measurement"]["pairs"]}
    names = ("n1", "n2", "n3")
    assert pairs == {(one, other) for one in names for other in names if one != other}
    assert all(pair["seconds"] > 0 and not pair["error"] for pair in facts["measurement"]["pairs"])
    assert (directory / "out/fabric.svg").read_text().startswith("<svg")
    assert "n1" in done.stdout
    assert "GiB/s" in done.stdout


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
    assert [one for one in facts["differences"] if not one.startswith("n2: locked memory")] == []


@pytest.mark.parametrize("protocol", ["ucx", "tls"])
def test_a_run_of_one_node_listens_on_loopback(cluster: Cluster, protocol: str) -> None:
    script = "import hpcml\nc = hpcml.connect()\nprint(*c.scheduler_info()['workers'])\n"
    ended = cluster.submit(script, "--nodes", "1", "--set", "workers.per_node=2", "--protocol", protocol)
    assert ended.code == 0, ended.err
    up = next(event for event in ended.events if event["event"] == "scheduler-up")
    assert up["address"].rpartition(":")[0] == "tls://127.0.0.1"
    assert {address.rpartition(":")[0] for address in ended.out.split() if "://" in address} == {
        f"{protocol}://127.0.0.1"}  # fmt: skip
    said = next(one for one in ended.events if one["event"] == ("ucx-up" if protocol == "ucx" else "scheduler-up"))
    assert "mutual TLS" in said["security"]
    assert "open to whoever" not in said["security"]
