"""Which transport carried the bytes, node by node; and if that is not the fast one, the first cause that explains it.

A lane that UCX has wired *may* carry data. It is believed if its own counter moved by the bytes that were sent and the
IP interfaces did not; where such a counter cannot be read, if the counters of all other lanes did not change. In
doubt the answer is no. The InfiniBand side is untested on hardware.

Causes are tried in the order of cause and effect: what was set, what the nodes have, what the library can, what the
process may.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from hpcml.gpu_vendor import VENDOR
from hpcml.node.interconnect.measurement import Measurement, NodeFacts, Pair, WorkerFacts
from hpcml.units import RDMA, format_bytes, listed

MOST = 0.8  # of the bytes sent: what a transport's own counter must show; the rest is for counters that lag
STILL = 0.5  # of the bytes sent: below it a counter counts as still; NFS and Dask's own words move it too
_IPOIB = 32  # ARPHRD_INFINIBAND in <net/if_arp.h>
_INTERNAL = {"self", "cuda_copy", "gdr_copy"}  # lanes that carry nothing from one process to another
_SHARED_MEMORY = {"posix", "sysv", "cma", "xpmem", "knem"}
_UNREADABLE = "NVLink's counters cannot be read"
WORDS = {"within": "within nodes", "across": "across nodes"}
_PortsOf = Mapping[str, Mapping[str, Any] | None]  # by node, its InfiniBand ports by name; None: not known
_ASKS_RDMA = re.compile(r"(all|ib|rc|dc|ud|gga|srd)(_\w+)?")  # what UCX_TLS must name for one of them
_ASKS_IPC = {"all", "cuda", "cuda_ipc"}
_LOW_MEMLOCK = 512 * 1024**2  # bytes; below it UCX 1.13 switched RDMA off (openucx/ucx pull request 8085)
_NO_GPU_POOL = re.compile(r"managed|async", re.IGNORECASE)
PIP_REMEDY = (
    "use an image with ucx and rdma-core from conda-forge, or set RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=true in an image"
    " whose UCX (1.19 to 1.21) was built with verbs"
)
GPUDIRECT = (
    "let the InfiniBand adapters access the GPUs' memory: load the kernel module nvidia_peermem, or use Linux 5.12"
    " and NVIDIA's open kernel modules"
)
_UNSET = "remove UCX_TLS from your environment and from the profile"
_UNLIMIT = (
    "ask the site's administrators to remove the limit of locked memory (LimitMEMLOCK=infinity in slurmd's unit, and"
    " PropagateResourceLimitsExcept=MEMLOCK in slurm.conf)"
)


class Flow(NamedTuple):
    """Bytes out and in."""

    tx: float
    rx: float

    def shares(self, expected: Flow) -> list[float]:
        """Return the part of the expected bytes that each lane carried, of lanes with any."""
        return [part / whole for part, whole in zip(self, expected, strict=True) if whole]

    def is_all_of(self, expected: Flow) -> bool:
        """Whether these are the bytes that a transport's own counter must show."""
        return min(self.shares(expected), default=0.0) >= MOST

    def moved(self, expected: Flow) -> bool:
        """Whether this counter did not stay still."""
        return max(self.shares(expected), default=0.0) >= STILL

    def of(self, expected: Flow) -> str:
        """Return the direction that shows the smaller share, as ``1 GiB of 2 GiB``."""
        ways = [(part / whole, part, whole) for part, whole in zip(self, expected, strict=True) if whole]
        return _of(*min(ways)[1:]) if ways else format_bytes(max(self))


@dataclass(frozen=True, slots=True)
class DataPath:
    """What is known of the transfers ``within`` nodes, or of those ``across`` nodes (``scope``)."""

    scope: str
    transports: tuple[str, ...]  # what carried the bytes (rc_mlx5), or what may have if not ``ok``
    devices: tuple[str, ...] = ()  # the same: mlx5_0:1
    over: str = ""  # NVLink or PCIe, for cuda_ipc
    ok: bool = False  # whether a fast transport is proven to have carried the bytes
    proof: tuple[str, ...] = ()  # sentences with the figures
    doubt: str = ""  # why ``ok`` is False
    bandwidth: float = 0.0  # GiB per second of a pair: the median
    wanted: bool = True  # whether a fast transport belongs here; between CPU workers of one node it does not
    unproven: tuple[str, ...] = ()  # the nodes for which none is proven

    def __str__(self) -> str:
        carrier = " and ".join(self.transports) or "an unknown lane"
        if self.over:
            return f"{carrier} over {self.over}"
        return f"{carrier} on {short(self.devices)}" if self.devices else carrier


def by_ip(measurement: Measurement, scope: str, pairs: Iterable[Pair]) -> DataPath:
    """Return the IP interfaces that moved most, and by how much: loopback within nodes, the others across."""
    expected = _expected(measurement, pairs)
    moved: dict[str, float] = defaultdict(float)
    for node in expected:
        for name, interface in (measurement.nodes[node].moved.get("interfaces") or {}).items():
            if (name == "lo") == (scope == "within") and not interface["lower"]:
                moved[name] += interface["tx"] or 0
    sent = sum(flow.tx for flow in expected.values())
    names = sorted(name for name, size in moved.items() if size > 0.05 * sent)
    figures = f"{', '.join(names) or 'the IP interfaces'} moved {_of(sum(moved.values()), sent)}"
    return DataPath(scope, ("tcp",), tuple(names), proof=(figures,), unproven=tuple(expected))


def across(measurement: Measurement, pairs: Sequence[Pair]) -> DataPath:
    """Weigh InfiniBand's counters against those of IP, after NVLink's, which may join nodes too."""
    expected = _expected(measurement, pairs)
    if by_nvlink := _nvlink_across(measurement, pairs, expected):
        return by_nvlink
    lanes = _lanes(measurement, "inter", pairs)
    fast = {lane for lane in _transports(lanes) if RDMA.fullmatch(lane)}
    proof, unproven, went_by_ip = [], [], set()
    for node, flow in expected.items():
        moved = measurement.nodes[node].moved
        rdma, ip = _rdma(moved), _ip(moved, local=False)
        if ip is not None and ip.moved(flow):
            went_by_ip.add(node)
        if rdma is not None:
            good, figures = rdma.is_all_of(flow), f"InfiniBand ports transferred {rdma.of(flow)}"
        else:
            good = ip is not None and _transports(lanes) <= fast | {"tcp"}
            figures = f"InfiniBand {'counters cannot be read' if moved.get('infiniband') else 'has no port here'}"
        if not fast or not good or node in went_by_ip:
            unproven.append(node)
        proof.append(f"{node}: {figures}, IP interfaces {format_bytes(max(ip)) if ip else 'are not known'}")
    if went_by_ip == set(expected) or not fast:
        slow = by_ip(measurement, "across", pairs)
        slow = replace(slow, proof=(*proof, *slow.proof), unproven=tuple(unproven))
        if not lanes and not went_by_ip:
            return replace(slow, transports=(), doubt="UCX did not report its transports across nodes")
        return replace(slow, doubt="tcp carries the data across nodes")
    devices = _ports(measurement, expected, lanes)
    path = DataPath("across", tuple(sorted(fast)), devices, proof=tuple(proof), unproven=tuple(unproven))
    return _partly(
        path, went_by_ip, f"the counters of the InfiniBand ports of {named(unproven)} do not show the data sent"
    )


def within(measurement: Measurement, pairs: Sequence[Pair]) -> DataPath:
    """Weigh NVLink's counters against loopback's; between CPU workers, shared memory against loopback."""
    expected = _expected(measurement, pairs)
    lanes = _lanes(measurement, "intra", pairs)
    fast = _transports(lanes) & ({"cuda_ipc"} if measurement.memory == "cuda" else _SHARED_MEMORY)
    proof, unproven, went_by_ip, overs, doubts = [], [], set(), set(), []
    for node, flow in expected.items():
        lo = _ip(measurement.nodes[node].moved, local=True)
        if lo is not None and lo.moved(flow):
            went_by_ip.add(node)
        alone = lo is not None and _stood_still(measurement, node, flow, _transports(lanes) - fast - {"tcp"})
        node_pairs = [pair for pair in pairs if measurement.workers[pair.source].node == node]
        good, over, figures = _judge_node(measurement, node, node_pairs, flow.tx, alone=alone)
        overs.add(over)
        proof.append(f"{node}: {figures}, loopback {format_bytes(lo.tx) if lo else 'is not known'}")
        if not fast or not good or node in went_by_ip:
            unproven.append(node)
            doubts.append(f"on {node} {figures}")
    over = " and ".join(sorted(overs - {""}))
    path = DataPath("within", tuple(sorted(fast)), over=over, proof=tuple(proof), unproven=tuple(unproven))
    if not unproven:
        return replace(path, ok=True)
    if went_by_ip == set(expected) or (went_by_ip and not fast):
        slow = by_ip(measurement, "within", pairs)
        return replace(slow, proof=tuple(proof), doubt="tcp carries the data within nodes", unproven=path.unproven)
    path = replace(path, over="")
    if not fast:
        wish = "cuda_ipc" if measurement.memory == "cuda" else "shared memory"
        return replace(path, transports=tuple(sorted(_transports(lanes))), doubt=f"UCX uses no {wish} within nodes")
    return _partly(path, went_by_ip, doubts[0])


def _partly(path: DataPath, went_by_ip: set[str], doubt: str) -> DataPath:
    """Return the path as proven, or that a fast lane is there but did not carry all, or not for certain."""
    if not path.unproven:
        return replace(path, ok=True)
    if went_by_ip:
        doubt = f"tcp carries the data of {named(went_by_ip)} {WORDS[path.scope]}"
        transports = (*path.transports, "tcp")
        return replace(path, transports=transports, devices=(), doubt=doubt, unproven=tuple(sorted(went_by_ip)))
    return replace(path, doubt=f"UCX reported {' and '.join(path.transports)} {WORDS[path.scope]}, but {doubt}")


def _judge_node(
    measurement: Measurement, node: str, pairs: Sequence[Pair], sent: float, *, alone: bool
) -> tuple[bool, str, str]:
    """Return the proof of a fast lane on a node: result, devices and figures; ``alone``: the others carried nothing."""
    if measurement.memory == "host":
        return alone, "", "shared memory has no counter"
    gpus = measurement.nodes[node].moved.get("nvlink") or {}
    joined = []
    for pair in pairs:
        source, target = (_gpu(gpus, measurement.workers[name].gpu) for name in (pair.source, pair.target))
        if not source or not target:
            return alone, "", _UNREADABLE
        peers = gpus[source]["peers"]
        if gpus[source]["links"] and gpus[target]["links"] and (peers is None or target in peers):
            joined.append((source, target, pair.sent))
    if not joined:
        return alone, "PCIe", "no NVLink connects the GPUs"
    moved = _sum(gpus[uuid] for uuid in {uuid for source, target, _ in joined for uuid in (source, target)})
    if moved is None:
        return alone, "", _UNREADABLE
    # Whether a read counts where it is asked for, where it is answered or at both ends is up to the GPU.
    expected, most = sum(size for _, _, size in joined), max(moved)
    good, figures = most >= MOST * expected, f"NVLink transferred {_of(most, expected)}"
    if sent - expected < 0.01 * sent:
        return good, "NVLink", figures
    return good and alone, "NVLink and PCIe", figures


def _expected(measurement: Measurement, pairs: Iterable[Pair]) -> dict[str, Flow]:
    """Return the bytes that each node should have sent and received by these pairs."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for pair in pairs:
        for way, worker in enumerate((pair.source, pair.target)):
            sums[measurement.workers[worker].node][way] += pair.sent
    return {node: Flow(*flow) for node, flow in sorted(sums.items())}


def _lanes(measurement: Measurement, scope: str, pairs: Iterable[Pair]) -> set[str]:
    """Return the lanes wired by the workers of these pairs; without a log, what UCX may use."""
    wired: set[str] = set()
    for name in {name for pair in pairs for name in (pair.source, pair.target)}:
        worker = measurement.workers[name]
        lanes = worker.log.get("lanes", {})
        # UCX calls the workers of one node "inter-node" if they do not share the namespaces by which it tells nodes.
        wired |= {*(lanes.get(scope) or lanes.get("inter") or worker.transports)}
    return wired


def _transports(lanes: Iterable[str]) -> set[str]:
    return {lane.partition("/")[0] for lane in lanes} - _INTERNAL


def _sum(entries: Iterable[Mapping[str, Any]]) -> Flow | None:
    """Return the sum of counters, None if there is none or one of them is not known."""
    counts = [(entry["tx"], entry["rx"]) for entry in entries]
    if not counts or any(part is None for flow in counts for part in flow):
        return None
    return Flow(sum(tx for tx, _ in counts), sum(rx for _, rx in counts))


def _ip(moved: Mapping[str, Any], *, local: bool) -> Flow | None:
    """Return the bytes that the interfaces moved: loopback, or else all others, without those made of others."""
    interfaces = moved.get("interfaces") or {}
    if local:
        return _sum([interfaces["lo"]] if "lo" in interfaces else [])
    return _sum(interface for name, interface in interfaces.items() if name != "lo" and not interface["lower"])


def _rdma(moved: Mapping[str, Any]) -> Flow | None:
    """Return the bytes that the InfiniBand ports moved beyond IP over InfiniBand, which they count too."""
    ports = _sum((moved.get("infiniband") or {}).values())
    interfaces = (moved.get("interfaces") or {}).values()
    ipoib = _sum([interface for interface in interfaces if interface["type"] == _IPOIB]) or Flow(0, 0)
    return None if ports is None else Flow(max(0, ports.tx - ipoib.tx), max(0, ports.rx - ipoib.rx))


def _stood_still(measurement: Measurement, node: str, flow: Flow, others: set[str]) -> bool:
    """Whether these lanes are known not to have carried a node's inner transfers; loopback is looked at elsewhere."""
    if not all(RDMA.fullmatch(lane) for lane in others):
        return False  # shared memory has no counter
    if not others:
        return True
    rdma = _rdma(measurement.nodes[node].moved)
    outer = _expected(measurement, [pair for pair in measurement.pairs if pair.scope == "across"]).get(node, Flow(0, 0))
    return rdma is not None and rdma.tx - outer.tx < STILL * flow.tx


def _nvlink_across(measurement: Measurement, pairs: Sequence[Pair], expected: Mapping[str, Flow]) -> DataPath | None:
    """Return the proof that NVLink carried the bytes from node to node, None without one.

    It joins nodes in racks made for it (MNNVL), and nodes of Slurm's that are parts of one machine; to UCX the peer may
    then be "intra-node". The counters of a node's GPUs must show these bytes beyond those that stayed within it.
    """
    names = {name for pair in pairs for name in (pair.source, pair.target)}
    logs = [measurement.workers[name].log.get("lanes", {}) for name in names]
    if not all("cuda_ipc" in _transports(lane for lanes in log.values() for lane in lanes) for log in logs):
        return None
    proof = []
    for node, flow in expected.items():
        gpus = measurement.nodes[node].moved.get("nvlink") or {}
        node_workers = {name for name, worker in measurement.workers.items() if worker.node == node}
        moved = _sum(gpus[uuid] for uuid in {_gpu(gpus, measurement.workers[name].gpu) for name in node_workers} - {""})
        inner = sum(pair.sent for pair in measurement.pairs if pair.scope == "within" and pair.source in node_workers)
        if moved is None or max(moved) - inner < MOST * max(flow):
            return None
        proof.append(f"{node}: NVLink moved {_of(max(moved) - inner, max(flow))}")
    return DataPath("across", ("cuda_ipc",), over="NVLink", ok=True, proof=tuple(proof))


def _gpu(gpus: Mapping[str, Any], name: str) -> str:
    """Return the UUID of a GPU given by UUID or by the driver's index, "" if it is not there."""
    if name in gpus:
        return name
    return next((uuid for uuid, gpu in gpus.items() if str(gpu["index"]) == name), "")


def _ports(measurement: Measurement, expected: Mapping[str, Flow], lanes: Iterable[str]) -> tuple[str, ...]:
    """Return the RDMA devices among the lanes, without those whose counters are known not to have changed."""
    wired = {lane.partition("/")[2] for lane in lanes if RDMA.fullmatch(lane.partition("/")[0])} - {""}
    used = {
        name
        for node, flow in expected.items()
        for name, port in (measurement.nodes[node].moved.get("infiniband") or {}).items()
        if (port["tx"] or 0) + (port["rx"] or 0) > 0.01 * sum(flow)
    }
    return tuple(sorted(wired & used or wired or used))


def _of(part: float, whole: float) -> str:
    return f"{format_bytes(part)} of {format_bytes(whole)}"


def short(devices: Iterable[str]) -> str:
    """Return device names in few words: ``mlx5_0..3`` for ``mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1``."""
    names = sorted({device.removesuffix(":1") for device in devices}, key=_natural)
    runs: list[list[str]] = []
    for name in names:
        stem, number = _natural(name)
        if runs and number >= 0 and _natural(runs[-1][-1]) == (stem, number - 1):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]}..{_natural(run[-1])[1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _natural(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.*?)([0-9]+)", name)
    return (match[1], int(match[2])) if match else (name, -1)


class Cause(NamedTuple):
    """A clause for brackets (``this UCX has no InfiniBand support``) and a sentence without its full stop."""

    reason: str
    remedy: str


GLOO = Cause("torch's Gloo supports only TCP", "use NCCL or MPI, or set interconnect.require=warn")
TLS = Cause(
    "the run uses TLS",
    "use GPU workers and an image whose UCX supports InfiniBand; if the nodes are yours alone, set resources.exclusive,"
    " and network.private if no other user can connect to them; or set network.protocol=ucx",
)
TCP = TLS._replace(reason="the run uses TCP")


def cause_across(measurement: Measurement, bad: Iterable[str]) -> Cause:
    """Return the reason for which InfiniBand did not carry the bytes of these nodes."""
    nodes = {name: measurement.nodes.get(name, NodeFacts()) for name in sorted(bad)}
    workers = [worker for worker in measurement.workers.values() if worker.node in nodes]
    ports = {name: node.moved.get("infiniband") for name, node in nodes.items()}
    unknown = Cause(
        "unknown reason",
        f"set UCX_PROTO_INFO=y and run again: the logs of the workers on {named(nodes)}"
        " then show the transport that UCX chose",
    )
    return next(chain(_set(workers, ports), _no_port(ports), _no_library(workers), _no_access(workers, nodes)), unknown)


def _set(workers: list[WorkerFacts], ports_of: _PortsOf) -> Iterator[Cause]:
    for worker in workers:
        if (value := setting(worker, "UCX_TLS")) and not _may_rdma(value):
            yield Cause(f"UCX_TLS={value} excludes InfiniBand", _UNSET)
    names = {name for ports in ports_of.values() for name in ports or {}}
    allowed = names | {name.partition(":")[0] for name in names} | {"all"}
    for worker in workers:
        value = setting(worker, "UCX_NET_DEVICES")
        if names and value and not value.startswith("^") and not allowed & set(value.split(",")):
            yield Cause(
                f"UCX_NET_DEVICES={value} excludes {named(names)}",
                "remove UCX_NET_DEVICES from the environment: UCX then chooses the adapter closest to the GPU",
            )


def _no_port(ports_of: _PortsOf) -> Iterator[Cause]:
    if without := [name for name, ports in ports_of.items() if ports is not None and not ports]:
        yield Cause(
            f"{named(without)} {'has' if len(without) == 1 else 'have'} no InfiniBand device",
            'request nodes with InfiniBand (partition, constraint), or set interconnect.require = "none".'
            " A container must not hide /sys and /dev (no apptainer --contain)",
        )
    for name, ports in ports_of.items():
        if ports and not any(port["state"] in ("ACTIVE", "") for port in ports.values()):
            states = ", ".join(f"{port} is {state['state']}" for port, state in ports.items())
            yield Cause(
                f"on {name} {states}", f"exclude the node (sbatch --exclude={name}) and report it to the site's support"
            )


def _no_library(workers: list[WorkerFacts]) -> Iterator[Cause]:
    for worker in workers:
        offered = {*worker.transports, *worker.log.get("available", ())}
        if not offered or any(map(RDMA.fullmatch, offered)) or _locked_out(worker):
            continue
        library = str(worker.log.get("library", ""))
        if "/site-packages/libucx" in library or "/dist-packages/libucx" in library:
            yield Cause("this UCX (from pip's libucx) has no InfiniBand support", PIP_REMEDY)
        yield Cause(
            f"this UCX{f', {library},' if library else ''} offers no InfiniBand transport",
            "install rdma-core (libibverbs and its providers) in the image. `ucx_info -d` must list rc_mlx5 or"
            f" rc_verbs; with pip's libucx, {PIP_REMEDY}",
        )


def _no_access(workers: list[WorkerFacts], nodes: Mapping[str, NodeFacts]) -> Iterator[Cause]:
    for worker in filter(_locked_out, workers):
        yield Cause(f"UCX reports that locked memory is limited on {worker.node}", _UNLIMIT)
    for name, node in nodes.items():
        probe = node.probe or {}
        if probe.get("modules", {}).get("verbs") == []:
            yield Cause(
                f"/dev/infiniband does not exist on {name}",
                "bind /dev/infiniband into the container (--bind /dev/infiniband), or remove --contain",
            )
        soft = probe.get("limits", {}).get("locked_memory", {}).get("soft")
        if soft is not None and soft < _LOW_MEMLOCK:
            yield Cause(f"locked memory is limited to {format_bytes(soft)} on {name}", _UNLIMIT)


def _locked_out(worker: WorkerFacts) -> bool:
    messages = [*worker.log.get("errors", ()), *worker.log.get("warnings", ())]
    return any("max locked memory" in message for message in messages)


def cause_within(measurement: Measurement, bad: Iterable[str]) -> Cause:
    """Return the reason for which cuda_ipc did not carry the bytes between the GPUs of these nodes."""
    nodes = set(bad)
    return next(_causes_within({name: worker for name, worker in measurement.workers.items() if worker.node in nodes}))


def _causes_within(workers: Mapping[str, WorkerFacts]) -> Iterator[Cause]:
    on_node = [worker.node for worker in workers.values()]
    for name, worker in workers.items():
        if (value := setting(worker, "UCX_TLS")) and not _may_ipc(value):
            yield Cause(f"UCX_TLS={value} excludes cuda_ipc", _UNSET)
        visible = worker.environment.get(VENDOR.visible, "")
        if visible and "," not in visible and on_node.count(worker.node) > 1:
            yield Cause(
                f"{name} sees only its own GPU ({VENDOR.visible}={visible})",
                "give all GPUs of a node to one Slurm task (no --gpus-per-task, no --gpu-bind): cuda_ipc needs a GPU"
                " that both processes see",
            )
        if worker.transports and "cuda_ipc" not in worker.transports:
            yield Cause(
                "this UCX offers no cuda_ipc", "use a UCX built with CUDA (libucx-cu12 or -cu13, to match the driver)"
            )
        if _NO_GPU_POOL.search(worker.memory_resource):
            yield Cause(
                f"cuda_ipc cannot open memory that RMM's {worker.memory_resource} allocated",
                "use a plain RMM pool (gpu.rmm_pool_size, without rmm_managed_memory and rmm_async)",
            )
    yield Cause(
        "unknown reason",
        "run all workers of a node in one container, or share the IPC and PID namespaces"
        " (no --containall, --ipc, --pid)."
        " For details, set UCX_PROTO_INFO=y",
    )


def of_collective(measurement: Measurement, scope: str, library: str) -> DataPath:
    """Return the transports of a collective within or across nodes, as NCCL's logs tell; Gloo has TCP alone.

    On several nodes NCCL's network counts as the way across, as it tells no nodes apart; peer access (P2P) may lead
    across nodes too, in racks made for it.
    """
    log, is_single = (measurement.nccl or {}).get("log", {}), len(measurement.nodes) == 1
    if library == "Gloo":
        by_tcp = ("tcp",) if is_single == (scope == "within") else ()
        device = ("lo",) if is_single else tuple(filter(None, [measurement.interface]))
        doubt = "" if is_single or not by_tcp else "Gloo uses TCP across nodes"
        return DataPath(scope, by_tcp, device, ok=is_single, doubt=doubt, wanted=not is_single)
    network, direct = {*log.get("across", ())}, {*log.get("within", ())}
    if scope == "within":
        used = direct | network if is_single else direct - {"P2P/MNNVL"}
        slow = sorted(used) if not any(name.startswith("P2P") for name in used) else []
    else:
        used = (network or direct & {"P2P/MNNVL"}) if not is_single else set()
        slow = sorted(used & {"NET/Socket"})
    doubt = f"NCCL uses {' and '.join(slow)} {WORDS[scope]}" if slow else ""
    if not used and scope == "across" and not is_single:
        doubt = "NCCL did not report its transport across nodes"
    if slow == ["NET/Socket"]:
        doubt = f"NCCL uses TCP sockets {WORDS[scope]}"
    devices = tuple(log.get("devices", ())) if used & network else ()
    return DataPath(scope, tuple(sorted(used)), devices, ok=bool(used) and not doubt, doubt=doubt)


_NCCL_STEERS = {
    "across": ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_HCA"),
    "within": ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE"),
}


def cause_of_collective(measurement: Measurement, scope: str) -> Cause:
    """Return the reason for which a collective does not use the fast transport within or across nodes."""
    return next(_causes_of_collective(measurement, scope))


def _causes_of_collective(measurement: Measurement, scope: str) -> Iterator[Cause]:
    if measurement.protocol == "gloo":
        yield GLOO
    nodes = dict(sorted(measurement.nodes.items()))
    if scope == "across":
        yield from _no_port({name: node.moved.get("infiniband") for name, node in nodes.items()})
    settings = (measurement.nccl or {}).get("log", {}).get("settings", {})
    for name in _NCCL_STEERS[scope]:
        if (value := settings.get(name, "0")) != "0":
            yield Cause(f"{name}={value} is set", f"remove {name} from the environment, the profile and nccl.conf")
    if scope == "across":
        yield from _no_access([], nodes)
        yield Cause(
            f"NCCL did not use the InfiniBand ports of {named(nodes)}",
            "install libibverbs and its providers (rdma-core), or the vendor's NCCL plugin, where the ranks run",
        )
    yield Cause(
        "the GPUs have no peer access to each other",
        f"run `{VENDOR.tool} topo -p2p r` on the node to see the GPUs' peer access; virtual machines often lack it",
    )


def setting(worker: WorkerFacts, name: str) -> str:
    """Return a UCX variable as the worker's UCX read it, "" if it is not set."""
    return str(worker.log.get("settings", {}).get(name) or worker.environment.get(name, ""))


def _transports_of(tls: str) -> set[str]:
    return {name.lstrip("\\") for name in tls.lstrip("^").split(",")}


def _may_rdma(tls: str) -> bool:
    """Whether a value of UCX_TLS allows InfiniBand; ``^`` before the list means all but these."""
    names = _transports_of(tls)
    if tls.startswith("^"):
        return not ("ib" in names or {"rc", "dc", "ud"} <= {name.partition("_")[0] for name in names})
    return any(map(_ASKS_RDMA.fullmatch, names))


def _may_ipc(tls: str) -> bool:
    names = _transports_of(tls)
    return not {"cuda", "cuda_ipc"} & names if tls.startswith("^") else bool(_ASKS_IPC & names)


def named(nodes: Iterable[str]) -> str:
    """Return nodes as a person lists them: ``n1, n2, n3, n4 and 7 more``."""
    return listed(sorted(nodes), 4) or "the nodes"
