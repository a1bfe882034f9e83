"""Which network port lies nearest to which GPU, and what UCX must be told so that it uses that one.

Distances are those of ``nvidia-smi topo -m``, computed from the kernel's PCI tree (``/sys/bus/pci/devices``), so that
they are known where that program is not there. Only `pcie_path` reads files; all else works on its answers or on the
facts of `hpcml.node.hardware.probe`.

What ``UCX_NET_DEVICES`` must hold. UCX uses only the listed devices (openucx.readthedocs.io, FAQ, "Which network
devices does UCX use?"); shared memory and CUDA IPC are not network devices and stay. But connections between Dask
processes are opened by IP address, and UCX refuses one whose address belongs to a device that is not listed: "device %s
is not enabled, enable it in UCX_NET_DEVICES or use corresponding ip address" at the connecting side, "got connection
request … on a device … which was not present during UCP initialization" at the listening one
(openucx/ucx, src/ucp/wireup/wireup_cm.c; tests/unit/test_topology.py shows both on UCX 1.21). The connection manager
``tcp`` names the device by its network interface (``ib0``), ``rdmacm`` by its port (``mlx5_0:1``), and a connection
that the listener rejects is not tried again through the other manager. Hence:

* the list holds the GPU's port and the interface of Dask's address: ``mlx5_2:1,ib0``;
* ``UCX_SOCKADDR_TLS_PRIORITY`` is ``tcp`` (default: ``rdmacm,tcp,sockcm``) in *every* process of the run, so that the
  scheduler's and all workers' connections carry the one name that all of them list. Only the opening of a connection
  goes through TCP: UCX then chooses among all enabled devices (``UCX_CM_USE_ALL_DEVICES``, default y).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")  # from near to far; the names are those of `nvidia-smi topo -m`
EVERYWHERE = {"UCX_SOCKADDR_TLS_PRIORITY": "tcp"}  # for scheduler, workers and driver, see the module's docstring

# A GPU never gets a port of a farther tier than its nearest one: same PCIe switch, same NUMA node, elsewhere. Crossing
# from one to the next costs bandwidth of its own, whereas within a tier an unused port is worth more than a nearer one.
_TIER = {"PIX": 0, "PXB": 0, "PHB": 1, "NODE": 1, "SYS": 2}
_TIER_COST, _SHARE_COST, _LEVEL_COST = 10**13, 10**9, 10**6  # each beyond all that follows it, for 64 GPUs
_FAR = 1 << 62
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")  # domain:bus:device.function


class NoAffinityError(Exception):
    """No port can be named for a GPU; the message says why, and UCX is best left to choose."""


class Position(NamedTuple):
    """Where a device sits: the PCI tree from the host bridge down to the device, and its NUMA node (-1: not known)."""

    path: tuple[str, ...]
    numa: int

    @classmethod
    def of(cls, pci: Mapping[str, Any]) -> Position:
        """Return the position that a probe's ``pci`` table holds."""
        return cls(tuple(pci["path"]), int(pci["numa"]))


def sysfs_bus_id(bus_id: str) -> str:
    """Return a PCI address as the kernel writes it: NVML's ``00000000:1D:00.0`` is ``0000:1d:00.0``.

    Raises
    ------
    ValueError
        If the text is no PCI address.
    """
    domain, bus, device = bus_id.strip().split(":")
    return f"{int(domain, 16):04x}:{bus.lower()}:{device.lower()}"


def pcie_path(root: Path, bus_id: str) -> Position:
    """Return the position of a PCI device.

    Parameters
    ----------
    root
        ``/``, or the top of a recorded tree.
    bus_id
        The device's PCI address, as NVML or as the kernel writes it.

    Raises
    ------
    OSError
        If the kernel shows no such device (a virtual machine or a container may hide the tree).
    ValueError
        If the text is no PCI address.
    """
    link = root / "sys/bus/pci/devices" / sysfs_bus_id(bus_id)
    return position_of(link)


def position_of(device: Path) -> Position:
    """Return the position of a device from its folder in sysfs, or from a link to it.

    Raises
    ------
    OSError
        If there is no such folder or it is not that of a PCI device.
    """
    real = Path(os.path.realpath(device, strict=True))
    parts = real.parts
    last = max((index for index, part in enumerate(parts) if _ADDRESS.fullmatch(part)), default=0)
    if not last:
        raise FileNotFoundError(f"{real} is not a PCI device")
    start = next((index for index, part in enumerate(parts) if part.startswith("pci")), last)
    try:
        numa = int(Path(*parts[: last + 1], "numa_node").read_text())  # a virtio device sits below its PCI device
    except (FileNotFoundError, ValueError):
        numa = -1  # what the kernel itself writes when the firmware does not say
    return Position(parts[start : last + 1], numa)


def distance(a: Position, b: Position) -> str:
    """Return how far two devices are from each other, in the words of ``nvidia-smi topo -m``.

    ``PIX``: at most one PCIe switch between them; ``PXB``: several, but not the host bridge; ``PHB``: the host bridge;
    ``NODE``: host bridges of one NUMA node; ``SYS``: NUMA nodes. Two devices without a known NUMA node count as of one.
    """
    common = 0
    for left, right in zip(a.path, b.path, strict=False):
        if left != right:
            break
        common += 1
    if common == 0:
        return "NODE" if a.numa == b.numa else "SYS"
    if common == 1:
        return "PHB"
    # Below the last common bridge at most the switch's own downstream port and the device.
    return "PIX" if max(len(a.path), len(b.path)) - common <= 2 else "PXB"


def nearest_nics(gpus: Mapping[str, Position], nics: Mapping[str, Position]) -> dict[str, list[str]]:
    """Return for each GPU the network ports that it should use, the best first.

    Every GPU gets a port of its nearest tier (same PCIe switch, else same NUMA node, else any). Within a tier the GPUs
    are spread evenly over the ports; then the nearer port wins, then the order of the arguments, so that the same node
    always gives the same answer. Where there are ports enough to give every GPU one more of its tier, it gets them.

    Parameters
    ----------
    gpus, nics
        Positions by name, in the order that decides between equals.
    """
    chosen: dict[str, list[str]] = {gpu: [] for gpu in gpus}
    if not gpus or not nics:
        return chosen
    best = {gpu: min(_TIER[distance(place, port)] for port in nics.values()) for gpu, place in gpus.items()}
    left = list(nics)
    share = True
    while share or len(left) >= len(gpus):
        pairs = _assigned(gpus, {nic: nics[nic] for nic in left}, share=share)
        if not share and any(_TIER[distance(gpus[gpu], nics[nic])] > best[gpu] for gpu, nic in pairs.items()):
            break
        for gpu, nic in pairs.items():
            chosen[gpu].append(nic)
        left = [nic for nic in left if nic not in pairs.values()]
        share = False
    return chosen


def _assigned(gpus: Mapping[str, Position], nics: Mapping[str, Position], *, share: bool) -> dict[str, str]:
    """Give each GPU one port at the least cost; with ``share`` a port may serve several."""
    places = range(len(gpus) if share else 1)
    seats = [(index, nic, turn) for turn in places for index, nic in enumerate(nics)]
    costs: list[list[int]] = []
    for row, place in enumerate(gpus.values()):
        costs.append([])
        for index, nic, turn in seats:
            level = distance(place, nics[nic])
            order = abs(row * len(nics) - index * len(gpus))  # the second of four GPUs to the second of four ports
            cost = _TIER[level] * _TIER_COST + turn * _SHARE_COST + LEVELS.index(level) * _LEVEL_COST
            costs[-1].append(cost + order)
    return {gpu: seats[column][1] for gpu, column in zip(gpus, _cheapest(costs), strict=True)}


def _cheapest(costs: Sequence[Sequence[int]]) -> list[int]:
    """Return one column for each row, none twice, with the least sum (the Hungarian method; columns >= rows)."""
    rows, columns = len(costs), len(costs[0])
    row_price, column_price = [0] * (rows + 1), [0] * (columns + 1)
    owner, way = [0] * (columns + 1), [0] * (columns + 1)  # from 1; 0 means nobody
    for row in range(1, rows + 1):
        owner[0], column = row, 0
        slack = [_FAR] * (columns + 1)
        seen = [False] * (columns + 1)
        while owner[column]:
            seen[column] = True
            current, delta, following = owner[column], _FAR, 0
            for other in range(1, columns + 1):
                if seen[other]:
                    continue
                rest = costs[current - 1][other - 1] - row_price[current] - column_price[other]
                if rest < slack[other]:
                    slack[other], way[other] = rest, column
                if slack[other] < delta:
                    delta, following = slack[other], other
            for other in range(columns + 1):
                if seen[other]:
                    row_price[owner[other]] += delta
                    column_price[other] -= delta
                else:
                    slack[other] -= delta
            column = following
        while column:
            owner[column] = owner[way[column]]
            column = way[column]
    taken = {owner[column]: column - 1 for column in range(1, columns + 1) if owner[column]}
    return [taken[row] for row in range(1, rows + 1)]


def usable_ports(ports: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the ports that data between nodes should use, of those that a probe found.

    They are active and of the fastest rate; InfiniBand where there is any (an Ethernet port beside it is for storage or
    management), else RoCE.
    """
    active = [port for port in ports if port["state"] == "ACTIVE" and port["pci"]]
    fabric = [port for port in active if port["link_layer"] == "InfiniBand"] or active
    fastest = max((port["gigabits"] for port in fabric), default=0)
    return sorted(
        (port for port in fabric if port["gigabits"] == fastest), key=lambda port: (port["pci"]["bus_id"], port["port"])
    )


def interface_of(facts: Mapping[str, Any], address: str) -> str:
    """Return the network interface of a node's probe that has an IPv4 address.

    Raises
    ------
    NoAffinityError
        If none has it.
    """
    for interface in facts.get("interfaces", []):
        if address in interface["ipv4"]:
            return str(interface["name"])
    raise NoAffinityError(f"no network interface of this node has the address {address}")


def bus_of(gpu: str, facts: Mapping[str, Any]) -> str:
    """Return the PCI address of a GPU of a node's probe.

    Parameters
    ----------
    gpu
        Its PCI address, its index, its UUID or the beginning of that: all that ``CUDA_VISIBLE_DEVICES`` may hold.
    facts
        The node's probe.

    Raises
    ------
    NoAffinityError
        If the probe has no such GPU, or its place in the PCI tree is not known.
    """
    bus = sysfs_bus_id(gpu) if gpu.count(":") == 2 else ""
    for found in facts.get("gpus", []):
        if (bus or gpu) in (found["bus_id"], str(found["index"])) or (
            gpu[:4] == "GPU-" and found["uuid"].startswith(gpu)
        ):
            if not found["pci"]:
                raise NoAffinityError(f"the place of GPU {gpu} in the PCI tree is not known")
            return str(found["bus_id"])
    raise NoAffinityError(f"the probe of this node has no GPU {gpu}")


def ucx_net_devices(gpu: str, facts: Mapping[str, Any], address: str) -> str:
    """Return the value of ``UCX_NET_DEVICES`` for the worker of one GPU, as ``mlx5_2:1,ib0``.

    It works only together with `EVERYWHERE` in all processes of the run; the module's docstring says why.

    Parameters
    ----------
    gpu
        The worker's GPU: its PCI address, index or UUID.
    facts
        This node's probe.
    address
        The IPv4 address that this node's Dask comms use.

    Raises
    ------
    NoAffinityError
        If the GPU's place is not known, there is no active port, the ports belong to different InfiniBand subnets (a
        GPU's port would then not reach another GPU's on the next node, and UCX would fall back to TCP), or no interface
        has the address.
    """
    bus = bus_of(gpu, facts)
    gpus = {found["bus_id"]: Position.of(found["pci"]) for found in facts.get("gpus", []) if found["pci"]}
    ports = usable_ports(facts.get("infiniband", []))
    if not ports:
        raise NoAffinityError("this node has no active InfiniBand or RoCE port")
    subnets = sorted({port["subnet"] for port in ports if port["link_layer"] == "InfiniBand"})
    if len(subnets) > 1:
        raise NoAffinityError(f"the InfiniBand ports belong to different subnets ({', '.join(subnets)})")
    nics = {port["name"]: Position.of(port["pci"]) for port in ports}
    near = nearest_nics(dict(sorted(gpus.items())), nics)[bus]
    return ",".join([*near, interface_of(facts, address)])


def ucx_environment(gpu: str, facts: Mapping[str, Any], address: str) -> dict[str, str]:
    """Return the variables for the worker of one GPU when the profile asks for ``network.nic_affinity = "pcie"``.

    The arguments and errors are those of `ucx_net_devices`.
    """
    return {"UCX_NET_DEVICES": ucx_net_devices(gpu, facts, address), **EVERYWHERE}
