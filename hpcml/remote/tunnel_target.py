"""The service that a tunnel leads to: its name, the request for its port, and how long a tunnel waits for it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcml import kinds
from hpcml.errors import NotFoundError, ServiceGoneError, UsageError
from hpcml.runs import directories
from hpcml.runs import record as run_record
from hpcml.runs import status as run_status
from hpcml.services import OWN, Condition, Target, Wanted, ask, check_name, declared
from hpcml.states import Phase

ASKED = 10.0  # seconds for the agent of a node to answer a request, before its silence is said


def node_of(planned: run_record.Planned, nodes: Sequence[str], name: str, rank: int | None, place: str) -> str:
    """Return the node of a name or of a rank, or else the first; UsageError if the run has no such node or rank."""
    if name and name not in nodes:
        hint = f"The nodes are {', '.join(nodes[:8])}{' and others' if len(nodes) > 8 else ''}."
        raise UsageError(f"The run has no node {name}", place=place, hint=hint)
    _check_rank(planned, rank, place)
    return name or nodes[(rank or 0) * len(nodes) // max(planned.expected, 1)]


def _check_rank(planned: run_record.Planned, rank: int | None, place: str) -> None:
    if rank is None:
        return
    if not kinds.get(planned.kind).ranks:
        raise UsageError(
            f"A run of kind {planned.kind} has no ranks", place=place, hint="Name a node: NODE, not rank:N."
        )
    if rank >= planned.expected:
        raise UsageError(f"The run has no rank {rank}", place=place, hint=f"The ranks are 0 to {planned.expected - 1}.")


class Sought:
    """A service of a run, from the first look on; each look asks for its port again in a new attempt.

    Parameters
    ----------
    name
        The service; empty: the one that a tunnel leads to if nobody names one.
    patience
        Seconds that the script may run without the service being ready.

    Raises
    ------
    UsageError
        If the run cannot have such a service, or has several and none is named.
    """

    def __init__(self, run: directories.Run, name: str, patience: float) -> None:
        self.run, self.patience = run, patience
        self.planned = run_record.planned(run)
        self.name = name or self._usual()
        self.target = Target.named(self.name)
        self.since = 0.0  # since when the script runs without the service, by the monotonic clock
        self.asked: int | None = None  # the attempt in which its port was asked for
        kind = kinds.get(self.planned.kind)
        if self.target:
            _check_rank(self.planned, self.target.rank, f"--to {self.name}")
        if self.target is None and self.name not in OWN:
            check_name(self.name, "--service")
        if self.name in OWN and self.name not in kind.services:
            message, hint = f"A run of kind {kind.name} has no {self.name}", f"Show the run: hpcml status {run.id}."
            raise NotFoundError(message, place=run.id, hint=hint)

    def _usual(self) -> str:
        """Return the service of a tunnel for which nobody names one."""
        declared_names = [declared(text)[0] for text in self.planned.declared]
        usual = [name for name in ("dashboard",) if name in kinds.get(self.planned.kind).services]
        names = [self.planned.form.traits.web_service, *usual, *(declared_names or run_record.services(self.run.paths))]
        if not (name := next(filter(None, names), "")):
            hint = "Name a service with --service NAME, or a port with --to PORT."
            message = f"A run of kind {self.planned.kind} has no dashboard, and this run has named no service"
            raise UsageError(message, place=self.run.id, hint=hint)
        return name

    def look(self, status: run_status.Status) -> str:
        """Return the reason why the service is not ready while the script runs, a clause; ask for it where that is due.

        Raises
        ------
        UsageError
            If the run has no such node or rank.
        ServiceGoneError
            If another account's program has the port, or ``patience`` has passed.
        StorageError
            If the request cannot be written.
        """
        if status.phase != Phase.RUNNING or self.name in OWN:
            self.since = 0.0
            waits = status.phase == Phase.RUNNING and status.alone and self.name == "dashboard"
            return "it starts when the script opens a Dask client" if waits else ""
        if self.target:
            self._ask(self.target, status)
        known = run_record.services(self.run.paths).get(self.name)
        if known and not known.clause:
            self.since = 0.0
            return ""
        now = time.monotonic()
        self.since = self.since or now
        clause = known.clause if known else self._silence(now - self.since)
        hint = f"Show the run's services: hpcml status {self.run.id}."
        if known and known.found.condition is Condition.FOREIGN:
            hint = f"Let your program use another port. {hint}"
            raise ServiceGoneError(f"hpcml opens no tunnel: {clause}", place=self.run.id, hint=hint)
        if now - self.since > self.patience:
            message = f"The service {self.name} was not ready within {self.patience:g} s: {clause}"
            raise ServiceGoneError(message, place=self.run.id, hint=hint)
        return clause

    def _ask(self, target: Target, status: run_status.Status) -> None:
        """Ask the node's agent for a bridge, once in each attempt."""
        attempt, nodes = status.progress.attempt, status.allocation.nodes
        if attempt == self.asked or not nodes:
            return
        node = node_of(self.planned, nodes, target.node, target.rank, f"--to {self.name}")
        folder = self.run.paths.attempt(attempt).wanted
        with directories.storage(folder):
            ask(folder, Wanted(self.name, node, target.port))
        self.asked = attempt

    def _silence(self, seconds: float) -> str:
        """Return the sentence for a service that has no record yet."""
        if not self.target:
            return f"the script has not named a service {self.name} yet"
        return "hpcml checks the node" if seconds < ASKED else "hpcml's agent on the node does not answer"
