"""A kind of run: what surrounds the script of a run. docs/kinds.md shows how to write one.

Around a kind, and without knowing it, are the allocation, the run's directory, the copy of the code, the supervisor,
deadlines, exit statuses, the files' security, samples, ``why``, the report, and tunnels. docs/architecture.md shows how
the two sides meet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from hpcml.settings import Settings, Workers

T = TypeVar("T")
# Types of modules above this one: a kind's own modules, to which its methods pass the values on, have their real names.
Site = Any  # hpcml.sites.schema.Site
Request = Any  # hpcml.request.record.RunRequest
KindOptions = Any  # hpcml.request.option.KindOptions
Schema = Any  # hpcml.samples.Schema
Progress = Any  # hpcml.samples.Progress
OtherEnd = Any  # hpcml.failures.end.OtherEnd
Accounting = Any  # hpcml.report.ledger.Accounting
RunState = Any  # hpcml.node.run_state.RunState
Task = Any  # hpcml.node.tasks.task.Task


class Role(NamedTuple):
    """A process that the batch script starts beside the supervisor, as a step of its own."""

    name: str  # in the names of its logs and of the files with exit statuses
    every_node: bool  # one process on each node; otherwise one on the first node
    title: str  # its name in a sentence
    tasks: int = 1  # processes on each node, of a role on every node
    mpi: str = ""  # the kind of PMI by which Slurm connects them, as for srun --mpi; empty: the site's default
    log: str = ""  # what its logs have, as the help of ``hpcml logs`` says it; empty: its name says it


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


INTERCONNECT = Stage(
    "interconnect",
    begin="",
    end="interconnect-checked",
    waiting="checking the interconnect",
    short="checking the interconnect",
    done="{interconnect}",
    during="while the interconnect was checked",
    asked="interconnect-checking",
    good="interconnect_ok",
)  # of every kind that checks its interconnect; ``begin`` is the kind's own


class FailedProcess(NamedTuple):
    """The process of the script that failed first, as fields of :class:`hpcml.failures.end.End`."""

    rank: int | None = None  # None where the script is one process
    node: str = ""
    log: str = ""  # the file of its output in the run's folder of logs
    log_begin: int = 0  # bytes of that file, or of the script's log, that earlier attempts wrote
    others: tuple[OtherEnd, ...] = ()  # that failed with it, in another way
    killed_ranks: tuple[int, ...] = ()  # that had to be killed although others had exited with 0


class RunningTask(Protocol):
    """A task, as the supervisor follows it: one process beside it, or the kind's own processes on all nodes."""

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
        """Return the end of the script as a clause."""

    def only_exited(self, status: int) -> bool:
        """Whether that clause says no more than the exit status."""

    def failed_process(self) -> FailedProcess:
        """Return the process of the script that failed first."""


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


def seen_of_interconnect(event: str, fields: Facts) -> dict[str, Any]:
    """Return the fields of a status that the interconnect's check, or a look at it later, gives (see ``Kind.seen``)."""
    if event not in ("interconnect-checked", "interconnect-seen"):
        return {}
    line, problem = fields.get("line", str), fields.get("problem", str)
    text = line if line and problem in line else "; ".join(part for part in (line, problem) if part)
    is_good = fields.get("ok", bool) and not problem
    return {"interconnect": text, "interconnect_ok": is_good, "differences": fields.texts("differences")}


class Processes(Protocol):
    """The processes of a kind, as the supervisor sees them. ``Kind.processes`` makes one object for each attempt.

    The supervisor calls ``start`` once, and ``run`` for each task. Until all have ended it calls ``step`` and
    ``check`` in turns. Then it calls ``hindrance`` if the script ended by itself, ``close``, and ``remarks`` after a
    script that ended well. It also calls ``close`` after an error of the others. ``start`` and ``check`` may raise
    RunEndedError (:mod:`hpcml.node.events_and_end`), which says how the run ends.
    """

    def start(self) -> dict[str, str]:
        """Wait until the script can begin, and return its environment.

        Each stage of ``Kind.startup`` has then its event. An event of the startup says in its field ``security`` who
        may talk to the processes, in one line.
        """

    def step(self) -> None:
        """Take in what the processes say, for at most one tick of the supervisor, and tick ``state.clock``.

        Without the tick no time passes for deadlines, and no step counts as gone.
        """

    def check(self) -> None:
        """End the run if a process was lost that it needs, with the exit status that this means."""

    def run(self, task: Task, environment: dict[str, str]) -> RunningTask:
        """Start a task with these variables, and return it; OSError if it cannot be started."""

    def hindrance(self, status: int) -> Hindrance | None:
        """Return the hindrance of the script that exited with a status, None if it is the script's own end.

        The supervisor calls it at most once, after the script's end.
        """
        return None

    def close(self) -> float:
        """Tell the processes to end, and return the seconds that they may take.

        The supervisor calls it also if ``start`` failed. Then it waits until the steps of all roles have ended, but not
        longer than these seconds.
        """
        return 0.0

    @property
    def silent(self) -> bool:
        """Whether nothing is heard of the processes any more."""
        return False

    def remarks(self) -> list[str]:
        """Return the remarks for the user on a script that ended well."""
        return []


class Kind(ABC):
    """A kind of run. A subclass has what is its own; the rest is as for a script that has no processes around it.

    The login node and the compute nodes both import a kind, so its module imports nothing of its folder but constants.
    The methods import what they need: from the folder ``login`` on the login node, from ``node`` on the nodes. All of
    the folder but ``login`` travels with the run.
    """

    name: str  # in plan.json, and an option of that name chooses the kind
    roles: tuple[Role, ...]  # in the batch script's order
    startup: tuple[Stage, ...]  # in their order
    ready: str  # the event after which the script can begin
    noun: str  # one of its processes, of which a run has ``expected``
    threads: str = ""  # the setting for the threads of one process, empty without one
    ends: tuple[EndOfKind, ...] = ()
    services: tuple[str, ...] = ()  # the web services that its runs may have, to which tunnels lead
    ranks: Role | None = None  # the role whose agents run the script as numbered ranks; None: the script is one process
    needs: tuple[str, ...] = ()  # modules that the run's Python must have before the kind's processes can start
    has_cluster: bool = False  # the script connects to its processes, which may start then (workers.start)
    # Names of modules that another interpreter imports, beside the user's script or in its place
    programs: Mapping[Form, str] = {}  # it is run in place of a script, by the form that hpcml has a program for
    in_script: str = ""  # its install() changes the script's interpreter
    reset: str = ""  # it resets the processes between two points of a sweep; empty: no sweeps in one job

    def role(self, name: str) -> Role | None:
        """Return a role by its name, None if this kind has no such role."""
        return next((role for role in self.roles if role.name == name), None)

    @property
    def agent(self) -> Role:
        """The role that runs on every node: its sign of life, its sample, and the processes that it starts there."""
        return next(role for role in self.roles if role.every_node)

    # -- on the login node: before the submission, in this order -------------------------------------------------------

    def options(self) -> KindOptions | None:
        """Return the options that only this kind has; None if there is none.

        hpcml.options.table calls it once. What the user gave is in ``request.of_kind``, by the options' names.
        """
        return None

    def with_script(self, request: Request) -> tuple[Request, list[str]]:
        """Return the request with what the script's own lines say, and notes; an HpcmlError if it cannot run.

        The submission calls it before the plan is made. It may read the script, and starts nothing.
        """
        return request, []

    def sized(self, site: Site, request: Request) -> tuple[Site, Request]:
        """Return site and request with the sizes that the script's own lines ask for.

        The plan calls it first, before it fills in the site's defaults. It changes neither what was asked of the
        scheduler nor the record of the request.
        """
        return site, request

    def decided(self, site: Site, request: Request) -> Site:
        """Return the site with what the kind decides; UsageError or ConfigError if the request cannot be met.

        The plan calls it with the site's defaults in the request, and uses the returned site from then on.
        """
        return site

    def planned_roles(self, request: Request) -> tuple[Role, ...]:
        """Return those of the roles that this run has, in their order; the plan makes a step of each."""
        return self.roles

    def reasons(self, site: Site, request: Request) -> list[str]:
        """Return the reasons for the plan, as far as the kind decided it; ``--dry-run`` shows it after "because"."""
        return []

    @abstractmethod
    def workers(self, site: Site, request: Request, memory: int, cpus: int) -> Workers:
        """Return the processes of each node, which has ``memory`` bytes of memory and ``cpus``, 0 if that is unknown.

        The plan calls it after the scheduler has laid out the job, and writes the result into plan.json.
        """

    def own(self, site: Site, request: Request) -> tuple[Any, ...]:
        """Return a record of what only the kind's own code needs to know on the nodes; empty if that is nothing.

        The plan calls it after :meth:`workers`, and writes the result into plan.json. ``Settings.of_kind`` has it.
        """
        return ()

    def environment(self, site: Site, request: Request) -> tuple[tuple[str, str], ...]:
        """Return the variables that all roles share; the site's own variables replace them."""
        return ()

    def profilers(self, request: Request) -> tuple[str, ...]:
        """Return the profilers that the request asks for; UsageError if there is no such profiler."""
        return ()

    def notices(self, settings: Settings) -> list[str]:
        """Return the notices for the user on the kind's decisions; each submission prints it."""
        return []

    def connects(self, request: Request) -> bool:
        """Whether the job's launcher connects the ranks to each other, so that the script need not do it.

        The check of the user's script calls it.
        """
        return False

    def packages(self, settings: Settings) -> Mapping[str, Sequence[str]]:
        """Return by option the packages that the run's Python must have for it.

        The submission refuses a Python that lacks one, and names the option.
        """
        return {}

    def check(self, settings: Settings, scheduler: str) -> None:
        """Raise SiteError if the site's scheduler cannot do what the settings need.

        The submission calls it last, before it writes anything; it may ask the scheduler within a few seconds.
        """
        return

    # -- on the login node: what is shown ------------------------------------------------------------------------------

    def condition(self, settings: Settings) -> str:
        """Return the condition for the processes, for ``--dry-run`` to show before them; empty: before the script."""
        return ""

    def network(self, settings: Settings) -> str:
        """Return the line of ``--dry-run`` on the network of a run on several nodes."""
        interface = settings.network.interface
        return f"interface {interface}" if interface else "hpcml chooses the network interface on the nodes"

    def lines(self, settings: Settings, variables: Sequence[str]) -> list[tuple[str, str]]:
        """Return more lines of ``--dry-run``, titles and texts; ``variables`` are names of the user's own variables."""
        return []

    def seen(self, event: str, fields: Facts) -> dict[str, Any]:
        """Return the new values of fields of :class:`hpcml.runs.status.Status` after an event; ``differences`` add up.

        ``status`` calls it for each event of events.jsonl, in order. KeyError or TypeError mean a damaged event.
        """
        return seen_of_interconnect(event, fields)

    def progress(self, samples: Sequence[Any], nodes: Sequence[str]) -> Progress | None:
        """Return the progress for ``hpcml top`` by its newest samples, the oldest first, on these nodes; None: nothing.

        It is called only for a kind with ``samples``, and with one sample or more.
        """
        return None

    # -- on both sides -------------------------------------------------------------------------------------------------

    def samples(self) -> Schema | None:
        """Return the columns of what its own processes measure; None: they measure nothing.

        hpcml.samples calls it to read, and the kind's own process to write.
        """
        return None

    def accounting(self) -> Accounting | None:
        """Return its part of the report, and its rules for advice; None: it has none."""
        return None

    # -- on the nodes --------------------------------------------------------------------------------------------------

    @abstractmethod
    def main_of(self, role: str) -> Callable[[], int]:
        """Import a role, and return the function that runs it until its end and returns its exit status.

        hpcml.node.role calls it in the role's own process, once.
        """

    def import_ahead(self, role: str, context: Any) -> Sequence[Path]:
        """Import what a role needs, and return the files of settings that the imports have read.

        hpcml.node.role calls it, before ``main_of``'s function, in a role that a hold starts before its run.
        ``context`` is the one of the run before. Nothing of the user's is imported.
        """
        return ()

    @abstractmethod
    def processes(self, state: RunState, folders: Any) -> Processes:
        """Return the object by which the supervisor follows the processes of an attempt.

        The supervisor calls it once in each attempt; ``folders`` is an ExitStack that it closes after the run's end.
        """
