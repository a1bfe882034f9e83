"""The samples of a run as columns over time: of each node, of each GPU, and of Dask."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from hpcml import samples
from hpcml.paths import AttemptPaths
from hpcml.samples import DaskSample, Event, GpuSample, NodeSample, NodeSeries, Number, total

KIB = 1024
Column = list[float | None]
T = TypeVar("T", NodeSample, DaskSample)


class Gpu(NamedTuple):
    """A GPU: NVML's ``number``, ``memory`` in bytes (0: not known), and its columns.

    They are ``use`` (0 to 1, since the last sample), ``memory`` (bytes), ``power`` (W), ``throttle`` (NVML's bits),
    ``nvlink`` and ``pcie`` (bytes per second, both ways), ``energy`` (J, a counter).
    """

    number: int
    name: str
    memory: float
    columns: dict[str, Column]


class Node(NamedTuple):
    """A node: ``t`` are the samples' times, ``memory`` is bytes, ``cores`` those that the run may use.

    The columns are ``cpu`` (cores in use), ``memory`` (bytes), ``net``, ``ib``, ``disk`` (bytes per second, both ways).
    """

    name: str
    every: float
    cores: float
    memory: float
    t: list[float]
    columns: dict[str, Column]
    gpus: tuple[Gpu, ...]
    events: tuple[Event, ...] = ()
    of_host: bool = False  # cores and memory are those of all that runs on the machine, not of the job alone


class Dask(NamedTuple):
    """What the scheduler knew: ``workers`` are the tasks of each at the times ``t``, ``columns`` are by name.

    ``processing`` (tasks) and ``spilled`` (bytes) are of the moment; ``done`` (tasks), ``execute``, ``transfer``,
    ``spill``, ``serialize`` and ``other`` (thread seconds) count from the start.
    """

    every: float
    t: list[float]
    columns: dict[str, Column]
    workers: dict[str, Column]


def nodes(attempt: AttemptPaths, most: int = 0) -> dict[str, Node]:
    """Return what each node's sampler wrote, by the nodes' names; a node without samples is left out.

    ``most`` is as in :func:`hpcml.samples.nodes`.
    """
    return {name: _node(name, series) for name, series in samples.nodes(attempt, most).items() if series.samples}


def dask(attempt: AttemptPaths) -> Dask | None:
    """Return what the scheduler's sampler wrote; None if there is nothing."""
    series = samples.dask(attempt)
    if series is None or not (rows := _in_order(series.samples)):
        return None
    columns: dict[str, Column] = {
        "processing": [row.tasks.processing for row in rows],
        "done": [row.tasks.done for row in rows],
        "spilled": [total(worker.spilled for worker in row.workers.values()) for row in rows],
    }
    for name in ("execute", "transfer", "spill", "serialize", "other"):
        columns[name] = [row.metrics.get(name) for row in rows]
    names = dict.fromkeys(name for row in rows for name in row.workers)
    workers: dict[str, Column] = {
        name: [row.workers[name].processing if name in row.workers else None for row in rows] for name in names
    }
    return Dask(series.every or 5.0, [row.t for row in rows], columns, workers)


def increase(counters: Column) -> float | None:
    """Return what a counter went up by in all, over its resets; None if nothing is known."""
    known = [value for value in counters if value is not None]
    if len(known) < 2:
        return None
    return sum(max(0.0, now - before) for before, now in itertools.pairwise(known))


def _in_order(rows: Iterable[T]) -> list[T]:
    """Return samples whose times go forward; a clock that was set back is waited for."""
    found: list[T] = []
    for row in rows:
        if row.t > (found[-1].t if found else 0.0):
            found.append(row)
    return found


def _rates(t: Sequence[float], counters: Column) -> Column:
    """Return what a counter went up by, per second; not known where it fell."""
    rates: Column = [None] * len(t)
    for at in range(1, len(t)):
        before, now = counters[at - 1], counters[at]
        if before is not None and now is not None and now >= before:
            rates[at] = (now - before) / (t[at] - t[at - 1])
    return rates


def _node(name: str, series: NodeSeries) -> Node:
    rows, head = _in_order(series.samples), series.header
    t = [row.t for row in rows]
    columns: dict[str, Column] = {
        "cpu": [row.cpu for row in rows],
        "memory": [row.memory for row in rows],
        "net": _rates(t, [total(row.net) for row in rows]),
        "ib": _rates(t, [total(row.ib) for row in rows]),
        "disk": _rates(t, [total(row.disk) for row in rows]),
    }
    gpus = tuple(
        Gpu(gpu.index, gpu.name, float(gpu.memory or 0), _of_gpu(t, [_at(row, place) for row in rows]))
        for place, gpu in enumerate(head.gpus)
    )
    cores = head.cores if head.cores and head.cores > 0 else 1
    size, of_host = float(head.memory or 0), head.memory_of == "host"
    return Node(name, head.every or 5.0, float(cores), size, t, columns, gpus, series.events, of_host)


def _at(row: NodeSample, place: int) -> GpuSample:
    return row.gpus[place] if place < len(row.gpus) else GpuSample()


def _of_gpu(t: Sequence[float], rows: Sequence[GpuSample]) -> dict[str, Column]:
    def scaled(read: Callable[[GpuSample], Number | None], factor: float) -> Column:
        return [None if (value := read(row)) is None else value * factor for row in rows]

    return {
        "use": [None if row.use is None else min(1.0, max(0.0, row.use / 100)) for row in rows],
        "memory": [row.memory for row in rows],
        "power": [row.power for row in rows],
        "throttle": [row.throttle for row in rows],
        "nvlink": _rates(t, scaled(lambda row: total((row.nvlink_rx, row.nvlink_tx)), KIB)),
        "pcie": scaled(lambda row: total((row.pcie_rx, row.pcie_tx)), KIB),
        "energy": scaled(lambda row: row.energy, 0.001),
    }
