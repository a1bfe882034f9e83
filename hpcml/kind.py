"""What a kind of run says of itself, for the submitting side and for the nodes alike: the contract of hpcml.kinds.

Around a kind, and without knowing it, are the allocation, the run's directory, the copy of the code, the supervisor,
deadlines, exit statuses, the files' security, samples, ``why``, the report, and tunnels. docs/architecture.md shows how
the two sides meet.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Role(NamedTuple):
    """A process that the batch script starts beside the supervisor, as a step of its own."""

    name: str  # in the names of its logs and of the files with exit statuses
    module: str  # the module whose main() runs it and returns its exit status
    every_node: bool  # one process on each node; otherwise one on the first node
    title: str  # its name in a sentence


class Stage(NamedTuple):
    """A part of the startup, between two events of events.jsonl.

    ``waiting`` and ``done`` are format strings over the fields of :class:`hpcml.runs.status.Status`.
    """

    name: str  # begins the line that `hpcml submit` shows
    begin: str  # the event that begins it
    end: str  # the event that ends it
    waiting: str  # what status says meanwhile
    short: str  # what follows ``name`` meanwhile
    done: str  # what follows ``name`` once it has ended
    asked: str = ""  # the event that begins a stage which a run may do without; empty for all others
    good: str = ""  # the field that is false where the stage ended badly; empty without one


class Processes(Protocol):
    """The processes of a kind, as the supervisor sees them. It makes one object for each attempt.

    RunEndedError (:mod:`hpcml.node.outcome`) may be raised by ``start`` and ``check``: it says how the run ends.
    """

    def start(self) -> dict[str, str]:
        """Wait until the script can begin, and return its environment."""

    def step(self) -> None:
        """Take in what the processes say, for at most one tick of the supervisor."""

    def check(self) -> None:
        """End the run if a process was lost that it needs."""

    def script_begins(self) -> None:
        """Take note that the script begins now."""

    def close(self) -> float:
        """Tell the processes to end, and return how many seconds they may take."""

    @property
    def silent(self) -> bool:
        """Whether nothing is heard of the processes any more."""

    def remarks(self) -> list[str]:
        """Return what a user should know of a script that ended well."""


class Kind(NamedTuple):
    """A kind of run."""

    name: str
    options: str  # the login node's module with the options that only this kind has: OPTIONS, a KindOptions
    roles: tuple[Role, ...]  # in the order in which the batch script starts them, before the supervisor
    processes: str  # the module on the nodes that has the class Processes(state, folders)
    in_script: str  # the module whose install() changes the script's interpreter, empty without one
    startup: tuple[Stage, ...]  # in their order
    ready: str  # the event after which the script can begin

    def role(self, name: str) -> Role | None:
        """Return a role by its name, None if this kind has no such role."""
        return next((role for role in self.roles if role.name == name), None)

    @property
    def agent(self) -> Role:
        """The role that runs on every node: its sign of life, its sample, and the processes that it starts there."""
        return next(role for role in self.roles if role.every_node)
