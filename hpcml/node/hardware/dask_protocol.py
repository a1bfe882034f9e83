"""Choose the protocol and the address of Dask's comms, by one rule on every node."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpcml.node import shared_files
from hpcml.node.context import Context
from hpcml.node.hardware import record, sysfs
from hpcml.settings import Settings
from hpcml.units import RDMA

_MOST_NAMES = 4  # of nodes in a sentence


class NoAddressError(Exception):
    """No usable address on this node."""


class NoProtocolError(Exception):
    """The protocol that was asked for cannot be used in this environment."""


def choose_protocol(settings: Settings, without_rdma: Sequence[str] = ()) -> tuple[str, str]:
    """Return Dask's protocol, ``tls``, ``tcp`` or ``ucx``, and the reason; NoProtocolError for UCX without its package.

    ``auto`` takes UCX where it has a faster transport than TCP, between the GPUs of a node or on InfiniBand, and where
    no other user reaches UCX's own TCP (:attr:`Settings.ucx`). CPU workers and a single GPU speak TLS, which also
    encrypts. ``without_rdma`` are the nodes that :func:`nodes_without_rdma` returned.
    """
    wanted = settings.network.protocol
    has_ucx = importlib.util.find_spec("distributed_ucxx") is not None
    if wanted == "ucx" and not has_ucx:
        extras = "install hpcml's extra 'cuda12', 'cuda13' or 'ucx'"
        raise NoProtocolError(f"distributed-ucxx is not installed in the run's environment ({extras})")
    if wanted != "auto":
        return wanted, "network.protocol requests it"
    gpus = settings.workers.gpu.count if settings.workers.gpu else 0
    if not gpus:
        return "tls", "CPU workers"
    if gpus * settings.job.nodes == 1:
        return "tls", "the job has only one GPU"
    if not has_ucx:
        return "tls", "distributed-ucxx is not installed"
    return _of_several_gpus(settings, gpus, without_rdma)


def _of_several_gpus(settings: Settings, gpus: int, without_rdma: Sequence[str]) -> tuple[str, str]:
    """Return the protocol that ``auto`` takes for GPUs whose environment has UCX, and the reason."""
    if not settings.ucx:
        return "tls", "other users of the node could connect to UCX; see resources.exclusive"
    if variable := _chosen_by_user(settings.ucx):
        return "tls", f"{variable} may open UCX to other users; see network.protocol"
    if settings.ucx == "rdma":
        if without_rdma:
            names = ", ".join(without_rdma[:_MOST_NAMES]) + (", …" if len(without_rdma) > _MOST_NAMES else "")
            return "tls", f"UCX has no RDMA on {names}, and other users could connect to its TCP; see network.private"
        return "ucx", "RDMA on all nodes"
    if gpus > 1:
        return "ucx", f"{gpus} GPUs on a node"
    if adapters := sorted({port.device for port in sysfs.rdma_ports(Path("/"))}):
        return "ucx", f"InfiniBand on {', '.join(adapters)}"
    return "tls", "one GPU on each node and no InfiniBand"


def _chosen_by_user(ucx: str) -> str:
    """Return the variable with which the user may have opened a way that ``auto`` must not take, empty for none."""
    name, harmless = {"rdma": ("UCX_TLS", ""), "loopback": ("UCX_NET_DEVICES", "lo")}.get(ucx, ("", ""))
    return name if os.environ.get(name, harmless) != harmless else ""


def nodes_without_rdma(context: Context, deadline: float) -> tuple[str, ...]:
    """Return the nodes on which UCX cannot connect by RDMA, by their hardware records; also those without a record.

    It waits for the records until ``deadline`` (:func:`time.monotonic`). Without its TCP, UCX needs the module rdmacm
    to connect, and an address on InfiniBand.
    """
    lacking = []
    for node in context.node_names:
        path = context.attempt.probe_of(node)
        is_there = shared_files.wait_for(path, deadline, shared_files.interval(context.settings.job.nodes))
        table = (shared_files.read_json(path) if is_there else None) or {}
        if "schema" not in table or not _has_rdma(record.from_json(table)):
            lacking.append(node)
    return tuple(lacking)


def _has_rdma(node: record.Node) -> bool:
    has_address = any(interface.kind == "infiniband" and interface.ipv4 for interface in node.network.interfaces)
    transports = any(map(RDMA.fullmatch, node.ucx.transports))
    return transports and "rdmacm" in node.ucx.modules and has_address


def ucx_environment(*, single_node: bool, tcp: bool = True) -> dict[str, str]:
    """Return the variables for UCX that every role of a run has; what the user has chosen stays.

    Progress in a thread of its own: by default distributed-ucxx (0.52) has the event loop make progress whenever UCX's
    file descriptor says so, and where it says nothing, as after most transfers by cuda_ipc, looks again after a whole
    second (``ucxx._lib_async.continuous_ucx_progress.BlockingMode``). bench/gpu's section ``auth`` measures both.

    A run of one node (``single_node``) stays on loopback. NVLink and shared memory are no network devices and stay;
    what goes is a port that other nodes could reach. UCX 1.21 cannot do without that of loopback: its connection
    manager makes no connection where the network device has no transport, so that shared memory alone connects nobody.

    Without ``tcp`` RDMA's connection manager connects, and UCX opens no port of its own.

    Shared memory is POSIX's, which UCX makes for the user alone, and not System V's, which it makes for the group too
    (mode 660, UCX 1.21).
    """
    wanted = {
        "UCXPY_PROGRESS_MODE": "thread",
        "UCX_TLS": "^sysv" if tcp else "^tcp,sysv",
        **({"UCX_NET_DEVICES": "lo"} if single_node else {}),
    }
    return {name: value for name, value in wanted.items() if name not in os.environ}


def interface_down(address: str) -> str:
    """Return the interface of this node that has an address if the kernel says that it is down, else nothing."""
    name = next((name for name, several in sysfs.addresses().items() if address in several), "")
    return name if name and not sysfs.is_up(name) else ""


def own_addresses(interface: str, *, single_node: bool) -> list[str]:
    """Return the IPv4 addresses of this node at which other nodes may reach it; those of an interface, if one is given.

    A run of one node (``single_node``) uses loopback.
    """
    if single_node:
        return ["127.0.0.1"]
    by_name = sysfs.addresses()
    if interface:
        return by_name.get(interface, [])[:1]
    return list(dict.fromkeys(ip for several in by_name.values() for ip in several if not ip.startswith("127.")))


def _of_own_name(host: str) -> tuple[str, str]:
    """Return the address of this node that its own name resolves to; if there is none, perhaps a clause that says so.

    With a wrong name service it may be the address of another node, or of nobody.
    """
    own = {address for several in sysfs.addresses().values() for address in several}
    elsewhere = ""
    with suppress(socket.gaierror):
        for *_, place in socket.getaddrinfo(host, None, socket.AF_INET):
            address = str(place[0])
            if address in own and not address.startswith("127."):
                return address, ""
            if not address.startswith("127."):
                elsewhere = f" ({host} resolves to {address}, which is not an address of this node)"
    return "", elsewhere


def choose_address(interface: str, *, single_node: bool) -> tuple[str, str]:
    """Return an IPv4 address of this node and the reason it was chosen.

    A run of one node (``single_node``) uses loopback, which nobody reaches from another node. Elsewhere: the profile's
    interface; else the first InfiniBand interface that has an address; else what the host's own name resolves
    to, unless another node has that address; else the interface that leads to other networks.

    Raises
    ------
    NoAddressError
        If the profile's interface has no address here, or the node has no address but loopback.
    """
    if single_node:
        return "127.0.0.1", "the run has one node"
    names = [name for _, name in socket.if_nameindex()]
    addresses = {name: several[0] for name, several in sysfs.addresses().items() if several}
    if interface:
        if interface not in addresses:
            others = ", ".join(names)
            raise NoAddressError(
                f"interface {interface} has no IPv4 address on this node (existing interfaces: {others})"
            )
        return addresses[interface], f"interface {interface} from the profile"
    for adapter in sysfs.interfaces(Path("/")):
        if adapter.kind == "infiniband" and adapter.ipv4:
            return adapter.ipv4[0], f"InfiniBand interface {adapter.name}"
    address, elsewhere = _of_own_name(host := socket.gethostname())
    if address:
        return address, f"address of {host}"
    for name in names:
        if not addresses.get(name, "127.").startswith("127."):
            return addresses[name], f"interface {name}{elsewhere}"
    raise NoAddressError("this node has only the loopback IPv4 address")
