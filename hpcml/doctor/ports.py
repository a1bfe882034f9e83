"""What the RDMA ports of nodes mean: those of the adapters that the profile names, or all that carry data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcml.doctor.finding import RED, ByNode, Examination, Finding, green, leave_out, not_applicable, red, yellow
from hpcml.doctor.surroundings import judge_adapters
from hpcml.node.hardware.record import Port
from hpcml.plan.plan import ADAPTERS

Ports = Mapping[str, Sequence[Port]]  # by node
_INFINIBAND = "InfiniBand"


def judge(exam: Examination, by_node: ByNode) -> Finding:
    """Return whether each node has the ports that runs use, active and of one link type."""
    ports: Ports = {name: node.network.infiniband for name, node in by_node.items()}
    named = exam.site.network.adapters
    found = list(_faults(ports, named))
    if not any(ports.values()) and not named:
        return not_applicable("the nodes have no InfiniBand or RoCE port")
    if all(ports.values()):
        found += _wrong_variables(ports, named, by_node)
    worst = next((one for one in found if one.state == RED), found[0] if found else _well(ports, named))
    rows = {name: [_row(port) for port in several] for name, several in ports.items()}
    return worst._replace(facts={"ports": rows, **worst.facts})


def _row(port: Port) -> dict[str, Any]:
    link = port.link
    row = {"name": port.name, "device": port.device, "state": link.state, "physical_state": link.physical_state}
    return {**row, "link_layer": link.link_layer, "rate": link.rate}


def _faults(ports: Ports, named: Sequence[str]) -> Iterator[Finding]:
    without = [node for node, own in ports.items() if not own]
    if without and len(without) < len(ports):
        sentence = f"{', '.join(without)} {'have' if len(without) > 1 else 'has'} no RDMA port, and other nodes do"
        yield red(sentence, leave_out(without))
    elif without and named:
        sentence = f"the profile names {', '.join(named)}, and the nodes have no RDMA port"
        yield yellow(sentence, "Set network.adapters = [] in the profile, or ask for nodes that have them.")
    elif not without:
        yield from _of_named(ports, named) if named else _of_all(ports)


def _of_named(ports: Ports, named: Sequence[str]) -> Iterator[Finding]:
    """Yield what is wrong with the adapters that the profile names; all others are spare."""
    lacking = {node: [name for name in named if name not in _devices(own)] for node, own in ports.items()}
    nowhere = [name for name in named if all(name in lacks for lacks in lacking.values())]
    here = {node: own for node, lacks in lacking.items() if (own := [name for name in lacks if name not in nowhere])}
    if here:
        node, names = next(iter(here.items()))
        yield red(f"{node} has no adapter {', '.join(names)}, and other nodes do", leave_out([*here]))
    down = [(node, port) for node, own in ports.items() for port in _down(own) if port.device in named]
    yield from _told_down(down)
    layers = {
        (node, name): layer for node, own in ports.items() for name, layer in _active(own).items() if name in named
    }
    yield from _mixed(layers, named, len(ports))
    if nowhere:
        nodes = ", ".join(ports)
        sentence = (
            f"the profile names {', '.join(nowhere)}, and {nodes} {'have' if len(ports) > 1 else 'has'} no such adapter"
        )
        there = [name for name in named if name not in nowhere] or _on_each(ports)
        yield yellow(
            sentence, f"Set network.adapters = {there} in the profile, or tell the site that they are missing."
        )


def _mixed(layers: Mapping[tuple[str, str], str], named: Sequence[str], nodes: int) -> Iterator[Finding]:
    """Yield which named adapters are not of the link type that most are of; ``layers`` is by node and adapter."""
    counts = Counter(layers.values())
    usual = max(counts, key=lambda layer: (counts[layer], layer == _INFINIBAND), default="")
    odd = [pair for pair, layer in layers.items() if layer != usual]
    if not odd:
        return
    node, name = odd[0]
    others = [pair for pair, layer in layers.items() if layer == usual]
    at, other = min(others, key=lambda pair: (pair[1] != name, pair[0] != node))
    sentence = f"adapter {name} of {node} is {layers[node, name]}, and {other} of {at} is {usual}"
    names = {one for _, one in odd}
    if len(odd) == nodes * len(names):  # the same on each node: so they are meant
        hint = f"Name adapters of one link type: network.adapters = {[one for one in named if one not in names]}."
        yield red(sentence, hint)
    else:
        yield red(sentence, leave_out(dict.fromkeys(one for one, _ in odd)))


def _of_all(ports: Ports) -> Iterator[Finding]:
    """Yield what is wrong with the ports where the profile names no adapters.

    Data goes over InfiniBand where a node has it, else over Ethernet; what is beside it is for files or management.
    """
    active = {node: _active(own) for node, own in ports.items()}
    if dark := [node for node in ports if not active[node]]:
        first = ports[dark[0]][0]
        sentence = f"{_state(dark[0], first)}, and the node has no active one"
        expected = any(active.values()) or any(port.link.link_layer == _INFINIBAND for port in ports[dark[0]])
        yield red(sentence, leave_out(dark)) if expected else yellow(sentence, "Tell the site if it should be active.")
        return
    kinds = {node: _kind(own) for node, own in active.items()}
    if len({*kinds.values()}) > 1:
        words = "; ".join(f"{node}: {kind}" for node, kind in kinds.items())
        yield red(f"nodes have ports of different link types ({words})", "Ask for nodes of one kind.")
        return
    kind = next(iter(kinds.values()))
    down = [(node, port) for node, own in ports.items() for port in _down(own) if port.link.link_layer == kind]
    yield from _told_down([(node, port) for node, port in down if any(port.device in own for own in active.values())])
    counts = {node: sum(layer == kind for layer in own.values()) for node, own in active.items()}
    if fewer := [node for node, count in counts.items() if count < max(counts.values())]:
        most = max(counts, key=lambda node: counts[node])
        sentence = f"{fewer[0]} has {counts[fewer[0]]} active adapters of {kind}, and {most} has {counts[most]}"
        yield yellow(sentence, leave_out(fewer))
    if down:
        node, port = down[0]
        sentence = f"{_state(node, port)}, and the profile does not say whether runs use it"
        yield yellow(sentence, f"Set network.adapters = {_on_each(ports)} in the profile, or tell the site.")


def _told_down(down: Sequence[tuple[str, Port]]) -> Iterator[Finding]:
    if down:
        node, port = down[0]
        yield red(_state(node, port), leave_out(dict.fromkeys(node for node, _ in down)))


def _wrong_variables(ports: Ports, named: Sequence[str], by_node: ByNode) -> Iterator[Finding]:
    """Yield what variables of the jobs choose that a node does not have, or leave unused."""
    for node, own in ports.items():
        active = _active(own)
        used = [name for name in named if name in active] or [name for name in active if active[name] == _kind(active)]
        environment = by_node[node].process.environment
        values = {name: environment[name] for name in ADAPTERS if environment.get(name)}
        found = judge_adapters(values, tuple(active), used, f"the active adapters of {node} are")
        if values and found.state != "green":
            yield found


def _well(ports: Ports, named: Sequence[str]) -> Finding:
    spare = sorted({port.device for own in ports.values() for port in _down(own)} - {*named})
    also = f"; {', '.join(spare)}, not used, {'are' if len(spare) > 1 else 'is'} down" if spare else ""
    whose = f"the ports of {', '.join(names)}" if (names := named or _on_each(ports)) else "the nodes' ports"
    return green(f"{whose} are active and of one link type on each node{also}")


def _devices(own: Sequence[Port]) -> list[str]:
    return sorted({port.device for port in own})


def _active(own: Sequence[Port]) -> dict[str, str]:
    """Return the link type of each adapter of a node that has an active port: InfiniBand, if one of its ports is."""
    ports = sorted((port for port in own if port.link.state == "ACTIVE"), key=lambda port: port.device)
    infiniband = {port.device for port in ports if port.link.link_layer == _INFINIBAND}
    return {port.device: _INFINIBAND if port.device in infiniband else port.link.link_layer for port in ports}


def _down(own: Sequence[Port]) -> list[Port]:
    """Return a port of each adapter of a node that has none that is active."""
    active = _active(own)
    first = {port.device: port for port in reversed(own)}
    return [first[name] for name in _devices(own) if name not in active]


def _kind(active: Mapping[str, str]) -> str:
    """Return the link type over which a node's data goes."""
    return _INFINIBAND if _INFINIBAND in active.values() else next(iter(active.values()), "")


def _on_each(ports: Ports) -> list[str]:
    """Return the adapters that are active on each node and of the kind that carries data there."""
    active = [_active(own) for own in ports.values()]
    own = [{name for name, layer in one.items() if layer == _kind(one)} for one in active]
    return sorted(set.intersection(*own)) if own else []


def _state(node: str, port: Port) -> str:
    state = f"{port.link.state or 'in no known state'} ({port.link.physical_state or 'no physical state'})"
    return f"{port.link.link_layer or 'RDMA'} port {port.name} of {node} is {state}"
