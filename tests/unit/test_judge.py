"""Policies, plain TCP, CPU workers, slow pairs, NCCL, and the verdict as JSON and in words."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hpcml.node.interconnect import attribution, measurement
from hpcml.node.interconnect.measurement import (
    GIB,
    Measurement,
    NodeFacts,
    Pair,
    WorkerFacts,
    parse_nccl_log,
    parse_ucx_log,
)
from hpcml.node.interconnect.result import Result, check_policy, decide, rate

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures/fabric"
Table = dict[str, Any]


def pair(source: str, target: str, scope: str, speed: float, error: str = "") -> Pair:
    return Pair(source, target, scope, GIB, 1 / speed, error)


def interfaces(**moved: float) -> Table:
    kinds = {"ib0": 32, "lo": 772}
    return {name: {"tx": size, "rx": size, "type": kinds.get(name, 1), "lower": False} for name, size in moved.items()}


def made(protocol: str, memory: str, pairs: list[Pair], log: str = "", **changes: Any) -> Measurement:
    """Return transfers between workers called NODE-NUMBER; IP carried them all."""
    names = sorted({name for one in pairs for name in (one.source, one.target)})
    sent = {scope: sum(one.bytes for one in pairs if one.scope == scope) for scope in ("within", "across")}
    moved = {"seconds": 1.0, "infiniband": {}, "nvlink": None, "nvlink_why": "",
             "interfaces": interfaces(eth0=sent["across"], lo=sent["within"], eth1=1000)}  # fmt: skip
    workers = {name: WorkerFacts(name.partition("-")[0], log=parse_ucx_log(log)) for name in names}
    nodes = {worker.node: NodeFacts(moved) for worker in workers.values()}
    return Measurement(protocol, memory, pairs, workers, nodes, **changes)


def path(scope: str, *, ok: bool, doubt: str = "", wanted: bool = True) -> attribution.DataPath:
    return attribution.DataPath(scope, ("x",), (), "", ok, (), doubt, 1.0, 1.0, "a → b", wanted)


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


def test_an_unknown_policy() -> None:
    with pytest.raises(ValueError, match="'rmda'"):
        judged("rmda")


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


def test_tls_with_counters_that_nobody_read() -> None:
    facts = made("tls", "host", ACROSS)
    found = decide(Measurement("tls", "host", ACROSS, facts.workers, {"n1": NodeFacts(), "n2": NodeFacts()}))
    assert found.line == "TLS over TCP on an unknown interface: 0.9 GiB/s across nodes"
    unread = Measurement("tls", "host", ACROSS, facts.workers, {"n1": NodeFacts(), "n2": NodeFacts()}, None, "eth1")
    assert decide(unread).line == "TLS over TCP on the addresses of eth1: 0.9 GiB/s across nodes"


def test_cpu_workers_of_one_node_need_no_fast_wire() -> None:
    log = (FIXTURES / "ucx-tcp-one-node.log").read_text()
    found = decide(made("ucx", "host", WITHIN, log))
    assert found.line == "UCX: tcp on lo within nodes 1.2 GiB/s"
    assert found.ok
    assert (found.problems, check_policy("rdma", found)) == ((), "")


def test_cpu_workers_across_nodes_over_ucxs_tcp() -> None:
    log = (FIXTURES / "ucx-tcp-two-nodes.log").read_text()
    found = decide(made("ucx", "host", ACROSS + WITHIN, log))
    assert not found.ok
    assert found.line.startswith(
        "UCX fell back to tcp on eth0 across nodes (n1 and n2 have no InfiniBand device): 0.9 GiB/s; tcp on lo within"
        " nodes 1.2 GiB/s; remedy: request nodes"
    )
    assert "n1 and n2 have no InfiniBand device" in check_policy("rdma", found)


def test_cpu_workers_over_shared_memory() -> None:
    facts = made("ucx", "host", WITHIN, "UCX  INFO  c intra-node cfg#4 tag(tcp/lo sysv/memory cma/memory)\n")
    moved = {**facts.nodes["n1"].moved, "interfaces": interfaces(lo=10)}
    found = decide(Measurement("ucx", "host", WITHIN, facts.workers, {"n1": NodeFacts(moved)}))
    assert found.line == "UCX: cma and sysv within nodes 1.2 GiB/s"


def test_one_worker_alone() -> None:
    for protocol, line in (("ucx", "UCX: nothing was measured"), ("tls", "TLS over TCP: nothing was measured")):
        found = decide(Measurement(protocol, "cuda", [], {"n1": WorkerFacts("n1")}, {"n1": NodeFacts()}))
        assert (found.line, found.ok) == (line, True)
        assert check_policy("rdma", found) == ""


# Failed and slow.


def test_transfers_that_failed() -> None:
    pairs = [*ACROSS, pair("n1-0", "n3-0", "across", 1, "OSError: unreachable"), Pair("n2-0", "n3-0", "across", 0, 0.0, "x")]  # fmt: skip
    found = decide(made("tls", "host", pairs))
    assert found.failed == (
        "the transfer n1-0 → n3-0 failed: OSError: unreachable",
        "the transfer n2-0 → n3-0 failed: x",
    )
    assert found.line.endswith("; the transfer n1-0 → n3-0 failed: OSError: unreachable")
    assert check_policy("warn", found).startswith("the transfer n1-0 → n3-0 failed")
    alone = decide(made("ucx", "host", pairs[2:]))
    assert alone.line.startswith("UCX: nothing was measured; the transfer")
    assert check_policy("rdma", alone)


def test_a_slow_node_of_three_is_named_though_it_has_most_of_the_pairs() -> None:
    names = ("n1-0", "n2-0", "n3-0")
    pairs = [
        pair(one, two, "across", 5 if "n3-0" in (one, two) else 22) for one in names for two in names if one != two
    ]
    found = decide(made("tls", "host", pairs))
    assert found.worst == ("n3",)
    assert (
        check_policy("warn", found)
        == "these nodes or pairs of workers have less than half of the others' bandwidth: n3"
    )
    assert found.across is not None
    assert found.across.slowest_pair.startswith(("n1-0 → n3-0", "n3-0 →"))


def test_a_slow_pair_of_nodes_that_are_well_otherwise() -> None:
    names = ("n1-0", "n2-0", "n3-0")
    pairs = [
        pair(one, two, "across", 3 if (one, two) == ("n1-0", "n3-0") else 22)
        for one in names
        for two in names
        if one != two
    ]
    pairs += [
        pair("n1-0", "n1-1", "within", 104),
        pair("n1-1", "n1-0", "within", 101),
        pair("n1-1", "n1-2", "within", 20),
    ]
    found = decide(made("tls", "host", pairs))
    assert found.worst == ("n1-1 → n1-2", "n1-0 → n3-0")
    assert found.across is not None
    assert found.across.bandwidth == pytest.approx(22)
    assert found.across.slowest == pytest.approx(3)
    assert found.across.slowest_pair == "n1-0 → n3-0"


def test_exactly_half_is_not_slow() -> None:
    assert (
        measurement.slow([pair("a", "b", "within", 10), pair("b", "a", "within", 10), pair("a", "c", "within", 5)])
        == []
    )
    assert measurement.slow([]) == []


def test_many_slow_pairs_are_counted() -> None:
    pairs = [pair(f"n1-{k}", "n1-9", "within", 1 if k < 9 else 99) for k in range(30)]
    text = check_policy("warn", decide(made("tls", "host", pairs)))
    assert text.count("→") == 6
    assert text.endswith("and 3 more")


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


# JSON and words.


def test_a_measurement_travels_and_becomes_json() -> None:
    log = (FIXTURES / "ucx-no-infiniband.log").read_text()
    facts = made("ucx", "host", ACROSS + WITHIN, log, nccl={"error": "", "bandwidth": 1.0, "log": {}})
    again = pickle.loads(pickle.dumps(facts))  # noqa: S301 - as Dask brings it from the scheduler to hpcml fabric
    assert again == facts
    assert decide(again) == decide(facts)
    assert json.loads(json.dumps(asdict(facts)))["pairs"][0]["source"] == "n1-0"
    table = decide(again).to_json()
    assert json.loads(json.dumps(table))["across"]["transports"] == ["tcp"]
    assert table["ok"] is False


@pytest.mark.parametrize(("devices", "words"), [
    (["mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"], "mlx5_0..3"),
    (["mlx5_3:1", "mlx5_0:1"], "mlx5_0, mlx5_3"),
    (["mlx5_9:1", "mlx5_10:1", "mlx5_11:1"], "mlx5_9..11"),
    (["mlx5_0:2", "mlx5_0:1"], "mlx5_0, mlx5_0:2"),
    (["eth0", "ib0"], "eth0, ib0"),
    ([], ""),
])  # fmt: skip
def test_devices_in_few_words(devices: list[str], words: str) -> None:
    assert attribution.short(devices) == words


@pytest.mark.parametrize(
    ("speed", "words"), [(104.4, "104 GiB/s"), (9.96, "10 GiB/s"), (0.91, "0.9 GiB/s"), (0.02, "20 MiB/s")]
)
def test_rates(speed: float, words: str) -> None:
    assert rate(speed) == words
