"""What Dask's scheduler knows of a run, written while it lasts: tasks, workers, and how threads spend their time."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from distributed import Scheduler, Worker

from hpcml.node.sampling.sample_file import SampleFile, interval, line
from hpcml.node.settings import Context

SENT = "hpcml-sent"  # a worker's own metric: bytes sent to other workers
PER_HOUR = 300_000  # bytes that the file may grow in an hour for each node of the run
LAST = 0.5  # seconds that the last line may take to be written
_COPYING = ("serialize", "deserialize", "compress", "decompress")
_MOVED = ("disk-read", "disk-write", "device-to-host", "host-to-device")  # the last two: repairs.spilling
_RUNNING = ("thread-cpu", "thread-noncpu")


def tell_transfers(worker: Worker) -> None:
    """Have a worker say with each heartbeat how many bytes it has sent to other workers in all."""
    worker.metrics[SENT] = lambda one: one.transfer_outgoing_bytes_total


class DaskState:
    """The scheduler's counters; looking at them takes time by the kinds of tasks and the workers, not by the tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.before = {"known": 0, "done": 0, "erred": 0}  # of all that Dask forgot when it was restarted
        self.last = dict(self.before)
        self.sent: dict[str, int] = {}

    def sample(self) -> dict[str, Any]:
        """Return what is so now: see :class:`hpcml.samples.DaskSample`."""
        return {
            "t": round(time.time(), 2),
            "tasks": self._tasks(),
            "workers": self._workers(),
            "metrics": self._metrics(),
        }

    def _tasks(self) -> dict[str, int]:
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
        known, done, erred = (self.before[name] + counted[name] for name in ("known", "done", "erred"))
        moving = {name: now[name] for name in ("processing", "waiting", "queued")}
        # A task that was lost and computed again was done twice.
        return {"known": known, "done": min(done, known), **moving, "erred": erred}

    def _workers(self) -> dict[str, list[int | float]]:
        return {
            str(state.name): [
                len(state.processing),
                int(state.metrics.get("memory", 0) or 0),
                int((state.metrics.get("spilled_bytes") or {}).get("disk", 0)),
                round(float(state.metrics.get("cpu", 0) or 0), 1),
            ]
            for state in self.scheduler.workers.values()
        }

    def _metrics(self) -> dict[str, int | float]:
        for address, state in self.scheduler.workers.items():
            self.sent[address] = int(state.metrics.get(SENT, 0) or self.sent.get(address, 0))
        found: dict[str, int | float] = dict.fromkeys(("execute", "transfer", "spill", "serialize", "other"), 0.0)
        found |= {"transfer_bytes": sum(self.sent.values()), "spill_bytes": 0}
        for name, value in self.scheduler.cumulative_worker_metrics.items():
            if isinstance(name, tuple) and (kind := kind_of(name)):
                found[kind] += value
        return {kind: round(value, 3) if isinstance(value, float) else value for kind, value in found.items()}


def kind_of(name: tuple[Any, ...]) -> str:
    """Return what one of Dask's fine performance metrics counts towards, empty for none.

    A name is (``execute``, kind of task, activity, unit) or (``gather-dep``, ``get-data``, ``memory-monitor`` or
    ``p2p``, …, activity, unit). The sender's seconds of a transfer are the receiver's too, and those of a shuffle's
    background are no task's.
    """
    context, activity, unit = name[0], str(name[-2]) if len(name) > 2 else "", name[-1]
    if unit == "bytes":
        shuffled = context == "p2p" and "background-comms" in name and activity == "process"
        return "transfer_bytes" if shuffled else "spill_bytes" if activity in _MOVED else ""
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


def merged(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the samples of schedulers that share a run as that of one."""
    first, *others = samples
    for other in others:
        for name in ("tasks", "metrics"):
            first[name] = {key: round(value + other[name][key], 3) for key, value in first[name].items()}
        first["workers"] |= other["workers"]
    return first


async def watch(context: Context, schedulers: Sequence[Scheduler]) -> None:
    """Write what the schedulers know every some seconds until cancelled, and once more then."""
    every = context.settings.report.sample_every
    if not every:
        return
    header = {"kind": "dask", "version": 1, "t": round(time.time(), 2), "every": every}
    writer = Writer(SampleFile(context.attempt.dask_samples, header))
    states, began = [DaskState(scheduler) for scheduler in schedulers], time.monotonic()
    per_hour = PER_HOUR * context.settings.job.nodes
    while True:
        used = time.thread_time()
        try:
            text = line(merged([state.sample() for state in states]))
        except Exception:  # noqa: BLE001 - Dask's insides may change; then there are no samples, and the run goes on
            traceback.print_exc()
            return
        writer.write(text)
        used = time.thread_time() - used
        try:
            await asyncio.sleep(interval(every, time.monotonic() - began, cost=used, size=len(text), per_hour=per_hour))
        except asyncio.CancelledError:
            writer.finish(line(merged([state.sample() for state in states])))
            raise
