"""What a run's own files hold, as typed records: its plan, its request, its events, its end and its attempts."""

# No `from __future__ import annotations`: hpcml/typed_json.py reads the types of fields, from texts slowly.
import json
import os
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hpcml import earlier_names, safe_files, typed_json
from hpcml.failures.end import End, parse
from hpcml.hold_queue import Part
from hpcml.paths import RunPaths
from hpcml.settings import Settings
from hpcml.typed_json import Table
from hpcml.units import parse_memory
from hpcml.workload_forms import Form

T = TypeVar("T")
KIND = "dask"  # of a run whose plan names none


class RecordedStep(NamedTuple):
    """A step of the batch script."""

    command: tuple[str, ...]  # its last words: a Python and what it runs


class RecordedPlan(NamedTuple):
    """A run's plan as plan.json has it; what is not there is empty."""

    inside: Settings
    name: str = ""
    site: str = ""  # the name of the machine's profile
    version: str = ""  # of hpcml
    scheduler: str = "local"  # a name in hpcml.schedulers
    directives: tuple[tuple[str, str], ...] = ()  # options of the batch script and their values
    lines: tuple[str, ...] = ()  # of the user's batch script, for the scheduler
    may_start_again: bool = False  # another attempt may follow
    setup: tuple[str, ...] = ()  # lines of runtime.setup
    environment: tuple[tuple[str, str], ...] = ()  # variables of all roles
    variables: tuple[str, ...] = ()  # names of the user's own
    entry: tuple[str, ...] = ()  # the words into an image, before it
    forwarded: tuple[str, ...] = ()  # signals that are passed on to a batch script
    steps: tuple[RecordedStep, ...] = ()  # the supervisor's last
    after: tuple[str, ...] = ()  # runs that it waits for, as ``ID:ok``
    hold: str = ""  # directory of the kept allocation that it runs in
    part: tuple[Part, ...] = ()  # what it takes of a node of it, and what the node has; empty: whole nodes
    no_wait: bool = False  # the kept allocation refuses it if it cannot start at once
    python_from: str = ""  # who named the Python of the run's processes; empty: it is hpcml's own
    code_of: str = ""  # the id of the run that has the copy of the code; empty: the run itself

    def directive(self, name: str) -> str:
        """Return the value of an option of the batch script, empty if it leaves it to Slurm."""
        return dict(self.directives).get(name, "").strip()

    @property
    def kind(self) -> str:
        """What the run is made of: a name in hpcml.kinds."""
        return self.inside.kind or KIND

    @property
    def memory(self) -> float:
        """The bytes that the batch script asks for on each node, 0 if it leaves them to Slurm."""
        try:
            return float(parse_memory(self.directive("--mem")))
        except ValueError:
            return 0.0

    @property
    def cpus(self) -> int:
        """The CPUs that the batch script asks for on each node, 0 if it leaves them to Slurm."""
        cpus = self.directive("--cpus-per-task")
        return int(cpus) if cpus.isdecimal() else 0

    @property
    def gpus(self) -> int:
        """The GPUs of each node."""
        gpu = self.inside.workers.gpu
        return (gpu.count if gpu else 0) or self.inside.gpus

    @property
    def python(self) -> str:
        """The Python of the run's processes, empty if it is not known."""
        return self.steps[-1].command[0] if self.steps and self.steps[-1].command else ""


class RecordedSpec(NamedTuple):
    """What a run was asked for, in request.json under ``spec``; what the user did not give is empty."""

    form: Form = Form.SCRIPT
    script: str = ""
    arguments: tuple[str, ...] = ()
    cwd: str = ""
    root: str = ""
    staged: bool = False
    sent_from: str = ""
    idle: float = 0.0
    interpreter: tuple[str, ...] = ()
    in_place: bool = False
    batch_words: tuple[str, ...] = ()
    sweep: str = ""
    gpus_per_node: int | None = None
    gpu_type: str = ""
    partition: str = ""
    qos: str = ""
    sbatch: tuple[tuple[str, str], ...] = ()
    environment: tuple[str, ...] = ()  # names of variables
    origins: tuple[tuple[str, str], ...] = ()


class RecordedRequest(NamedTuple):
    """A run's request as request.json has it."""

    spec: RecordedSpec = RecordedSpec()
    site: dict[str, Any] = {}  # the settings by key, each with its origin
    modules: str = ""  # names of those that were installed at the submission
    given: Mapping[str, Any] = {}  # all of ``spec`` by option, as it was written


class Event(NamedTuple):
    """A line of events.jsonl: what happened, when (seconds since 1970), in which attempt, and what else it says."""

    name: str
    time: float
    attempt: int
    facts: Table


class Allocated(NamedTuple):
    """What the event ``allocated`` says."""

    job: str = ""
    nodes: tuple[str, ...] = ()
    began: float | None = None  # when the batch script began, in seconds since 1970


def _tables(lines: list[str]) -> list[object]:
    """Return the JSON value of each line; None for each if one of them is not JSON."""
    try:
        tables = safe_files.parsed(json.loads, f"[{','.join(lines)}]")  # one by one it takes three times as long
    except ValueError:
        tables = []
    return tables if len(tables) == len(lines) else [None] * len(lines)


class Recorded:
    """The files of a run, each read at its first use.

    What is damaged counts as empty or as the default, and ``problems`` says so in a sentence. Who cannot go on with
    that overrides :meth:`unusable`.
    """

    def __init__(self, paths: RunPaths) -> None:
        self.paths = paths
        self.problems: list[str] = []
        self.refuse = partial(self.unusable, paths, self.problems)  # no method: the plan has it, and would hold its run

    @staticmethod
    def unusable(paths: RunPaths, problems: list[str], path: Path, error: OSError | ValueError) -> None:
        """Take note of a file that cannot be read, or is damaged."""
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        problems.append(f"{path.relative_to(paths.directory)} cannot be used: {why}.")

    def table(self, path: Path) -> dict[str, Any] | None:
        """Return the table of a JSON file, None if it is not there."""
        try:
            content = safe_files.read_json(path)
            if not isinstance(content, dict):
                raise typed_json.DamagedError("it is not a JSON object")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.refuse(path, error)
            return {}
        return content

    def record(self, kind: type[T], table: object, path: Path) -> T:
        """Return the record that a table of a file contains."""
        record, problems = typed_json.salvage(kind, table)
        for problem in problems:
            self.refuse(path, typed_json.DamagedError(problem))
        return record

    @cached_property
    def plan(self) -> RecordedPlan:
        """What the run was to be; of a run without plan.json nothing. Its parts are read at their first use."""
        path, refuse = self.paths.plan, self.refuse
        table = self.table(path) or {}
        return typed_json.on_demand(
            RecordedPlan, table, lambda problem: refuse(path, typed_json.DamagedError(problem)), (Settings,)
        )

    @cached_property
    def request(self) -> RecordedRequest | None:
        """What the run was asked for, None without request.json."""
        table = self.table(self.paths.request)
        if table is None:
            return None
        given = table.get("spec")
        request = self.record(RecordedRequest, table, self.paths.request)
        return request._replace(given=given if isinstance(given, dict) else {})

    @cached_property
    def end(self) -> End | None:
        """How the run ended, or is ending; None before."""
        return self._end(self.paths.status)

    def _end(self, path: Path) -> End | None:
        if not (table := self.table(path)):
            return None
        try:
            return parse(table)
        except typed_json.DamagedError as error:
            self.refuse(path, error)
            return None

    @cached_property
    def events(self) -> list[Event]:
        """The run's events in order; a line that is still being written is left for the next look."""
        try:
            text = safe_files.read(self.paths.events).decode()
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            self.refuse(self.paths.events, error)
            return []
        happened = []
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        for line, table in zip(lines, _tables(lines), strict=True):
            try:
                facts = Table(safe_files.parsed(json.loads, line) if table is None else table)
                name = earlier_names.current(facts.get("event", str))
                happened.append(Event(name, facts.number("time"), facts.get("attempt", int, 0), facts))
            except ValueError as error:
                self.refuse(self.paths.events, error)
        return happened

    def events_of(self, attempt: int) -> list[Event]:
        """Return the events of an attempt in order."""
        return [event for event in self.events if event.attempt == attempt]

    @cached_property
    def attempts(self) -> list[int]:
        """The numbers of the attempts that have begun, in order."""
        folder = self.paths.directory / "attempts"
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            self.refuse(folder, error)
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    def end_of(self, attempt: int) -> End | None:
        """Return the end of an attempt, None if it is not recorded."""
        if kept := self._end(self.paths.attempt(attempt).end):
            return kept
        return self.end if self.end and self.end.attempt == attempt else None
