"""What ``hpcml top`` shows of a run at one moment: its status, and the newest samples of its nodes and tasks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import safe_files, samples, typed_json
from hpcml.failures.rules import of_xid
from hpcml.kind import Kind
from hpcml.paths import AttemptPaths
from hpcml.runs import directories
from hpcml.runs.status import Status
from hpcml.samples import DiskTraffic, NodeSeries, Progress, Series, Traffic, Work, rate, total
from hpcml.states import HAS_NODES, Phase

LINES = 40  # of the script's output
MOST_WARNINGS = 50
_SILENT = 20.0, 4  # a node is silent whose last sample is so many seconds and intervals older than the newest of all
_LOG_TAIL = 16384  # bytes
_FIRST, _NEWS = 1 << 16, 1 << 14  # bytes at the end of a node's file that are read at first, and for what is new
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


_Stamp = tuple[int, int, int]


class Gpu(NamedTuple):
    """A GPU at one moment; None is not known."""

    number: int = 0  # its index on the node
    use: float | None = None  # per cent of the time
    memory: float | None = None  # bytes in use
    memory_size: float | None = None  # bytes in all
    power: float | None = None  # W
    temperature: float | None = None  # °C
    nvlink: float | None = None  # bytes per second, both directions together


class Node(NamedTuple):
    """A node at one moment; None is not known."""

    name: str = ""
    workers: int | None = None  # on it
    sampled: bool = False  # whether it has written a sample
    silent: float = 0.0  # seconds without a sample, 0 if they are few
    cpu: float | None = None  # cores in use
    cores: float | None = None  # in all
    memory: float | None = None  # bytes in use
    memory_size: float | None = None  # bytes in all
    spilled: float | None = None  # bytes that its workers have on disk
    net: float | None = None  # bytes per second of its network, both directions together
    ib: float | None = None  # bytes per second of InfiniBand, both directions together
    disk: float | None = None  # bytes per second, read and written
    gpus: tuple[Gpu, ...] = ()
    whole: bool = False  # whether ``cpu`` is of all processes of the machine, not only of the job


class View(NamedTuple):
    """A run at one moment; durations are in seconds, so that no other machine's clock counts."""

    status: Status
    elapsed: float | None = None  # seconds that the phase lasts; of an ended run how long it took
    left: float | None = None  # seconds that are left of the time limit
    cause: str = ""  # why it failed, in one line
    warnings: tuple[str, ...] = ()  # of the run, of its samples and of silent workers
    output: tuple[str, ...] = ()  # the last lines of the script
    work: Work | None = None
    nodes: tuple[Node, ...] = ()

    @property
    def node_count(self) -> int:
        """How many nodes it has, or has asked for: on one machine, all of them are this machine."""
        return max(len(self.status.allocation.nodes), self.status.planned.node_count)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> View:
        """Return the view that :meth:`as_json` tells, once each value is of its kind."""
        of_status = {name: value for name, value in values.items() if name in _FIELDS_OF_STATUS}
        status = Status.of(**of_status, ended_as=values["state"], time_limit=values["limit"])
        return cls(status, **{name: values[name] for name in cls._fields[1:]})

    def as_json(self) -> dict[str, Any]:
        """Return the view as it is printed for programs and sent to a laptop."""
        status = self.status
        values = {**status.fields(), **self._asdict(), "state": status.state, "over": status.over}
        values |= {"limit": status.planned.time_limit, "node_count": self.node_count}
        return {name: typed_json.plain(values[name], digits=3) for name in PRINTED}


PRINTED = (
    *("run", "site", "job", "state", "phase", "message", "estimate", "silent", "elapsed", "left", "limit"),
    *(
        "node_count",
        "workers",
        "expected",
        "late",
        "has_cluster",
        "exit_status",
        "rank",
        "node",
        "log",
        "cause",
        "hint",
        "warnings",
        "output",
        "work",
        "nodes",
        "over",
    ),
)
_FIELDS_OF_STATUS = {*PRINTED} & {*Status("").fields()} - {*View._fields}


class Look(NamedTuple):
    """What one look at a run's files found, before anything is made of it."""

    nodes: Mapping[str, NodeSeries]
    of_kind: Series[Any] | None
    output: tuple[str, ...]
    kind: Kind


class Reader:
    """Reads the ends of a run's files; a file that has not changed since the last look is not read again."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._nodes: dict[Path, tuple[_Stamp, NodeSeries | None]] = {}
        self._of_kind: tuple[_Stamp | None, Series[Any] | None] = None, None

    def look(self, run: directories.Run, attempt: int, log: Path | None = None) -> Look:
        """Read the newest samples and the last lines of the script's output; what cannot be read is not there.

        ``log`` has the output if it is not the script's log.
        """
        paths = run.paths.attempt(attempt)
        nodes = {path.name.removesuffix(".jsonl"): self._node(path) for path in samples.files_of_nodes(paths)}
        return Look(
            {name: series for name, series in nodes.items() if series is not None},
            self._samples_of_kind(paths),
            last_lines(log or run.paths.script_log),
            self.kind,
        )

    def _samples_of_kind(self, attempt: AttemptPaths) -> Series[Any] | None:
        if (stamp := _stamp(attempt.samples_of_kind(self.kind.name))) != self._of_kind[0]:
            self._of_kind = stamp, samples.last_of_kind(attempt, self.kind, count=64)
        return self._of_kind[1]

    def _node(self, path: Path) -> NodeSeries | None:
        if (stamp := _stamp(path)) is None:
            return None
        reader = self._nodes.get(path)
        if reader is None or reader[0][0] != stamp[0] or reader[1] is None:
            series = samples.last_of_node(path, most=_FIRST)
        elif reader[0] == stamp:
            return reader[1]
        elif series := samples.last_of_node(path, most=_NEWS):
            series = series._replace(events=tuple(dict.fromkeys((*reader[1].events, *series.events))))
        self._nodes[path] = stamp, series
        return series


def _stamp(path: Path) -> _Stamp | None:
    """Return the stamp that changes when a file does, None where there is none."""
    try:
        stat_result = path.lstat()
    except OSError:
        return None
    return stat_result.st_ino, stat_result.st_size, stat_result.st_mtime_ns


def last_lines(path: Path, most: int = LINES) -> tuple[str, ...]:
    """Return the last lines of a log without what a terminal would obey; of a progress bar its newest state."""
    try:
        with open(safe_files.open_regular(path), "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL)
            file.seek(start)
            text = file.read(_LOG_TAIL).decode(errors="replace")
    except OSError:
        return ()
    lines = text.split("\n")[1 if start else 0 :] if "\n" in text else [text]
    return tuple([line for line in map(plain, lines) if line][-most:])


def plain(line: str) -> str:
    """Return a line without escape sequences and control characters, and of a rewritten one the last text."""
    line = _ESCAPES.sub("", line)
    last = next((part for part in reversed(line.split("\r")) if part.strip()), "")
    return _CONTROLS.sub("", last.replace("\t", "    ")).rstrip()[:1000]


# -- what is made of it ----------------------------------------------------------------------------------------------


def view(status: Status, look: Look, now: float, cause: str = "") -> View:
    """Return the view of a run.

    Parameters
    ----------
    look
        The newest samples: two of each node give its rates.
    now
        Seconds since 1970.
    cause
        Why it failed, in one line.
    """
    elapsed, left = _times(status, now)
    shows_nodes = status.phase in (*HAS_NODES, Phase.ENDED)
    names = dict.fromkeys([*status.allocation.nodes, *look.nodes]) if shows_nodes else {}
    of_kind = look.of_kind.samples if look.of_kind and shows_nodes else ()
    progress = look.kind.progress(of_kind, list(names)) if of_kind else None
    return View(
        status,
        elapsed=elapsed,
        left=left,
        cause=cause,
        warnings=(*status.progress.warnings, *_events(look.nodes), *status.silences())[-MOST_WARNINGS:],
        output=look.output,
        work=progress.work if progress else None,
        nodes=_nodes(names, look, progress),
    )


def _times(status: Status, now: float) -> tuple[float | None, float | None]:
    """Return the duration of the phase, or of the run, and the rest of its time limit."""
    times = status.progress.times
    began = times.get("allocated", min(times.values(), default=None))
    if status.over:
        end = times.get("torn-down", times.get("script-ended", times.get("ending")))
        return (None if began is None or end is None else max(0.0, end - began)), None
    since = {
        "running": times.get("script-started"),
        "starting": began,
        "ending": times.get("ending", times.get("script-ended")),
    }.get(status.phase, directories.submitted_at(status.run))
    limit = status.planned.time_limit
    left = max(0.0, began + limit - now) if limit and began is not None else None
    return (None if since is None else max(0.0, now - since)), left


def _events(nodes: Mapping[str, NodeSeries]) -> list[str]:
    """Return the samples' own events as warnings, the oldest first."""
    events = []
    for name, series in nodes.items():
        of_host = series.header.scope.memory == "host"
        of_memory = [event for event in series.events if event.event == "oom"]
        kills = sum(event.kills or 0 for event in of_memory)
        distinct = [event for event in series.events if event.event != "oom"]
        distinct += [event._replace(kills=kills) for event in of_memory[-1:]]
        texts = [(event.t, event.sentence(name, of_host=of_host, of_xid=of_xid)) for event in distinct]
        events += [(time, text) for time, text in texts if text]
    return list(dict.fromkeys(text for _, text in sorted(events)))[-20:]


def _both_ways(before: Traffic | DiskTraffic, after: Traffic | DiskTraffic, seconds: float) -> float | None:
    return total(rate(old, new, seconds) for old, new in zip(before, after, strict=True))


def _nodes(names: Iterable[str], look: Look, progress: Progress | None) -> tuple[Node, ...]:
    """Return the run's nodes in their order, then others that wrote samples."""
    newest = max([series.samples[-1].t for series in look.nodes.values() if series.samples], default=0.0)
    return tuple(
        _node(name, look.nodes.get(name), newest)._replace(
            workers=progress.workers.get(name) if progress else None,
            spilled=progress.spilled.get(name) if progress else None,
        )
        for name in names
    )


def _node(name: str, series: NodeSeries | None, newest: float) -> Node:
    if series is None or not series.samples:
        return Node(name)
    header, last = series.header, series.samples[-1]
    before = series.samples[-2] if len(series.samples) > 1 else last
    passed = last.t - before.t
    gpus = []
    for place, use in enumerate(last.gpus):
        gpu = header.gpus[place] if place < len(header.gpus) else None
        old = before.gpus[place] if place < len(before.gpus) else use
        gpus.append(
            Gpu(
                number=gpu.number if gpu else place,
                use=use.use,
                memory=use.memory,
                memory_size=gpu.memory if gpu else None,
                power=use.power,
                temperature=use.temperature,
                nvlink=_both_ways(old.nvlink, use.nvlink, passed),
            )
        )
    late = newest - last.t
    return Node(
        name,
        sampled=True,
        silent=late if late > max(_SILENT[0], _SILENT[1] * header.every) else 0.0,
        cpu=last.cpu,
        cores=header.cores,
        memory=last.memory,
        memory_size=header.memory,
        net=_both_ways(before.net, last.net, passed),
        ib=_both_ways(before.ib, last.ib, passed),
        disk=_both_ways(before.disk, last.disk, passed),
        gpus=tuple(gpus),
        whole=header.scope.cpu == "host",
    )
