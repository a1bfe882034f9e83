"""How the nodes of a run differ, by their probes alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from hpcml.node.hardware import ports
from hpcml.node.hardware.problems_for_run import majors
from hpcml.node.hardware.record import Node
from hpcml.units import counted, format_bytes, listed


class _Trait(NamedTuple):
    """Something in which nodes should not differ."""

    noun: str
    phrase: str  # with {} for the text
    of: Callable[[Node], str | None]  # a node's text, empty if it has none, None if that cannot be compared


def differences(probes: Mapping[str, Node]) -> list[str]:
    """Return sentences that name what single nodes have otherwise than most, the gravest first.

    ``n3: driver 535.104 where 3 other nodes have 535.274``. Of two equally common values that of the earlier node is
    taken as the usual one. Nodes without a probe are for the caller to name.
    ``probes`` are by name, in the allocation's order.
    """
    sentences = []
    for trait in _traits(probes.values()):
        values = {name: value for name, node in probes.items() if (value := trait.of(node)) is not None}
        counts = Counter(values.values())
        usual = max(counts, key=counts.__getitem__, default="")  # the first met among equals
        holders = [name for name, value in values.items() if value == usual]
        for value in (value for value in counts if value != usual):
            nodes = [name for name, text in values.items() if text == value]
            has = trait.phrase.format(value) if value else f"no {trait.noun}"
            other = usual or "none"
            if value and other.removesuffix("s").endswith(f" {trait.noun}"):
                other = other.partition(" ")[0]  # "3 GPUs where the other nodes have 4"
            sentences.append(f"{listed(nodes, 3)}: {has} where {_others(holders, len(probes) - len(nodes))} {other}")
    return sentences


def _others(holders: list[str], rest: int) -> str:
    if len(holders) == 1:
        return f"{holders[0]} has"
    return "the other nodes have" if len(holders) == rest else f"{len(holders)} other nodes have"


def _traits(probes: Iterable[Node]) -> list[_Trait]:
    """Return the traits that are compared, the gravest first."""
    nodes = list(probes)
    packages = sorted({name for node in nodes for name in node.packages.packages})
    transports = sorted({name for node in nodes for name in node.ucx.transports})
    return [
        _Trait("GPU", "{}", lambda node: _some(node.gpu.visible_count, "GPU")),
        _Trait("GPU", "{}", lambda node: _each(gpu.name for gpu in node.gpu.gpus)),
        _Trait("GPU memory", "GPU memory {}", _gpu_memory),
        _Trait("driver", "driver {}", lambda node: node.gpu.driver or None),
        _Trait("CUDA driver", "CUDA driver {}", lambda node: node.gpu.cuda_driver or None),
        _Trait("packages for CUDA", "packages for CUDA {}", lambda node: listed([str(key) for key in majors(node)])),
        *(_Trait(name, f"{name} {{}}", partial(_package, name)) for name in packages),
        _Trait("UCX", "UCX {}", lambda node: node.ucx.version or None),
        *(_Trait(f"UCX transport {name}", f"UCX transport {name}", partial(_transport, name)) for name in transports),
        _Trait("active InfiniBand port", "{}", lambda node: _active(node, "InfiniBand", "InfiniBand")),
        _Trait("active RoCE port", "{}", lambda node: _active(node, "Ethernet", "RoCE")),
        _Trait(
            "port rate",
            "port rate {}",
            lambda node: _each(port.link.rate for port in ports.active(node.network.infiniband)),
        ),
        _Trait("locked memory", "locked memory {}", _locked_memory),
        _Trait("CPU", "{}", lambda node: _some(node.process.cpus.count, "CPU") or None),
    ]


def _gpu_memory(node: Node) -> str | None:
    sizes = sorted({gpu.shape.memory for gpu in node.gpu.gpus if gpu.shape.memory})
    return listed([format_bytes(size) for size in sizes]) or None


def _package(name: str, node: Node) -> str:
    return node.packages.packages.get(name, "")


def _transport(name: str, node: Node) -> str | None:
    return None if not node.ucx.transports else "it" if name in node.ucx.transports else ""


def _active(node: Node, layer: str, name: str) -> str:
    return _some(
        sum(port.link.link_layer == layer for port in ports.active(node.network.infiniband)), f"active {name} port"
    )


def _locked_memory(node: Node) -> str | None:
    limit = node.process.limits.get("locked_memory")
    return None if limit is None else "unlimited" if limit.soft is None else format_bytes(limit.soft)


def _each(texts: Iterable[str]) -> str | None:
    return listed(sorted(set(texts))) or None


def _some(number: int, noun: str) -> str:
    return counted(number, noun) if number else ""
