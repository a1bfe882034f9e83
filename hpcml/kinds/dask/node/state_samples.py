"""The scheduler's samples, written while a run lasts: the scheduler never waits for the file."""

from __future__ import annotations

import asyncio
import platform
import queue
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from distributed import Scheduler, Worker

from hpcml import samples
from hpcml.kinds.dask.samples import SCHEMA, DaskSample, FunctionSample, Moved, Tasks, ThreadSeconds, WorkerSample
from hpcml.node.context import Context
from hpcml.node.sampling.sampler import SampleFile, interval
from hpcml.safe_files import stat_fields

SENT = "hpcml-sent"  # a worker's own metric: bytes sent to other workers
ON_FILES = "hpcml-on-files"  # a worker's own metric: threads whose task waits for a file system
PER_HOUR = 300_000  # bytes that the file may grow in an hour for each node of the run
MOST_THREADS = 16  # of a worker are looked at; they stand for the others
LAST = 0.5  # seconds that the last line may take to be written
MOST_FUNCTIONS = 64  # of a run, those that took longest
_COPYING = ("serialize", "deserialize", "compress", "decompress")
_MOVED = ("disk-read", "disk-write", "device-to-host", "host-to-device")  # the last two: repairs.spilling
_RUNNING = ("thread-cpu", "thread-noncpu")
Counters = TypeVar("Counters", bound=NamedTuple)
_FILE_CALLS = {  # the numbers of system calls whose first argument is a file: read to pwritev, fcntl, flock, fsync, …
    "x86_64": {0, 1, 17, 18, 19, 20, 72, 73, 74, 75, 217, 277, 285, 295, 296, 326},
    "aarch64": {25, 32, 47, 61, 63, 64, 65, 66, 67, 68, 69, 70, 82, 83, 84, 285},
}.get(platform.machine(), set())


def add_metrics(worker: Worker) -> None:
    """Have a worker report with each heartbeat the bytes that it sent, and its threads that wait for files."""
    worker.metrics[SENT] = lambda one: one.transfer_outgoing_bytes_total
    worker.metrics[ON_FILES] = threads_on_files


def threads_on_files(worker: Worker) -> int:
    """Return the number of threads with a task that wait for a file system now."""
    busy = set(worker.active_threads)
    threads = [thread.native_id for thread in threading.enumerate() if thread.ident in busy]
    step = 1 + len(threads) // MOST_THREADS
    return min(len(threads), step * sum(map(_is_on_files, threads[::step])))


def _is_on_files(thread: int | None) -> bool:
    """Whether a thread is in an uninterruptible wait (state D), or in a system call on a file or folder."""
    folder = Path(f"/proc/self/task/{thread}")
    try:
        if stat_fields(folder)[0] == "D":
            return True
        call, *arguments = (folder / "syscall").read_text().split()  # "running" for one that uses a processor
        if not arguments or int(call) not in _FILE_CALLS:
            return False
        name = str(Path(f"/proc/self/fd/{int(arguments[0], 16)}").readlink())  # stat() may wait for a file system too
    except (OSError, ValueError, OverflowError):  # it has ended, or the kernel does not show its calls
        return False
    return name.startswith("/") and not name.startswith("/dev/")  # else "socket:[…]", "pipe:[…]"


class Writer:
    """A file that a thread writes: the scheduler never waits for a file system, and lines are left out instead."""

    def __init__(self, file: SampleFile) -> None:
        self.file = file
        self.lines: queue.Queue[bytes] = queue.Queue(maxsize=16)
        threading.Thread(target=self._run, daemon=True).start()  # not of the loop's pool, whose threads are waited for

    def _run(self) -> None:
        while True:
            self.file.append(self.lines.get())
            self.lines.task_done()

    def write(self, text: bytes) -> None:
        """Have a line written, unless sixteen are waiting."""
        if not self.lines.full():
            self.lines.put_nowait(text)

    def finish(self, text: bytes) -> None:
        """Have the last line written, and wait a moment for it: the process may end next."""
        self.write(text)
        with self.lines.all_tasks_done:
            self.lines.all_tasks_done.wait_for(lambda: not self.lines.unfinished_tasks, LAST)


def merged(parts: Sequence[DaskSample]) -> DaskSample:
    """Return the samples of schedulers that share a run as that of one."""
    first, *others = parts
    for other in others:
        first = DaskSample(
            first.t,
            _sum(first.tasks, other.tasks),
            _sum(first.seconds, other.seconds),
            _sum(first.moved, other.moved),
            {**first.workers, **other.workers},
            {
                **first.functions,
                **{name: added(first.functions.get(name), one) for name, one in other.functions.items()},
            },
        )
    return first


def _sum(one: Counters, other: Counters) -> Counters:
    return type(one)(*[round(first + second, 3) for first, second in zip(one, other, strict=True)])


async def watch(context: Context, schedulers: Sequence[Scheduler]) -> None:
    """Write what the schedulers know every some seconds until cancelled, and once more then."""
    every = context.settings.report.sample_every
    if not every:
        return
    header = samples.header(SCHEMA, t=round(time.time(), 2), every=every)
    writer = Writer(SampleFile(context.attempt.samples_of_kind(SCHEMA.name), header))
    measurements, began = [Measurement(scheduler) for scheduler in schedulers], time.monotonic()
    per_hour = PER_HOUR * context.settings.job.nodes
    written: Mapping[str, FunctionSample] = {}
    while True:
        used = time.thread_time()
        try:
            sample = merged([measurement.sample() for measurement in measurements])
            changed = {name: one for name, one in sample.functions.items() if written.get(name) != one}
            text, written = samples.line(sample._replace(functions=changed)), sample.functions
        except Exception:  # noqa: BLE001 - Dask's insides may change; then there are no samples, and the run goes on
            traceback.print_exc()
            return
        writer.write(text)
        used = time.thread_time() - used
        try:
            await asyncio.sleep(interval(every, time.monotonic() - began, cost=used, size=len(text), per_hour=per_hour))
        except asyncio.CancelledError:
            writer.finish(samples.line(merged([measurement.sample() for measurement in measurements])))
            raise


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
