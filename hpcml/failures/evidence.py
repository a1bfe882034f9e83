"""Find lines in a run's logs that match a rule, each with its file, line number and time."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hpcml import earlier_names, safe_files, typed_json
from hpcml.failures.end import ProcessEnd
from hpcml.failures.note import script_error, table
from hpcml.failures.rule import Rule, Where
from hpcml.failures.rules import BY_NAME, COLOURS, ERROR, RULES
from hpcml.paths import SCRIPT, AttemptPaths, RunPaths

HEAD, TAIL = 32 << 10, 160 << 10  # bytes of a log that are read: its begin and its end
_ERROR_OF_RANK = re.compile(r"script-error-(\d{1,9})\.json")
_RANK = re.compile(r"\d{1,9}")
_LOG_OF_RANK = re.compile(r"rank-(.+)-(\d{1,9})\.log")
_MOST_ERRORS = 64  # of ranks, and marks of nodes, that are read
_SMALL = 16 << 10  # bytes of a log on average, of which more than so many are read
_COUNTED = 64 << 20  # bytes; of a longer log the numbers of its last lines are not counted
_LONGEST = 400  # characters of a line that are kept
_TIME = r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)"
_STAMP = re.compile(rf"^(?:\[?{_TIME}(?:[.,](\d{{1,6}}))?|.*CANCELLED AT {_TIME})")
_NO_END = " - INFO - "  # Dask's level for what is no trouble
_OWN_WARNING = "hpcml: warning: "  # what hpcml itself warns of ends no run, whatever error it quotes
_PLACE = re.compile(r'^  File "(.+)", line (\d+) in (\S+)')
_LIBRARY = "nccl-"  # how the names of the logs begin that a library writes itself
_LAST_WORDS = ("Fatal Python error", "terminate called")  # of a process: later lines are read at once
_ERROR_BEFORE = 8 << 10  # bytes of a log before the end of a process, in which its error is looked for
_NEAR = 200  # lines from one without a time to one that has one


class Line(NamedTuple):
    """A line that shows something."""

    text: str
    source: str  # script, scheduler, worker, job, library or record
    file: str = ""  # its path in the run's directory, empty if it is in no log
    number: int = 0  # from 1, 0 if it is not known
    time: float = 0.0  # in seconds since 1970 by the run's own clocks, 0 if it is not known
    node: str = ""
    rank: int | None = None  # whose log it is in, None if it is no rank's


class When(NamedTuple):
    """When a line was written, by its node's clock, in seconds since 1970; unknown limits are 0 and infinite."""

    least: float = 0.0
    most: float = math.inf
    changed: float = 0.0  # when its file was changed


class Hit(NamedTuple):
    """A line and the rule that knows it."""

    rule: Rule
    line: Line
    groups: tuple[str, ...] = ()  # of the rule's pattern
    place: str = ""  # where Python was when it crashed; of a process that exited, its error
    when: When = When()
    within: float = 0.0  # seconds by which its node's clock may be wrong after it was corrected
    own: bool = False  # whether the process printed it that ended the run: the script, the rank that failed first


class Piece(NamedTuple):
    """Some of a log's text, and the number of its first line (0 if it is not known)."""

    text: str
    first: int


class Log(NamedTuple):
    """A log of a run."""

    source: str
    node: str
    path: Path
    rank: int | None = None

    @property
    def name(self) -> str:
        """Its path in the run's directory."""
        return f"{self.path.parent.name}/{self.path.name}"


def logs(paths: RunPaths, most: int, always: str = "") -> Iterator[Log]:
    """Yield each log that counts, of many of a role the smallest: ``most``, or more if they are short.

    The log with the name ``always`` is among them.
    """
    try:
        names = sorted(name for name in os.listdir(paths.logs) if name.endswith(".log"))
    except OSError:
        return  # the run has no logs: other evidence is all there is
    roles = dict.fromkeys(
        ("job", SCRIPT, *map(earlier_names.source, (name.removesuffix(".log") for name in names if "-" not in name)))
    )
    for source in roles:
        yield Log(source, "", paths.log(source))
    begins = dict.fromkeys(name[: name.index("-") + 1] for name in names if "-" in name)
    for begin in sorted(begins, key=lambda begin: begin == _LIBRARY):
        source = "library" if begin == _LIBRARY else begin[:-1]
        log_names = [name for name in names if name.startswith(begin)]
        if len(log_names) > most:  # a worker that failed wrote last before the end, and its log is among the smaller
            sizes = sorted((_size(paths.logs / name), name) for name in log_names)
            sums = itertools.accumulate(size for size, _ in sizes)
            kept = [name for index, (_, name) in enumerate(sizes) if next(sums) <= most * _SMALL or index < most]
            log_names = [*kept, *({always} & {*log_names} - {*kept})]
        for name in log_names:
            node = name.removeprefix(begin).removesuffix(".log")
            of_one, _, number = node.rpartition("-")  # a rank's log is named like its agent's, and by its number
            rank = int(number) if number.isdecimal() and f"{begin}{of_one}.log" in names else None
            if source == "library":
                node = node.rpartition(".")[0] or node
            yield Log(source, node if rank is None else of_one, paths.logs / name, rank)


def _size(path: Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def pieces(path: Path, begin: int = 0) -> list[Piece]:
    """Return the begin and the end of a log; nothing if it is not there, is a link, or another account's.

    What is in its first bytes up to ``begin`` does not count: an earlier attempt wrote it.
    """
    try:
        descriptor = safe_files.open_regular(path)
    except OSError:
        return []  # it is no evidence
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        begin = begin if 0 < begin <= size else 0
        first = 1 + _breaks(file, begin) if begin <= _COUNTED else 0
        file.seek(begin)
        size -= begin
        if size <= HEAD + TAIL:
            return [Piece(_text(file.read(HEAD + TAIL)), first)]
        head = file.read(HEAD)
        skipped = size - HEAD - TAIL
        counts = first and size <= _COUNTED
        before = first + head.count(b"\n") + _breaks(file, skipped >> 16 << 16) if counts else 0
        file.seek(begin + HEAD + (skipped >> 16 << 16))
        rest = file.read(TAIL + (1 << 16))
        return [Piece(_text(head), first), Piece(_text(rest), before)]


def _breaks(file: BinaryIO, size: int) -> int:
    """Return the number of lines that end in the next bytes of a file."""
    breaks = 0
    while size > 0 and (data := file.read(min(size, 1 << 16))):
        breaks += data.count(b"\n")
        size -= len(data)
    return breaks


def _text(data: bytes) -> str:
    return COLOURS.sub("", data.decode(errors="replace").replace("\r\n", "\n"))


def hits(paths: RunPaths, attempt: AttemptPaths, most: int, always: str = "", begin: int = 0) -> list[Hit]:
    """Return the lines of a run's logs that a rule knows, in the order of the files; the logs are those of ``logs``.

    The ends of processes that the agents have written down are among them, each where its agent's log was then. In the
    log ``always``, by default the script's, what is before ``begin`` does not count.
    """
    found_hits: list[Hit] = []
    for log in logs(paths, most, always):
        of_log: list[Hit] = []
        for piece in pieces(log.path, begin if log.path.name == (always or paths.script_log.name) else 0):
            hits_of_piece = hits_in(piece, log.source, log.node, log.name, _changed(log.path))
            of_log += [hit._replace(line=hit.line._replace(rank=log.rank)) for hit in hits_of_piece]
        if log.node and log.rank is None and (ends := _ends_of_processes(log, attempt.mark_of(log.node))):
            of_log = sorted(of_log + ends, key=lambda hit: hit.line.number or math.inf)
        found_hits += of_log
    return found_hits


def _ends_of_processes(log: Log, mark: Path) -> list[Hit]:
    """Return the ends of a node's processes as hits in its agent's log."""
    ends, _ = typed_json.salvage(tuple[ProcessEnd, ...], table(mark, HEAD).get("ends", []))
    ended = []
    for end in ends:
        rule = BY_NAME.get(end.reason) if end.reason.startswith(f"{log.source}-") else None
        if rule is None:
            continue
        number, error = _place_in_log(log.path, end.log_size)
        text = f"{log.source} {end.name} ended: {end.what}"[:_LONGEST]
        line = Line(text, log.source, log.name, number, end.time, log.node)
        place = error if end.reason == f"{log.source}-exit" else ""
        ended.append(Hit(rule, line, (end.name, str(end.status)), place, When(end.time, end.time)))
    return ended


def _place_in_log(path: Path, size: int) -> tuple[int, str]:
    """Return the number of the line behind the first bytes of a log, and the last error in the lines before it."""
    try:
        descriptor = safe_files.open_regular(path)
    except OSError:
        return 0, ""
    with open(descriptor, "rb") as file:
        number = 1 + _breaks(file, size) if 0 < size <= _COUNTED else 0
        start = max(0, size - _ERROR_BEFORE)
        file.seek(start)
        before = (line.strip() for line in reversed(_text(file.read(size - start)).split("\n")))
        return number, next((line[:_LONGEST] for line in before if ERROR.fullmatch(line)), "")


def _changed(path: Path) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


@functools.cache
def _patterns() -> list[tuple[Rule, re.Pattern[str]]]:
    """Return the rules about logs with their patterns, which take long to compile."""
    return [(rule, re.compile(rule.pattern, re.MULTILINE)) for rule in RULES if Where.LOG in rule.where]


def hits_in(piece: Piece, source: str, node: str = "", name: str = "", changed: float = 0.0) -> list[Hit]:
    """Return the lines of a text that a rule knows, in order; each mechanism's first and as many more as there are.

    A line without a time has that of the line before it that has one, else of the first behind it, else the file's.
    """
    lines = piece.text.split("\n")
    starts = [0]
    for line in lines[:-1]:
        starts.append(starts[-1] + len(line) + 1)
    times: _Times | None = None  # most logs have no such line
    hit_by_line: dict[tuple[int, str], Hit] = {}
    for rule, pattern in _patterns():
        for match in pattern.finditer(piece.text):
            index = bisect.bisect_right(starts, match.start()) - 1
            if _NO_END in lines[index] and rule.name not in _TOLD_AS_INFO:
                continue
            if lines[index].startswith(_OWN_WARNING):
                continue
            number = piece.first + index if piece.first else 0
            text = lines[index].strip()[:_LONGEST]
            times = times or _Times(lines)
            seconds, least, most = times.at(index, ends=text.startswith(_LAST_WORDS))
            found_in = Line(text, source, name, number, seconds or changed, node)
            groups = tuple(group or "" for group in match.groups())
            hit = Hit(rule, found_in, groups, _place(lines, index), When(least, most, changed))
            hit_by_line.setdefault((index, rule.name), hit)
    return [hit_by_line[key] for key in sorted(hit_by_line)]


_TOLD_AS_INFO = {"worker-killed", "worker-segfault", "worker-abort", "worker-bus"}  # by Dask's nanny


def _place(lines: Sequence[str], index: int) -> str:
    """Return the place at which Python crashed, as faulthandler shows it below."""
    if not lines[index].startswith("Fatal Python error"):
        return ""
    for line in lines[index + 1 : index + 40]:
        if match := _PLACE.match(line):
            return f"{match[1]}, line {match[2]}, in {match[3]}"
    return ""


_NEVER = (0.0, 0.0)


class _Times:
    """When the lines of a text were written, by those that begin with a time; each is looked at once."""

    def __init__(self, lines: Sequence[str]) -> None:
        stamped = [(index, match) for index, line in enumerate(lines) if (match := _STAMP.match(line[:200]))]
        self.places = [index for index, _ in stamped]
        self.stamps = [match for _, match in stamped]

    def at(self, index: int, *, ends: bool = False) -> tuple[float, float, float]:
        """Return a line's time (0 if none is near), and the times between which it was written.

        Its time is its own, or that of the nearest before it, else behind it. If the line ``ends`` a process it is that
        behind it, else that before.
        """
        place = bisect.bisect_right(self.places, index)
        before = self._seconds(place - 1) if place else _NEVER
        if place and self.places[place - 1] == index and before[0]:
            return before[0], *before
        after = self._seconds(place) if place < len(self.places) else _NEVER
        most = max(before[0], after[1]) if after[0] else math.inf
        near = [before[0] if place and index - self.places[place - 1] <= _NEAR else 0.0]
        near.append(after[0] if place < len(self.places) and self.places[place] - index < _NEAR else 0.0)
        return next(filter(None, reversed(near) if ends else near), 0.0), before[0], most

    def _seconds(self, position: int) -> tuple[float, float]:
        """Return the first and the last moment that a time means, which may be given in whole seconds."""
        match = self.stamps[position]
        date, clock, part = match[1] or match[4], match[2] or match[5], match[3]
        try:
            whole = time.mktime(time.strptime(f"{date} {clock}", "%Y-%m-%d %H:%M:%S"))
        except (ValueError, OverflowError):
            return _NEVER
        seconds = whole + float(f"0.{part or 0}")
        return seconds, seconds if part else whole + 1


def gpu_pools(path: Path) -> dict[int, tuple[str, int]]:
    """Return by process which worker has a GPU memory pool on the first node, and its bytes; empty if it is damaged."""
    found = table(path, HEAD)
    rows = [(name, row.get("pid"), row.get("pool")) for name, row in found.items() if isinstance(row, dict)]
    return {pid: (name, pool) for name, pid, pool in rows if isinstance(pid, int) and isinstance(pool, int)}


def errors_of_ranks(run: RunPaths, attempt: AttemptPaths) -> list[tuple[Line, dict[str, Any]]]:
    """Return the uncaught errors of ranks but the one that failed first, by time, each with where its output is."""
    try:
        names, log_names = os.listdir(attempt.directory), os.listdir(run.logs)
    except OSError:
        return []
    ranks = [int(match[1]) for name in names if (match := _ERROR_OF_RANK.fullmatch(name))]
    paths = {rank: attempt.directory / f"script-error-{rank}.json" for rank in ranks}
    logs = {int(match[2]): match for name in log_names if (match := _LOG_OF_RANK.fullmatch(name))}
    found = []
    for rank in sorted(ranks, key=lambda rank: (_changed(paths[rank]), rank))[:_MOST_ERRORS]:
        name, node = (logs[rank][0], logs[rank][1]) if rank in logs else (run.script_log.name, "")
        if (error := script_error(paths[rank])).get("chain"):
            found.append((Line("", "rank", f"{run.logs.name}/{name}", 0, _changed(paths[rank]), node, rank), error))
    return found


def finished_ranks(run: RunPaths, attempt: AttemptPaths) -> list[Line]:
    """Return the ranks that ended with status 0 before the run's end, each with where its output is."""
    try:
        names, log_names = sorted(os.listdir(attempt.nodes)), os.listdir(run.logs)
    except OSError:
        return []
    logs = {int(match[2]): match[0] for name in log_names if (match := _LOG_OF_RANK.fullmatch(name))}
    found = []
    for node in (name.removesuffix(".json") for name in names[:_MOST_ERRORS] if name.endswith(".json")):
        retired = table(attempt.mark_of(node), HEAD).get("retired")
        for name in retired if isinstance(retired, list) else ():
            if isinstance(name, str) and _RANK.fullmatch(name):
                log = logs.get(int(name), run.script_log.name)
                found.append(Line("", "rank", f"{run.logs.name}/{log}", 0, 0.0, node, int(name)))
    return sorted(found, key=lambda line: line.rank or 0)


def last_piece(path: Path, begin: int = 0) -> Piece:
    """Return the end of a log after its bytes up to ``begin``, empty if it cannot be read."""
    return next(reversed(pieces(path, begin)), Piece("", 0))


def last_error(path: Path, begin: int = 0) -> Line | None:
    """Return the last line of a log if it is the one that ends a traceback."""
    text, first = last_piece(path, begin)
    lines = text.rstrip().split("\n")
    if not ERROR.fullmatch(lines[-1]) or not any(line.startswith("Traceback (most recent") for line in lines):
        return None
    number = first + len(lines) - 1 if first else 0
    return Line(lines[-1][:_LONGEST], SCRIPT, f"{path.parent.name}/{path.name}", number)
