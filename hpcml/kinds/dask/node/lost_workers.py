"""Which workers are missing, or the scheduler: since when, why, and what their logs say."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcml import errors
from hpcml.failures import job_log
from hpcml.failures.end import End
from hpcml.failures.note import read_note
from hpcml.failures.role_end import RoleEnd
from hpcml.kinds.dask.roles import SCHEDULER, WORKER
from hpcml.node import shared_files
from hpcml.node.context import Context
from hpcml.node.end_cause import role_end
from hpcml.node.missing_processes import Absence, Words
from hpcml.units import first_of_many

_NAMED = 4  # nodes that a sentence names
WORDS = Words(
    parent="the workers' parent process",
    step_gone="the job step that runs the workers ended (its srun may have been killed)",
    starting="the workers' parent process started but is still importing Dask",
    waiting="the workers started but did not register with the scheduler",
)
AGAIN = 3.0  # seconds in which the workers of a node tell of one and the same stop of their task


@dataclass(frozen=True, slots=True)
class Missing:
    """A node whose workers are not all there.

    ``final`` means that waiting longer would not help, and ``quote`` is its log's end only then: logs of nodes that may
    still come are not read at each look. ``remedy`` is what to do where an image was not entered; ``memory`` is which
    of its workers was ended because it was out of memory, a clause, empty if none was. ``memory_limit`` is whose limit
    the worker had reached that has failed for good, ``reason`` the row of failures.rules that knows why. Without
    ``own_fault`` others may be why.
    """

    node: str
    workers: tuple[str, ...]
    why: str
    final: bool
    quote: tuple[str, ...]
    remedy: str = ""
    memory: str = ""
    own_fault: bool = True
    memory_limit: str = ""  # of failures.end.MemoryLimit
    reason: str = ""

    def sentence(self) -> str:
        """Return the node and the reason in one clause."""
        return f"{self.node}: {self.why}"


def root_of(error: BaseException) -> str:
    """Return the error behind an error in one line; Dask says of every trouble that it "failed to start"."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def missing_nodes(absence: Absence, present: set[str]) -> list[Missing]:
    """Return the nodes that lack workers, and why; ``present`` are the names of the workers that are there."""
    absence.look()
    missing = []
    for node in absence.context.node_names:
        # With its agent all its workers have ended, though the scheduler may not know yet.
        names = absence.context.worker_names(node)
        absent = names if absence.has_ended(node) else tuple(name for name in names if name not in present)
        mark = absence.mark(node) if absent else {}
        if absent := tuple(name for name in absent if name not in mark.get("retired", ())):
            cause = absence.cause(node)
            quote = job_log.of_role(absence.context.run, WORKER, node) if cause.final else ()
            remedy, memory = "" if cause.entered else cause.hint, mark.get("memory", "")
            why = (cause.what, cause.final, quote, remedy, memory, cause.own_fault, cause.memory_limit, cause.reason)
            missing.append(Missing(node, absent, *why))
    return missing


def of_nodes(nodes: Sequence[Missing]) -> dict[str, Any]:
    """Return the fields of the end of a run that has lost the workers of some nodes."""
    lost = tuple(node.node for node in nodes)
    limit = next((node.memory_limit for node in nodes if node.memory_limit), "")
    reason = nodes[0].reason if nodes else ""
    fields = {"node": next(iter(lost), ""), "lost_nodes": lost, "role": WORKER.name}
    return {**fields, "memory_limit": limit, "reason": reason}


def of_scheduler(context: Context) -> dict[str, Any]:
    """Return the fields of the end of a run that has lost its scheduler."""
    return {"node": context.node, "lost_nodes": (context.node,), "role": SCHEDULER.name}


def sentences(nodes: Sequence[Missing]) -> str:
    """Return the known facts of some nodes in one line: of the first four, and how many others there are."""
    return first_of_many([node.sentence() for node in nodes], _NAMED, "; ", "; and {} more nodes")


def _scheduler_end(context: Context) -> RoleEnd | None:
    """Return the end of the scheduler's role, None while its step has not recorded its exit status."""
    return role_end(context, SCHEDULER, context.node, shared_files.listed(context.attempt.exits))


def of_the_scheduler(context: Context, closed: bool, late: float, *, step_gone: bool = False) -> End | None:
    """Return the end of a run without a scheduler, None if it may still come.

    It cannot come any more if it was there and has ``closed``, or with ``step_gone``; ``late`` are the seconds that
    have passed if its deadline has, else 0.
    """
    hint = f"See the whole log: hpcml logs {context.run.directory.name} scheduler."
    quote, fields = job_log.of_role(context.run, SCHEDULER, context.node), of_scheduler(context)
    name = f"the Dask scheduler on {context.node}"
    if end := _scheduler_end(context):
        fields["reason"] = end.why.reason
        if not end.entered:
            message = f"{context.node}: {end.why.what}"
            return End(errors.IMAGE, "image", "hpcml", message, end.why.hint, quote, **fields)
        message, hint = f"{name} {end.why.what}", end.why.hint or hint
        note = read_note(context.attempt.note_of(SCHEDULER.name, context.node))
        if end.status == errors.START_FAILED and note.what:
            message = f"{context.node}: {note.what}"
    elif closed:
        message = f"{name} ended while starting"
    elif step_gone:
        message = f"the job step of {name} ended (its srun may have been killed)"
    elif late:
        message = f"{name} did not start within {late:g} s"
    else:
        return None
    return End(errors.START_FAILED, SCHEDULER.name, "hpcml", message, hint, quote, **fields)


def scheduler_end(context: Context) -> str:
    """Return the end of the scheduler's role, to follow a sentence; nothing while its step has not recorded it."""
    end = _scheduler_end(context)
    return f": it {end.why.what}" if end else ""


def of_the_workers(absence: Absence, present: set[str], late: float) -> End | None:
    """Return the end of a run without workers, None if they may still come; ``late`` as of the scheduler."""
    context, nodes = absence.context, missing_nodes(absence, present)
    final = [missing for missing in nodes if missing.final]
    if not late and not final:
        return None
    outside = [missing for missing in final if missing.remedy]
    named = outside or final or nodes
    at_fault = tuple(missing.node for missing in named if missing.own_fault)
    quote = (named[0].quote or job_log.of_role(context.run, WORKER, named[0].node)) if named else ()
    fields = of_nodes(named)
    if outside:
        hint = outside[0].remedy
        return End(errors.IMAGE, "image", "hpcml", sentences(named), hint, quote, at_fault=at_fault, **fields)
    when = f" within {late:g} s" if late else ""
    absent = sum(len(missing.workers) for missing in nodes)
    reason = f"{absent} of {absent + len(present)} workers did not start{when}: {sentences(named)}"
    hint = f"See the whole log: hpcml logs {context.run.directory.name} worker."
    return End(errors.WORKERS_NEVER_CAME, "workers", "hpcml", reason, hint, quote, at_fault=at_fault, **fields)


class Losses:
    """The nodes whose workers are away, for how long, and the nodes that were reported."""

    def __init__(self, absence: Absence) -> None:
        self.absence, self.agents, self.context = absence, absence.agents, absence.context
        self.events, self.clock, self.warn = absence.state.events, absence.state.clock, absence.state.warn
        self.ends = 0  # lines of agents that had ended when the exit statuses were looked at last
        self.away: dict[str, float] = {}
        self.killed: set[str] = set()
        self.reported: set[str] = set()
        self.starved: set[str] = set()
        self.stopped: dict[str, float] = {}

    def look(self, present: set[str]) -> list[Missing]:
        """Return the nodes that lack workers; one whose workers have been away too long will not get them back."""
        missing = missing_nodes(self.absence, present)
        self.away = {node.node: self.away.get(node.node, self.clock.seconds) for node in missing}
        longest = self.context.settings.deadlines.workers
        for index, node in enumerate(missing):
            if not node.final and self.clock.seconds - self.away[node.node] > longest:
                why = f"{node.why}; the node's workers have been missing for {longest:g} s"
                quote = job_log.of_role(self.context.run, WORKER, node.node)
                missing[index] = dataclasses.replace(node, final=True, why=why, quote=quote)
        return missing

    def tell(self, missing: Sequence[Missing]) -> None:
        """Write down and say once what is new: a worker task that was killed, and workers that are lost for good."""
        total, away = self.context.settings.worker_count, sum(len(node.workers) for node in missing)
        if missing:
            self._tell_killed()
        for node in missing:
            if node.memory and node.node not in self.starved:  # they come back, and the script gets slow
                self.starved.add(node.node)
                self.warn(f"{node.node}: {node.memory}; only the node's log shows further out-of-memory kills.")
            if not node.final or node.node in self.reported:
                continue
            self.reported.add(node.node)
            self.events.write("workers-lost", node=node.node, workers=list(node.workers))
            lost = "a worker" if len(node.workers) == 1 else f"{len(node.workers)} workers"
            self.warn(f"{node.node} lost {lost} permanently: {node.why}; {total - away} of {total} workers are left.")

    def tell_stopped(self, node: str) -> None:
        """Tell of a worker task that was stopped and continues, as one of its workers said; each of them may say it."""
        if self.clock.seconds - self.stopped.get(node, -AGAIN) < AGAIN:
            return
        self.stopped[node] = self.clock.seconds
        self.events.write("worker-task-stopped", node=node)
        stopped = "the workers' parent process was stopped (SIGSTOP) and did not watch its workers"
        self.warn(f"{node}: {stopped}; it now continues.")

    def _tell_killed(self) -> None:
        """Tell of worker tasks that step.sh has started again: their agents' lines have ended."""
        are_back = all(map(self.agents.is_connected, self.context.node_names))
        if are_back and self.ends == self.agents.ends:
            return
        self.ends = self.agents.ends if are_back else self.ends
        names = {name for name in shared_files.listed(self.context.attempt.exits) if name.startswith("killed@")}
        for name in sorted(names - self.killed):
            _, node, which = name.split("@")
            status = (self.context.attempt.exits / name).read_text().strip()
            self.events.write("worker-task-killed", node=node, exit_status=status)
            killed = f"the workers' parent process was killed (exit status {status})"
            self.warn(f"{node}: {killed}; it restarts with its workers (restart {which}).")
        self.killed |= names
