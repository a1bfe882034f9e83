"""Policies, plain TCP, CPU workers, slow pairs, NCCL, and the verdict in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcml.node.interconnect import transport_used
from hpcml.node.interconnect.measurement import (
    GIB,
    Measurement,
    NodeFacts,
    Pair,
    WorkerFacts,
    parse_nccl_log,
    parse_ucx_log,
)
from hpcml.node.interconnect.result import Result, check_policy, decide

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures/interconnect"
Table = dict[str, Any]


def pair(source: str, target: str, scope: str, speed: float, error: str = "") -> Pair:
    return Pair(source, target, scope, GIB, 1 / speed, error)


def made(protocol: str, memory: str, pairs: list[Pair], log: str = "", **changes: Any) -> Measurement:
    """Return transfers between workers called NODE-NUMBER; IP carried them all."""
    names = sorted({name for one in pairs for name in (one.source, one.target)})
    sent = {scope: sum(one.bytes for one in pairs if one.scope == scope) for scope in ("within", "across")}
    sizes = {"eth0": (sent["across"], 1), "lo": (sent["within"], 772), "eth1": (1000, 1)}
    interfaces = {name: {"tx": size, "rx": size, "type": kind, "lower": False} for name, (size, kind) in sizes.items()}
    moved = {"seconds": 1.0, "infiniband": {}, "nvlink": None, "nvlink_why": "", "interfaces": interfaces}
    workers = {name: WorkerFacts(name.partition("-")[0], log=parse_ucx_log(log)) for name in names}
    nodes = {worker.node: NodeFacts(moved) for worker in workers.values()}
    return Measurement(protocol, memory, pairs, workers, nodes, **changes)


def path(scope: str, *, ok: bool, doubt: str = "", wanted: bool = True) -> transport_used.DataPath:
    return transport_used.DataPath(scope, ("x",), (), "", ok, (), doubt, 1.0, wanted)


def judged(policy: str, **changes: Any) -> str:
    facts: Table = {"line": "", "protocol": "ucx", "nodes": 2, "within": None, "across": path("across", ok=True), "nccl": "",
                    "nccl_doubt": "", "worst": (), "failed": (), "problems": (), "remedy": ""}  # fmt: skip
    return check_policy(policy, Result(**{**facts, **changes}))


ACROSS = [pair("n1-0", "n2-0", "across", 0.9), pair("n2-0", "n1-0", "across", 0.9)]
WITHIN = [pair("n1-0", "n1-1", "within", 1.2), pair("n1-1", "n1-0", "within", 1.2)]


# Policies.


@pytest.mark.parametrize(("changes", "warn", "rdma"), [
    ({}, False, False),
    ({"across": path("across", ok=False, doubt="no")}, True, True),
    ({"within": path("within", ok=False, doubt="no")}, True, True),
    ({"within": path("within", ok=False, doubt="no", wanted=False)}, False, False),
    ({"protocol": "tls", "across": path("across", ok=False, doubt="TLS")}, False, True),
    ({"across": None}, False, True),
    ({"across": None, "nodes": 1}, False, False),
    ({"worst": ("n3",)}, True, False),
    ({"failed": ("the transfer failed",)}, True, True),
    ({"nccl_doubt": "NCCL uses sockets"}, True, True),
])  # fmt: skip
def test_policies(changes: Table, warn: bool, rdma: bool) -> None:
    assert judged("none", **changes) == ""
    assert bool(judged("warn", **changes)) == warn
    assert bool(judged("rdma", **changes)) == rdma


# TCP and CPU workers.


def test_tls_is_said_plainly() -> None:
    found = decide(made("tls", "host", ACROSS))
    assert found.line == "TLS over TCP on eth0: 0.9 GiB/s across nodes"
    assert not found.ok
    assert check_policy("warn", found) == ""
    assert check_policy("rdma", found) == "TLS over TCP carries the data across nodes"
    assert "network.protocol=ucx" in found.remedy
    assert found.across is not None
    assert found.across.proof == ("eth0 moved 4.0 GiB of 2.0 GiB",)
    both = decide(made("tls", "host", ACROSS + WITHIN))
    assert both.line == "TLS over TCP on eth0: 0.9 GiB/s across nodes; on lo: 1.2 GiB/s within nodes"


def test_cpu_workers_across_nodes_over_ucxs_tcp() -> None:
    log = (FIXTURES / "ucx-tcp-two-nodes.log").read_text()
    found = decide(made("ucx", "host", ACROSS + WITHIN, log))
    assert not found.ok
    assert found.line.startswith(
        "UCX fell back to tcp on eth0 across nodes (n1 and n2 have no InfiniBand device): 0.9 GiB/s; tcp on lo within"
        " nodes 1.2 GiB/s; remedy: request nodes"
    )
    assert "n1 and n2 have no InfiniBand device" in check_policy("rdma", found)


def test_one_worker_alone() -> None:
    for protocol, line in (("ucx", "UCX: nothing was measured"), ("tls", "TLS over TCP: nothing was measured")):
        found = decide(Measurement(protocol, "cuda", [], {"n1": WorkerFacts("n1")}, {"n1": NodeFacts()}))
        assert (found.line, found.ok) == (line, True)
        assert check_policy("rdma", found) == ""


# Failed and slow.


def test_transfers_that_failed() -> None:
    failed = pair("n1-0", "n3-0", "across", 1, "OSError: unreachable")
    found = decide(made("tls", "host", [*ACROSS, failed]))
    assert found.failed == ("the transfer n1-0 → n3-0 failed: OSError: unreachable",)
    assert found.line.endswith("; the transfer n1-0 → n3-0 failed: OSError: unreachable")
    assert check_policy("warn", found).startswith("the transfer n1-0 → n3-0 failed")
    alone = decide(made("ucx", "host", [failed]))
    assert alone.line.startswith("UCX: nothing was measured; the transfer")
    assert check_policy("rdma", alone)


def test_a_slow_node_of_three_is_named_though_it_has_most_of_the_pairs() -> None:
    names = ("n1-0", "n2-0", "n3-0")
    pairs = [
        pair(one, two, "across", 5 if "n3-0" in (one, two) else 22) for one in names for two in names if one != two
    ]
    found = decide(made("tls", "host", pairs))
    assert found.worst == ("n3",)
    assert "than half of the others' bandwidth: n3" in check_policy("warn", found)


# NCCL.


@pytest.mark.parametrize(
    ("log", "words", "doubt"),
    [
        ("nccl-infiniband", "NET/IB on mlx5_0, mlx5_2 across nodes; P2P/CUMEM within nodes; 180 GiB/s", ""),
        ("nccl-sockets", "NET/Socket on lo across nodes; P2P/IPC and SHM within nodes; 180 GiB/s", "NCCL uses TCP sockets across nodes"),
        ("nccl-one-node", "P2P/direct pointer within nodes; 180 GiB/s", ""),
    ],
)  # fmt: skip
def test_nccls_ways(log: str, words: str, doubt: str) -> None:
    said = parse_nccl_log((FIXTURES / f"{log}.log").read_text())
    nccl = {"seconds": 0.1, "bytes": GIB, "bandwidth": 180 * GIB, "log": said, "error": ""}
    found = decide(made("tls", "host", ACROSS, nccl=nccl))
    assert (found.nccl, found.nccl_doubt) == (words, doubt)
    assert found.line.endswith(f"; NCCL: {words}")
    assert (doubt in found.problems) == bool(doubt)


def test_nccl_that_failed() -> None:
    found = decide(made("tls", "host", ACROSS, nccl={"error": "no all-reduce within 15 s"}))
    assert found.line.endswith("; NCCL failed: no all-reduce within 15 s")
    assert check_policy("warn", found) == "NCCL failed: no all-reduce within 15 s"


# Words.
