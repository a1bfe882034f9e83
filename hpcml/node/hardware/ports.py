"""The RDMA ports of a node's record: which adapters carry data, and which have no active port."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpcml.node.hardware.record import Port

INFINIBAND = "InfiniBand"


def active(ports: Iterable[Port]) -> list[Port]:
    """Return the ports that are active."""
    return [port for port in ports if port.link.state == "ACTIVE"]


def devices(ports: Iterable[Port]) -> list[str]:
    """Return the names of the adapters that the ports are on."""
    return sorted({port.device for port in ports})


def layers(ports: Iterable[Port]) -> dict[str, str]:
    """Return the link type of each adapter that has an active port: InfiniBand, if one of its active ports is."""
    up = active(ports)
    infiniband = {port.device for port in up if port.link.link_layer == INFINIBAND}
    by_adapter = {port.device: INFINIBAND if port.device in infiniband else port.link.link_layer for port in up}
    return dict(sorted(by_adapter.items()))


def carrying(layer_by_adapter: Mapping[str, str]) -> str:
    """Return the link type over which a node's data goes: InfiniBand where there is any."""
    layer_of_all = layer_by_adapter.values()
    return INFINIBAND if INFINIBAND in layer_of_all else next(iter(layer_of_all), "")


def down(ports: Sequence[Port]) -> list[Port]:
    """Return a port of each adapter that has none that is active."""
    has_active = layers(ports)
    first = {port.device: port for port in reversed(ports)}
    return [first[name] for name in devices(ports) if name not in has_active]


def described(port: Port, node: str = "") -> str:
    """Return a port and its state, such as ``InfiniBand port mlx5_0:1 of n1 is DOWN (Polling)``."""
    state = f"{port.link.state or 'in no known state'} ({port.link.physical_state or 'no physical state'})"
    return f"{port.link.link_layer or 'RDMA'} port {port.name}{f' of {node}' if node else ''} is {state}"
