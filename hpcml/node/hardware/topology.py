"""Which network port lies nearest to which GPU, and what UCX must be told so that it uses that one.

Distances are those of ``nvidia-smi topo -m``, computed from the PCI tree in a probe's facts, so that they are known
where that program is not there.

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

import functools
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from hpcml.node.hardware.sysfs import sysfs_bus_id

Pci = Mapping[str, Any]  # a probe's ``pci`` table: ``path`` and ``numa`` (`sysfs.pci_of`)
LEVELS = ("PIX", "PXB", "PHB", "NODE", "SYS")  # from near to far; the names are those of `nvidia-smi topo -m`
EVERYWHERE = {"UCX_SOCKADDR_TLS_PRIORITY": "tcp"}  # for scheduler, workers and driver, see the module's docstring

# A GPU never gets a port of a farther tier than its nearest one: same PCIe switch, same NUMA node, elsewhere. Crossing
# from one to the next costs bandwidth of its own, whereas within a tier an unused port is worth more than a nearer one.
_TIER = {"PIX": 0, "PXB": 0, "PHB": 1, "NODE": 1, "SYS": 2}
_SHARE_COST, _LEVEL_COST = 10**9, 10**6  # each beyond all that follows it, for 64 GPUs


class NoAffinityError(Exception):
    """No port can be named for a GPU; the message says why, and UCX is best left to choose."""


def distance(a: Pci, b: Pci) -> str:
    """Return how far two devices are from each other, in the words of ``nvidia-smi topo -m``.

    ``PIX``: at most one PCIe switch between them; ``PXB``: several, but not the host bridge; ``PHB``: the host bridge;
    ``NODE``: host bridges of one NUMA node; ``SYS``: NUMA nodes. Two devices without a known NUMA node count as of one.
    """
    common = len([*takewhile(lambda ends: ends[0] == ends[1], zip(a["path"], b["path"], strict=False))])
    if common == 0:
        return "NODE" if a["numa"] == b["numa"] else "SYS"
    if common == 1:
        return "PHB"
    # Below the last common bridge at most the switch's own downstream port and the device.
    return "PIX" if max(len(a["path"]), len(b["path"])) - common <= 2 else "PXB"


def nearest_nics(gpus: Mapping[str, Pci], nics: Mapping[str, Pci]) -> dict[str, list[str]]:
    """Return for each GPU the network ports that it should use, the best first.

    Every GPU gets a port of its nearest tier (same PCIe switch, else same NUMA node, else any). Within a tier the GPUs
    are spread evenly over the ports; then the nearer port wins, then the order of the arguments, so that the same node
    always gives the same answer. Where there are ports enough to give every GPU one more of its tier, it gets them.
    """
    chosen: dict[str, list[str]] = {gpu: [] for gpu in gpus}
    if not gpus:
        return chosen
    nearest = {
        gpu: min((_TIER[distance(place, nic)] for nic in nics.values()), default=0) for gpu, place in gpus.items()
    }
    left, share = list(nics), _SHARE_COST
    while left:
        costs = []
        for row, (gpu, place) in enumerate(gpus.items()):
            levels = [distance(place, nics[nic]) for nic in left]
            # The last part: the second of four GPUs to the second of four ports.
            costs.append(
                {
                    index: LEVELS.index(level) * _LEVEL_COST + abs(row * len(left) - index * len(gpus))
                    for index, level in enumerate(levels)
                    if _TIER[level] == nearest[gpu]
                }
            )
        columns = _cheapest(costs, share)
        if columns is None:
            break
        for gpu, column in zip(gpus, columns, strict=True):
            chosen[gpu].append(left[column])
        left, share = [nic for index, nic in enumerate(left) if index not in columns], 0
    return chosen


def _cheapest(costs: Sequence[Mapping[int, int]], share: int) -> tuple[int, ...] | None:
    """Return the column for each row that costs least in all; None if a row is left without one.

    A row's mapping holds the columns that it may have. In a column that has rows already the next pays ``share`` for
    each of them; with 0 nobody may share. What is tried is how the columns can be filled, not every order of the rows:
    at most 24,310 states for 8 GPUs and 10 ports that are all alike.
    """

    @functools.cache
    def cheapest(row: int, filled: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
        if row == len(costs):
            return 0, ()
        ways = []
        for column, cost in costs[row].items():
            if share or not filled[column]:
                after = cheapest(row + 1, (*filled[:column], filled[column] + 1, *filled[column + 1 :]))
                if after is not None:
                    ways.append((cost + share * filled[column] + after[0], (column, *after[1])))
        return min(ways, default=None)

    best = cheapest(0, (0,) * (1 + max((column for row in costs for column in row), default=0)))
    return best and best[1]


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


def _bus_of(gpu: str, facts: Mapping[str, Any]) -> str:
    """Return the PCI address of a GPU of a node's probe, given by all that ``CUDA_VISIBLE_DEVICES`` may hold."""
    bus = sysfs_bus_id(gpu) if gpu.count(":") == 2 else gpu
    for entry in facts.get("gpus", []):
        named = bus in (entry["bus_id"], str(entry["index"]))
        if named or (gpu.startswith("GPU-") and entry["uuid"].startswith(gpu)):
            if not entry["pci"]:
                raise NoAffinityError(f"the place of GPU {gpu} in the PCI tree is not known")
            return str(entry["bus_id"])
    raise NoAffinityError(f"the probe of this node has no GPU {gpu}")


def ucx_environment(gpu: str, facts: Mapping[str, Any], address: str) -> dict[str, str]:
    """Return the variables for the worker of one GPU when the profile asks for ``network.nic_affinity = "pcie"``.

    ``UCX_NET_DEVICES`` (``mlx5_2:1,ib0``) works only together with `EVERYWHERE` in all processes of the run; the
    module's docstring says why.

    Parameters
    ----------
    gpu
        The worker's GPU: its PCI address, its index, its UUID or the beginning of that.
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
    bus = _bus_of(gpu, facts)
    ports = usable_ports(facts.get("infiniband", []))
    if not ports:
        raise NoAffinityError("this node has no active InfiniBand or RoCE port")
    subnets = sorted({port["subnet"] for port in ports if port["link_layer"] == "InfiniBand"})
    if len(subnets) > 1:
        raise NoAffinityError(f"the InfiniBand ports belong to different subnets ({', '.join(subnets)})")
    interface = next((one["name"] for one in facts.get("interfaces", []) if address in one["ipv4"]), None)
    if interface is None:
        raise NoAffinityError(f"no network interface of this node has the address {address}")
    gpus = {entry["bus_id"]: entry["pci"] for entry in facts.get("gpus", []) if entry["pci"]}
    nics = {port["name"]: port["pci"] for port in ports}
    near = nearest_nics(dict(sorted(gpus.items())), nics)[bus]
    return {"UCX_NET_DEVICES": ",".join([*near, interface]), **EVERYWHERE}
