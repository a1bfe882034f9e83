"""The time accounting of a run with a Dask cluster: why its devices were idle, by what the workers did meanwhile."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from hpcml.kinds.dask.samples import DaskSample
from hpcml.report.advice import Rule
from hpcml.report.ledger import (
    EVERY,
    LEAST_GAP,
    NOT_SAMPLED,
    Accounting,
    Column,
    Device,
    Part,
    Plot,
    ShareFigure,
    Shares,
)
from hpcml.report.series import in_order
from hpcml.samples import Series, total

_MOST_WORKERS = 256  # of one node


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

    def last(self) -> float | None:
        """Return when there were tasks last; None if there were none, or it is not known."""
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
    """Return what Dask did; None if there are no samples."""
    rows = in_order(series.samples)
    if not rows:
        return None
    names = dict.fromkeys(name for row in rows for name in row.workers)
    return Activity(
        [row.t for row in rows],
        {name: [row.workers[name].processing if name in row.workers else None for row in rows] for name in names},
        done=[row.tasks.done for row in rows],
        work=[total(row.seconds) for row in rows],
        transfer=[row.seconds.transfer for row in rows],
        spill=[row.seconds.spill for row in rows],
        every=series.every or EVERY,
        columns={
            "processing": [row.tasks.processing for row in rows],
            "spilled": [total(worker.spilled for worker in row.workers.values()) for row in rows],
        },
    )


ACCOUNTING = Accounting(
    parts={
        "starting": Part(
            "Starting",
            "From the allocation's start until hpcml ran on the first node, and the check of the interconnect.",
            "#8c959f",
            "#6e7681",
        ),
        "importing": Part(
            "Importing",
            "Scheduler and workers import their libraries and register, until all are ready (or the wait ends).",
            "#6b8fb5",
            "#527aa3",
        ),
        "script": Part(
            "Script without tasks",
            "The script ran, but the {unit} was idle because its worker had no task.",
            "#d29922",
            "#bb8009",
        ),
        "tasks": Part(
            "Tasks, {unit} idle",
            "A task was running, but the {unit} was idle for an unknown reason.",
            "#e08a3c",
            "#c0702b",
        ),
        "transfers": Part(
            "Transfers",
            "The {unit} was idle while tasks waited for data from other workers (estimated from the tasks' times).",
            "#8250df",
            "#8957e5",
        ),
        "spilling": Part(
            "Spilling",
            "The {unit} was idle while data moved to or from disk or host memory (estimated from the tasks' times).",
            "#c2255c",
            "#bf4b8a",
        ),
        "tail": Part(
            "Idle tail",
            "The {unit} was idle after the last task of the run, until the nodes were released.",
            "#b0b7bf",
            "#484f58",
        ),
    },
    startup="importing",
    before_script="Interconnect",
    activity=_activity,
    missing="No samples of Dask exist: tasks, transfers and spilling are unknown.",
    figures=(
        ShareFigure("without_tasks", "script"),
        ShareFigure("transfers", "transfers"),
        ShareFigure("spilling", "spilling"),
        ShareFigure("tasks_without_gpu", "tasks", unit="GPU"),
    ),
    plots=(
        Plot("Tasks being worked on", "processing", "tasks", always=True),
        Plot("Spilled by Dask", "spilled", "spilled", unit="GiB"),
    ),
    rules=(
        Rule(
            "cpu-low",
            "cpu_use",
            "While the script ran {cpu_use} % of the cores were in use: fewer cores, or more threads "
            "(workers.per_node, workers.threads), would cost less.",
            below=65,
            weight=0.8,
        ),
        Rule(
            "spilling",
            "spilling",
            "{spilling} % of the time paid went into spilling: use smaller partitions, more nodes or GPUs, or keep "
            "less in memory (persist, large intermediates).",
            above=10,
            weight=2.0,
        ),
        Rule(
            "transfers",
            "transfers",
            "{transfers} % of the time paid went into waiting for data from other workers: use fewer and larger "
            "partitions, or fewer shuffles, and see whether the interconnect was used (hpcml fabric).",
            above=20,
            weight=1.5,
        ),
        Rule(
            "no-tasks",
            "without_tasks",
            "{without_tasks} % of the time paid the script ran without a task for the workers: do that part with Dask "
            "too, or before the nodes are paid for.",
            above=30,
            weight=1.2,
        ),
        Rule(
            "tasks-without-gpu",
            "tasks_without_gpu",
            "{tasks_without_gpu} % of the time paid tasks ran that did not use their GPU: reading files or work on the "
            "CPU; keep data on the GPU (cudf, cupy), or let more threads read (workers.threads).",
            above=40,
        ),
        Rule(
            "idle-tail",
            "idle_tail",
            "{idle_tail} % of the time paid was after the last task: let the script end then, and write results from "
            "the workers.",
            above=15,
            weight=1.1,
        ),
        Rule(
            "imbalance",
            "imbalance",
            "The GPU least in use had {imbalance} % less than the median GPU: even out the partitions.",
            above=30,
            weight=0.6,
        ),
    ),
)
