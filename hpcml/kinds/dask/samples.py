"""The samples of Dask's scheduler: tasks, how the workers' threads spend their time, bytes moved, workers.

A new figure of a worker is a field of :class:`WorkerSample` and its value in ``node/state_samples.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hpcml.samples import Number, Schema

QUERIES = "polars-engine"  # the event that an engine of cuDF-Polars has opened: its queries are no tasks


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
