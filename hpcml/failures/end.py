"""How a run ended: one record from the node that writes it (status.json) to the report that reads it."""

# No `from __future__ import annotations`: hpcml/typed_json.py reads the types of fields, from texts slowly.
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple, Self

from hpcml import earlier_names, errors, typed_json
from hpcml.states import State
from hpcml.units import first_of_many

_STATES = {errors.TIME_LIMIT: State.TIMEOUT, errors.CANCELLED: State.CANCELLED, errors.PREEMPTED: State.PREEMPTED}
SLURM = "scheduler"  # in ``by``: the batch scheduler, which may be hpcml itself on this machine
IDLE_HINT = "{} You or the site set deadlines.idle (default: off)."  # after an end of idle ranks
_NAMED = 8  # ranks in a sentence
_NEEDED = ("over", "state", "exit_status", "by", "message", "hint")


class MemoryLimit(StrEnum):
    """Whose memory limit was reached where a process of the run was killed."""

    NODE = "node"  # the job's on one node: the kernel killed the process
    PROCESS = "process"  # the process's own share of it: hpcml killed the process


class Reason(StrEnum):
    """Why a run ended, where its exit status does not say it; all but the first are names of rows of failures.rules."""

    EXIT = "exit"  # the script exited, and ``message`` says no more than its exit status

    NEVER_SATISFIED = "dependency"  # a run that it waited for did not end as required
    BATCH_KILLED = "batch-killed"
    NO_ADDRESS = "no-address"  # a node has no usable network address
    LACKS_PACKAGES = "lacks-packages"  # the run's Python has no Dask
    SHADOWED = "shadowed-module"  # a folder of PYTHONPATH hides a package
    DAMAGED_LIBRARY = "damaged-library"  # the batch script says so
    NO_CONTAINER_PROGRAM = "container-program"  # this and the next two: image.sh says so
    TMPDIR_NOT_BOUND = "tmpdir"
    TMPDIR_OPEN = "tmpdir-open"


NODE_MEMORY = "the node's memory limit was reached"
LESS_MEMORY = "Use smaller chunks or less data, or a site with more memory (--site)."


def of_machine(clause: str, *, one_machine: bool) -> str:
    """Return a clause of an end as it holds on the local site: its memory or the account's share was full."""
    return clause.replace(NODE_MEMORY, "no more memory was available to you on this machine") if one_machine else clause


class OtherEnd(NamedTuple):
    """How another rank failed in the seconds after the first, in another way that is no consequence."""

    rank: int
    node: str
    status: int
    clause: str  # for people

    @property
    def sentence(self) -> str:
        """The rank and how it ended, in a line."""
        return f"rank {self.rank} on {self.node} {self.clause}"


class ProcessEnd(NamedTuple):
    """How a process ended that its node's agent had started, and replaced if it could (``ends`` of nodes/NODE.json)."""

    name: str
    what: str  # a clause, for people
    reason: str  # a row of failures.rules, if it has one: the kind's word for a process, and how that ended
    status: int  # as a shell gives it (128 + signal)
    time: float  # in seconds since 1970, by the node's clock
    log_size: int  # bytes of the agent's log at that time


class FailedPoint(NamedTuple):
    """A point of a sweep that failed."""

    point: str  # its values on one line
    cause: str
    log: str  # the file of its output


class PointEnds(NamedTuple):
    """How the points of a sweep's run ended."""

    submitted: int = 0
    failed: int = 0
    first: tuple[FailedPoint, ...] = ()  # the first that failed


class End(NamedTuple):
    """How an attempt of a run ended.

    ``message``, ``hint``, ``cause`` and ``warnings`` are for people: no code looks into them. What code decides by has
    a field.
    """

    exit_status: int = 0
    phase: str = ""  # in which it ended: queued, allocated, image, a stage of the kind's startup, script
    by: str = ""  # who decided it: script, hpcml, SLURM, user
    message: str = ""  # a clause
    hint: str = ""  # the next step
    quote: tuple[str, ...] = ()  # lines that show it
    ended_as: str = ""  # Slurm's word for it where exit status and ``by`` do not imply it
    over: bool = True  # False while the roles are torn down
    attempt: int = 0  # its number, from 0
    cause: str = ""  # why it failed in at most six words, empty if that is not known
    warnings: tuple[str, ...] = ()  # sentences
    at_fault: tuple[str, ...] = ()  # nodes that failed by what they did themselves; others may have kept the rest away
    time: float = 0.0  # when this was written, in seconds since 1970
    rank: int | None = None  # the rank that failed first, None where the script is one process
    node: str = ""  # its node; where hpcml ended the run, the one that was lost or did not start, first of several
    log: str = ""  # the file of its output in the run's folder of logs
    log_begin: int = 0  # bytes of that file, or of the script's log, that earlier attempts wrote
    memory_limit: str = ""  # of MemoryLimit, empty if none was reached; a text, because newer versions may have more
    lost_nodes: tuple[str, ...] = ()  # where hpcml ended the run: all nodes that were lost or did not start
    role: str = ""  # where hpcml ended the run: the role (Role.name) that was lost or did not start
    others: tuple[OtherEnd, ...] = ()  # ranks that failed with ``rank``, in another way; one of each way
    reason: str = ""  # of Reason; empty: the exit status says all
    points: PointEnds = PointEnds()  # of a sweep
    killed_ranks: tuple[int, ...] = ()  # that had not ended when the run did, although others had exited with 0
    cut_short: bool = False  # Slurm killed the run before it had written how it ended

    @property
    def state(self) -> str:
        """The run's state in Slurm's words."""
        if self.ended_as or not self.exit_status:
            return self.ended_as or State.COMPLETED
        if self.by == SLURM and self.exit_status == errors.ALLOCATION_LOST:
            return State.NODE_FAIL
        return State.FAILED if self.by == "script" else _STATES.get(self.exit_status, State.FAILED)

    @property
    def failed(self) -> bool:
        """Whether there is a failure to explain."""
        return bool(self.exit_status) or self.state != State.COMPLETED

    def and_killed(self, clause: str) -> str:
        """Return a clause, and after it the ranks that were killed although others had exited with 0, if any."""
        if not self.killed_ranks:
            return clause
        if len(self.killed_ranks) == 1:
            return f"{clause}; rank {self.killed_ranks[0]} was killed before it finished"
        named = first_of_many([*map(str, self.killed_ranks)], _NAMED)
        return f"{clause}; ranks {named} were killed before they finished"

    def with_killed_ranks(self) -> Self:
        """Return the end with these ranks in its message, if the run ended because of something else."""
        return self if self.by == "script" else self._replace(message=self.and_killed(self.message))

    def as_json(self) -> dict[str, Any]:
        """Return the end as a JSON-ready table, which :func:`parse` reads."""
        table = {"state": str(self.state), **typed_json.plain(self)}
        del table["ended_as"]
        if not self.points.submitted:
            del table["points"]
        return table


def parse(table: Mapping[str, Any]) -> End:
    """Return the end that a table of status.json holds; DamagedError if it lacks something or is damaged."""
    if missing := [name for name in _NEEDED if name not in table]:
        raise typed_json.DamagedError(f"{missing[0]} is missing")
    end = typed_json.read(End, earlier_names.of_end({**table, "ended_as": table["state"]}))
    if end.by != "script":  # an older version wrote only the first of the nodes
        return end._replace(lost_nodes=(end.node,)) if end.node and not end.lost_nodes else end
    if "reason" in table or end.rank is not None or end.exit_status >= 128:  # a signal may have killed the script
        return end
    return end._replace(reason=Reason.EXIT)  # of an older version
