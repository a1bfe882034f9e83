"""What Dask's scheduler measures of a run: tasks, how the workers' threads spend their time, bytes moved, workers.

A new figure of a worker is a field of :class:`WorkerSample` and its value in :meth:`Measurement._workers`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcml.samples import Number, Schema

if TYPE_CHECKING:
    from distributed import Scheduler

SENT = "hpcml-sent"  # a worker's own metric: bytes sent to other workers
_COPYING = ("serialize", "deserialize", "compress", "decompress")
_MOVED = ("disk-read", "disk-write", "device-to-host", "host-to-device")  # the last two: repairs.spilling
_RUNNING = ("thread-cpu", "thread-noncpu")


class Tasks(NamedTuple):
    """Dask's tasks: ``known``, ``done`` and ``erred`` since the begin of the run, the others now."""

    known: Number | None = None
    done: Number | None = None
    processing: Number | None = None
    waiting: Number | None = None
    queued: Number | None = None
    erred: Number | None = None


class ThreadSeconds(NamedTuple):
    """Seconds of the workers' threads by kind of activity, cumulative over all workers."""

    execute: Number | None = None
    transfer: Number | None = None
    spill: Number | None = None
    serialize: Number | None = None
    other: Number | None = None


class Moved(NamedTuple):
    """Bytes, cumulative over all workers."""

    transfer: Number | None = None  # sent to other workers
    spill: Number | None = None  # to the host's memory or disk, and back


class WorkerSample(NamedTuple):
    """A worker at one time."""

    processing: Number | None = None  # tasks that it has been given
    memory: Number | None = None  # bytes of its process
    spilled: Number | None = None  # bytes on disk
    cpu: Number | None = None  # percent of a core


class DaskSample(NamedTuple):
    """A run as its scheduler measures it."""

    t: float  # seconds since 1970 by the clock of the scheduler's node
    tasks: Tasks = Tasks()
    seconds: ThreadSeconds = ThreadSeconds()
    moved: Moved = Moved()
    workers: Mapping[str, WorkerSample] = {}  # by name


SCHEMA = Schema("dask", DaskSample, {"workers": WorkerSample})


class Measurement:
    """The scheduler's counters; looking at them takes time by the kinds of tasks and the workers, not by the tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.before = {"known": 0, "done": 0, "erred": 0}  # of all that Dask forgot when it was restarted
        self.last = dict(self.before)
        self.sent: dict[str, int] = {}

    def sample(self) -> DaskSample:
        """Return what the scheduler knows now."""
        return DaskSample(round(time.time(), 2), self._tasks(), *self._activity(), self._workers())

    def _tasks(self) -> Tasks:
        now: defaultdict[str, int] = defaultdict(int)
        entered: defaultdict[str, int] = defaultdict(int)
        for prefix in self.scheduler.task_prefixes.values():
            for state, count in prefix.states.items():
                now[state] += count
            for state, count in prefix.state_counts.items():
                entered[state] += count
        counted = {
            "known": len(self.scheduler.tasks) + entered["forgotten"],
            "done": entered["memory"],
            "erred": entered["erred"],
        }
        if counted["known"] < self.last["known"]:  # client.restart() clears Dask's own counters
            self.before = {name: self.before[name] + count for name, count in self.last.items()}
        self.last = counted
        created, done, erred = (self.before[name] + counted[name] for name in ("known", "done", "erred"))
        # A task that was lost and computed again was done twice.
        return Tasks(created, min(done, created), now["processing"], now["waiting"], now["queued"], erred)

    def _workers(self) -> dict[str, WorkerSample]:
        return {
            str(state.name): WorkerSample(
                processing=len(state.processing),
                memory=int(state.metrics.get("memory", 0) or 0),
                spilled=int((state.metrics.get("spilled_bytes") or {}).get("disk", 0)),
                cpu=round(float(state.metrics.get("cpu", 0) or 0), 1),
            )
            for state in self.scheduler.workers.values()
        }

    def _activity(self) -> tuple[ThreadSeconds, Moved]:
        for address, state in self.scheduler.workers.items():
            self.sent[address] = int(state.metrics.get(SENT, 0) or self.sent.get(address, 0))
        seconds = dict.fromkeys(ThreadSeconds._fields, 0.0)
        moved = {"transfer": sum(self.sent.values()), "spill": 0}
        for name, value in self.scheduler.cumulative_worker_metrics.items():
            if isinstance(name, tuple) and (activity := activity_of(name)):
                (moved if name[-1] == "bytes" else seconds)[activity] += value
        return ThreadSeconds(*[round(value, 3) for value in seconds.values()]), Moved(**moved)


def activity_of(name: tuple[Any, ...]) -> str:
    """Return the activity that one of Dask's fine performance metrics counts towards, empty for none.

    A name is (``execute``, kind of task, activity, unit) or (``gather-dep``, ``get-data``, ``memory-monitor`` or
    ``p2p``, …, activity, unit). The sender's seconds of a transfer are the receiver's too, and those of a shuffle's
    background are no task's.
    """
    context, activity, unit = name[0], str(name[-2]) if len(name) > 2 else "", name[-1]
    if unit == "bytes":
        shuffled = context == "p2p" and "background-comms" in name and activity == "process"
        return "transfer" if shuffled else "spill" if activity in _MOVED else ""
    if unit != "seconds" or context == "p2p":
        return ""
    if activity in _MOVED or context == "memory-monitor" or (activity.startswith("p2p") and "disk" in activity):
        return "spill"
    if activity in _COPYING:
        return "serialize"
    if context == "gather-dep" or activity.startswith("p2p"):
        return "transfer"
    if context == "execute":
        return "execute" if activity in _RUNNING else "other"
    return ""
