"""The stacks of a run's processes as its nodes wrote them; processes that do the same are a group."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import safe_files
from hpcml.errors import IDLE, TIME_LIMIT
from hpcml.failures.note import table
from hpcml.paths import RunPaths
from hpcml.units import first_of_many

KEPT = (IDLE, TIME_LIMIT)  # the exit statuses of runs whose nodes write them before the end
_RANK = "rank "  # how the names of ranks begin
_ODD = 3  # ranks that others wait for and that are named
_LONGEST_LINE = 100  # characters of a source line
# Where Python's own and installed modules are; `lib.zip` is hpcml's part of a run.
_LIBRARY = re.compile(r"<frozen|(?:.*/)?lib\.zip/|.*/lib(?:64)?/python\d|.*/(?:site|dist)-packages/")


class Frame(NamedTuple):
    """A frame of a stack; the file of the run's copy is named as below the submitted folder."""

    file: str
    line: int
    function: str
    code: str  # the source line, empty if its file cannot be read here

    def is_of_user(self) -> bool:
        """Whether it is the user's code: no library's, and not hpcml's."""
        return not _LIBRARY.match(self.file)


class Process(NamedTuple):
    """A process of the run on a node."""

    node: str
    pid: int
    name: str  # script, scheduler, worker n1-0, rank 17
    child: bool  # whether that process started it
    command: str
    by: str  # which program showed its stacks: py-spy, faulthandler, or kernel for none
    wait: str  # its state, and the kernel's function in which it waits
    stacks: tuple[tuple[Frame, ...], ...]  # what its threads do, each with the outermost frame first

    @property
    def title(self) -> str:
        """What it is called: with its node, if its name does not contain it."""
        name = f"child {self.pid} of {self.name}" if self.child else self.name
        return name if self.node in self.name else f"{name} ({self.node})"


class Group(NamedTuple):
    """Processes that do the same."""

    processes: tuple[Process, ...]

    @property
    def sentence(self) -> str:
        """How many they are, and where."""
        count = len(self.processes)
        return f"{count} process{'es' if count > 1 else ''} {self.place}"

    def names(self, most: int) -> str:
        """Return the names of the first so many."""
        names = sorted((member.title for member in self.processes), key=lambda name: (len(name), name))
        return first_of_many(names, most)

    @property
    def place(self) -> str:
        """Where they are: the user's innermost line, and the function that it called."""
        first = self.processes[0]
        if not first.stacks:
            return f"without a Python stack: {first.wait}"
        called = _named(first.stacks[-1][-1])
        if not self.line:
            return f"outside your code, at {called}"
        return f"at {self.line}" + ("" if called == self.line else f", which called {called}")

    @property
    def line(self) -> str:
        """The user's innermost line; empty outside the user's code."""
        stack = next(reversed(self.processes[0].stacks), ())
        return next(map(_named, filter(Frame.is_of_user, reversed(stack))), "")


class Wait(NamedTuple):
    """Ranks that do the same, and where."""

    place: str
    ranks: tuple[str, ...]  # their names, as Process.title has them
    line: str = ""  # see Group


def waits(groups: Sequence[Group]) -> tuple[Wait, ...]:
    """Return the places of a run's ranks, the place of most ranks first, without the ranks' children."""
    places: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        for member in group.processes:
            if member.name.startswith(_RANK) and not member.child:
                places.setdefault((group.place, group.line), []).append(member.title)
    found = [
        Wait(place, tuple(sorted(names, key=lambda name: (len(name), name))), line)
        for (place, line), names in places.items()
    ]
    return tuple(sorted(found, key=lambda wait: -len(wait.ranks)))


def wait_sentence(found: Sequence[Wait]) -> str:
    """Return the few ranks that the others wait for, as a clause; empty if the rest is not at one other place."""
    count = sum(len(group.ranks) for group in found)
    if len(found) == 1 and count > 1:
        return f"all {count} ranks wait {found[0].place}"
    if len(found) != 2 or 3 * len(found[1].ranks) > count:
        return ""
    first, odd = found
    return f"{len(first.ranks)} ranks wait {first.place}, for {first_of_many(odd.ranks, _ODD)} {odd.place}"


def place_to_check(found: Sequence[Wait]) -> str:
    """Return the next step after ranks waited: their only line, the line of the few odd ranks, or all lines."""
    if found[-1].line and (len(found) == 1 or wait_sentence(found)):
        return f"Look at {found[-1].line}."
    if not any(wait.line for wait in found):
        return "The ranks waited outside your code: see the evidence."
    return "Compare the lines in the evidence: the error can be at any of them."


def _named(frame: Frame) -> str:
    return f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function}"


def kept(paths: RunPaths, attempt: int) -> list[Group]:
    """Return the groups of the stacks that the nodes wrote last in an attempt.

    KeyError, TypeError or ValueError if what they wrote is damaged.
    """
    of_attempt, sources = paths.attempt(attempt), Sources(paths.code)
    asked = str(table(of_attempt.stacks_request).get("id", ""))
    try:
        names = sorted(name for name in os.listdir(of_attempt.stacks) if name.endswith(".json"))
    except FileNotFoundError:
        return []
    written = [(name.removesuffix(".json"), table(of_attempt.stacks / name)) for name in names]
    answers = [(node, answer["processes"]) for node, answer in written if answer["id"] == asked]
    return grouped(process(node, facts, sources) for node, processes in answers for facts in processes)


def process(node: str, record: Mapping[str, Any], sources: Sources) -> Process:
    """Return a process as its node wrote it; KeyError, TypeError or ValueError if that is damaged."""
    threads = [[sources.frame(*frame) for frame in reversed(thread)] for thread in record["threads"]]
    wait = f"state {record['state']}" + (f", in {record['wait']}" if record["wait"] else "")
    name, by, command = (str(record[key]) for key in ("name", "by", "command"))
    return Process(node, int(record["pid"]), name, bool(record["child"]), command, by, wait, told(threads))


def told(threads: Sequence[Sequence[Frame]]) -> tuple[tuple[Frame, ...], ...]:
    """Return the stacks of the threads that run the user's code, from its first frame; else that of the main thread.

    The main thread is the last one.
    """
    frames = []
    for thread in threads:
        by_hpcml = len(thread) > 1 and thread[1].file.startswith("lib.zip/")  # the first is then its own `python -c`
        first = next((place for place, frame in enumerate(thread) if frame.is_of_user() and place >= by_hpcml), None)
        if first is not None:
            frames.append(tuple(thread[first:]))
    return tuple(frames) or tuple(tuple(thread) for thread in threads[-1:])


def grouped(processes: Iterable[Process]) -> list[Group]:
    """Return the processes whose threads have equal stacks together, the largest group first."""
    groups: dict[object, list[Process]] = {}
    for member in processes:
        groups.setdefault(member.stacks or (member.wait, member.command), []).append(member)
    return sorted((Group(tuple(group)) for group in groups.values()), key=lambda group: -len(group.processes))


class Sources:
    """The lines of source files that the login node can read too, each file read once."""

    def __init__(self, copy: Path) -> None:
        self.copy, self.lines = f"{copy}/", dict[str, list[str]]()

    def frame(self, file: str, line: int, function: str) -> Frame:
        """Return a frame with its source line."""
        if file not in self.lines:
            try:
                text = safe_files.read(Path(file)).decode(errors="replace") if file.startswith(self.copy) else ""
            except OSError:
                text = ""
            self.lines[file] = text.splitlines()
        lines = self.lines[file]
        code = lines[line - 1].strip()[:_LONGEST_LINE] if 0 < line <= len(lines) else ""
        return Frame(file.removeprefix(self.copy), int(line), str(function), code)
