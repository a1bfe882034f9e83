"""The logs of a run's ranks as one: their lines in the order in which they were written, each after its rank."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcml import kinds, safe_files
from hpcml.runs import directories
from hpcml.runs import record as records
from hpcml.runs.status import Status

OF_ONE = re.compile(r"rank:(\d{1,9})")  # the word for the log of one rank
_PIECE = 1 << 20  # bytes that are read at once
_LONGEST = 1 << 16  # bytes of a line that may wait for its end
_GROWTH = re.compile(r"(\d+\.\d) (\d+) (\S+)")


def of_ranks(run: directories.Run) -> dict[int, Path]:
    """Return the logs of the ranks by their numbers; that of rank 0 is the script's."""
    agents = {path for path, _ in _of_agents(run)}
    found = {path for role in _roles() for path in run.paths.logs.glob(f"{role}-*.log")} - agents
    numbered = {int(end): path for path in found if (end := path.stem.rpartition("-")[2]).isdecimal()}
    return dict(sorted({0: run.paths.script_log, **numbered}.items()))


def of_failed(run: directories.Run, status: Status) -> Path:
    """Return the log of the rank that failed first; without one that of the script."""
    return run.paths.logs / Path(status.ending.log).name if status.ending.log else run.paths.script_log


def _roles() -> list[str]:
    """Return the roles whose agents start ranks; a run has logs of one at most."""
    return [kind.ranks.name for kind in kinds.KINDS.values() if kind.ranks]


def _of_agents(run: directories.Run) -> list[tuple[Path, str]]:
    """Return the logs of the agents, each with its node."""
    with directories.complete(run.paths.directory):
        begins = [event.facts.texts("nodes") for event in records.Record(run.paths).events if event.name == "allocated"]
    nodes = dict.fromkeys(node for nodes in begins for node in nodes)
    return [(run.paths.log(role, node), node) for role in _roles() for node in nodes]


class Merged:
    """The logs of all ranks and their agents. ``start`` returns the position at which to begin in a file."""

    def __init__(self, run: directories.Run, start: Callable[[Path], int] = lambda _: 0) -> None:
        self.run, self.start = run, start
        self.growth: dict[str, list[tuple[float, int]]] = {}  # by file: its size at times
        for path in sorted(path for role in _roles() for path in run.paths.logs.glob(f"{role}-*.times")):
            with directories.storage(path):
                text = safe_files.read(path).decode(errors="replace")
            for match in filter(None, map(_GROWTH.fullmatch, text.splitlines())):
                self.growth.setdefault(match[3], []).append((float(match[1]), int(match[2])))
        self.positions: dict[Path, int] = {}
        self.rests: dict[Path, bytes] = {}  # the beginnings of lines that have not ended
        self.names: dict[Path, str] = {}
        self.seen: object = None

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that are new, each after its rank or its node."""
        pieces, names = [], self._names()
        width = max(len(name) for name in names.values() if name.startswith("rank "))
        for number, path in enumerate(names):
            begin = self.positions.setdefault(path, self.start(path))
            whole = safe_files.size_of(path)
            for when, size in (*self.growth.get(path.name, ()), (math.inf, whole)):
                if begin < (end := min(size, whole)):
                    pieces.append((when, number, path, begin, end))
                    begin = end
            self.positions[path] = begin
        for _, _, path, begin, end in sorted(pieces, key=lambda piece: piece[:2]):
            for line in self._read(path, begin, end):
                yield f"{names[path]:<{width}} | ".encode() + line + b"\n"

    def rest(self) -> Iterator[bytes]:
        """Yield the last lines, where they did not end."""
        for path, name in self._names().items():
            if line := self.rests.pop(path, b""):
                yield f"{name} | ".encode() + line + b"\n"

    def _names(self) -> dict[Path, str]:
        logs = self.run.paths.logs
        seen = safe_files.size_of(self.run.paths.events), logs.stat().st_mtime_ns if logs.is_dir() else 0
        if seen != self.seen:
            by_rank = {path: f"rank {rank}" for rank, path in of_ranks(self.run).items()}
            self.seen, self.names = seen, {**by_rank, **dict(_of_agents(self.run))}
        return self.names

    def _read(self, path: Path, begin: int, end: int) -> Iterator[bytes]:
        """Yield the lines that end in a part of a file."""
        with directories.storage(path), open(safe_files.open_regular(path), "rb") as file:
            file.seek(begin)
            while data := file.read(min(_PIECE, end - file.tell())):
                *lines, rest = (self.rests.pop(path, b"") + data).split(b"\n")
                yield from lines
                if len(rest) > _LONGEST:
                    yield rest
                elif rest:
                    self.rests[path] = rest
