"""The scheduler's samples, written while a run lasts: the scheduler never waits for the file."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import traceback
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from distributed import Scheduler, Worker

from hpcml import samples
from hpcml.kinds.dask.samples import SCHEMA, SENT, DaskSample, Measurement
from hpcml.node.sampling.sampler import SampleFile, interval
from hpcml.node.settings import Context

PER_HOUR = 300_000  # bytes that the file may grow in an hour for each node of the run
LAST = 0.5  # seconds that the last line may take to be written
Counters = TypeVar("Counters", bound=NamedTuple)


def tell_transfers(worker: Worker) -> None:
    """Have a worker say with each heartbeat how many bytes it has sent to other workers in all."""
    worker.metrics[SENT] = lambda one: one.transfer_outgoing_bytes_total


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
    while True:
        used = time.thread_time()
        try:
            text = samples.line(merged([one.sample() for one in measurements]))
        except Exception:  # noqa: BLE001 - Dask's insides may change; then there are no samples, and the run goes on
            traceback.print_exc()
            return
        writer.write(text)
        used = time.thread_time() - used
        try:
            await asyncio.sleep(interval(every, time.monotonic() - began, cost=used, size=len(text), per_hour=per_hour))
        except asyncio.CancelledError:
            writer.finish(samples.line(merged([one.sample() for one in measurements])))
            raise
