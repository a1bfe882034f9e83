"""What the run loses while its script runs: worker tasks that were killed, workers that come no more; told once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from hpcml.kinds.dask.node import diagnosis
from hpcml.kinds.dask.node.diagnosis import Missing
from hpcml.node import files
from hpcml.node.outcome import EventLog
from hpcml.node.processes import OwnTime
from hpcml.node.settings import Context

AGAIN = 3.0  # seconds in which the workers of a node tell of one and the same stop of their task


class Losses:
    """The nodes whose workers are away, for how long, and what has been told of them."""

    def __init__(self, context: Context, events: EventLog, clock: OwnTime, warn: Callable[[str], None]) -> None:
        self.context, self.events, self.clock, self.warn = context, events, clock, warn
        self.away: dict[str, float] = {}
        self.killed: set[str] = set()
        self.told: set[str] = set()
        self.starved: set[str] = set()
        self.stopped: dict[str, float] = {}

    def look(self, present: set[str], *, step_gone: bool, lost: Mapping[str, str] = {}) -> list[Missing]:
        """Return the nodes that lack workers; one whose workers have been away too long will not get them back."""
        missing = diagnosis.missing_nodes(self.context, present, step_gone=step_gone, lost=lost)
        self.away = {node.node: self.away.get(node.node, self.clock.seconds) for node in missing}
        longest = self.context.settings.deadlines.workers
        for index, node in enumerate(missing):
            if not node.final and self.clock.seconds - self.away[node.node] > longest:
                why = f"{node.why}, and its workers have been away for {longest:g} s"
                quote = diagnosis.worker_log(self.context, node.node)
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
                self.warn(f"{node.node}: {node.memory}; more of these are in its log.")
            if not node.final or node.node in self.told:
                continue
            self.told.add(node.node)
            self.events.write("workers-lost", node=node.node, workers=list(node.workers))
            lost = "a worker" if len(node.workers) == 1 else f"{len(node.workers)} workers"
            self.warn(f"{node.node} lost {lost} for good: {node.why}; {total - away} of {total} workers are left.")

    def tell_stopped(self, node: str) -> None:
        """Tell of a worker task that was stopped and goes on, as one of its workers said; each of them may say it."""
        if self.clock.seconds - self.stopped.get(node, -AGAIN) < AGAIN:
            return
        self.stopped[node] = self.clock.seconds
        self.events.write("worker-task-stopped", node=node)
        self.warn(f"{node}: the worker task was stopped (SIGSTOP) and watched no worker; it goes on.")

    def _tell_killed(self) -> None:
        """Tell of worker tasks that step.sh has started again."""
        names = {name for name in files.listed(self.context.attempt.exits) if name.startswith("killed@")}
        for name in sorted(names - self.killed):
            _, node, which = name.split("@")
            status = (self.context.attempt.exits / name).read_text().strip()
            self.events.write("worker-task-killed", node=node, exit_status=status)
            killed = f"the worker task was killed (exit status {status})"
            self.warn(f"{node}: {killed}; it is started again, with its workers (time {which}).")
        self.killed |= names
