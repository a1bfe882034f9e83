"""What ``hpcml top`` shows of Dask's tasks, by the scheduler's newest samples."""

from __future__ import annotations

from collections.abc import Sequence

from hpcml.kinds.dask.samples import DaskSample
from hpcml.samples import Number, Progress, Work, rate, total

_WINDOW = 30.0  # seconds over which tasks are counted
_STEADY = 20.0  # seconds without a new task, after which the time left is told


def of(samples: Sequence[DaskSample], nodes: Sequence[str]) -> Progress:
    """Return the progress of the tasks, and the workers of each node."""
    workers, spilled = dict.fromkeys(nodes, 0), dict.fromkeys(nodes, 0.0)
    for name, worker in samples[-1].workers.items():
        node = name if name in workers else name.rpartition("-")[0]  # a node's only worker has its name
        if node in workers:
            workers[node] += 1
            spilled[node] += worker.spilled or 0
    return Progress(_work(samples), workers, spilled)


def _work(samples: Sequence[DaskSample]) -> Work:
    last = samples[-1]
    window = [sample for sample in samples if last.t - sample.t <= _WINDOW]
    first, before = window[0], window[-2] if len(window) > 1 else last
    speed = rate(first.tasks.done, last.tasks.done, last.t - first.t)
    created, done = last.tasks.known, last.tasks.done
    # Only where no task was added for a while: a script that goes on submitting has no end that could be told.
    steady = [sample for sample in window if sample.tasks.known == created]
    left = None
    if speed and created is not None and done is not None and steady[0] is first and last.t - first.t >= _STEADY:
        left = max(0.0, created - done) / speed
    passed = last.t - before.t
    return Work(
        known=_count(created),
        done=_count(done),
        processing=_count(last.tasks.processing),
        erred=_count(last.tasks.erred),
        rate=speed,
        left=left,
        spilled=total(worker.spilled for worker in last.workers.values()),
        transfer=rate(before.moved.transfer, last.moved.transfer, passed),
        spill=rate(before.moved.spill, last.moved.spill, passed),
    )


def _count(number: Number | None) -> int | None:
    return None if number is None else int(number)
