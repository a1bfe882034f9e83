"""The samples of a run: what its nodes and its scheduler wrote of themselves while it ran, read back.

A file has one JSON table a line: a header first, then samples and events. Counters are cumulative since before the
run: who wants an amount makes differences, and takes a fall for a counter that began anew. What is not known is None.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import files
from hpcml.paths import AttemptPaths

VERSION = 1
LARGEST = 16 << 20  # bytes of a file that are read; one that is written stays below half of it
_HEAD, _TAIL = 64 << 10, 512 << 10  # bytes at the begin and at the end of a file that hold a header and some samples
_MOST_NUMBER = 1e20  # more than any 64-bit counter
_MOST_NODES = 20_000
_SUFFIX = ".jsonl"

Number = int | float
Pair = tuple[Number | None, Number | None]


class Gpu(NamedTuple):
    """A GPU of the job: NVML's index, bytes of memory, the power limit in watts."""

    index: int  # type: ignore[assignment] # a tuple's method of that name is not needed
    uuid: str
    name: str
    memory: Number | None
    power_limit: Number | None


class GpuSample(NamedTuple):
    """What NVML said of a GPU.

    ``use`` in per cent, ``memory`` in use in bytes, ``power`` in W, ``temperature`` in °C, ``clock`` of the SMs in MHz,
    ``throttle`` NVML's bits of why clocks are lower. Cumulative: ``nvlink_rx`` and ``nvlink_tx`` in KiB over all links,
    ``energy`` in mJ. ``pcie_rx`` and ``pcie_tx`` are rates in KiB/s over NVML's last 20 ms.
    """

    use: Number | None = None
    memory: Number | None = None
    power: Number | None = None
    temperature: Number | None = None
    clock: Number | None = None
    throttle: Number | None = None
    nvlink_rx: Number | None = None
    nvlink_tx: Number | None = None
    pcie_rx: Number | None = None
    pcie_tx: Number | None = None
    energy: Number | None = None


class NodeHeader(NamedTuple):
    """What does not change on a node: ``cores`` that the job may use, bytes of ``memory`` and whose they are.

    ``memory_of`` is ``cgroup`` (the job's) or ``host``: so are the samples' CPU and memory. ``every`` is the seconds
    between samples after the first minute. ``interfaces`` and ``infiniband`` are the ports whose bytes are summed.
    """

    node: str
    t: float
    every: float
    cores: Number | None
    memory: Number | None
    memory_of: str
    gpus: tuple[Gpu, ...]
    interfaces: tuple[str, ...]
    infiniband: tuple[str, ...]


class NodeSample(NamedTuple):
    """A node at one time, in seconds since 1970 by its own clock.

    ``cpu`` is cores in use since the sample before, ``memory`` and ``swap`` bytes in use, ``pressure`` the per cent of
    the last 10 s in which something waited for CPU, memory and I/O. Cumulative bytes: ``net`` and ``ib`` received and
    sent, ``disk`` read and written. ``gpus`` are in the header's order.
    """

    t: float
    cpu: Number | None
    memory: Number | None
    swap: Number | None
    pressure: tuple[Number | None, Number | None, Number | None]
    net: Pair
    ib: Pair
    disk: Pair
    gpus: tuple[GpuSample, ...]


class Event(NamedTuple):
    """What happened on a node: ``xid`` (an error of a GPU, its number) or ``oom`` (the kernel's kills since before)."""

    t: float
    event: str
    gpu: int | None = None
    xid: int | None = None
    kills: int | None = None

    def sentence(self, node: str, *, of_host: bool) -> str:
        """Return what happened in words, without a full stop; empty if it is an event that is not known here.

        ``of_host``: what the kernel counts there is of all that runs on the node, not of the job alone.
        """
        if self.event == "xid":
            return f"{node}: GPU {self.gpu} reported Xid {self.xid}"
        if self.event != "oom":
            return ""
        processes = "1 process" if self.kills == 1 else f"{self.kills} processes"
        perhaps = " (of any program there: the job has no memory group of its own)" if of_host else ""
        return f"{node}: the kernel killed {processes} for want of memory{perhaps}"


class NodeSeries(NamedTuple):
    """The samples of a node, oldest first."""

    header: NodeHeader
    samples: tuple[NodeSample, ...]
    events: tuple[Event, ...]


class Tasks(NamedTuple):
    """Dask's tasks: ``known``, ``done`` and ``erred`` since the begin of the run, the others now."""

    known: Number | None = None
    done: Number | None = None
    processing: Number | None = None
    waiting: Number | None = None
    queued: Number | None = None
    erred: Number | None = None


class WorkerSample(NamedTuple):
    """A worker: tasks that it has been given, bytes of its process's memory, bytes on disk, per cent of a CPU."""

    processing: Number | None = None
    memory: Number | None = None
    spilled: Number | None = None
    cpu: Number | None = None


class DaskSample(NamedTuple):
    """The run as its scheduler sees it.

    ``metrics`` are cumulative over all workers, thread seconds by kind of activity (``execute``, ``transfer``,
    ``spill``, ``serialize``, ``other``) and ``transfer_bytes`` and ``spill_bytes``.
    """

    t: float
    tasks: Tasks
    workers: Mapping[str, WorkerSample]
    metrics: Mapping[str, Number]


class DaskSeries(NamedTuple):
    """The scheduler's samples, oldest first; ``every`` is the seconds between them after the first minute."""

    every: float
    samples: tuple[DaskSample, ...]


def total(values: Iterable[Number | None]) -> float | None:
    """Return the sum of what is known, None if nothing is."""
    known = [value for value in values if value is not None]
    return float(sum(known)) if known else None


# -- reading ---------------------------------------------------------------------------------------------------------


def nodes(attempt: AttemptPaths, most: int = 0) -> dict[str, NodeSeries]:
    """Return the samples of an attempt's nodes, by name; a node whose file cannot be read is left out.

    ``most`` is as in :func:`step`; ``every`` of the headers is that much longer.
    """
    each = step(attempt, most)
    found = {path.name.removesuffix(_SUFFIX): node(path, each) for path in files_of_nodes(attempt)}
    return {name: series for name, series in found.items() if series is not None}


def step(attempt: AttemptPaths, most: int = 0) -> int:
    """Return 2 for each second sample of a node, and so on, so that ``most`` bytes in all are understood (0: any)."""
    return max(1, -(-sum(map(_size, files_of_nodes(attempt))) // most)) if most else 1


def files_of_nodes(attempt: AttemptPaths) -> list[Path]:
    """Return the files of an attempt's nodes, by name."""
    try:
        with os.scandir(attempt.samples / "nodes") as entries:
            names = [entry.name for entry in entries if entry.name.endswith(_SUFFIX) and entry.name[0] != "."]
    except OSError:
        return []
    return [attempt.samples / "nodes" / name for name in sorted(names)[:_MOST_NODES]]


def node(path: Path, step: int = 1) -> NodeSeries | None:
    """Return each so-manieth sample of one node, the last among them; None without a file or without a header."""
    content = _content(path)
    series = _node(_tables(_each(content, step) if step > 1 else content))
    return series and series._replace(header=series.header._replace(every=series.header.every * step))


def dask(attempt: AttemptPaths) -> DaskSeries | None:
    """Return the scheduler's samples, None without a file that can be read or without a header."""
    return _dask(_tables(_content(attempt.dask_samples)))


def last_of_node(path: Path, most: int = _TAIL) -> NodeSeries | None:
    """Return the last two samples of one node, which give a rate, read from the last ``most`` bytes of its file.

    Events are those beside.
    """
    series = _node(_ends(path, most))
    return series and series._replace(samples=series.samples[-2:])


def last_of_dask(path: Path, count: int) -> DaskSeries | None:
    """Return the scheduler's last samples, read from the end of its file."""
    series = _dask(_ends(path, _TAIL))
    return series and series._replace(samples=series.samples[-count:])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _each(content: bytes, step: int) -> bytes:
    """Return the lines without all but each so-manieth sample, counted from the last; headers and events stay."""
    lines = content.split(b"\n")[:-1]
    places = [place for place, line in enumerate(lines) if b'"kind"' not in line and b'"event"' not in line]
    left_out = set(places) - set(places[::-1][::step])
    return b"".join(line + b"\n" for place, line in enumerate(lines) if place not in left_out)


def _content(path: Path) -> bytes:
    try:
        return files.read(path, LARGEST)
    except OSError:
        return b""


def _ends(path: Path, most: int) -> Iterator[dict[str, Any]]:
    """Yield the tables at the begin of a file, for its header, and at its end."""
    try:
        with open(files.open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(min(_HEAD, most))
            tail = b""
            if size > len(head):
                file.seek(max(len(head), size - most))
                tail = file.read(most)
    except OSError:
        return
    if size <= len(head) + len(tail):
        yield from _tables(head + tail)
    else:
        yield from _tables(head.partition(b"\n")[0] + b"\n")
        yield from _tables(tail.partition(b"\n")[2])


def _tables(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON tables of the whole lines; a line that is none is damaged, and left out."""
    for line in content.split(b"\n")[:-1]:
        try:
            table = files.parsed(json.loads, line.decode())
        except ValueError:
            continue
        if isinstance(table, dict) and _number(table.get("t")) is not None:
            yield table


def _node(tables: Iterator[dict[str, Any]]) -> NodeSeries | None:
    header: NodeHeader | None = None
    samples: list[NodeSample] = []
    events: list[Event] = []
    for table in tables:
        if table.get("kind") == "node":
            header = _header(table)
        elif "event" in table:
            whole = [_whole(table.get(name)) for name in ("gpu", "xid", "kills")]
            events.append(Event(float(table["t"]), _text(table["event"]), *whole))
        elif "kind" not in table:
            samples.append(_sample(table))
    return header and NodeSeries(header, tuple(samples), tuple(events))


def _header(table: Mapping[str, Any]) -> NodeHeader:
    gpus = [gpu for gpu in _list(table.get("gpus")) if isinstance(gpu, dict)]
    return NodeHeader(
        node=_text(table.get("node")),
        t=float(table["t"]),
        every=float(_number(table.get("every")) or 0.0),
        cores=_number(table.get("cores")),
        memory=_number(table.get("memory")),
        memory_of=_text(table.get("memory_of")),
        gpus=tuple(
            Gpu(
                number if (number := _whole(gpu.get("index"))) is not None else place,
                _text(gpu.get("uuid")),
                _text(gpu.get("name")),
                _number(gpu.get("memory")),
                _number(gpu.get("power_limit")),
            )
            for place, gpu in enumerate(gpus)
        ),
        interfaces=tuple(_text(name) for name in _list(table.get("interfaces"))),
        infiniband=tuple(_text(name) for name in _list(table.get("infiniband"))),
    )


def _sample(table: Mapping[str, Any]) -> NodeSample:
    processor, memory, disk = _numbers(table.get("pressure"), 3)
    return NodeSample(
        t=float(table["t"]),
        cpu=_number(table.get("cpu")),
        memory=_number(table.get("memory")),
        swap=_number(table.get("swap")),
        pressure=(processor, memory, disk),
        net=_pair(table.get("net")),
        ib=_pair(table.get("ib")),
        disk=_pair(table.get("disk")),
        gpus=tuple(GpuSample(*_numbers(gpu, len(GpuSample._fields))) for gpu in _list(table.get("gpus"))),
    )


def _dask(tables: Iterator[dict[str, Any]]) -> DaskSeries | None:
    every: float | None = None
    samples: list[DaskSample] = []
    for table in tables:
        if table.get("kind") == "dask":
            every = float(_number(table.get("every")) or 0.0)
        elif "kind" not in table:
            tasks, workers, metrics = (_table(table.get(name)) for name in ("tasks", "workers", "metrics"))
            samples.append(
                DaskSample(
                    t=float(table["t"]),
                    tasks=Tasks(*[_number(tasks.get(name)) for name in Tasks._fields]),
                    workers={
                        name: WorkerSample(*_numbers(facts, len(WorkerSample._fields)))
                        for name, facts in workers.items()
                    },
                    metrics={name: number for name, value in metrics.items() if (number := _number(value)) is not None},
                )
            )
    return None if every is None else DaskSeries(every, tuple(samples))


# -- what may stand in a file ----------------------------------------------------------------------------------------


def _number(value: object) -> Number | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and -_MOST_NUMBER < value < _MOST_NUMBER:
        return value
    return None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _text(value: object) -> str:
    return value[:200] if isinstance(value, str) else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _numbers(value: object, count: int) -> list[Number | None]:
    numbers = [_number(one) for one in _list(value)[:count]]
    return numbers + [None] * (count - len(numbers))


def _pair(value: object) -> Pair:
    first, second = _numbers(value, 2)
    return first, second
