"""What the transfers before the script gave: pairs and times, and what workers and nodes can tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

GIB = 1024**3
SLOW = 0.5  # of the others' bandwidth


@dataclass(frozen=True, slots=True)
class Pair:
    """Transfers from one worker to another.

    Parameters
    ----------
    source, target
        Names of workers (``n1-0``).
    scope
        ``within`` a node or ``across`` nodes.
    bytes, seconds
        What was timed, repeats counted.
    error
        What went wrong, "" if nothing.
    moved
        All bytes that went this way, those before the timing too: what the counters must show. 0 means ``bytes``.
    """

    source: str
    target: str
    scope: str
    bytes: int
    seconds: float
    error: str = ""
    moved: int = 0

    @property
    def bandwidth(self) -> float:
        """GiB per second; 0 if the transfer failed."""
        return 0.0 if self.error or self.seconds <= 0 else self.bytes / GIB / self.seconds

    @property
    def name(self) -> str:
        """The pair in words."""
        return f"{self.source} → {self.target}"


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker knows about itself.

    Parameters
    ----------
    node
        The node that it runs on.
    gpu
        Its GPU by NVML's index or UUID, "" without one.
    transports
        ``ucxx.get_active_transports()``: what UCX may use.
    log
        ``counters.parse_ucx_log`` of its log: which UCX it is and what it has wired.
    version
        Of UCX.
    environment
        ``counters.settings`` of its environment.
    memory_resource
        RMM's current memory resource (``PoolMemoryResource``), "" if not known.
    error
        Why the worker could not tell, "" if it could.
    """

    node: str
    gpu: str = ""
    transports: Sequence[str] = ()
    log: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    memory_resource: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What moved on a node during the transfers (``counters.difference``, {} if not known), and its probe."""

    moved: Mapping[str, Any] = field(default_factory=dict)
    probe: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """All of it.

    Parameters
    ----------
    protocol
        ``ucx`` or ``tls``.
    memory
        ``cuda`` or ``host``: where the transferred buffers lay.
    pairs, workers, nodes
        Transfers; facts by worker's name and by node's name.
    nccl
        None without NCCL, else a collective over all workers: ``bytes``, ``seconds``, ``bandwidth`` (bytes per second),
        ``log`` (``counters.parse_nccl_log``), ``error``.
    """

    protocol: str
    memory: str
    pairs: Sequence[Pair]
    workers: Mapping[str, WorkerFacts]
    nodes: Mapping[str, NodeFacts]
    nccl: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain tables and lists."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Measurement:
        """Return what ``to_json`` was made of.

        Raises
        ------
        KeyError, TypeError
            If the table is none that ``to_json`` made.
        """
        return cls(
            facts["protocol"],
            facts["memory"],
            [Pair(**pair) for pair in facts["pairs"]],
            {name: WorkerFacts(**worker) for name, worker in facts["workers"].items()},
            {name: NodeFacts(**node) for name, node in facts["nodes"].items()},
            facts["nccl"],
        )


def slow(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the pairs with less than half of the others' bandwidth; those that failed are not among them.

    Within nodes a pair is compared with the median of pairs. Across nodes with the median of what each worker reaches
    at best: one bad node of three takes part in four pairs of six, and would make its own bandwidth the median.
    """
    timed = [pair for pair in pairs if pair.bandwidth]
    slow_pairs = []
    for scope in ("within", "across"):
        own = [pair for pair in timed if pair.scope == scope]
        best: dict[str, float] = {}
        for pair in own:
            for name in (pair.source, pair.target):
                best[name] = max(best.get(name, 0.0), pair.bandwidth)
        speeds = best.values() if scope == "across" else [pair.bandwidth for pair in own]
        slow_pairs += [pair for pair in own if pair.bandwidth < SLOW * median(speeds)]
    return slow_pairs
