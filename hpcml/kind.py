"""What a kind of run says of itself, for the submitting side and for the nodes alike: the contract of hpcml.kinds.

Around a kind, and without knowing it, are the allocation, the run's directory, the copy of the code, the supervisor,
deadlines, exit statuses, the files' security, samples, ``why``, the report, and tunnels. docs/architecture.md shows how
the two sides meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from hpcml.forms import Form

T = TypeVar("T")


class Role(NamedTuple):
    """A process that the batch script starts beside the supervisor, as a step of its own."""

    name: str  # in the names of its logs and of the files with exit statuses
    module: str  # the module whose main() runs it and returns its exit status
    every_node: bool  # one process on each node; otherwise one on the first node
    title: str  # its name in a sentence
    connected: bool = False  # whether it tells the supervisor its versions over a connection, and not by a file
    tasks: int = 1  # processes on each node, of a role on every node
    mpi: str = ""  # the kind of PMI by which Slurm connects them, as for srun --mpi; empty: the site's default


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
    during: str  # when the run ended, if it did in this stage: a clause
    asked: str = ""  # the event that begins a stage which a run may do without; empty for all others
    good: str = ""  # the field that is false where the stage ended badly; empty without one


FABRIC = Stage(
    "fabric",
    begin="",
    end="fabric-checked",
    waiting="checking the interconnect",
    short="checking the interconnect",
    done="{fabric}",
    during="while the interconnect was checked",
    asked="fabric-checking",
    good="fabric_ok",
)  # of every kind that checks its interconnect; ``begin`` is the kind's own


class FailedProcess(NamedTuple):
    """The process of the script that failed first, as fields of :class:`hpcml.failures.end.End`."""

    rank: int | None = None  # None where the script is one process
    node: str = ""
    log: str = ""  # the file of its output in the run's folder of logs
    log_begin: int = 0  # bytes of that file, or of the script's log, that earlier attempts wrote


class RunningScript(Protocol):
    """The user's script, as the supervisor follows it: one process beside it, or the kind's own processes."""

    @property
    def pid(self) -> int:
        """The script's process on the first node, 0 if there is none."""

    def poll(self) -> int | None:
        """Return the exit status as a shell gives it (128 + signal), or None while the script runs."""

    def tell_to_end(self) -> None:
        """Tell the script to end; it has ``deadlines.script_grace`` for that."""

    def kill(self) -> None:
        """Kill what is left of the script."""

    def killed_by_others(self, status: int) -> bool:
        """Whether neither the script nor hpcml ended it."""

    def out_of_memory(self, status: int) -> bool:
        """Whether the kernel killed the script because memory ran out."""

    def describe_end(self, status: int) -> str:
        """Return how the script ended, as a clause."""

    def failed_process(self) -> FailedProcess:
        """Return which of the script's processes failed first."""


class Hindrance(NamedTuple):
    """Why a script could not do its work, although it may have exited with 0."""

    status: int  # the run's exit status, one of hpcml.errors
    reason: str  # a clause
    hint: str  # the next step
    failed: FailedProcess = FailedProcess()


class EndOfKind(NamedTuple):
    """A reason of hpcml to end a run that only this kind has."""

    status: int  # the exit status, one of hpcml.errors
    short: str  # the cause in at most six words
    followed: bool  # it followed from something that the logs may show; else it is the cause itself


class Facts(Protocol):
    """An event of events.jsonl, which may be damaged: a value is of the kind asked for, or KeyError or TypeError."""

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a value; without a default it has to be there."""

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, empty if there is none."""

    def numbers(self, key: str) -> dict[str, float]:
        """Return a table of numbers."""


def seen_of_fabric(event: str, fields: Facts) -> dict[str, Any]:
    """Return what the interconnect's check, or a look at it later, means for a status's fields (see ``Kind.seen``)."""
    if event not in ("fabric-checked", "fabric-seen"):
        return {}
    line, problem = fields.get("line", str), fields.get("problem", str)
    text = line if line and problem in line else "; ".join(part for part in (line, problem) if part)
    is_good = fields.get("ok", bool) and not problem
    return {"fabric": text, "fabric_ok": is_good, "differences": fields.texts("differences")}


class Processes(Protocol):
    """The processes of a kind, as the supervisor sees them. It makes one object for each attempt.

    RunEndedError (:mod:`hpcml.node.outcome`) may be raised by ``start`` and ``check``: it says how the run ends.
    """

    def start(self) -> dict[str, str]:
        """Wait until the script can begin, and return its environment.

        An event of the startup says in its field ``security`` who may talk to the processes, in one line.
        """

    def step(self) -> None:
        """Take in what the processes say, for at most one tick of the supervisor."""

    def check(self) -> None:
        """End the run if a process was lost that it needs, with the exit status that this means."""

    def run_script(self, environment: dict[str, str]) -> RunningScript:
        """Start the script with these variables, and return it; OSError if it cannot be started."""

    def hindrance(self, status: int) -> Hindrance | None:
        """Return what ended or spoiled the script that exited with a status, None if it is the script's own end.

        The supervisor calls it once, after the script's end.
        """

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
    plan: str  # the login node's module with its part of the plan, hpcml.plan.plan.KindPlan
    roles: tuple[Role, ...]  # in the batch script's order; a run may lack the last ones (KindPlan.roles)
    processes: str  # the module on the nodes that has the class Processes(state, folders)
    reset: str  # the module that resets the processes between two points of a sweep; empty: no sweeps in one job
    in_script: str  # the module whose install() changes the script's interpreter, empty without one
    programs: Mapping[Form, str]  # the module that runs a form for which hpcml has a program of its own
    startup: tuple[Stage, ...]  # in their order
    ready: str  # the event after which the script can begin
    noun: str  # one of its processes, of which a run has ``expected``
    threads: str  # the setting for the threads of one process, empty without one
    ends: tuple[EndOfKind, ...]
    seen: Callable[[str, Facts], dict[str, Any]]  # by an event: new values of fields of Status; differences add up
    services: tuple[str, ...] = ()  # the web services that its runs may have, to which tunnels lead
    samples: str = ""  # the module with SCHEMA: what its own processes measure (hpcml.samples), empty without one
    accounting: str = ""  # the module with ACCOUNTING: its part of the report (hpcml.report.ledger), empty without one

    def role(self, name: str) -> Role | None:
        """Return a role by its name, None if this kind has no such role."""
        return next((role for role in self.roles if role.name == name), None)

    @property
    def agent(self) -> Role:
        """The role that runs on every node: its sign of life, its sample, and the processes that it starts there."""
        return next(role for role in self.roles if role.every_node)
