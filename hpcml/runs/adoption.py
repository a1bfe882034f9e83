"""Find the job of a run whose submission does not name it: the answer was lost, or a person typed the line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcml import schedulers
from hpcml.errors import ANSWER_LOST, StorageError
from hpcml.runs import directories, record
from hpcml.schedulers import Submission


def adopt(run: directories.Run) -> directories.Run:
    """Return the run with its job, if there is one that its record does not name; see :func:`adopt_all`."""
    return adopt_all([run])[0]


def adopt_all(runs: Sequence[directories.Run]) -> list[directories.Run]:
    """Return runs with the jobs that Slurm knows of those whose answer was lost, or that were only prepared.

    What is found is recorded; of a prepared run it counts until a job of it has begun.

    Raises
    ------
    SlurmUnreachableError
        If Slurm does not answer, so that nothing new is known.
    """
    known = [(is_prepared(run) and _read_again(run)) or run for run in runs]
    open_runs = {run.id: _scheduler(run) for run in known if is_prepared(run) or _is_lost(run)}
    found: dict[str, Submission] = {}
    for name in set(open_runs.values()):
        found |= schedulers.get(name).find([run_id for run_id, one in open_runs.items() if one == name])
    return [_with_job(run, found[run.id]) if run.id in found else run for run in known]


def of_prepared(runs: Iterable[directories.Run]) -> dict[str, directories.Run]:
    """Return the runs that were only prepared by id, with their jobs; see :func:`adopt_all`."""
    return {run.id: run for run in adopt_all([run for run in runs if is_prepared(run)])}


def is_prepared(run: directories.Run) -> bool:
    """Whether a person submits the run, and no job of it has begun yet."""
    return bool(run.submission and run.submission.line)


def _is_lost(run: directories.Run) -> bool:
    return not run.submission or run.submission.exit_status == ANSWER_LOST


def _read_again(run: directories.Run) -> directories.Run | None:
    """Return the run as its record is by now, None if it was removed meanwhile."""
    try:
        return directories.load(run.paths.directory)
    except StorageError:
        if run.paths.directory.exists():
            raise
        return None


def _scheduler(run: directories.Run) -> str:
    return run.submission.scheduler if run.submission else record.planned(run).scheduler


def _with_job(run: directories.Run, answer: Submission) -> directories.Run:
    now = _read_again(run)  # who submits it may have written the answer meanwhile
    if now is None or not (is_prepared(now) or _is_lost(now)):
        return now or run
    run = now
    if run.submission and run.submission.line:
        new = run.submission._replace(job=answer.job)
    else:
        planned = record.planned(run)
        old = run.submission or Submission(planned.site, 0.0, planned.scheduler, planned.may_start_again)
        new = answer._replace(
            scheduler=old.scheduler, site=old.site, time=old.time, notes=old.notes, requeue=old.requeue
        )
    if new != run.submission:
        directories.write_json(run.paths.submission, new.as_json())
    return run._replace(submission=new)
