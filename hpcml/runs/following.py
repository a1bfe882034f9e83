"""Follow a run until its end: its own files are looked at often, its scheduler seldom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hpcml.errors import NotFoundError, SlurmUnreachableError
from hpcml.runs import adoption, directories
from hpcml.runs import record as records
from hpcml.runs import status as run_status
from hpcml.runs.status import Status
from hpcml.schedulers import JobState

LOOK = 0.15  # seconds between looks at a run's files
FIRST_ASK_AFTER_START = 7.0  # seconds that a run's own events are trusted at first, before Slurm is asked again


def follow(
    run: directories.Run,
    each: Callable[[], None],
    patience: float = 300.0,
    before: Callable[[], None] = lambda: None,
) -> Iterator[Status]:
    """Yield the run's status whenever it has changed, until it has ended.

    Its own files are looked at often, Slurm seldom: after 1 s at first, then at growing distances up to 15 s while it
    waits; from 7 s up to 30 s while it runs. When the driver's step has ended and the run's files do not say how, Slurm
    is asked at once and then as at first: the job is about to end. Of a prepared run the job is looked for each time,
    until one has begun.

    Parameters
    ----------
    each
        Called at every look, after its status if that is new (to pass on the script's output).
    patience
        How long Slurm may be silent, in seconds, before the error is passed on.
    before
        Called at every look before the run's files are read: what the script wrote until then is not older than what
        the status tells.

    Raises
    ------
    NotFoundError
        If it is a prepared run that nobody has submitted.
    """
    ask_at, distance, look_at = 0.0, 1.0, 0.0
    state: JobState | None = None
    heard = time.monotonic()
    last: Status | None = None
    seen: object = None
    over: Path | None = None
    told: object = None  # what the run's files were when Slurm last answered
    while True:
        now = time.monotonic()
        began = run.paths.events.exists() and over is None
        if began and run.job and distance < FIRST_ASK_AFTER_START:  # its own events tell now
            distance = FIRST_ASK_AFTER_START
            ask_at = now + distance
        if (run.job or adoption.is_open(run)) and now >= ask_at:
            stamps = [_stamp(run.paths.events), _stamp(run.paths.status)]
            try:
                run, state = _present_job(run)
                heard, told = now, stamps
            except SlurmUnreachableError:
                if now - heard > patience:
                    raise
            distance = min(distance * 1.5, 30.0 if began else 15.0)
            ask_at = time.monotonic() + distance
            look_at = 0.0
        before()
        files = [_stamp(run.paths.events), _stamp(run.paths.status)]
        if files != seen or now >= look_at:  # reading the record is what costs; looking whether it changed does not
            seen, look_at = files, now + 1.0
            fresh = state is not None and told == files
            # That the job waits is old where the run's files have changed since: it has begun.
            known = None if state and state.pending and not fresh else state
            current = run_status.status(run, known, ask=not run.job)
            # Files alone cannot say that no attempt follows, nor an answer from before the attempt's end.
            asked = fresh or not (run.job and run.may_start_again)
            over_now = current.over
            ask_at = min(ask_at, now + 1.0) if over_now and not asked else ask_at
            if current != last and (asked or not over_now):
                yield current
                last = current
            if over_now and asked:
                each()
                return
            if run.job and (record := records.driver_record(run.paths)) != over:
                over, distance, ask_at = record, 1.0, 0.0
        each()
        time.sleep(LOOK)


def _present_job(run: directories.Run) -> tuple[directories.Run, JobState | None]:
    """Return a run with its job now and that job's state; NotFoundError if it is prepared and has none."""
    run = adoption.adopt(directories.load(run.paths.directory) if run.may_start_again else run)
    if adoption.is_prepared(run) and not run.job:
        hint = f"Type its line first: {run.submission.line if run.submission else ''}"
        raise NotFoundError("The run is prepared, and nobody has submitted it", place=run.id, hint=hint)
    return run_status.present_job(run) if run.job else (run, None)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        current = path.stat()
    except OSError:
        return 0, 0
    return current.st_mtime_ns, current.st_size
