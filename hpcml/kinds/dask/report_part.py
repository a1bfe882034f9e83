"""The time accounting of a run with a Dask cluster: why its devices were idle, by what the workers did meanwhile."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hpcml.kinds.dask.samples import QUERIES, DaskSample, WorkerSample
from hpcml.report.advice import Rule
from hpcml.report.ledger import (
    EVERY,
    LEAST_GAP,
    NOT_SAMPLED,
    Accounting,
    Column,
    Device,
    Function,
    Part,
    Plot,
    ShareFigure,
    Shares,
)
from hpcml.report.series import in_order, increase
from hpcml.samples import Number, Series, total
from hpcml.units import format_seconds

_MOST_WORKERS = 256  # of one node
_SHORTEST = 10.0  # seconds of samples for advice on tasks
_TINY = 0.02  # seconds of a task
_LONG = 5  # times as long as the others: a straggler


class Activity(NamedTuple):
    """What Dask did, by the samples of its scheduler."""

    t: Sequence[float]  # times in seconds since 1970
    busy: Mapping[str, Sequence[float | None]]  # tasks that each worker has been given, by its name
    done: Sequence[float | None]  # tasks, since the run's begin
    work: Sequence[float | None]  # thread seconds of all activities
    transfer: Sequence[float | None]  # thread seconds
    spill: Sequence[float | None]  # thread seconds
    every: float = EVERY  # seconds between samples
    columns: Mapping[str, Column] = {}  # ``processing`` in tasks, ``spilled`` in bytes
    other: Sequence[float | None] = ()  # thread seconds of Dask's own work for tasks
    busy_threads: Sequence[float] = ()  # share of all threads that have a task
    on_files: Sequence[float] = ()  # share of all threads whose task waits for a file system
    functions: tuple[Function, ...] = ()  # those that took longest first

    def alone(self, begin: float, end: float) -> tuple[float, float]:
        """Return the seconds without a task between two times: until the last task, and after it."""
        seconds = self._seconds(begin, end)
        return seconds["without_tasks"], seconds["idle_tail"]

    def _seconds(self, begin: float, end: float) -> dict[str, float]:
        """Return the sampled seconds between two times, and those of them in which workers had nothing to do."""
        near, last = max(LEAST_GAP, NOT_SAMPLED * self.every), self.last()
        sums = dict.fromkeys(("sampled", "without_tasks", "idle_tail", "few_tasks", "on_files"), 0.0)
        for place in range(len(self.t) - 1):
            length = min(end, self.t[place + 1]) - max(begin, self.t[place])
            if length <= 0 or self.t[place + 1] - self.t[place] > near:
                continue
            sums["sampled"] += length
            free = length * (1 - self._busy(place, list(self.busy)))
            sums["idle_tail" if last is not None and self.t[place] >= last else "without_tasks"] += free
            for end_of_it in (place, place + 1):
                share = self.busy_threads[end_of_it] if self.busy_threads else 0.0
                sums["few_tasks"] += (1 - share) * length / 2 if share else 0.0
                sums["on_files"] += self.on_files[end_of_it] * length / 2 if self.on_files else 0.0
        return sums

    def figures(self, begin: float, end: float) -> tuple[dict[str, float], dict[str, str]]:
        """Return the causes of slow tasks, each in percent of the time between two times, and words for sentences."""
        seconds = self._seconds(begin, end)
        whole = seconds.pop("sampled")
        if whole < _SHORTEST:
            return {}, {}
        figures = {name: 100 * one / whole for name, one in seconds.items()}
        with_tasks = max(0.0, 100 - figures["without_tasks"] - figures["idle_tail"])
        counters = {"transfers": self.transfer, "spilling": self.spill, "tiny_tasks": self.other}
        work = increase(list(self.work)) or 0.0
        shares = {name: (increase(list(one)) or 0.0) / work if work else 0.0 for name, one in counters.items()}
        figures |= {name: with_tasks * share for name, share in shares.items()}
        count = sum(function.tasks for function in self.functions)
        mean = sum(function.seconds for function in self.functions) / count if count else 0.0
        if mean >= _TINY or not count:
            del figures["tiny_tasks"]
        texts = {"tasks": f"{count:,.0f}", "task_time": f"{1000 * mean:.2g} ms"}
        slowest = max(self.functions, key=lambda one: one.longest, default=None)
        if slowest and slowest.tasks > 2 and slowest.longest > max(_LONG * slowest.mean_of_others, whole / 10):
            figures["straggler"] = figures.pop("few_tasks")
            texts |= {"longest": format_seconds(slowest.longest), "others": format_seconds(slowest.mean_of_others)}
            texts["function"] = slowest.name
        return figures, texts

    def last(self) -> float | None:
        """Return the time of the last tasks; None if there were none, or it is unknown."""
        for place in range(len(self.t) - 1, -1, -1):
            before = self.done[place - 1] if place else 0.0
            now = self.done[place]
            if any(column[place] for column in self.busy.values()) or (now is not None and now > (before or 0.0)):
                return self.t[place]
        return None

    def shares(self, device: Device) -> Callable[[float], Shares | None]:
        """Return the function that explains why a device is idle at a time.

        All workers stand for a device that has none.
        """
        workers = [name for name in _workers(device) if name in self.busy] or list(self.busy)
        return lambda when: self._shares(workers, when)

    def _shares(self, workers: Sequence[str], when: float) -> Shares | None:
        near = max(LEAST_GAP, NOT_SAMPLED * self.every)
        after = bisect.bisect_left(self.t, when)
        transfer = spill = 0.0
        if after == len(self.t):
            place = after - 1
            if when - self.t[place] > near:
                return None
        elif after == 0:
            place = 0
            if self.t[0] - when > near:
                return None
        else:
            place = after - 1
            if self.t[after] - self.t[place] > near:
                return None
            if work := _rise(self.work, after):
                transfer, spill = _rise(self.transfer, after) / work, _rise(self.spill, after) / work
        busy = self._busy(place, workers)
        waiting = min(1.0, transfer + spill)
        scale = busy * waiting / ((transfer + spill) or 1.0)
        return {
            "script": 1 - busy,
            "tasks": busy * (1 - waiting),
            "transfers": scale * transfer,
            "spilling": scale * spill,
        }

    def _busy(self, place: int, workers: Sequence[str]) -> float:
        """Return the share of the time between two samples in which workers had tasks, as far as they show it.

        Tasks may be shorter than the distance of samples: where none was seen and tasks were worked on, they had some.
        """
        ends = [place, place + 1] if place + 1 < len(self.t) else [place]
        seen = sum(any(self.busy[name][end] for name in workers) for end in ends) / len(ends)
        if seen or len(ends) < 2:
            return seen
        seconds = self.t[ends[1]] - self.t[place]
        return min(1.0, _rise(self.work, ends[1]) / (seconds * max(1, len(self.busy))))


def _rise(counter: Sequence[float | None], after: int) -> float:
    before, now = counter[after - 1], counter[after]
    return max(0.0, now - before) if before is not None and now is not None else 0.0


def _workers(device: Device) -> tuple[str, ...]:
    """Return the names that a device's workers may have: hpcml numbers those of a node, unless there is one alone."""
    if device.place is None:
        return (device.node, *(f"{device.node}-{place}" for place in range(_MOST_WORKERS)))
    numbered = f"{device.node}-{device.place}"
    return (numbered,) if device.gpus > 1 else (device.node, numbered)


def _activity(series: Series[DaskSample]) -> Activity | None:
    """Return the activity of Dask; None if there are no samples."""
    if not (rows := in_order(series.samples)):
        return None
    names = dict.fromkeys(name for row in rows for name in row.workers)
    absent = WorkerSample()
    return Activity(
        [row.t for row in rows],
        {name: [row.workers.get(name, absent).processing for row in rows] for name in names},
        done=[row.tasks.done for row in rows],
        work=[total(row.seconds) for row in rows],
        transfer=[row.seconds.transfer for row in rows],
        spill=[row.seconds.spill for row in rows],
        every=series.every or EVERY,
        columns={"processing": [row.tasks.processing for row in rows], "spilled": [*map(_spilled, rows)]},
        other=[total((row.seconds.other, row.seconds.serialize)) for row in rows],
        busy_threads=[_of_threads(row, _busy) for row in rows],
        on_files=[_of_threads(row, _on_files) for row in rows],
        functions=_functions(rows),
    )


def _functions(rows: Sequence[DaskSample]) -> tuple[Function, ...]:
    """Return the functions of the tasks that have run, those that took longest first."""
    newest = {name: one for row in rows for name, one in row.functions.items() if one.tasks and one.seconds}
    functions = []
    for name, one in newest.items():
        tasks, seconds = one.tasks or 0, one.seconds or 0.0
        functions.append(Function(name, tasks, seconds, max(one.longest or 0.0, seconds / tasks)))
    return tuple(sorted(functions, key=lambda one: -one.seconds))


def _spilled(row: DaskSample) -> Number | None:
    return total(worker.spilled for worker in row.workers.values())


def _busy(worker: WorkerSample) -> float:
    return min(worker.processing or 0, worker.threads or 0)


def _on_files(worker: WorkerSample) -> float:
    return worker.on_files or 0


def _of_threads(row: DaskSample, count: Callable[[WorkerSample], float]) -> float:
    """Return the share of the workers' threads that is counted."""
    threads = sum(worker.threads or 0 for worker in row.workers.values())
    return min(1.0, sum(map(count, row.workers.values())) / threads) if threads else 0.0


ACCOUNTING = Accounting(
    parts={
        "starting": Part(
            "Starting",
            "hpcml was starting on the first node, or was checking the interconnect.",
            "#8c959f",
            "#6e7681",
        ),
        "importing": Part(
            "Importing",
            "The Dask scheduler and workers were importing libraries, or the workers were registering.",
            "#6b8fb5",
            "#527aa3",
        ),
        "script": Part(
            "Script without tasks",
            "The {unit} was idle: its worker had no task.",
            "#d29922",
            "#bb8009",
        ),
        "tasks": Part(
            "Tasks, {unit} idle",
            "The {unit} was idle while a task ran, but not because of transfers or spilling.",
            "#e08a3c",
            "#c0702b",
        ),
        "transfers": Part(
            "Transfers",
            "The {unit} was idle: tasks waited for data from other workers.",
            "#8250df",
            "#8957e5",
        ),
        "spilling": Part(
            "Spilling",
            "The {unit} was idle: tasks waited while Dask moved data between memory and disk, or between GPU and host.",
            "#c2255c",
            "#bf4b8a",
        ),
        "tail": Part(
            "Idle tail",
            "The {unit} was idle after the last task, until the end of the job.",
            "#b0b7bf",
            "#484f58",
        ),
    },
    startup="importing",
    before_script="Interconnect",
    activity=_activity,
    missing="The run has no record of Dask's activity: tasks, transfers and spilling are unknown.",
    figures=(
        ShareFigure("without_tasks", "script", unit="GPU"),
        ShareFigure("transfers", "transfers", unit="GPU"),
        ShareFigure("spilling", "spilling", unit="GPU"),
        ShareFigure("tasks_without_gpu", "tasks", unit="GPU"),
        *map(ShareFigure, ("few_tasks", "straggler", "tiny_tasks", "on_files")),
    ),
    plots=(
        Plot("Tasks on workers", "processing", "tasks", always=True),
        Plot("Spilled by Dask", "spilled", "spilled", unit="GiB"),
    ),
    rules=(
        Rule(
            "no-tasks",
            "without_tasks",
            "The script itself took {without_tasks} % of the job's time: no Dask task was running. Move the "
            "script's own work into Dask tasks, or do this work before the job.",
            above=30,
            weight=1.2,
            shortest=0,
            unless=QUERIES,
        ),
        Rule(
            "idle-tail",
            "idle_tail",
            "No task ran in the last {idle_tail} % of the job's time. Let Dask tasks write the results, so that the "
            "script ends earlier.",
            above=15,
            weight=1.1,
            shortest=0,
            unless=QUERIES,
        ),
        Rule(
            "tiny-tasks",
            "tiny_tasks",
            "The tasks are too small: {tasks} tasks took {task_time} each. Dask's own work took {tiny_tasks} % of the "
            "job's time. Use fewer and larger tasks: larger chunks, or many items in one task.",
            above=30,
            weight=2.0,
            shortest=0,
        ),
        Rule(
            "straggler",
            "straggler",
            "One task was much slower than the others: a task of {function} took {longest}, the other tasks took "
            "{others} on average. Workers had no task for {straggler} % of the job's time. Divide the work into "
            "equal pieces, and start the largest pieces first.",
            above=20,
            weight=1.5,
            shortest=0,
        ),
        Rule(
            "few-tasks",
            "few_tasks",
            "There were too few tasks: workers had no task for {few_tasks} % of the job's time, while other workers "
            "ran tasks. Divide the work into more pieces, or use fewer workers.",
            above=40,
            shortest=0,
        ),
        Rule(
            "spilling",
            "spilling",
            "Spilling took {spilling} % of the job's time: the data did not fit into the workers' memory. Use more "
            "nodes, more memory or smaller Dask partitions. Avoid persist() and large intermediate results.",
            above=10,
            weight=2.5,
            shortest=0,
        ),
        Rule(
            "files",
            "on_files",
            "Tasks waited for the file system {on_files} % of the job's time. Use fewer and larger files, avoid locks "
            "on shared files, and copy data to the nodes' own disks first.",
            above=20,
            weight=2.0,
            shortest=0,
        ),
        Rule(
            "transfers",
            "transfers",
            "Transfers took {transfers} % of the job's time: tasks waited for data from other workers. Use fewer and "
            "larger partitions, or fewer shuffles. Check the interconnect: hpcml interconnect.",
            above=20,
            weight=1.5,
            shortest=0,
        ),
        Rule(
            "cpu-low",
            "cpu_use",
            "The run used its cores for {useful} % of the job's time. Request fewer cores, or use more workers or "
            "threads (workers.per_node, workers.threads).",
            below=65,
            weight=0.8,
        ),
        Rule(
            "tasks-without-gpu",
            "tasks_without_gpu",
            "For {tasks_without_gpu} % of the job's time, tasks ran without their GPU: they read files or used the "
            "CPU. Keep data on the GPU (cudf, cupy), or use more threads to read (workers.threads).",
            above=40,
            unless=QUERIES,
        ),
        Rule(
            "imbalance",
            "imbalance",
            "One GPU was used {imbalance} % less than the median GPU. Divide the data into equal partitions.",
            above=30,
            weight=0.6,
        ),
    ),
)
