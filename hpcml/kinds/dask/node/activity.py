"""What the scheduler sees of its use: sent to the supervisor every second, and what became of the script's tasks."""

from __future__ import annotations

import asyncio
import math
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Scheduler, Status
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.protocol import pickle
from distributed.scheduler import heartbeat_interval

from hpcml.node.context import Context
from hpcml.node.process_helpers import OwnTime

LOOK = 1.0  # seconds between looks
BUSY = 25.0  # per cent of a CPU: a worker that uses more is at work, also without a task (client.run)
LATE, LATE_AT_LEAST = 3, 3.0  # intervals between a worker's heartbeats, and seconds; Dask closes a dead one after 300 s
SILENT = 30.0  # seconds without a heartbeat
SILENT_IN_QUERIES = 300.0  # the same while an engine of cuDF-Polars is open: its workers send none during a query
POLLS = 4  # questions a second for all workers that are a wait_for_workers(), which asks ten times
_BEFORE_THEY_RAN = frozenset(("waiting", "queued", "no-worker", "processing"))  # Dask's states
_BY_THE_SCRIPT = ("client-releases-keys", "remove-client")  # its last future is gone, or its client; not Future.cancel
_LONGEST_ERROR = 200  # characters of an error
_LINE_OF_FILE = re.compile(r'File "([^"]+)", line ([0-9]+)')
_LIBRARIES = (f"{sys.prefix}/", f"{sys.base_prefix}/", "<")


class Activity:
    """Whether somebody uses the cluster (all of its schedulers)."""

    def __init__(self, context: Context, schedulers: Sequence[Scheduler], send: Callable[..., None]) -> None:
        self.context, self.schedulers, self.send = context, schedulers, send
        self.clock = OwnTime()
        self.transitions = self._moved()
        self.used = self.waited = 0.0
        self.connected = False
        self.stuck = 0
        self.names = {name: node for node in context.node_names for name in context.worker_names(node)}
        self.heard_of: dict[str, tuple[float, float]] = {}  # each worker's last heartbeat, and when it was noticed
        self.silent: dict[str, float] = {}  # the seconds for which a node's worker has been silent

    async def watch(self) -> None:
        """Look and tell, until cancelled."""
        while True:
            await asyncio.sleep(LOOK)
            before, now = self.clock.seconds, self.clock.tick()
            try:
                self._look(now, now - before)
            except Exception:  # noqa: BLE001 - Dask's insides may change; then nothing is known, and the run goes on
                traceback.print_exc()
                self.used = now
            use = {"connected": self.connected, "idle": round(now - self.used, 1), "waited": round(self.waited, 1)}
            self.send(event="use", stuck=self.stuck, silent=self.silent, **use)

    def _look(self, now: float, passed: float) -> None:
        clients = (name for scheduler in self.schedulers for name in scheduler.clients)
        self.connected = self.connected or any(name != "fire-and-forget" for name in clients)
        self._look_at_heartbeats(now)
        if in_use := self._in_use():
            self.used = now
        polls = sum(scheduler.polls for scheduler in self.schedulers)
        for scheduler in self.schedulers:
            scheduler.polls = 0
        running = [state.status == Status.running for state in self._workers()]  # not paused for its memory
        waits = polls >= POLLS * passed and all(running) and not in_use
        self.waited = self.waited + passed if waits else 0.0
        self.stuck = sum(len(state.unrunnable) for state in self.schedulers) if now - self.used > LOOK else 0

    def _look_at_heartbeats(self, now: float) -> None:
        """Take note of the nodes whose workers are silent, by the scheduler's own time: a suspended job is not."""
        before, workers = self.heard_of, self._workers()
        least = SILENT_IN_QUERIES if any(scheduler.worker_ttl == math.inf for scheduler in self.schedulers) else SILENT
        least = max(least, 10 * float(heartbeat_interval(len(workers))))
        self.heard_of, self.silent = {}, {}
        for state in workers:
            last, since = before.get(state.address, (None, now))
            self.heard_of[state.address] = (state.last_seen, since if state.last_seen == last else now)
            seconds = now - self.heard_of[state.address][1]
            if seconds > least:
                node = self.names.get(str(state.name), str(state.name))
                self.silent[node] = max(round(seconds, 1), self.silent.get(node, 0.0))

    def _in_use(self) -> bool:
        """Whether tasks move or wait, or a worker computes, or is silent: a function of client.run holds its loop."""
        workers, before = self._workers(), self.transitions
        self.transitions = self._moved()
        heard_by = time.time() - max(LATE_AT_LEAST, LATE * float(heartbeat_interval(len(workers))))
        return (
            self.transitions != before
            or any(scheduler.queued for scheduler in self.schedulers)
            or any(
                state.processing
                or float(state.metrics.get("cpu", 0.0) or 0.0) > BUSY
                or float(state.last_seen) < heard_by
                for state in workers
            )
        )

    def _moved(self) -> int:
        return sum(scheduler.transition_counter for scheduler in self.schedulers)

    def _workers(self) -> list[Any]:
        return [state for scheduler in self.schedulers for state in scheduler.workers.values()]


class TaskEnds(SchedulerPlugin):  # type: ignore[misc]
    """Counts the tasks of one scheduler that failed or were given up before they were done; it keeps the first error.

    A script that ends with 0 may have waited for none of them: Dask keeps an error for who asks for the result, and
    drops what nobody wants any more. Blocks of a persisted collection of which a later graph needs others are no such
    tasks: ``x = x[:100].persist()`` drops the rest of x, and libraries do so.
    """

    name = "hpcml-task-ends"

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.failed = self.given_up = 0
        self.first = ""

    def transition(self, key: Any, start: str, finish: str, *_: Any, stimulus_id: str = "", **details: Any) -> None:
        """Dask's hook: a task has another state."""
        if start not in _BEFORE_THEY_RAN:
            return
        if finish == "erred" and details.get("cause") == key:  # what only waits for a failed task has no cause here
            self.failed += 1
            self.first = self.first or _described(**details)
        elif finish in {"released", "forgotten"} and stimulus_id.startswith(_BY_THE_SCRIPT):
            self.given_up += not self._is_needed_in_part(key)

    def _is_needed_in_part(self, key: Any) -> bool:
        """Whether tasks of another collection depend on that of a block."""
        task = self.scheduler.tasks.get(key) if isinstance(key, tuple) else None
        groups = self.scheduler.task_groups.values()
        return task is not None and any(task.group in group.dependencies for group in groups if group is not task.group)


def _described(
    *, exception: Any = None, exception_text: str | None = None, traceback_text: str | None = None, **_: Any
) -> str:
    error = exception_text or ""
    if not error and isinstance(exception, bytes):  # the scheduler's own: KilledWorker, NoWorkerError
        made = pickle.loads(exception)
        error = f"{type(made).__name__}: {made}"
    places = _LINE_OF_FILE.findall(traceback_text or "")
    script_places = [
        place for place in places if not place[0].startswith(_LIBRARIES) and "/site-packages/" not in place[0]
    ]
    line = "".join(character if character.isprintable() else "?" for character in " ".join(error.split()))
    short = line if len(line) <= _LONGEST_ERROR else f"{line[:_LONGEST_ERROR]}…"
    if not places:
        return short
    file, line_number = (script_places or places)[-1]
    return f"{short} ({file.rpartition('/')[2]}:{line_number})"


def task_remarks(scheduler: Scheduler) -> list[str]:
    """Return the remarks for the user on the tasks of a script that ended with 0."""
    ends: TaskEnds | None = scheduler.plugins.get(TaskEnds.name)
    said: list[str] = []
    if ends is None:  # the script took it away
        return said
    if failed := ends.failed:
        those = f"{failed:,} tasks failed, the first with" if failed > 1 else "a task failed with"
        said.append(f"{those} {ends.first or 'an error'}, but the script exited with status 0.")
    if undone := ends.given_up + sum(task.state in _BEFORE_THEY_RAN for task in scheduler.tasks.values()):
        those = f"{undone:,} tasks were" if undone > 1 else "a task was"
        said.append(
            f"{those} not finished when the script ended or deleted the future: the script did not wait for the result."
        )
    return said
