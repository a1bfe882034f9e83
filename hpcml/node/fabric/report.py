"""Which wire carried the bytes, in one line for people and as a table for programs, and whether that will do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from hpcml.node.fabric import advice, attribution
from hpcml.node.fabric.attribution import Wire, short
from hpcml.node.fabric.measurement import GIB, Measurement, Pair, slow

IDLE = 0.2  # of what a node's ports carry: less than this is worth a word
_MOST_NAMES = 6


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement.

    Parameters
    ----------
    line
        All of it in one line.
    protocol
        ``ucx`` or ``tls``.
    nodes
        How many took part.
    within, across
        The wires, None where nothing was measured.
    nccl, nccl_doubt
        NCCL's ways in words, and what is wrong with them.
    worst
        Pairs and nodes with less than half of the others' bandwidth.
    failed
        Transfers that failed, with their errors.
    problems
        All that is not as it should be, sentences without full stops.
    remedy
        What to do about it, "" if nothing is known to help.
    """

    line: str
    protocol: str
    nodes: int
    within: Wire | None
    across: Wire | None
    nccl: str
    nccl_doubt: str
    worst: tuple[str, ...]
    failed: tuple[str, ...]
    problems: tuple[str, ...]
    remedy: str

    @property
    def wires(self) -> tuple[Wire, ...]:
        """What was measured."""
        return tuple(wire for wire in (self.across, self.within) if wire is not None)

    @property
    def ok(self) -> bool:
        """Whether fast wires are proven wherever they belong, and nothing failed."""
        return not self.failed and not self.nccl_doubt and all(wire.ok for wire in self.wires if wire.wanted)

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain tables and lists, with ``ok``."""
        return {**asdict(self), "ok": self.ok}


def check_policy(policy: str, verdict: Verdict) -> str:
    """Return why a verdict does not meet ``fabric.require``, "" if it does.

    ``none`` asks for nothing. ``warn`` asks that UCX use fast wires, that no transfer fail and that no pair or node be
    slow; TLS, which cannot be fast, was chosen and passes. ``rdma`` asks for RDMA across nodes and cuda_ipc between the
    GPUs of a node, both proven, and that NCCL use no sockets between nodes.

    Raises
    ------
    ValueError
        If there is no such policy.
    """
    if policy == "none":
        return ""
    if policy not in ("warn", "rdma"):
        raise ValueError(f"there is no policy '{policy}': none, warn or rdma")
    reasons = list(verdict.failed)
    if verdict.protocol != "tls" or policy == "rdma":
        reasons += [wire.doubt for wire in verdict.wires if wire.wanted and not wire.ok]
    reasons += [verdict.nccl_doubt] if verdict.nccl_doubt else []
    if policy == "rdma" and verdict.nodes > 1 and verdict.across is None and not reasons:
        reasons.append("nothing was measured across nodes")
    if policy == "warn" and verdict.worst:
        reasons.append(_slow_words(verdict.worst))
    return "; ".join(reasons)


def decide(measurement: Measurement) -> Verdict:
    """Return the judgement on a measurement."""
    timed = [pair for pair in measurement.pairs if pair.bandwidth]
    failed = tuple(f"the transfer {pair.name} failed: {pair.error}" for pair in measurement.pairs if not pair.bandwidth)
    wires: dict[str, Wire] = {}
    causes: dict[str, advice.Cause] = {}
    for scope in ("across", "within"):
        if pairs := [pair for pair in timed if pair.scope == scope]:
            wires[scope], causes[scope] = _wire(measurement, scope, pairs)
    bad = [scope for scope, wire in wires.items() if wire.wanted and not wire.ok]
    worst = tuple(_worst(measurement, timed))
    nccl, nccl_doubt = _nccl(measurement)
    idle = _idle_ports(measurement, wires.get("across"), timed)
    problems = [*failed, *(wires[scope].doubt for scope in bad), nccl_doubt, _slow_words(worst) if worst else "", *idle]
    remedies = dict.fromkeys(causes[scope].remedy for scope in bad)
    remedy = "; ".join(remedies) or (advice.GPUDIRECT if idle else "")
    ways = f"NCCL: {nccl}" if nccl else nccl_doubt
    line = "; ".join(filter(None, [_line(measurement, wires, causes, bad), ways, *failed[:1]]))
    return Verdict(
        line=f"{line}; remedy: {remedy}" if bad and measurement.protocol == "ucx" else line,
        protocol=measurement.protocol,
        nodes=len(measurement.nodes),
        within=wires.get("within"),
        across=wires.get("across"),
        nccl=nccl,
        nccl_doubt=nccl_doubt,
        worst=worst,
        failed=failed,
        problems=tuple(filter(None, problems)),
        remedy=remedy,
    )


def _wire(measurement: Measurement, scope: str, pairs: Sequence[Pair]) -> tuple[Wire, advice.Cause]:
    cause = advice.Cause("", "")
    slowest = min(pairs, key=lambda pair: pair.bandwidth)
    speeds: dict[str, Any] = {
        "bandwidth": median(pair.bandwidth for pair in pairs),
        "slowest": slowest.bandwidth,
        "slowest_pair": slowest.name,
        "wanted": scope == "across" or measurement.memory == "cuda",
    }
    if measurement.protocol == "tls":
        wire = replace(attribution.by_ip(measurement, scope, pairs), **speeds)
        return replace(wire, doubt=f"TLS over TCP carries the bytes {attribution.WORDS[scope]}"), advice.TLS
    wire = replace((attribution.across if scope == "across" else attribution.within)(measurement, pairs), **speeds)
    if not wire.ok and wire.wanted:
        cause = (advice.across if scope == "across" else advice.within)(measurement, wire.unproven)
        wire = replace(wire, doubt=f"{wire.doubt} ({cause.reason})")
    return wire, cause


def _worst(measurement: Measurement, pairs: Sequence[Pair]) -> list[str]:
    """Return the nodes whose pairs across nodes are all slow, then the other slow pairs."""
    slow_pairs = slow(pairs)
    of_node: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        for worker in (pair.source, pair.target) if pair.scope == "across" else ():
            of_node[measurement.workers[worker].node].append(pair)
    nodes = sorted(node for node, own in of_node.items() if all(pair in slow_pairs for pair in own))
    named = [pair for node in nodes for pair in of_node[node]]
    return [*nodes, *(pair.name for pair in slow_pairs if pair not in named)]


def _slow_words(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"less than half of the others' bandwidth: {', '.join(names[:_MOST_NAMES])}{more}"


def _nccl(measurement: Measurement) -> tuple[str, str]:
    """Return NCCL's ways in words, and what is wrong with them."""
    facts = measurement.nccl
    if facts is None:
        return "", ""
    if facts.get("error"):
        return "", f"NCCL failed: {facts['error']}"
    log, parts = facts.get("log", {}), []
    across = log.get("across", {})
    if across:
        devices = short(log["devices"])
        parts.append(f"{' and '.join(sorted(across))}{f' on {devices}' if devices else ''} across nodes")
    if log.get("within"):
        parts.append(f"{' and '.join(sorted(log['within']))} within nodes")
    speed = float(facts.get("bandwidth", 0)) / GIB
    doubt = "NCCL uses sockets across nodes" if "NET/Socket" in across else ""
    return "; ".join([*parts, rate(speed)] if speed else parts), doubt


def _ports_rate(measurement: Measurement, node: str) -> float:
    """Return what the InfiniBand ports of a node that are up carry together, in GiB per second."""
    ports = (measurement.nodes[node].moved.get("infiniband") or {}).values()
    return sum(float(port["rate"]) for port in ports if port["state"] == "ACTIVE") / GIB


def _idle_ports(measurement: Measurement, wire: Wire | None, pairs: Iterable[Pair]) -> list[str]:
    """Return a sentence if RDMA works but leaves the ports idle, as where GPU memory goes by way of the host's."""
    if wire is None or not wire.ok or measurement.memory != "cuda":
        return []
    sums: dict[str, float] = defaultdict(float)
    for pair in pairs:
        if pair.scope == "across":
            sums[measurement.workers[pair.source].node] += pair.bandwidth
    idle = [node for node, speed in sorted(sums.items()) if speed < IDLE * _ports_rate(measurement, node)]
    if not idle:
        return []
    speed, most = sums[idle[0]], _ports_rate(measurement, idle[0])
    return [f"{idle[0]} sends {rate(speed)} across nodes, of {rate(most)} that its InfiniBand ports carry"]


def _line(
    measurement: Measurement, wires: Mapping[str, Wire], causes: Mapping[str, advice.Cause], bad: Sequence[str]
) -> str:
    if not wires:
        return f"{'TLS over TCP' if measurement.protocol == 'tls' else 'UCX'}: nothing was measured"
    if measurement.protocol == "tls":
        parts = [
            f"on {short(wire.devices) or 'an unknown interface'}: {rate(wire.bandwidth)} {attribution.WORDS[scope]}"
            for scope, wire in wires.items()
        ]
        return f"TLS over TCP {'; '.join(parts)}"
    parts = []
    for scope in bad:
        wire = wires[scope]
        sentence = f"UCX: {wire.doubt}"
        if "tcp" in wire.transports:
            sentence = f"UCX fell back to {wire} {attribution.WORDS[scope]} ({causes[scope].reason})"
        could = min(_ports_rate(measurement, node) for node in measurement.nodes) if scope == "across" else 0
        parts.append(f"{sentence}: {rate(wire.bandwidth)}{f' where the ports carry {rate(could)}' if could else ''}")
    good = [
        f"{wires[scope]} {attribution.WORDS[scope]} {rate(wires[scope].bandwidth)}"
        for scope in ("within", "across")
        if scope in wires and scope not in bad
    ]
    if good:
        parts.append(f"UCX: {'; '.join(good)}")
    return "; ".join([parts[0], *(part.removeprefix("UCX: ") for part in parts[1:])])


def rate(speed: float) -> str:
    """Return a bandwidth given in GiB per second as a person reads it: ``104 GiB/s``, ``0.9 GiB/s``, ``20 MiB/s``."""
    if speed < 0.095:
        return f"{speed * 1024:.0f} MiB/s"
    return f"{speed:.0f} GiB/s" if speed >= 9.95 else f"{speed:.1f} GiB/s"
