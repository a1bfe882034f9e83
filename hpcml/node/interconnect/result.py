"""The result of a check of the interconnect: a line for people, a table, whether it is enough, and a run's end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from hpcml import errors
from hpcml.node.events_and_end import say
from hpcml.node.interconnect import transport_used
from hpcml.node.interconnect.measurement import GIB, Measurement, Pair, slow
from hpcml.node.interconnect.transport_used import DataPath, short
from hpcml.node.run_state import RunState
from hpcml.units import first_of_many

IDLE = 0.2  # of what a node's ports carry: less than this is worth a word
_MOST_NAMES = 6
_LIBRARIES = {"nccl": "NCCL", "gloo": "Gloo"}  # of a collective, by protocol
_NAMES = {"tls": "TLS over TCP", "tcp": "TCP"}  # of Dask's protocols without UCX
_BY_TCP = (*_NAMES, "gloo")  # which cannot be fast


@dataclass(frozen=True, slots=True)
class Result:
    """The judgement; ``within`` and ``across`` are None where nothing was measured."""

    line: str  # all of it
    protocol: str  # ucx, tls, nccl or gloo
    nodes: int  # how many took part
    within: DataPath | None
    across: DataPath | None
    nccl: str  # NCCL's ways,
    nccl_doubt: str  # and what is wrong with them
    worst: tuple[str, ...]  # pairs and nodes with less than half of the others' bandwidth
    failed: tuple[str, ...]  # transfers that failed, with their errors
    problems: tuple[str, ...]  # all that is not as it should be: sentences without full stops
    remedy: str  # empty if nothing is known to help

    @property
    def doubts(self) -> list[str]:
        """Why fast transports are not proven where they belong."""
        return [path.doubt for path in (self.across, self.within) if path and path.wanted and not path.ok]

    @property
    def ok(self) -> bool:
        """Whether fast transports are proven wherever they belong, and nothing failed."""
        return not (self.failed or self.nccl_doubt or self.doubts)

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain tables and lists, with ``ok``."""
        return {**asdict(self), "ok": self.ok}


def check_policy(policy: str, result: Result) -> str:
    """Return the reason for which a result does not meet ``interconnect.require``, "" if it does.

    ``none`` asks for nothing. ``warn`` asks that UCX use fast transports, that no transfer fail and that no pair or
    node be slow; TLS and Gloo, which cannot be fast, were chosen and pass. ``rdma`` asks for RDMA across nodes and
    cuda_ipc between the GPUs of a node, both proven, and that NCCL use no sockets between nodes.

    Raises
    ------
    ValueError
        If there is no such policy.
    """
    if policy == "none":
        return ""
    if policy not in ("warn", "rdma"):
        raise ValueError(f"unknown policy '{policy}': use none, warn or rdma")
    reasons = list(result.failed)
    if result.protocol not in _BY_TCP or policy == "rdma":
        reasons += result.doubts
    reasons += filter(None, [result.nccl_doubt])
    if policy == "rdma" and result.nodes > 1 and result.across is None and not reasons:
        reasons.append("nothing was measured across nodes")
    if policy == "warn" and result.worst:
        reasons.append(_slow_words(result.worst))
    return "; ".join(reasons)


def obey(state: RunState, answer: Mapping[str, Any]) -> None:
    """Say what a check's record says; end the run (RunEndedError) if ``interconnect.require`` demands it."""
    if line := str(answer.get("line", "")):
        say(state.context, f"interconnect: {line}")
    for difference in answer.get("differences", ()):
        say(state.context, f"nodes differ: {difference}")
    if not (problem := str(answer["problem"])):
        return
    say(state.context, f"interconnect: {problem}")
    if state.context.settings.interconnect.require == "rdma":
        where = "See interconnect.json in the run's directory. "
        where += "To let runs continue after a failed check, set interconnect.require = 'warn'."
        hint = str(answer.get("remedy") or where)
        raise state.end(errors.INTERCONNECT, problem, hint, (line,) if line else ())


def decide(measurement: Measurement) -> Result:
    """Return the judgement on a measurement."""
    if measurement.protocol in _LIBRARIES:
        return _of_collective(measurement, measurement.nccl or {})
    timed = [pair for pair in measurement.pairs if pair.bandwidth]
    failed = tuple(f"the transfer {pair.name} failed: {pair.error}" for pair in measurement.pairs if not pair.bandwidth)
    paths, causes = _paths(measurement, timed)
    worst = tuple(_worst(measurement, timed))
    nccl, nccl_doubt = _nccl(measurement)
    idle = _idle_ports(measurement, paths.get("across"), timed)
    doubts = [paths[scope].doubt for scope in causes]
    problems = [*failed, *doubts, nccl_doubt, _slow_words(worst) if worst else "", *idle]
    remedy = "; ".join(dict.fromkeys(cause.remedy for cause in causes.values())) or (
        transport_used.GPUDIRECT if idle else ""
    )
    ways = f"NCCL: {nccl}" if nccl else nccl_doubt
    line = "; ".join(filter(None, [_line(measurement, paths, causes), ways, *failed[:1]]))
    return Result(
        line=f"{line}; remedy: {remedy}" if causes and measurement.protocol == "ucx" else line,
        protocol=measurement.protocol,
        nodes=len(measurement.nodes),
        within=paths.get("within"),
        across=paths.get("across"),
        nccl=nccl,
        nccl_doubt=nccl_doubt,
        worst=worst,
        failed=failed,
        problems=tuple(filter(None, problems)),
        remedy=remedy,
    )


def _paths(
    measurement: Measurement, timed: Sequence[Pair]
) -> tuple[dict[str, DataPath], dict[str, transport_used.Cause]]:
    """Return the data's path in each scope that was measured, and why one that should be fast is not proven to be."""
    paths: dict[str, DataPath] = {}
    causes: dict[str, transport_used.Cause] = {}
    for scope in ("across", "within"):
        if pairs := [pair for pair in timed if pair.scope == scope]:
            path = _data_path(measurement, scope, pairs)
            if path.wanted and not path.ok:
                cause = causes[scope] = _cause(measurement, path)
                path = (
                    path
                    if cause in (transport_used.TLS, transport_used.TCP)
                    else replace(path, doubt=f"{path.doubt} ({cause.reason})")
                )
            paths[scope] = path
    return paths, causes


def _of_collective(measurement: Measurement, collective: Mapping[str, Any]) -> Result:
    """Return the judgement on an all-reduce of NCCL or Gloo over all ranks, of which no single pairs are known."""
    library, nodes = _LIBRARIES[measurement.protocol], len(measurement.nodes)
    failed = (f"{library} failed: {collective['error']}",) if collective.get("error") else ()
    speed, log = float(collective.get("bandwidth", 0)) / GIB, collective.get("log", {})
    is_known = bool(speed or log.get("within") or log.get("across")) and not failed
    paths: dict[str, DataPath] = {}
    cause: transport_used.Cause | None = None
    for scope in ("across", "within") if is_known else ():
        path = transport_used.of_collective(measurement, scope, library)
        if path.transports or (scope == "across" and nodes > 1):
            paths[scope] = replace(path, bandwidth=speed)
        if path.doubt and scope in paths:
            cause = transport_used.cause_of_collective(measurement, scope)
            reason = "" if cause is transport_used.GLOO else f" ({cause.reason})"
            paths[scope] = replace(paths[scope], doubt=path.doubt + reason)
    doubts = [path.doubt for path in paths.values() if path.doubt]
    bounces = bool(paths) and nodes > 1 and library == "NCCL" and paths["across"].ok and not collective["log"]["gdr"]
    slow_gpus = "NCCL does not use GPUDirect RDMA: it copies GPU data through host memory" if bounces else ""
    remedy = cause.remedy if cause else transport_used.GPUDIRECT if bounces else ""
    ways = [f"{path} {transport_used.WORDS[scope]}" for scope, path in paths.items() if path.transports]
    measured = "; ".join([*ways, f"bus bandwidth {rate(speed)}"] if speed else ways)
    head = library if cause in (None, transport_used.GLOO) else "; ".join(doubts)
    line = f"{head}: {measured}" if is_known else "; ".join(failed)
    return Result(
        line=f"{line}; remedy: {remedy}" if head != library and remedy else line,
        protocol=measurement.protocol,
        nodes=nodes,
        within=paths.get("within"),
        across=paths.get("across"),
        nccl="",
        nccl_doubt="",
        worst=(),
        failed=failed,
        problems=tuple(filter(None, [*failed, *doubts, slow_gpus])),
        remedy=remedy,
    )


def _data_path(measurement: Measurement, scope: str, pairs: Sequence[Pair]) -> DataPath:
    if name := _NAMES.get(measurement.protocol):
        path = transport_used.by_ip(measurement, scope, pairs)
        path = replace(path, doubt=f"{name} carries the data {transport_used.WORDS[scope]}")
    else:
        path = (transport_used.across if scope == "across" else transport_used.within)(measurement, pairs)
    return replace(
        path,
        bandwidth=median(pair.bandwidth for pair in pairs),
        wanted=scope == "across" or measurement.memory == "cuda",
    )


def _cause(measurement: Measurement, path: DataPath) -> transport_used.Cause:
    if measurement.protocol in _NAMES:
        return transport_used.TLS if measurement.protocol == "tls" else transport_used.TCP
    return (transport_used.cause_across if path.scope == "across" else transport_used.cause_within)(
        measurement, path.unproven
    )


def _worst(measurement: Measurement, pairs: Sequence[Pair]) -> list[str]:
    """Return the nodes whose pairs across nodes are all slow, then the other slow pairs."""
    slow_pairs = slow(pairs)
    of_node: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        for worker in (pair.source, pair.target) if pair.scope == "across" else ():
            of_node[measurement.workers[worker].node].append(pair)
    nodes = sorted(node for node, pairs_of_node in of_node.items() if all(pair in slow_pairs for pair in pairs_of_node))
    named = [pair for node in nodes for pair in of_node[node]]
    return [*nodes, *(pair.name for pair in slow_pairs if pair not in named)]


def _slow_words(names: Sequence[str]) -> str:
    slow = first_of_many(names, _MOST_NAMES)
    return f"these nodes or pairs of workers have less than half of the others' bandwidth: {slow}"


def _nccl(measurement: Measurement) -> tuple[str, str]:
    """Return NCCL's ways in words, and what is wrong with them."""
    nccl = measurement.nccl
    if nccl is None:
        return "", ""
    if nccl.get("error"):
        return "", f"NCCL failed: {nccl['error']}"
    log, parts = nccl.get("log", {}), []
    across = log.get("across", {})
    if across:
        devices = short(log["devices"])
        parts.append(f"{' and '.join(sorted(across))}{f' on {devices}' if devices else ''} across nodes")
    if log.get("within"):
        parts.append(f"{' and '.join(sorted(log['within']))} within nodes")
    speed = float(nccl.get("bandwidth", 0)) / GIB
    doubt = "NCCL uses TCP sockets across nodes" if "NET/Socket" in across else ""
    return "; ".join([*parts, rate(speed)] if speed else parts), doubt


def _ports_rate(measurement: Measurement, node: str) -> float:
    """Return the GiB per second that a node's active InfiniBand ports carry together."""
    ports = (measurement.nodes[node].moved.get("infiniband") or {}).values()
    return sum(float(port["rate"]) for port in ports if port["state"] == "ACTIVE") / GIB


def _idle_ports(measurement: Measurement, path: DataPath | None, pairs: Iterable[Pair]) -> list[str]:
    """Return a sentence if RDMA works but leaves the ports idle, as where GPU memory goes by way of the host's."""
    if path is None or not path.ok or measurement.memory != "cuda":
        return []
    sums: dict[str, float] = defaultdict(float)
    for pair in pairs:
        if pair.scope == "across":
            sums[measurement.workers[pair.source].node] += pair.bandwidth
    idle = [node for node, speed in sorted(sums.items()) if speed < IDLE * _ports_rate(measurement, node)]
    if not idle:
        return []
    speed, most = sums[idle[0]], _ports_rate(measurement, idle[0])
    return [f"{idle[0]} sends {rate(speed)} across nodes, but its InfiniBand ports can carry {rate(most)}"]


def _line(measurement: Measurement, paths: Mapping[str, DataPath], causes: Mapping[str, transport_used.Cause]) -> str:
    if not paths:
        return f"{_NAMES.get(measurement.protocol, 'UCX')}: nothing was measured"
    scope_texts = transport_used.WORDS
    if name := _NAMES.get(measurement.protocol):
        named = f"the addresses of {measurement.interface}" if measurement.interface else "an unknown interface"
        parts = [
            f"on {short(path.devices) or named}: {rate(path.bandwidth)} {scope_texts[scope]}"
            for scope, path in paths.items()
        ]
        return f"{name} {'; '.join(parts)}"
    parts = []
    for scope, cause in causes.items():
        path, could = paths[scope], 0.0
        sentence = f"UCX: {path.doubt}"
        if "tcp" in path.transports:
            sentence = f"UCX fell back to {path} {scope_texts[scope]} ({cause.reason})"
        if scope == "across":
            could = min(_ports_rate(measurement, node) for node in measurement.nodes)
        ports = f", but the InfiniBand ports can carry {rate(could)}" if could else ""
        parts.append(f"{sentence}: {rate(path.bandwidth)}{ports}")
    good = [
        f"{paths[scope]} {scope_texts[scope]} {rate(paths[scope].bandwidth)}"
        for scope in ("within", "across")
        if scope in paths and scope not in causes
    ]
    if good:
        parts.append(f"UCX: {'; '.join(good)}")
    return "; ".join([parts[0], *(part.removeprefix("UCX: ") for part in parts[1:])])


def rate(speed: float) -> str:
    """Return a bandwidth given in GiB per second as a person reads it: ``104 GiB/s``, ``0.9 GiB/s``, ``20 MiB/s``."""
    if speed < 0.095:
        return f"{speed * 1024:.0f} MiB/s"
    return f"{speed:.0f} GiB/s" if speed >= 9.95 else f"{speed:.1f} GiB/s"
