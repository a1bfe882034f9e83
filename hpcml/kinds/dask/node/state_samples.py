"""The scheduler's samples, written while a run lasts: the scheduler never waits for the file."""

from __future__ import annotations

import asyncio
import platform
import queue
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from distributed import Scheduler, Worker

from hpcml import samples
from hpcml.files import stat_fields
from hpcml.kinds.dask.samples import ON_FILES, SCHEMA, SENT, DaskSample, FunctionSample, Measurement, added
from hpcml.node.context import Context
from hpcml.node.sampling.sampler import SampleFile, interval

PER_HOUR = 300_000  # bytes that the file may grow in an hour for each node of the run
MOST_THREADS = 16  # of a worker are looked at; they stand for the others
LAST = 0.5  # seconds that the last line may take to be written
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
