"""The samples of a run's nodes as columns over time, and the run's figures, which advice speaks of."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from hpcml import samples
from hpcml.gpu_vendor import VENDOR
from hpcml.paths import AttemptPaths
from hpcml.report.ledger import EVERY, Accounting, Column, Ledger, Phases
from hpcml.samples import Event, GpuSample, NodeSample, NodeSeries, total


class _Timed(Protocol):
    @property
    def t(self) -> float: ...


T = TypeVar("T", bound=_Timed)


class GpuColumns(NamedTuple):
    """What a GPU did at the times of its node's samples."""

    use: Column  # percent, since the sample before
    memory: Column  # bytes
    power: Column  # W
    throttle: Column  # the vendor's bits
    nvlink: Column  # bytes per second, both ways
    pcie: Column  # bytes per second, both ways
    energy: Column  # J, a counter


class Gpu(NamedTuple):
    """A GPU and its samples."""

    number: int  # the driver's index
    name: str
    memory: float  # bytes, 0 if not known
    columns: GpuColumns


class NodeColumns(NamedTuple):
    """What a node did at the times of its samples."""

    cpu: Column  # cores in use
    memory: Column  # bytes
    net: Column  # bytes per second, both ways
    ib: Column  # bytes per second, both ways
    disk: Column  # bytes per second, both ways


class Node(NamedTuple):
    """A node and its samples."""

    name: str
    every: float  # seconds between samples
    cores: float  # that the run may use
    memory: float  # bytes that the run may use, 0 if not known
    of_host: bool  # cores and memory are those of all programs on the machine, not of the job alone
    t: list[float]  # times of the samples, in seconds since 1970
    columns: NodeColumns
    gpus: tuple[Gpu, ...]
    events: tuple[Event, ...]


def nodes(attempt: AttemptPaths, most: int = 0) -> dict[str, Node]:
    """Return the samples of each node by its name, without nodes that have none.

    ``most`` is as in :func:`hpcml.samples.nodes`.
    """
    return {name: _node(name, series) for name, series in samples.nodes(attempt, most).items() if series.samples}


def increase(counters: Column) -> float | None:
    """Return the total increase of a counter, over its resets; None if nothing is known."""
    numbers = [value for value in counters if value is not None]
    if len(numbers) < 2:
        return None
    return sum(max(0.0, now - before) for before, now in itertools.pairwise(numbers))


def in_order(rows: Iterable[T]) -> list[T]:
    """Return samples whose times go forward; a clock that was set back is waited for."""
    ordered: list[T] = []
    for row in rows:
        if row.t > (ordered[-1].t if ordered else 0.0):
            ordered.append(row)
    return ordered


def _rates(t: Sequence[float], counters: Column) -> Column:
    """Return the increase of a counter per second; None where it fell."""
    rates: Column = [None] * len(t)
    for at in range(1, len(t)):
        before, now = counters[at - 1], counters[at]
        if before is not None and now is not None and now >= before:
            rates[at] = (now - before) / (t[at] - t[at - 1])
    return rates


def _node(name: str, series: NodeSeries) -> Node:
    rows, header = in_order(series.samples), series.header
    t = [row.t for row in rows]
    columns = NodeColumns(
        cpu=[row.cpu for row in rows],
        memory=[row.memory for row in rows],
        net=_rates(t, [total(row.net) for row in rows]),
        ib=_rates(t, [total(row.ib) for row in rows]),
        disk=_rates(t, [total(row.disk) for row in rows]),
    )
    gpus = tuple(
        Gpu(gpu.number, gpu.name, float(gpu.memory or 0), _gpu_columns(t, [_at(row, place) for row in rows]))
        for place, gpu in enumerate(header.gpus)
    )
    cores = float(header.cores) if header.cores and header.cores > 0 else 1.0
    of_host = header.scope.memory == "host"
    return Node(name, header.every or EVERY, cores, float(header.memory or 0), of_host, t, columns, gpus, series.events)


def _at(row: NodeSample, place: int) -> GpuSample:
    return row.gpus[place] if place < len(row.gpus) else GpuSample()


def _gpu_columns(t: Sequence[float], rows: Sequence[GpuSample]) -> GpuColumns:
    return GpuColumns(
        use=[None if row.use is None else min(100.0, max(0.0, row.use)) for row in rows],
        memory=[row.memory for row in rows],
        power=[row.power for row in rows],
        throttle=[row.throttle for row in rows],
        nvlink=_rates(t, [total(row.nvlink) for row in rows]),
        pcie=[total(row.pcie) for row in rows],
        energy=[row.energy for row in rows],
    )


# -- figures ---------------------------------------------------------------------------------------------------------


def figures_of(
    ledger: Ledger,
    accounting: Accounting,
    phases: Phases,
    by_node: Mapping[str, Node],
    limit: int,
    memory: float,
) -> dict[str, float]:
    """Return the figures of a run that are known; shares are in percent.

    ``limit`` is its time limit in seconds, 0 without one; ``memory`` are the bytes that were asked for on each node,
    0 if that is not known.
    """
    figures = {"seconds": phases.end - phases.began, "paid_hours": ledger.paid}
    if limit:
        figures["time_used"] = min(100.0, 100 * figures["seconds"] / limit)
    figures |= _shares(ledger, accounting) if ledger.paid else {}
    if phases.script is not None:
        figures |= _of_the_script(ledger.unit, by_node, phases.script, phases.script_end or phases.end)
    gpus = [gpu.columns for node in by_node.values() for gpu in node.gpus]
    hot = [share for columns in gpus if (share := hot_share(columns)) is not None]
    if hot:
        figures["throttled"] = max(hot)
    energy = [one for columns in gpus if (one := increase(columns.energy)) is not None]
    if energy:
        figures["energy_kwh"] = sum(energy) / 3.6e6
    return figures | _memory(by_node, memory)


def hot_share(columns: GpuColumns) -> float | None:
    """Return in which percent of the samples a GPU was slowed down by heat or its power supply."""
    hot = [bool(int(bits) & VENDOR.hot) for bits in columns.throttle if bits is not None]
    return 100 * sum(hot) / len(hot) if hot else None


def _shares(ledger: Ledger, accounting: Accounting) -> dict[str, float]:
    figures = {
        "useful": ledger.share("useful"),
        "bring_up": ledger.share(*dict.fromkeys(("starting", accounting.startup))),
        "idle_tail": ledger.share("tail"),
        "not_known": ledger.share("unknown"),
    }
    if ledger.parts["unknown"] > ledger.paid / 2:
        return figures
    of_kind = [figure for figure in accounting.figures if figure.part and figure.unit in ("", ledger.unit)]
    return figures | {figure.name: ledger.share(figure.part) for figure in of_kind}


def _of_the_script(unit: str, by_node: Mapping[str, Node], begin: float, end: float) -> dict[str, float]:
    """Return the use of GPUs or cores while the script ran."""
    gpus = [_between(node.t, gpu.columns.use, begin, end) for node in by_node.values() for gpu in node.gpus]
    if used := [use for use in gpus if use]:
        means = [statistics.fmean(use) for use in used]
        middle = statistics.median(means)
        figures = {
            "gpus": float(len(used)),
            "gpus_unused": float(sum(not any(use) for use in used)),
            "gpu_use": statistics.fmean(means),
        }
        return figures | ({"imbalance": 100 * (middle - min(means)) / middle} if middle > 0 and len(means) > 1 else {})
    nodes = [(node.cores, _between(node.t, node.columns.cpu, begin, end)) for node in by_node.values()]
    cores = sum(cores for cores, use in nodes if use)
    if unit != "core" or not cores:
        return {}
    return {"cpu_use": min(100.0, 100 * sum(statistics.fmean(use) for _, use in nodes if use) / cores)}


def _between(t: Sequence[float], column: Column, begin: float, end: float) -> list[float]:
    return [value for at, value in zip(t, column, strict=False) if value is not None and begin <= at <= end]


def _memory(by_node: Mapping[str, Node], asked: float) -> dict[str, float]:
    """Return the highest memory of a node in bytes, what was asked for, and how much of it that is."""
    peak = max((size for node in by_node.values() for size in node.columns.memory if size is not None), default=None)
    if peak is None:
        return {}
    gpus = any(node.gpus for node in by_node.values())  # their jobs take memory as the GPUs are
    return {
        "memory_peak": peak,
        **({"memory_asked": asked} if asked else {}),
        **({"memory_used": 100 * peak / asked} if asked and not gpus else {}),
    }
