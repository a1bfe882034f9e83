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
ON_FILES = "hpcml-on-files"  # a worker's own metric: threads whose task waits for a file system
MOST_FUNCTIONS = 64  # of a run, those that took longest
QUERIES = "polars-engine"  # the event that an engine of cuDF-Polars has opened: its queries are no tasks
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
    threads: Number | None = None  # for tasks
    on_files: Number | None = None  # threads whose task waits for a file system


class FunctionSample(NamedTuple):
    """The tasks of one function, cumulative."""

    tasks: Number | None = None
    seconds: Number | None = None  # of computing
    longest: Number | None = None  # seconds of one task, as far as a worker's heartbeat saw it


class DaskSample(NamedTuple):
    """A run as its scheduler measures it."""

    t: float  # seconds since 1970 by the clock of the scheduler's node
    tasks: Tasks = Tasks()
    seconds: ThreadSeconds = ThreadSeconds()
    moved: Moved = Moved()
    workers: Mapping[str, WorkerSample] = {}  # by name
    functions: Mapping[str, FunctionSample] = {}  # by name; a file has those that changed, and in its last sample all


SCHEMA = Schema("dask", DaskSample, {"workers": WorkerSample, "functions": FunctionSample})


class Measurement:
    """The scheduler's counters; looking at them takes time by the kinds of tasks and the workers, not by the tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.before = {"known": 0, "done": 0, "erred": 0}  # of all that Dask forgot when it was restarted
        self.last = dict(self.before)
        self.sent: dict[str, int] = {}
        self.functions: dict[str, FunctionSample] = {}
        self.functions_before: dict[str, FunctionSample] = {}  # until Dask was restarted

    def sample(self) -> DaskSample:
        """Return the state of the scheduler now."""
        tasks = self._tasks()
        self.functions = self._functions()
        return DaskSample(round(time.time(), 2), tasks, *self._activity(), self._workers(), self.functions)

    def _functions(self) -> dict[str, FunctionSample]:
        now = dict(self.functions_before)
        for name, prefix in self.scheduler.task_prefixes.items():
            if seconds := prefix.all_durations.get("compute"):
                count = prefix.state_counts.get("memory", 0) + prefix.state_counts.get("erred", 0)
                one = FunctionSample(count, round(seconds, 3), round(max(0.0, prefix.max_exec_time), 3))
                now[str(name)[:100]] = added(now.get(str(name)[:100]), one)
        return dict(sorted(now.items(), key=lambda item: -(item[1].seconds or 0))[:MOST_FUNCTIONS])

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
            self.functions_before = self.functions
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
                threads=int(state.nthreads),
                on_files=state.metrics.get(ON_FILES),
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


def added(one: FunctionSample | None, other: FunctionSample) -> FunctionSample:
    """Return the tasks of a function in two counts as one."""
    if one is None:
        return other
    count, seconds = ((first or 0) + (second or 0) for first, second in zip(one[:2], other[:2], strict=True))
    return FunctionSample(count, round(seconds, 3), max(one.longest or 0, other.longest or 0))


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
