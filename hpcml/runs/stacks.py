"""The stacks of all processes of a run, asked for on its nodes; equal ones are a group."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import files
from hpcml.errors import NotFoundError
from hpcml.paths import AttemptPaths
from hpcml.runs import directories
from hpcml.runs import record as records
from hpcml.runs.directories import Table, complete
from hpcml.runs.status import Status

WAIT = 10.0  # seconds for the answers of all nodes
WAIT_EACH = 0.1  # seconds more for each node: many nodes look seldom
_LOOK = 0.1  # seconds between two looks at the answers
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
        names = sorted((one.title for one in self.processes), key=lambda name: (len(name), name))
        return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

    @property
    def place(self) -> str:
        """Where they are: the user's innermost line, and the function that it called."""
        first = self.processes[0]
        if not first.stacks:
            return f"without a Python stack: {first.wait}"
        stack = first.stacks[-1]
        user = next(filter(Frame.is_of_user, reversed(stack)), None)
        if user is None:
            return f"outside your code, at {_named(stack[-1])}"
        return f"at {_named(user)}" + ("" if stack[-1] is user else f", which called {_named(stack[-1])}")


class Answer(NamedTuple):
    """The groups, the largest first, and the nodes that did not answer."""

    groups: tuple[Group, ...]
    missing: tuple[str, ...]


def _named(frame: Frame) -> str:
    return f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function}"


def ask(run: directories.Run, status: Status) -> Answer:
    """Ask all nodes of a run for the stacks of its processes, and wait for their answers.

    Raises
    ------
    NotFoundError
        If the run is not active.
    StorageError
        If its files cannot be written, or an answer is damaged.
    """
    if status.over or not status.allocation.nodes:
        place, hint = f"{run.id}: {status.state}: {status.message}", f"Show its state: hpcml status {run.id}."
        raise NotFoundError("The run has no processes now", place=place, hint=hint)
    number = records.newest_attempt(run.paths) or 0
    attempt = run.paths.attempt(number)
    started = [one for one in records.events(run) if one.name == "driver-started" and one.attempt == number]
    before = {node: answer["id"] for node, answer in _answers(attempt, status.allocation.nodes).items()}
    with complete(run.paths.directory):
        script = started[-1].facts.get("pid", int, 0) if started else 0
    directories.write_json(attempt.stacks_request, {"id": os.urandom(8).hex(), "script": script})
    deadline = time.monotonic() + WAIT + WAIT_EACH * len(status.allocation.nodes)
    waiting, processes = set(status.allocation.nodes), []
    sources = _Sources(run.paths.code)
    while waiting and time.monotonic() < deadline:
        time.sleep(_LOOK)
        for node, answer in _answers(attempt, waiting).items():
            if answer["id"] != before.get(node):
                waiting.discard(node)
                with complete(run.paths.directory):
                    processes += [_process(node, facts, sources) for facts in answer["processes"]]
    return Answer(tuple(grouped(processes)), tuple(node for node in status.allocation.nodes if node in waiting))


def at_the_end(run: directories.Run, status: Status) -> list[Group]:
    """Return the groups of the stacks that the nodes wrote last: of a run that did nothing, before its end."""
    attempt, sources = run.paths.attempt(status.progress.attempt), _Sources(run.paths.code)
    with complete(run.paths.directory):
        asked = request.get("id", str) if (request := directories.read_json(attempt.stacks_request)) else ""
        written = _answers(attempt, status.allocation.nodes).items()
        answers = [(node, answer["processes"]) for node, answer in written if answer["id"] == asked]
        return grouped(_process(node, one, sources) for node, processes in answers for one in processes)


def _answers(attempt: AttemptPaths, nodes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the answers of nodes that have written one."""
    try:
        names = set(os.listdir(attempt.stacks))
    except FileNotFoundError:
        return {}
    tables = {node: directories.read_json(attempt.stacks / f"{node}.json") for node in nodes if f"{node}.json" in names}
    return {node: {"id": "", "processes": [], **table.facts} for node, table in tables.items() if table}


def _process(node: str, facts: Mapping[str, Any], sources: _Sources) -> Process:
    table = Table(facts)
    threads = [[sources.frame(*frame) for frame in reversed(thread)] for thread in table.get("threads", list)]
    wait = f"state {table.get('state', str)}" + (f", in {wait}" if (wait := table.get("wait", str)) else "")
    name, by, command = (table.get(key, str) for key in ("name", "by", "command"))
    return Process(node, table.get("pid", int), name, table.get("child", bool), command, by, wait, told(threads))


def told(threads: Sequence[Sequence[Frame]]) -> tuple[tuple[Frame, ...], ...]:
    """Return the stacks of the threads that run the user's code, from its first frame; else that of the main thread.

    The main thread is the last one.
    """
    own = []
    for thread in threads:
        by_hpcml = len(thread) > 1 and thread[1].file.startswith("lib.zip/")  # the first is then its own `python -c`
        first = next((place for place, frame in enumerate(thread) if frame.is_of_user() and place >= by_hpcml), None)
        if first is not None:
            own.append(tuple(thread[first:]))
    return tuple(own) or tuple(tuple(thread) for thread in threads[-1:])


def grouped(processes: Iterable[Process]) -> list[Group]:
    """Return the processes whose threads have equal stacks together, the largest group first."""
    groups: dict[object, list[Process]] = {}
    for one in processes:
        groups.setdefault(one.stacks or (one.wait, one.command), []).append(one)
    return sorted((Group(tuple(group)) for group in groups.values()), key=lambda group: -len(group.processes))


class _Sources:
    """The lines of source files that the login node can read too, each file read once."""

    def __init__(self, copy: Path) -> None:
        self.copy, self.lines = f"{copy}/", dict[str, list[str]]()

    def frame(self, file: str, line: int, function: str) -> Frame:
        if file not in self.lines:
            try:
                text = files.read(Path(file)).decode(errors="replace") if file.startswith(self.copy) else ""
            except OSError:
                text = ""
            self.lines[file] = text.splitlines()
        lines = self.lines[file]
        code = lines[line - 1].strip()[:_LONGEST_LINE] if 0 < line <= len(lines) else ""
        return Frame(file.removeprefix(self.copy), int(line), str(function), code)
