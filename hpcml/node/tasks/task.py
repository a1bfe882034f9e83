"""A task of a run, and the queue from which the supervisor takes its tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcml.failures.end import End
from hpcml.kind import Processes, RunningTask
from hpcml.node.context import Context
from hpcml.paths import SCRIPT
from hpcml.settings import Code

if TYPE_CHECKING:
    from hpcml.node.run_state import RunState


class Task(NamedTuple):
    """What is started, and the files that it writes."""

    key: str  # its name in the run: ``script``, or the key of a sweep's point
    code: Code  # the program, its arguments and its folder
    log: Path  # what it prints
    error: Path  # where the error is written down that ends it
    program: str = ""  # a module of hpcml's whose main() the interpreter runs in place of the code; empty: the code
    descriptors: tuple[int, ...] = ()  # open files that its process keeps


def of_run(context: Context) -> Task:
    """Return the task of a run that has one: what the user submitted, or a program of hpcml's."""
    return Task(SCRIPT, context.settings.code, context.run.script_log, context.attempt.script_error)


class Queue(ABC):
    """The tasks of a run in their order. The supervisor calls all methods, and starts no task by itself.

    The first task represents the run: its process is shown, and its hindrance is the run's.
    """

    def __init__(self, state: RunState, processes: Processes, environment: Mapping[str, str]) -> None:
        self.state, self.processes, self.environment = state, processes, dict(environment)

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether no further task will begin; when none runs any more, the run ends."""

    @abstractmethod
    def take(self) -> Task | None:
        """Return a task that begins now, None if none does; the supervisor asks until there is none.

        Once the run has to end, the supervisor takes none any more.
        """

    def start(self, task: Task) -> RunningTask:
        """Start a task that was taken; OSError if it cannot be started."""
        return self.processes.run(task, self.environment)

    def step(self) -> None:  # noqa: B027 - most have nothing to do
        """Take in what is known of the tasks beside their processes; it does not wait."""

    def check(self) -> None:  # noqa: B027 - as above
        """Raise RunEndedError (:mod:`hpcml.node.events_and_end`) if the run has to end for what is known."""

    @abstractmethod
    def ended(self, task: Task, end: End) -> None:
        """Write down how a task ended."""

    @abstractmethod
    def end(self) -> End:
        """Return the end of the run, after the last task has."""


class OneTask(Queue):
    """The queue of an ordinary run, which closes after its one task."""

    task: Task | None = None
    outcome: End | None = None

    @property
    def closed(self) -> bool:
        """Whether the task was taken."""
        return self.task is not None

    def take(self) -> Task | None:
        """Return the task, once."""
        if self.task:
            return None
        self.task = of_run(self.state.context)
        return self.task

    def ended(self, task: Task, end: End) -> None:  # noqa: ARG002 - there is one
        """Take note of the end, which is the run's."""
        self.outcome = end

    def end(self) -> End:
        """Return the end of the task."""
        assert self.outcome is not None
        return self.outcome
