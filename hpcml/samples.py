"""The samples of a run: what its nodes and its own processes measured of themselves while it ran, written and read.

A file has a line for each sample, a JSON list. Its header, a JSON table, names the columns of that list, so that a
column more or less changes nothing for who reads the others. Events are tables too. Amounts that are called cumulative
began before the run: who wants an amount makes differences, and takes a fall for a new beginning. None is not known.

What a node measures is declared here, what the processes of a kind of run measure in a module of the kind
(``Kind.samples``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from hpcml import safe_files, typed_json
from hpcml.paths import AttemptPaths

if TYPE_CHECKING:
    from hpcml.kind import Kind

VERSION = 2
LARGEST = 16 << 20  # bytes of a file that are read; one that is written stays below half of it
_HEAD, _TAIL = 64 << 10, 512 << 10  # bytes at the begin and at the end of a file that hold a header and some samples
_MOST_NUMBER = 1e20  # more than any 64-bit counter
_MOST_NODES = 20_000
_SUFFIX = ".jsonl"

Number = int | float
S = TypeVar("S", bound=NamedTuple)


# -- what a node measures --------------------------------------------------------------------------------------------


class Traffic(NamedTuple):
    """Bytes in both directions."""

    received: Number | None = None
    sent: Number | None = None


class DiskTraffic(NamedTuple):
    """Cumulative bytes."""

    read: Number | None = None
    written: Number | None = None


class Pressure(NamedTuple):
    """Percent of the last 10 s in which something waited."""

    cpu: Number | None = None
    memory: Number | None = None
    io: Number | None = None


class GpuSample(NamedTuple):
    """What its driver measured of a GPU."""

    use: Number | None = None  # percent of the time in which some kernel ran
    memory: Number | None = None  # bytes in use
    power: Number | None = None  # W
    temperature: Number | None = None  # °C
    clock: Number | None = None  # MHz of the SMs
    throttle: Number | None = None  # the vendor's bits of why clocks are lower
    nvlink: Traffic = Traffic()  # cumulative bytes over all links
    pcie: Traffic = Traffic()  # bytes per second, over the driver's last 20 ms
    energy: Number | None = None  # J, cumulative


class NodeSample(NamedTuple):
    """A node at one time."""

    t: float  # seconds since 1970 by the node's clock
    cpu: Number | None = None  # cores in use since the sample before
    memory: Number | None = None  # bytes in use, without page cache
    swap: Number | None = None  # bytes in use
    pressure: Pressure = Pressure()
    net: Traffic = Traffic()  # cumulative bytes of the interfaces
    ib: Traffic = Traffic()  # cumulative bytes of the InfiniBand ports
    disk: DiskTraffic = DiskTraffic()
    gpus: tuple[GpuSample, ...] = ()  # in the header's order


class Gpu(NamedTuple):
    """A GPU of the job, which does not change."""

    number: int  # the driver's index
    uuid: str
    name: str
    memory: Number | None  # bytes
    power_limit: Number | None  # W


class Scope(NamedTuple):
    """Whose use is counted: ``cgroup`` is the job's, ``host`` that of all programs on the node."""

    cpu: str = ""
    memory: str = ""
    disk: str = ""


class NodeHeader(NamedTuple):
    """What does not change on a node."""

    node: str
    t: float  # seconds since 1970 by the node's clock
    every: float  # seconds between samples after the first minute
    cores: Number | None  # that the job may use
    memory: Number | None  # bytes that the job may use
    scope: Scope
    gpus: tuple[Gpu, ...]
    interfaces: tuple[str, ...]  # whose bytes are summed
    infiniband: tuple[str, ...]  # ports whose bytes are summed

    def as_json(self) -> dict[str, Any]:
        """Return the first line of a node's file."""
        return {**header(NODE), **typed_json.plain(self)}


class Event(NamedTuple):
    """What happened on a node: ``xid`` (an error of a GPU, its number) or ``oom`` (the kernel's kills since before)."""

    t: float  # seconds since 1970 by the node's clock
    event: str
    gpu: int | None = None  # the driver's index
    xid: int | None = None
    kills: int | None = None

    def as_json(self) -> dict[str, Any]:
        """Return its line in a node's file."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def sentence(self, node: str, *, of_host: bool, of_xid: Callable[[int], str]) -> str:
        """Return the event in words, without a full stop; empty for an unknown event.

        ``of_host``: the kernel's count there is of all programs on the node, not of the job alone. ``of_xid`` says what
        an Xid means (:func:`hpcml.failures.rules.of_xid`).
        """
        if self.event == "xid":
            words = of_xid(self.xid or 0)
            return f"{node}: GPU {self.gpu} reported Xid {self.xid}" + (f" ({words})" if words else "")
        if self.event != "oom":
            return ""
        processes = "1 process" if self.kills == 1 else f"{self.kills} processes"
        if of_host:
            why = (
                "the kernel counts killed processes on the whole node, because the job has no memory cgroup of its own"
            )
            return f"perhaps another program on {node} ran out of memory: the kernel killed {processes} ({why})"
        return f"{node} ran out of memory: the kernel killed {processes}"


class NodeSeries(NamedTuple):
    """The samples of a node, oldest first."""

    header: NodeHeader
    samples: tuple[NodeSample, ...]
    events: tuple[Event, ...]


class Series(NamedTuple, Generic[S]):
    """The samples of a kind's own processes, oldest first."""

    every: float  # seconds between them after the first minute
    samples: tuple[S, ...]


class Schema(NamedTuple, Generic[S]):
    """The columns of a file.

    A sample's fields are numbers or records of numbers: one, a tuple of them, or a mapping from names to them, which
    its default shows. The first field is ``t``, the time in seconds since 1970.
    """

    name: str  # in the header; of the kind whose samples they are
    sample: type[S]
    many: Mapping[str, type]  # by field, the record that a tuple or a mapping is of


NODE = Schema("node", NodeSample, {"gpus": GpuSample})


class Work(NamedTuple):
    """The tasks of a kind's processes and their data, as ``hpcml top`` shows them; None is not known."""

    known: int | None = None  # tasks
    done: int | None = None  # tasks
    processing: int | None = None  # tasks that workers have been given
    erred: int | None = None  # tasks
    rate: float | None = None  # tasks per second
    left: float | None = None  # seconds, None where tasks are still added
    spilled: float | None = None  # bytes on disk
    transfer: float | None = None  # bytes per second between workers
    spill: float | None = None  # bytes per second to and from disk


class Progress(NamedTuple):
    """What a kind makes of its own samples: the work of all, and by node its processes and their bytes on disk."""

    work: Work
    workers: Mapping[str, int]
    spilled: Mapping[str, float]


def rate(before: Number | None, after: Number | None, seconds: float) -> float | None:
    """Return a counter's change per second, None where the counter began again or is not known."""
    if before is None or after is None or seconds <= 0 or after < before:
        return None
    return (after - before) / seconds


def total(values: Iterable[Number | None]) -> float | None:
    """Return the sum of what is known, None if nothing is."""
    present = [value for value in values if value is not None]
    return float(sum(present)) if present else None


# -- writing ---------------------------------------------------------------------------------------------------------


def header(schema: Schema[Any], **others: Any) -> dict[str, Any]:
    """Return the first line of a file, with what else it says."""
    columns: dict[str, Sequence[str]] = {}
    kinds: list[Any] = [schema.sample, *schema.many.values()]
    for record in kinds:  # those within come behind it
        columns[record.__name__] = record._fields
        kinds += [type(value) for value in record._field_defaults.values() if hasattr(value, "_fields")]
    return {"kind": schema.name, "version": VERSION, "columns": columns, **others}


def line(value: Sequence[Any] | Mapping[str, Any]) -> bytes:
    """Return a sample, or the table of a header or an event, as a line of a file."""
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def thinned(lines: Sequence[bytes]) -> list[bytes]:
    """Return the lines with every second sample of the older half left out; headers and events stay.

    Counters lose nothing by that. The cores in use are those since the sample before, so what a sample that is left
    out says of them goes into the next.
    """
    rows = [(text, value) for text in lines if (value := _value(text)) is not None]
    older = sum(isinstance(value, list) for _, value in rows) // 2
    kept: list[bytes] = []
    cpu: int | None = None  # the column of a node's cores in use
    before: list[Any] = []
    left_out: list[Any] = []
    for text, value in rows:
        if isinstance(value, dict):
            kept.append(text)
            if "kind" in value:
                columns = value.get("columns", {}).get(NodeSample.__name__, ())
                cpu = columns.index("cpu") if "cpu" in columns else None
            continue
        older -= 1
        if older >= 0 and before and not left_out:
            left_out = value
            continue
        if left_out and cpu is not None and (mean := _mean(before, left_out, value, cpu)) is not None:
            value[cpu] = mean
            text = line(value)  # noqa: PLW2901 - the line that is kept
        kept.append(text)
        before, left_out = value, []
    return kept


def _mean(before: list[Any], left_out: list[Any], row: list[Any], column: int) -> float | None:
    """Return a column's mean over two samples, weighted by their times; None if one of them lacks it."""
    first, second = _number(left_out[column]), _number(row[column])
    spans: tuple[float, float] = left_out[0] - before[0], row[0] - left_out[0]
    if first is None or second is None or min(spans) < 0 or not any(spans):
        return None
    return round((first * spans[0] + second * spans[1]) / sum(spans), 3)


# -- reading ---------------------------------------------------------------------------------------------------------


def nodes(attempt: AttemptPaths, most: int = 0) -> dict[str, NodeSeries]:
    """Return the samples of an attempt's nodes, by name; a node whose file cannot be read is left out.

    ``most`` is as in :func:`step`; ``every`` of the headers is that much longer.
    """
    each = step(attempt, most)
    by_name = {path.name.removesuffix(_SUFFIX): node(path, each) for path in files_of_nodes(attempt)}
    return {name: series for name, series in by_name.items() if series is not None}


def step(attempt: AttemptPaths, most: int = 0) -> int:
    """Return 2 for each second sample of a node, and so on, so that ``most`` bytes in all are read (0: any)."""
    return max(1, -(-sum(map(safe_files.size_of, files_of_nodes(attempt))) // most)) if most else 1


def files_of_nodes(attempt: AttemptPaths) -> list[Path]:
    """Return the files of an attempt's nodes, by name."""
    try:
        with os.scandir(attempt.samples / "nodes") as entries:
            names = [entry.name for entry in entries if entry.name.endswith(_SUFFIX) and entry.name[0] != "."]
    except OSError:
        return []
    return [attempt.samples / "nodes" / name for name in sorted(names)[:_MOST_NODES]]


def node(path: Path, step: int = 1) -> NodeSeries | None:
    """Return every ``step``-th sample of one node, the last among them; None without a file or without a header."""
    lines = _content(path).split(b"\n")[:-1]
    series = _node(_every(lines, step) if step > 1 else lines)
    return series and series._replace(header=series.header._replace(every=series.header.every * step))


def last_of_node(path: Path, most: int = _TAIL) -> NodeSeries | None:
    """Return the last two samples of one node, which give a rate, read from the last ``most`` bytes of its file.

    Events are those of these bytes.
    """
    series = _node(_ends(path, most))
    return series and series._replace(samples=series.samples[-2:])


def of_kind(attempt: AttemptPaths, kind: Kind) -> Series[Any] | None:
    """Return the samples of a kind's own processes, None without a file that can be read or without a header."""
    return _of_kind(kind, _content(attempt.samples_of_kind(kind.name)).split(b"\n")[:-1])


def last_of_kind(attempt: AttemptPaths, kind: Kind, count: int) -> Series[Any] | None:
    """Return the last samples of a kind's own processes, read from the end of their file."""
    series = _of_kind(kind, _ends(attempt.samples_of_kind(kind.name), _TAIL))
    return series and series._replace(samples=series.samples[-count:])


def _every(lines: Sequence[bytes], step: int) -> list[bytes]:
    """Return the lines with every ``step``-th sample, counted from the last; headers and events stay."""
    places = [place for place, line in enumerate(lines) if line.startswith(b"[")]
    left_out = set(places) - set(places[::-1][::step])
    return [line for place, line in enumerate(lines) if place not in left_out]


def _content(path: Path) -> bytes:
    try:
        return safe_files.read(path, LARGEST)
    except OSError:
        return b""


def _ends(path: Path, most: int) -> list[bytes]:
    """Return the whole lines at the begin of a file, for its header, and at its end."""
    try:
        with open(safe_files.open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(min(_HEAD, most))
            tail = b""
            if size > len(head):
                file.seek(max(len(head), size - most))
                tail = file.read(most)
    except OSError:
        return []
    if size <= len(head) + len(tail):
        return (head + tail).split(b"\n")[:-1]
    return [head.partition(b"\n")[0], *tail.split(b"\n")[1:-1]]


def _value(line: bytes) -> list[Any] | dict[str, Any] | None:
    """Return a sample, or the table of a header or an event; None for a damaged line."""
    try:
        value = safe_files.parsed(json.loads, line.decode())
    except ValueError:
        return None
    if isinstance(value, list):
        return value if value and _number(value[0]) is not None else None
    return value if isinstance(value, dict) and _number(value.get("t")) is not None else None


def _read(lines: Iterable[bytes], schema: Schema[S]) -> tuple[dict[str, Any] | None, list[S], list[Event]]:
    """Return the last header of a file, its samples and its events; a damaged line is left out."""
    table: dict[str, Any] | None = None
    read: Callable[[object], S | None] | None = None
    samples: list[S] = []
    events: list[Event] = []
    for value in map(_value, lines):
        if isinstance(value, list):
            if read and (sample := read(value)) is not None:
                samples.append(sample)
        elif value and value.get("kind") == schema.name:
            table, read = value, _whole_row(schema, _table(value.get("columns")))
        elif value and "event" in value:
            events.append(typed_json.salvage(Event, value)[0])
    return table, samples, events


def _node(lines: Iterable[bytes]) -> NodeSeries | None:
    table, samples, events = _read(lines, NODE)
    return (
        None if table is None else NodeSeries(typed_json.salvage(NodeHeader, table)[0], tuple(samples), tuple(events))
    )


def _of_kind(kind: Kind, lines: Iterable[bytes]) -> Series[Any] | None:
    if (schema := kind.samples()) is None:
        return None
    table, samples, _ = _read(lines, schema)
    return None if table is None else Series(float(_number(table.get("every")) or 0.0), tuple(samples))


# -- the values of a file --------------------------------------------------------------------------------------------


def _whole_row(schema: Schema[S], columns: Mapping[str, Any]) -> Callable[[object], S | None]:
    """Return the function that reads a row; it returns None for one that lacks columns or has more."""
    read = _row(schema.sample, columns, schema.many)
    count = len(written) if "t" in (written := _list(columns.get(schema.sample.__name__))) else -1
    return lambda values: read(values) if isinstance(values, list) and len(values) == count else None


def _row(record: Any, columns: Mapping[str, Any], many: Mapping[str, type]) -> Callable[[object], Any]:
    """Return the function that reads a list of values, in the order of a file's columns, as a record."""
    written = _list(columns.get(record.__name__))
    readers: list[tuple[int, Callable[[object], Any], Any]] = []
    for name in record._fields:
        default = record._field_defaults.get(name)
        place = written.index(name) if name in written else -1
        readers.append((place, _field(default, columns, many.get(name)), default))

    def read(value: object) -> Any:
        values = value if isinstance(value, list) else []
        count = len(values)
        return tuple.__new__(record, [one(values[at]) if 0 <= at < count else default for at, one, default in readers])

    return read


def _field(default: Any, columns: Mapping[str, Any], record: type | None) -> Callable[[object], Any]:
    """Return the function that reads a field: a number, a record, or many of them."""
    if record is None:
        return _row(type(default), columns, {}) if hasattr(default, "_fields") else _number
    one = _row(record, columns, {})
    if isinstance(default, tuple):
        return lambda value: tuple(one(part) for part in _list(value))
    return lambda value: {name: one(part) for name, part in _table(value).items()}


def _number(value: object) -> Number | None:
    if (type(value) is float or type(value) is int) and -_MOST_NUMBER < value < _MOST_NUMBER:
        return value
    return None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
