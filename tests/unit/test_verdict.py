"""The judgement on recorded and made-up measurements: above all, when it must say no.

InfiniBand is untested on hardware: its counters are numbers put down here, its lanes are quoted from public logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpcml import units
from hpcml.node.interconnect.measurement import (
    Measurement,
    NodeFacts,
    Pair,
    WorkerFacts,
    merge_nccl_logs,
    parse_nccl_log,
    parse_ucx_log,
)
from hpcml.node.interconnect.result import check_policy, decide
from tests.said import in_order, says

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures/interconnect"
GIB = 1024**3
SENT = 2 * GIB  # by each worker, within its node and across nodes
RC = (
    "UCX  INFO  c inter-node cfg#2 tag(tcp/ib0)\nUCX  INFO  c inter-node cfg#3 tag(rc_mlx5/mlx5_0:1 rc_mlx5/mlx5_1:1)\n"
)
IPC = "UCX  INFO  c intra-node cfg#4 tag(tcp/lo cuda_ipc/cuda)\n"
TCP = "UCX  INFO  c inter-node cfg#2 tag(tcp/ib0)\nUCX  INFO  c intra-node cfg#3 tag(tcp/lo)\n"
WHEEL = "UCX  INFO  Version 1.21.0 (loaded from /opt/venv/lib/python3.12/site-packages/libucx/lib/libucp.so)\n"
FAST = ("tcp", "rc_mlx5", "ud_mlx5", "cuda_copy", "cuda_ipc", "sysv", "posix", "self")
SLOW = ("tcp", "cuda_copy", "cuda_ipc", "cma", "sysv", "posix", "self")

Table = dict[str, Any]


def log(name: str) -> str:
    return (FIXTURES / f"{name}.log").read_text()


def port(tx: float | None, rx: float | None, state: str = "ACTIVE", layer: str = "InfiniBand") -> Table:
    return {"tx": tx, "rx": rx, "state": state, "layer": layer, "rate": 12_500_000_000}


def interface(moved: float, kind: int = 1, *, lower: bool = False) -> Table:
    return {"tx": moved, "rx": moved, "type": kind, "lower": lower}


def gpu(index: int, moved: float | None, peers: Sequence[str] | None, links: int = 18) -> Table:
    return {"index": index, "links": links, "tx": moved, "rx": moved, "peers": peers, "why": ""}


def moved(
    *, ib: Mapping[str, Table] | None = None, ib0: float = 0.0, eth0: float = 0.0, lo: float = 0.0, nvlink: Any = "all"
) -> Table:
    """Return a node's difference of counters; by default RDMA and NVLink carried everything of two workers."""
    ports = {"mlx5_0:1": port(SENT * 1.02, SENT * 1.02), "mlx5_1:1": port(SENT * 1.02, SENT * 1.02)}
    gpus = {"GPU-a": gpu(0, SENT * 1.01, ["GPU-b"]), "GPU-b": gpu(1, SENT * 1.01, ["GPU-a"])}
    return {
        "seconds": 1.0,
        "infiniband": ports if ib is None else ib,
        "interfaces": {"ib0": interface(ib0, 32), "eth0": interface(eth0), "lo": interface(lo, 772)},
        "nvlink": gpus if nvlink == "all" else nvlink,
        "nvlink_why": "",
    }


def measured(
    tables: Mapping[str, Table],
    *,
    said: str = RC + IPC,
    transports: Sequence[str] = FAST,
    environment: Mapping[str, str] | None = None,
    **changes: Any,
) -> Measurement:
    """Return transfers between two workers within each node and around the ring of nodes."""
    names = list(tables)
    pairs, workers = [], {}
    for node, after in zip(names, [*names[1:], names[0]], strict=True):
        for k, gpu_name in enumerate(("GPU-a", "GPU-b")):
            pairs.append(Pair(f"{node}-{k}", f"{node}-{1 - k}", "within", SENT, SENT / 104 / GIB))
            if node != after:
                pairs.append(Pair(f"{node}-{k}", f"{after}-{k}", "across", SENT, SENT / 22 / GIB))
            known = parse_ucx_log(said)
            workers[f"{node}-{k}"] = WorkerFacts(node, gpu_name, transports, known, "1.21.0", environment or {})
    facts: Table = {"protocol": "ucx", "memory": "cuda", "pairs": pairs, "workers": workers, "nccl": None}
    facts["nodes"] = {node: NodeFacts(table, None) for node, table in tables.items()}
    return Measurement(**{**facts, **changes})


def two(**changes: Any) -> Measurement:
    return measured({"n1": moved(), "n2": moved()}, **changes)


def both(**way: Any) -> dict[str, Table]:
    return {"n1": moved(**way), "n2": moved(**way)}


STILL: dict[str, Table] = {"mlx5_0:1": port(0, 0), "mlx5_1:1": port(0, 0)}


# Yes.


def test_fast_wires_proven() -> None:
    found = decide(two())
    across = "rc_mlx5 on mlx5_0, mlx5_1 across nodes 22 GiB/s"
    assert found.line == f"UCX: cuda_ipc over NVLink within nodes 104 GiB/s; {across}"
    assert found.ok
    assert (found.remedy, found.problems, found.worst) == ("", (), ())
    assert found.within is not None
    assert found.within.proof[0] == "n1: NVLink transferred 4.0 GiB of 4.0 GiB, loopback 0 B"
    assert found.across is not None
    assert re.search(
        in_order("n2: InfiniBand ports transferred 4.1 GiB", "4.0 GiB, IP interfaces 0"), found.across.proof[1]
    )
    assert [check_policy(policy, found) for policy in ("none", "warn", "rdma")] == ["", "", ""]


@pytest.mark.parametrize("transport", ["rc_verbs", "dc_mlx5", "ud_verbs", "srd", "gga_mlx5", "rc"])
def test_all_of_ucxs_rdma_counts_and_nothing_else(transport: str) -> None:
    found = decide(two(said=f"UCX  INFO  c inter-node cfg#3 tag({transport}/dev_0:1)\n{IPC}"))
    assert found.ok
    assert f"{transport} on" in found.line
    for other in ("tcp", "cuda_ipc", "sysv", "crc_mlx5", "udp"):
        assert not units.RDMA.fullmatch(other)


def test_a_counter_that_cannot_be_read_is_made_up_for_by_the_others() -> None:
    silent = {"mlx5_0:1": port(None, None)}
    found = decide(measured(both(ib=silent)))
    assert found.ok
    assert "cannot be read" in str(found.across and found.across.proof)
    nodes = both(ib=silent)
    nodes["n2"]["interfaces"] = {}
    assert not decide(measured(nodes)).ok
    assert not decide(measured(both(ib=silent), said=RC.replace("tcp/ib0", "other/dev") + IPC)).ok
    assert not decide(measured(both(ib=silent, eth0=SENT))).ok
    assert decide(measured({"n1": moved(nvlink=None)})).ok
    assert not decide(measured({"n1": moved(nvlink=None, lo=2 * SENT)})).ok
    assert not decide(measured({"n1": moved(nvlink=None)}, said=IPC.replace("tcp/lo", "sysv/memory"))).ok


def test_infiniband_within_a_node_is_told_from_what_goes_across() -> None:
    said = RC + IPC.replace("tcp/lo", "rc_mlx5/mlx5_0:1")
    found = decide(measured(both(nvlink=None), said=said))
    assert found.within is not None
    assert (found.within.ok, found.within.transports) == (True, ("cuda_ipc",))
    twice = {"mlx5_0:1": port(4 * SENT, 4 * SENT)}
    found = decide(measured(both(nvlink=None, ib=twice), said=said))
    assert found.within is not None
    assert not found.within.ok


def test_gpus_without_nvlink() -> None:
    gpus = {"GPU-a": gpu(0, None, [], 0), "GPU-b": gpu(1, None, [], 0)}
    found = decide(measured({"n1": moved(nvlink=gpus)}))
    assert found.line == "UCX: cuda_ipc over PCIe within nodes 104 GiB/s"
    assert found.ok
    assert not decide(measured({"n1": moved(nvlink=gpus)}, said=IPC.replace("tcp/lo", "sysv/memory"))).ok
    # UCX 1.21 wires cuda_ipc there and may send by TCP all the same (openucx/ucx issue 11046, pull request 7566).
    assert not decide(measured({"n1": moved(nvlink=gpus, lo=2 * SENT)}, said=log("ucx-tcp-and-cuda_ipc"))).ok


@pytest.mark.parametrize(("over_nvlink", "proven"), [(2, True), (1.7, False), (1, False)])
def test_nvlink_from_node_to_node(over_nvlink: float, proven: bool) -> None:
    """As seen on two H200s of one machine that are two nodes to Slurm: the counters must show both rounds."""
    gpus = {"GPU-a": gpu(0, over_nvlink * SENT, ["GPU-b"]), "GPU-b": gpu(1, over_nvlink * SENT, ["GPU-a"])}
    said = "UCX  INFO  c intra-node cfg#4 tag(cuda_ipc/cuda tcp/eth0)\nUCX  INFO  c inter-node cfg#2 tag(tcp/eth0)\n"
    found = decide(measured(both(nvlink=gpus, ib={}), said=said, transports=SLOW))
    assert found.across is not None
    assert found.ok is found.across.ok is proven
    assert ("cuda_ipc over NVLink across nodes" in found.line) is proven
    assert ("fell back to tcp across nodes" in found.line) is not proven


def test_what_was_moved_before_the_timing_counts() -> None:
    pairs = [Pair("n1-0", "n2-0", "across", SENT // 8, 0.01, moved=8 * SENT)]
    assert not decide(two(pairs=pairs)).ok
    assert decide(two(pairs=[Pair("n1-0", "n2-0", "across", SENT // 8, 0.01)])).ok


def test_bonds_and_vlans_are_not_counted_twice() -> None:
    way = both()
    for table in way.values():
        table["interfaces"]["bond0"] = interface(4 * SENT, lower=True)
    assert decide(measured(way)).ok


# No.


def test_forced_to_tcp() -> None:
    made = measured(
        both(ib=STILL, eth0=2 * SENT, lo=2 * SENT, nvlink={"GPU-a": gpu(0, 0, ["GPU-b"]), "GPU-b": gpu(1, 0, ["GPU-a"])}),
        said=log("ucx-forced-tcp"), transports=("tcp", "cuda_copy"))  # fmt: skip
    found = decide(made)
    assert not found.ok
    assert found.line == (
        "UCX fell back to tcp on eth0 across nodes (UCX_TLS=tcp,cuda_copy excludes InfiniBand): 22 GiB/s, but the"
        " InfiniBand ports can carry 23 GiB/s; UCX fell back to tcp on lo within nodes (UCX_TLS=tcp,cuda_copy excludes cuda_ipc):"
        " 104 GiB/s; remedy: remove UCX_TLS from your environment and from the profile"
    )
    assert check_policy("none", found) == ""
    for policy in ("warn", "rdma"):
        assert check_policy(policy, found).startswith("tcp carries the data across nodes (UCX_TLS=tcp,cuda_copy")


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_what_ip_over_infiniband_moved_is_not_rdmas(way: str) -> None:
    nodes = both()
    nodes["n1"]["interfaces"]["ib0"][way] = 0.45 * 2 * SENT  # too little to say that IP carried the bytes
    assert not decide(measured(nodes)).ok


@pytest.mark.parametrize("way", ["tx", "rx"])
def test_both_directions_of_every_node_must_show_it(way: str) -> None:
    nodes = both()
    for facts in nodes["n2"]["infiniband"].values():
        facts[way] = 0
    found = decide(measured(nodes))
    assert not found.ok
    assert "the InfiniBand ports of n2 do not show" in found.problems[0]
    assert found.across is not None
    assert found.across.proof[1].startswith("n2: InfiniBand ports transferred 0 B of 4.0 GiB")


def test_one_node_of_four_that_falls_back() -> None:
    nodes = {"n1": moved(), "n2": moved(), "n3": moved(ib={}, eth0=2 * SENT), "n4": moved()}
    nodes["n1"]["infiniband"] = {"mlx5_0:1": port(2 * SENT, 0)}  # n1 gets from n3 over TCP, and n2 gives to it
    nodes["n2"]["infiniband"] = {"mlx5_0:1": port(0, 2 * SENT)}
    nodes["n1"]["interfaces"]["eth0"]["rx"] = nodes["n2"]["interfaces"]["eth0"]["tx"] = 2 * SENT
    found = decide(measured(nodes))
    assert not found.ok
    assert "n3 has no InfiniBand device" in found.line
    assert found.across is not None
    assert found.across.transports == ("rc_mlx5", "tcp")
    assert found.across.doubt.startswith("tcp carries the data of n1, n2 and n3")


def test_nvlink_that_stood_still() -> None:
    gpus = {"GPU-a": gpu(0, 0, ["GPU-b"]), "GPU-b": gpu(1, 0, None)}
    found = decide(measured({"n1": moved(nvlink=gpus)}))
    assert not found.ok
    assert "UCX reported cuda_ipc within nodes, but on n1 NVLink transferred 0 B of 4.0 GiB" in found.line
    fallen = decide(measured({"n1": moved(nvlink=gpus, lo=2 * SENT)}))
    assert fallen.line.startswith("UCX fell back to tcp on lo within nodes")


def test_staged_through_shared_memory() -> None:
    said = "UCX  INFO  c intra-node cfg#4 tag(sysv/memory cma/memory cuda_copy/cuda)\n"
    found = decide(measured({"n1": moved(nvlink=None)}, said=said))
    assert not found.ok
    assert found.line.startswith("UCX: UCX uses no cuda_ipc within nodes")
    assert found.within is not None
    assert found.within.transports == ("cma", "sysv")


def test_no_log_no_counters() -> None:
    found = decide(measured({"n1": {}, "n2": {}}, said="", transports=()))
    assert not found.ok
    assert "UCX did not report its transports across" in found.line
    assert not decide(measured({"n1": {}, "n2": {}})).ok
    assert not decide(two(said=TCP + IPC)).ok, "ports that move prove nothing without an RDMA lane"
    busy = {"mlx5_0:1": port(50 * SENT, 50 * SENT)}  # Lustre, say
    assert not decide(measured(both(ib=busy, eth0=2 * SENT))).ok


# Why, and what to do.


@pytest.mark.parametrize(
    ("change", "reason", "remedy"),
    [
        ({"environment": {"UCX_TLS": "^ib"}}, "UCX_TLS=^ib excludes InfiniBand", "UCX_TLS"),
        ({"environment": {"UCX_TLS": "^rc,dc_mlx5,ud"}}, "excludes InfiniBand", "UCX_TLS"),
        ({"environment": {"UCX_NET_DEVICES": "eth0"}}, "UCX_NET_DEVICES=eth0 excludes mlx5_0:1 and mlx5_1:1", "UCX_NET_DEVICES"),
        ({"ib": {}}, "n1 and n2 have no InfiniBand device", "partition"),
        ({"ib": {"mlx5_0:1": port(0, 0, "DOWN")}}, "on n1 mlx5_0:1 is DOWN", "--exclude=n1"),
        ({"transports": SLOW, "said": WHEEL + TCP}, "pip's libucx", "conda-forge"),
        ({"transports": SLOW, "said": TCP}, "this UCX offers no InfiniBand transport", "rdma-core"),
        ({"transports": SLOW, "said": TCP + log("ucx-memlock")}, "locked memory is limited on n1", "LimitMEMLOCK"),
        ({"said": TCP, "probe": {"limits": {"locked_memory": {"soft": 65536}}}}, "64 KiB on n1", "LimitMEMLOCK"),
        ({"said": TCP, "probe": {"modules": {"verbs": []}}}, "/dev/infiniband does not exist on n1", "--bind"),
        ({"said": TCP, "probe": {"limits": {"locked_memory": {"soft": None}}, "modules": {"verbs": ["uverbs0"]}}}, "unknown reason", "UCX_PROTO_INFO"),
        ({"environment": {"UCX_TLS": "rc,cuda"}}, "unknown reason", "UCX_PROTO_INFO"),
        ({"environment": {"UCX_TLS": "^rc"}}, "unknown reason", "UCX_PROTO_INFO"),
        ({"environment": {"UCX_TLS": "^tcp", "UCX_NET_DEVICES": "mlx5_1"}}, "unknown reason", "UCX_PROTO_INFO"),
    ],
)  # fmt: skip
def test_why_not_infiniband(change: Table, reason: str, remedy: str) -> None:
    nodes = both(ib=change.pop("ib", STILL), eth0=2 * SENT)
    probe = change.pop("probe", None)
    facts = {name: NodeFacts(table, probe) for name, table in nodes.items()}
    found = decide(measured(nodes, **{"nodes": facts, **change}))
    assert not found.ok
    assert reason in found.line
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("change", "reason", "remedy"),
    [
        ({"environment": {"UCX_TLS": "^cuda_ipc"}}, "excludes cuda_ipc", "UCX_TLS"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "0"}}, "n1-0 sees only its own GPU", "--gpus-per-task"),
        ({"transports": ("tcp", "rc_mlx5")}, "this UCX offers no cuda_ipc", "built with CUDA"),
        ({"memory_resource": "CudaAsyncMemoryResource"}, "RMM's CudaAsyncMemoryResource", "rmm_pool_size"),
        ({"environment": {"UCX_TLS": "all", "CUDA_VISIBLE_DEVICES": "0,1"}, "memory_resource": "PoolMemoryResource"}, "unknown reason", "namespaces"),
    ],
)  # fmt: skip
def test_why_not_cuda_ipc(change: Table, reason: str, remedy: str) -> None:
    gpus = {"GPU-a": gpu(0, 0, ["GPU-b"]), "GPU-b": gpu(1, 0, ["GPU-a"])}
    log_facts = parse_ucx_log(IPC)
    workers = {f"n1-{k}": WorkerFacts("n1", str(k), **{"transports": FAST, "log": log_facts, **change}) for k in (0, 1)}
    found = decide(measured({"n1": moved(nvlink=gpus, lo=2 * SENT)}, workers=workers))
    assert not found.ok
    assert reason in found.line
    assert remedy in found.remedy


def test_ports_that_rdma_leaves_idle() -> None:
    found = decide(two(pairs=[Pair("n1-0", "n2-0", "across", SENT, 1.0)]))
    assert found.ok
    assert found.problems == (says("n1 sends 2.0 GiB/s", "its InfiniBand ports can carry 23 GiB/s"),)
    assert "nvidia_peermem" in found.remedy


def all_reduce(logs: Sequence[str], *, nodes: int = 2, backend: str = "nccl", **change: Any) -> Measurement:
    """Return an all-reduce of 1 GiB in a second by four ranks, with what NCCL wrote on each node."""
    log_of_all = merge_nccl_logs([parse_nccl_log(text) for text in logs])
    ports = change.pop("ports", {"mlx5_0:1": port(0, 0)})
    nccl = {"bytes": GIB, "seconds": 1.0, "bandwidth": 1.5 * GIB, "log": log_of_all, "error": "", **change}
    facts = {f"n{number}": NodeFacts({"infiniband": ports}, None) for number in range(1, nodes + 1)}
    return Measurement(backend, "cuda" if backend == "nccl" else "host", (), {}, facts, nccl=nccl, interface="eth0")


SOCKETS = """c NCCL INFO Using network Socket
c NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
c NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/Socket/0
"""
PEERS = "c NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"


def test_an_all_reduce_over_infiniband_is_proven_by_nccl_s_own_lines() -> None:
    result = decide(all_reduce([log("nccl-infiniband")] * 2))
    assert result.ok
    assert not check_policy("rdma", result)
    assert result.line == "NCCL: NET/IB on mlx5_0, mlx5_2 across nodes; P2P/CUMEM within nodes; bus bandwidth 1.5 GiB/s"
    assert result.problems == ()
    without = [log("nccl-infiniband").replace("/GDRDMA", "")]
    assert "does not use GPUDirect RDMA" in decide(all_reduce(without)).problems[0]


@pytest.mark.parametrize(("change", "reason", "remedy"), [
    ({"ports": {}}, "n1 and n2 have no InfiniBand device", "request nodes with InfiniBand"),
    ({}, "NCCL did not use the InfiniBand ports of n1 and n2", "install libibverbs"),
    ({"setting": "NCCL_IB_DISABLE set by environment to 1.\n"}, "NCCL_IB_DISABLE=1 is set", "remove NCCL_IB_DISABLE"),
    ({"setting": "NCCL_NET set by environment to Socket.\n"}, "NCCL_NET=Socket is set", "remove NCCL_NET"),
])  # fmt: skip
def test_gpus_over_tcp_are_told_with_the_reason(change: Table, reason: str, remedy: str) -> None:
    setting = change.pop("setting", "")
    result = decide(all_reduce([SOCKETS + PEERS, setting + SOCKETS], **change))
    told = f"NCCL uses TCP sockets across nodes ({reason})"
    assert result.line.startswith(f"{told}: NET/Socket on eth0 across nodes; P2P/")
    assert remedy in result.line
    for policy in ("warn", "rdma"):
        assert check_policy(policy, result) == told


def test_the_gpus_of_one_node_need_peer_access() -> None:
    assert decide(all_reduce([PEERS], nodes=1)).line == "NCCL: P2P/CUMEM within nodes; bus bandwidth 1.5 GiB/s"
    shared = "NCCL_P2P_DISABLE set by environment to 1\n" + PEERS.replace("P2P/CUMEM", "SHM/direct")
    staged = decide(all_reduce([shared], nodes=1))
    assert "NCCL uses SHM within nodes (NCCL_P2P_DISABLE=1 is set)" in check_policy("warn", staged)
    neither = decide(all_reduce([SOCKETS], nodes=1))
    told = "NCCL uses TCP sockets within nodes"
    assert told in check_policy("rdma", neither)
    assert decide(all_reduce([PEERS.replace("CUMEM", "MNNVL")])).ok
    assert "did not report its transport across nodes" in check_policy("warn", decide(all_reduce([PEERS])))


def test_an_all_reduce_that_failed_is_no_speed() -> None:
    result = decide(all_reduce([""], error="n2: RuntimeError: NCCL error", bandwidth=0))
    assert (result.ok, result.line) == (False, "NCCL failed: n2: RuntimeError: NCCL error")
    assert check_policy("warn", result) == result.line
    assert not check_policy("none", result)


@pytest.mark.parametrize(("protocol", "name"), [("tls", "TLS over TCP"), ("tcp", "TCP")])
def test_what_was_asked_for_without_ucx_is_refused_by_rdma_only(protocol: str, name: str) -> None:
    result = decide(two(protocol=protocol))
    assert result.line.startswith(f"{name} on ")
    assert not check_policy("warn", result)
    assert check_policy("rdma", result).startswith(f"{name} carries the data across nodes")
    assert decide(two(protocol=protocol, pairs=())).line == f"{name}: nothing was measured"


def test_gloo_is_tcp_which_only_rdma_refuses() -> None:
    result = decide(all_reduce([""], backend="gloo"))
    assert result.line == "Gloo: tcp on eth0 across nodes; bus bandwidth 1.5 GiB/s"
    assert not check_policy("warn", result)
    assert check_policy("rdma", result) == "Gloo uses TCP across nodes"
    assert decide(all_reduce([""], backend="gloo", nodes=1)).ok
