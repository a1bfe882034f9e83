"""RDMA ports of several nodes side by side: those of the adapters that the profile names, or all that carry data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcml.doctor.finding import GREEN, RED, ByNode, Examination, Finding, green, leave_out, not_applicable, red, yellow
from hpcml.doctor.login_checks import judge_adapters
from hpcml.node.hardware import ports
from hpcml.node.hardware.record import Port
from hpcml.plan.make_plan import ADAPTERS

Ports = Mapping[str, Sequence[Port]]  # by node


def judge(exam: Examination, by_node: ByNode) -> Finding:
    """Return the finding on the ports that runs use: each node has them, active and of one link type."""
    ports_of: Ports = {name: node.network.infiniband for name, node in by_node.items()}
    named = exam.site.network.adapters
    faults = list(_faults(ports_of, named))
    if not any(ports_of.values()) and not named:
        return not_applicable("the nodes have no InfiniBand or RoCE port")
    if all(ports_of.values()):
        faults += _wrong_variables(ports_of, named, by_node)
    worst = next((fault for fault in faults if fault.state == RED), faults[0] if faults else _all_well(ports_of, named))
    rows = {name: [_row(port) for port in several] for name, several in ports_of.items()}
    return worst._replace(facts={"ports": rows, **worst.facts})


def _row(port: Port) -> dict[str, Any]:
    link = port.link
    row = {"name": port.name, "device": port.device, "state": link.state, "physical_state": link.physical_state}
    return {**row, "link_layer": link.link_layer, "rate": link.rate}


def _faults(ports_of: Ports, named: Sequence[str]) -> Iterator[Finding]:
    without = [node for node, several in ports_of.items() if not several]
    if without and len(without) < len(ports_of):
        sentence = f"{', '.join(without)} {'have' if len(without) > 1 else 'has'} no RDMA port, but other nodes do"
        yield red(sentence, leave_out(without))
    elif without and named:
        sentence = f"network.adapters of the profile contains {', '.join(named)}, but the nodes have no RDMA port"
        yield yellow(sentence, "Set network.adapters = [] in the profile, or request nodes with RDMA ports.")
    elif not without:
        yield from _of_named(ports_of, named) if named else _of_all(ports_of)


def _of_named(ports_of: Ports, named: Sequence[str]) -> Iterator[Finding]:
    """Yield the faults of the adapters that the profile names; all others are spare."""
    lacking = {node: [name for name in named if name not in ports.devices(own)] for node, own in ports_of.items()}
    nowhere = [name for name in named if all(name in lacks for lacks in lacking.values())]
    here = {node: own for node, lacks in lacking.items() if (own := [name for name in lacks if name not in nowhere])}
    if here:
        node, names = next(iter(here.items()))
        yield red(f"{node} has no adapter {', '.join(names)}, but other nodes do", leave_out(here))
    yield from _all_down([(node, port) for node, port in _down(ports_of) if port.device in named])
    yield from _mixed(ports_of, named)
    if nowhere:
        nodes = ", ".join(ports_of)
        sentence = (
            f"network.adapters of the profile contains {', '.join(nowhere)}, "
            f"but {nodes} {'have' if len(ports_of) > 1 else 'has'} no such adapter"
        )
        adapters = [name for name in named if name not in nowhere] or _on_each(ports_of)
        yield yellow(
            sentence,
            f"Set network.adapters = {adapters} in the profile, or report the missing adapters to the site's support.",
        )


def _mixed(ports_of: Ports, named: Sequence[str]) -> Iterator[Finding]:
    """Yield the active named adapters whose link type is not that of most."""
    layers = {
        (node, name): layer
        for node, own in ports_of.items()
        for name, layer in ports.layers(own).items()
        if name in named
    }
    counts = Counter(layers.values())
    usual = max(counts, key=lambda layer: (counts[layer], layer == ports.INFINIBAND), default="")
    odd = [pair for pair, layer in layers.items() if layer != usual]
    if not odd:
        return
    node, name = odd[0]
    others = [pair for pair, layer in layers.items() if layer == usual]
    at, other = min(others, key=lambda pair: (pair[1] != name, pair[0] != node))
    sentence = f"adapter {name} of {node} uses {layers[node, name]}, but {other} of {at} uses {usual}"
    names = {adapter for _, adapter in odd}
    hint = leave_out(dict.fromkeys(node for node, _ in odd))
    if len(odd) == len(ports_of) * len(names):  # the same on each node: so they are meant
        adapters = [adapter for adapter in named if adapter not in names]
        hint = f"List only adapters of one link type in the profile: network.adapters = {adapters}."
    yield red(sentence, hint)


def _of_all(ports_of: Ports) -> Iterator[Finding]:
    """Yield the faults of the ports where the profile names no adapters.

    Data goes over InfiniBand where a node has it, else over Ethernet; what is beside it is for files or management.
    """
    layers = {node: ports.layers(own) for node, own in ports_of.items()}
    if dark := [node for node in ports_of if not layers[node]]:
        own = ports_of[dark[0]]
        sentence = f"{ports.described(own[0], dark[0])}, and the node has no active port"
        expected = any(layers.values()) or any(port.link.link_layer == ports.INFINIBAND for port in own)
        hint = leave_out(dark) if expected else "If the port should be active, report the port to the site's support."
        yield (red if expected else yellow)(sentence, hint)
        return
    kinds = {node: ports.carrying(own) for node, own in layers.items()}
    if len({*kinds.values()}) > 1:
        each = "; ".join(f"{node}: {kind}" for node, kind in kinds.items())
        yield red(f"nodes have ports of different link types ({each})", "Request nodes of one kind.")
        return
    kind = next(iter(kinds.values()))
    down = [(node, port) for node, port in _down(ports_of) if port.link.link_layer == kind]
    yield from _all_down([(node, port) for node, port in down if any(port.device in own for own in layers.values())])
    counts = {node: sum(layer == kind for layer in own.values()) for node, own in layers.items()}
    if fewer := [node for node, count in counts.items() if count < max(counts.values())]:
        most = max(counts, key=lambda node: counts[node])
        sentence = f"{fewer[0]} has {counts[fewer[0]]} active adapters of {kind}, but {most} has {counts[most]}"
        yield yellow(sentence, leave_out(fewer))
    if down:
        node, port = down[0]
        sentence = f"{ports.described(port, node)}, and the profile does not say if runs use this port"
        hint = f"Set network.adapters = {_on_each(ports_of)} in the profile, or report the port to the site's support."
        yield yellow(sentence, hint)


def _all_down(down: Sequence[tuple[str, Port]]) -> Iterator[Finding]:
    if down:
        node, port = down[0]
        yield red(ports.described(port, node), leave_out(dict.fromkeys(node for node, _ in down)))


def _wrong_variables(ports_of: Ports, named: Sequence[str], by_node: ByNode) -> Iterator[Finding]:
    """Yield the adapters that the jobs' variables choose and a node lacks, and those that they leave unused."""
    for node, own in ports_of.items():
        layers = ports.layers(own)
        kind = ports.carrying(layers)
        used = [name for name in named if name in layers] or [name for name in layers if layers[name] == kind]
        environment = by_node[node].process.environment
        values = {name: environment[name] for name in ADAPTERS if environment.get(name)}
        finding = judge_adapters(values, tuple(layers), used, f"the active adapters of {node} are")
        if values and finding.state != GREEN:
            yield finding


def _all_well(ports_of: Ports, named: Sequence[str]) -> Finding:
    spare = sorted({port.device for _, port in _down(ports_of)} - {*named})
    also = f"; the unused {', '.join(spare)} {'are' if len(spare) > 1 else 'is'} down" if spare else ""
    whose = f"the ports of {', '.join(names)}" if (names := named or _on_each(ports_of)) else "the nodes' ports"
    return green(f"{whose} are active and of one link type on each node{also}")


def _down(ports_of: Ports) -> list[tuple[str, Port]]:
    return [(node, port) for node, own in ports_of.items() for port in ports.down(own)]


def _on_each(ports_of: Ports) -> list[str]:
    """Return the adapters that are active on each node and of the kind that carries data there."""
    layers = [ports.layers(own) for own in ports_of.values()]
    names = [{name for name, layer in own.items() if layer == ports.carrying(own)} for own in layers]
    return sorted(set.intersection(*names)) if names else []
