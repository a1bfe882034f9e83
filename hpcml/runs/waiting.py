"""Wait for a run's end, and for the runs that another one is to start after (``--after``)."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hpcml import schedulers, subprocesses
from hpcml.config_trust import HPCML
from hpcml.errors import CANCELLED, HpcmlError, NotFoundError, SiteError, SlurmUnreachableError
from hpcml.failures.end import Reason
from hpcml.request.record import Awaited
from hpcml.runs import directories
from hpcml.runs import record as records
from hpcml.runs import status as run_status
from hpcml.runs.status import Status
from hpcml.schedulers import JobState
from hpcml.sites.schema import Site
from hpcml.sites.settings_layers import process_environment
from hpcml.states import Phase

LOOK = 0.15  # seconds between looks at a run's files
SOON, SETTLED = 0.03, 5.0  # the same for so many seconds after they changed: a script that starts also prints soon
FIRST_ASK_AFTER_START = 7.0  # seconds that a run's own events are trusted at first, before Slurm is asked again


def follow(
    run: directories.Run,
    each: Callable[[], None],
    patience: float = 300.0,
    before: Callable[[], None] = lambda: None,
) -> Iterator[Status]:
    """Yield the run's status whenever it has changed, until it has ended.

    Its own files are looked at often, Slurm seldom: after 1 s at first, then at growing distances up to 15 s while it
    waits; from 7 s up to 30 s while it runs. When its step has ended and the run's files do not say how, Slurm
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
    pace = _Pace()
    state: JobState | None = None
    heard = time.monotonic()
    last: Status | None = None
    seen: object = None
    over: Path | None = None
    answered: object = None  # what the run's files were when Slurm last answered
    while True:
        now = time.monotonic()
        began = run.paths.events.exists() and over is None
        if began and run.job and distance < FIRST_ASK_AFTER_START:  # its own events tell now
            distance = FIRST_ASK_AFTER_START
            ask_at = now + distance
        if (run.job or records.is_open(run)) and now >= ask_at:
            stamps = [_stamp(run.paths.events), _stamp(run.paths.status)]
            try:
                run, state = _present_job(run)
                heard, answered = now, stamps
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
            fresh = state is not None and answered == files
            # That the job waits is old where the run's files have changed since: it has begun.
            state_now = None if state and state.pending and not fresh else state
            current = run_status.status(run, state_now, ask=not run.job)
            # Files alone cannot say that no attempt follows, nor an answer from before the attempt's end.
            asked = fresh or not (run.job and run.may_start_again)
            over_now = current.over
            ask_at = min(ask_at, now + 1.0) if over_now and not asked else ask_at
            current = run_status.settled(run, current) if asked else current
            if current != last and (asked or not over_now):
                yield current
                last = current
            if over_now and asked:
                each()
                return
            if run.job and (record := records.supervisor_record(run.paths)) != over:
                over, distance, ask_at = record, 1.0, 0.0
        each()
        pace.sleep(files)


def _present_job(run: directories.Run) -> tuple[directories.Run, JobState | None]:
    """Return a run with its job now and that job's state; NotFoundError if it is prepared and has none."""
    run = records.adopt(directories.load(run.paths.directory) if run.may_start_again else run)
    if records.is_prepared(run) and not run.job:
        hint = f"Submit the run with this command: {run.submission.line if run.submission else ''}"
        raise NotFoundError("The run is prepared but not submitted", place=run.id, hint=hint)
    return run_status.present_job(run) if run.job else (run, None)


class _Pace:
    """The distance between looks at files: short after they changed."""

    def __init__(self) -> None:
        self.seen: object = None
        self.changed = 0.0

    def sleep(self, files: object) -> None:
        """Sleep until the next look at files, of which this is the state."""
        if files != self.seen:
            self.seen, self.changed = files, time.monotonic()
        time.sleep(SOON if time.monotonic() - self.changed < SETTLED else LOOK)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        current = path.stat()
    except OSError:
        return 0, 0
    return current.st_mtime_ns, current.st_size


# -- runs that wait for others: --after --------------------------------------------------------------------------------


_LOOK_AT_OTHERS = 1.0  # seconds between looks at a run that is waited for


def resolve(folder: Path, site: Site, asked: Sequence[Awaited], clusters: str) -> tuple[tuple[Awaited, ...], list[str]]:
    """Return the runs that are still to be waited for, with their ids and jobs, and notes of those that have ended.

    ``clusters`` are those that the run asks for which waits.

    Raises
    ------
    NotFoundError
        If there is no such run, or nobody has submitted it.
    SiteError
        If it ended otherwise than asked, or is none that the site's scheduler can wait for.
    SlurmUnreachableError
        If its state is not known.
    """
    here = schedulers.get(site.scheduler).ONE_MACHINE
    open_runs: dict[Awaited, None] = {}
    notes = []
    each = [(awaited_run, found) for awaited_run in asked for found in directories.find_all(folder, awaited_run.run)]
    for one, found in each:
        run = records.adopt(found)
        current = run_status.status(run)
        awaited = one._replace(run=run.id, job=run.job)
        if current.phase == Phase.REFUSED:
            raise SiteError("The run that --after names never ran: Slurm refused it", place=run.id, hint=_again(run))
        if current.over:
            if not awaited.met_by(current.exit_status):
                problem = f"The run cannot start: it waits for {awaited.clause()}, and {run_status.ended(current)}"
                raise SiteError(problem, place=f"--after {one.run}:{one.when}", hint=_again(run))
            notes.append(f"{run.id} already ended as --after requires")
            continue
        if not (run.submission and run.submission.key):
            raise NotFoundError("The run given to --after has no job", place=run.id, hint=current.hint or _again(run))
        if current.allocation.silent:
            raise SlurmUnreachableError(
                current.allocation.silent, transient=True, place=run.id, hint="Try again in some minutes."
            )
        if run.submission.scheduler != site.scheduler or (not here and current.planned.site != site.name):
            has_job = schedulers.get(run.submission.scheduler).OWN_JOBS
            where = f"on site {current.planned.site}" if has_job else "in an allocation"
            problem = f"A run on site {site.name} cannot wait for {run.id}, which is {where}"
            hint = f"Wait first: hpcml wait {run.id} && hpcml submit …"
            raise SiteError(problem, place="--after", hint=hint)
        if not here:
            _check_one_job(run, clusters)
        open_runs[awaited] = None
    return tuple(open_runs), notes


def _check_one_job(run: directories.Run, clusters: str) -> None:
    """Raise SiteError if Slurm cannot wait for a run: it is on another cluster, or continues in several jobs."""
    hint = f"hpcml wait {run.id} && hpcml submit …"
    if run.submission and (cluster := run.submission.cluster) != clusters:
        where, ways = f"on cluster {cluster}", f"Add --clusters {cluster}, or wait first: {hint}"
        where, ways = (where, ways) if cluster else ("on another Slurm cluster", f"Wait first: {hint}")
        raise SiteError(f"Slurm cannot wait for {run.id}, which is {where}", place="--after", hint=ways)
    if records.planned(run).several_jobs:
        problem = f"{run.id} continues in several jobs (--until-done), but Slurm can wait for only one job"
        raise SiteError(problem, place="--after", hint=f"Wait first: {hint}")


def _again(run: directories.Run) -> str:
    return f"Show the reason: hpcml why {run.id}. Submit the run again: hpcml rerun {run.id}."


def main(directory: Path) -> None:
    """Wait until a run on this machine may start, and become its batch script; else write that it never started."""
    run = directories.load(directory)

    def cancelled(*_: object) -> None:
        _end(run, "user", "the run was cancelled before it started")

    signal.signal(signal.SIGTERM, cancelled)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    for awaited_run in records.planned(run).after:
        while not (current := _look(directory.with_name(awaited_run.run))).over:
            time.sleep(_LOOK_AT_OTHERS)
        if not awaited_run.met_by(current.exit_status):
            message, hint = run_status.never_started(awaited_run, current)
            _end(run, "hpcml", message, hint, Reason.NEVER_SATISFIED)
    subprocesses.become(["bash", str(run.paths.script)], process_environment(), program=HPCML)


def _look(directory: Path) -> run_status.Status:
    """Return the status of a run; one whose record is gone or cannot be read has ended in a way that nobody knows."""
    try:
        return run_status.status(directories.load(directory))
    except HpcmlError as error:
        return run_status.Status(directory.name, phase=Phase.ENDED, message=error.message)


def _end(run: directories.Run, by: str, message: str, hint: str = "", reason: str = "") -> None:
    """Write that a run ended before it started, and end."""
    directories.write_json(run.paths.status, records.cancelled(by, message, hint, reason).as_json())
    sys.exit(CANCELLED)
