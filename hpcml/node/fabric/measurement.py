"""What the transfers before the script gave: pairs and times, and what workers and nodes can tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

GIB = 1024**3
SLOW = 0.5  # of the others' bandwidth


@dataclass(frozen=True, slots=True)
class Pair:
    """Transfers from one worker (``n1-0``) to another, ``within`` a node or ``across`` nodes."""

    source: str
    target: str
    scope: str
    bytes: int  # what was timed, repeats counted
    seconds: float
    error: str = ""
    moved: int = 0  # all bytes that went this way, those before the timing too; 0 means ``bytes``

    @property
    def bandwidth(self) -> float:
        """GiB per second; 0 if the transfer failed."""
        return 0.0 if self.error or self.seconds <= 0 else self.bytes / GIB / self.seconds

    @property
    def sent(self) -> int:
        """The bytes that the counters must show."""
        return self.moved or self.bytes

    @property
    def name(self) -> str:
        """The pair as people read it."""
        return f"{self.source} → {self.target}"


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker knows about itself."""

    node: str
    gpu: str = ""  # NVML's index or UUID
    transports: Sequence[str] = ()  # what UCX may use: ``ucxx.get_active_transports()``
    log: Mapping[str, Any] = field(default_factory=dict)  # ``counters.parse_ucx_log`` of its log
    version: str = ""  # of UCX
    environment: Mapping[str, str] = field(default_factory=dict)  # ``counters.settings``
    memory_resource: str = ""  # RMM's current one, as ``PoolMemoryResource``
    error: str = ""  # why the worker could not tell


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What moved on a node during the transfers (``counters.difference``, {} if not known), and its probe."""

    moved: Mapping[str, Any] = field(default_factory=dict)
    probe: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """All of it: the transfers, and facts by worker's name and by node's name.

    ``protocol`` is ucx or tls; ``memory``, where the buffers lay, cuda or host. ``nccl`` is None without NCCL, else a
    collective over all workers: ``bytes``, ``seconds``, ``bandwidth`` (bytes per second), ``log``
    (``counters.parse_nccl_log``), ``error``. ``interface`` is the one that the profile names.
    """

    protocol: str
    memory: str
    pairs: Sequence[Pair]
    workers: Mapping[str, WorkerFacts]
    nodes: Mapping[str, NodeFacts]
    nccl: Mapping[str, Any] | None = None
    interface: str = ""


def slow(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs with less than half of the others' bandwidth; those that failed are not among them.

    Within nodes a pair is compared with the median of pairs. Across nodes with the median of what each worker reaches
    at best: one bad node of three takes part in four pairs of six, and would make its own bandwidth the median.
    """
    slow_pairs = []
    for scope in ("within", "across"):
        timed = [pair for pair in pairs if pair.scope == scope and pair.bandwidth]
        best: dict[str, float] = {}
        for pair in timed:
            for name in (pair.source, pair.target):
                best[name] = max(best.get(name, 0.0), pair.bandwidth)
        speeds = best.values() if scope == "across" else [pair.bandwidth for pair in timed]
        slow_pairs += [pair for pair in timed if pair.bandwidth < SLOW * median(speeds)]
    return slow_pairs
