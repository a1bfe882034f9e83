"""The futures of ``hpcml.map``: those of ``concurrent.futures``, kept by one thread that looks for results."""

from __future__ import annotations

import atexit
import contextlib
import pickle
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

from hpcml import files
from hpcml.errors import HpcmlError, PointError
from hpcml.map_jobs.jobs import Jobs, LocalJobs, Task

_LONGEST = 1 << 40  # bytes of a result
_LOOK = (0.02, 1.0)  # seconds between looks, at first and at most


class PointFuture(Future[Any]):
    """The result of one point: a ``concurrent.futures.Future`` that knows its ``point``, ``job`` and ``log``."""

    def __init__(self, number: int, point: object, jobs: Jobs) -> None:
        super().__init__()
        self.number, self.point, self._jobs = number, point, jobs

    @property
    def job(self) -> str:
        """The id of its job, empty before it has one: of Slurm's array task, or of a process."""
        task = self._jobs.tasks.get(self.number)
        return task.job if task else ""

    @property
    def log(self) -> Path | None:
        """The file of what the function printed on its first node, None before it has a job."""
        task = self._jobs.tasks.get(self.number)
        return task.log if task else None

    def cancel(self) -> bool:
        """End the point, also while it runs; return False if its result is there already.

        Raises
        ------
        HpcmlError
            If Slurm does not do it.
        """
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        self._jobs.cancel(self.number)
        return True


class _RemoteError(Exception):
    """The traceback of a point's error, as its cause: a text is all of it that travels."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def keep(jobs: Jobs, points: Sequence[object]) -> list[PointFuture]:
    """Return the futures of points, and look for their results in a thread as long as one is open."""
    futures = [PointFuture(number, point, jobs) for number, point in enumerate(points)]
    threading.Thread(target=_look, args=(jobs, futures), name="hpcml.map", daemon=True).start()
    if isinstance(jobs, LocalJobs):
        atexit.register(_end_all, futures)
    return futures


def _end_all(futures: Sequence[PointFuture]) -> None:
    """End the processes of this machine with the program that waits for them."""
    for future in futures:
        with contextlib.suppress(HpcmlError, OSError):
            future.cancel()


def _look(jobs: Jobs, futures: Sequence[PointFuture]) -> None:
    pause = _LOOK[0]
    open_futures = list(futures)
    while open_futures := [future for future in open_futures if not future.done()]:
        try:
            jobs.begin([future.number for future in open_futures])
        except Exception as error:  # noqa: BLE001 - it would be lost in this thread, and nobody would get a result
            for future in open_futures:
                _set(future, error=error)
            return
        found = False
        for future in open_futures:
            if not future.cancelled():
                found = _settle(jobs, future) or found
        pause = _LOOK[0] if found else min(pause * 1.3, _LOOK[1])
        time.sleep(pause)


def _settle(jobs: Jobs, future: PointFuture) -> bool:
    """Give a future its result if that is there, or why there will be none; return whether it has one now."""
    task = jobs.tasks.get(future.number)
    try:
        if task and all(path.exists() for path in task.results):
            values = [_value(future.number, task, path) for path in task.results]
            _set(future, values[0] if len(values) == 1 else values)
        elif error := jobs.problem(future.number):
            _set(future, error=error)
    except Exception as error:  # noqa: BLE001 - the point's own, or one that its result cannot be read for
        _set(future, error=error.with_traceback(None))  # whose frames are of this module
    return future.done()


def _set(future: PointFuture, value: object = None, error: BaseException | None = None) -> None:
    with contextlib.suppress(InvalidStateError):  # it was cancelled at this moment
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def _value(number: int, task: Task, path: Path) -> object:
    """Return what the function returned on one node, or raise what it raised."""
    word, answer = pickle.loads(files.read(path, _LONGEST))  # noqa: S301 - see above
    if word != "success":
        lines = tuple(line for line in str(answer).splitlines() if line.strip())[-6:]
        hint = "Is what it needs installed where the job runs, and the function's module in the folder of this program?"
        raise PointError(f"Point {number} could not begin", place=str(task.log), hint=hint, quote=lines)
    value, error, text = answer
    if not text:
        return pickle.loads(value)  # noqa: S301
    if not error:  # sys.exit, or an error that cannot be pickled
        raise PointError(f"Point {number} raised an error", place=str(task.log), quote=tuple(text.splitlines()[-6:]))
    raised: Exception = pickle.loads(error)  # noqa: S301
    raise raised from _RemoteError(text)
