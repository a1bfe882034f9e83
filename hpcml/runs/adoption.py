"""Find the job of a run whose submission does not name it: the answer was lost, or a person typed the line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from hpcml import files, schedulers
from hpcml.errors import ANSWER_LOST, StorageError
from hpcml.runs import directories, record
from hpcml.schedulers import Submission

_NO_JOB = "not-submitted"  # where a run has no job, in the place of its number
LOST_AFTER = 300.0  # seconds; an sbatch whose hpcml was killed may ask a busy controller again for nearly as long


def adopt(run: directories.Run) -> directories.Run:
    """Return the run with its job, if there is one that its record does not name; see :func:`adopt_all`."""
    return adopt_all([run])[0]


def adopt_all(runs: Sequence[directories.Run]) -> list[directories.Run]:
    """Return runs with the jobs that Slurm knows of those whose answer was lost, or that were only prepared.

    What is found is recorded; of a prepared run it counts until a job of it has begun. A run that is older than
    ``LOST_AFTER`` and has no job was not submitted: this is recorded too. A job of it that begins later ends at once.

    Raises
    ------
    SlurmUnreachableError
        If Slurm does not answer, so that nothing new is known.
    """
    known = [(is_prepared(run) and _read_again(run)) or run for run in runs]
    open_runs = {run.id: _scheduler(run) for run in known if is_open(run)}
    found: dict[str, Submission] = {}
    for name in set(open_runs.values()):
        found |= schedulers.get(name).find([run_id for run_id, one in open_runs.items() if one == name])
    known = [_with_job(run, found[run.id]) if run.id in found else run for run in known]
    return [_given_up(run) if run.id in open_runs and _is_lost(run) else run for run in known]


def is_open(run: directories.Run) -> bool:
    """Whether the run's submission does not name its job."""
    return is_prepared(run) or _is_lost(run)


def of_open(runs: Iterable[directories.Run]) -> dict[str, directories.Run]:
    """Return the runs whose submission does not name their job by id, with their jobs; see :func:`adopt_all`."""
    return {run.id: run for run in adopt_all([run for run in runs if is_open(run)])}


def is_prepared(run: directories.Run) -> bool:
    """Whether a person submits the run, and no job of it has begun yet."""
    return bool(run.submission and run.submission.line)


def _is_lost(run: directories.Run) -> bool:
    answered = run.submission and run.submission.exit_status != ANSWER_LOST
    return not answered and not was_given_up(run)


def was_given_up(run: directories.Run) -> bool:
    """Whether it is recorded that the run was never submitted."""
    return run.paths.job.is_symlink() and str(run.paths.job.readlink()) == _NO_JOB


def _given_up(run: directories.Run) -> directories.Run:
    """Record that a run without a job was not submitted, once it is old enough; return the run as it is then."""
    with directories.storage(run.paths.directory):
        try:
            if _age(run) < LOST_AFTER or run.paths.attempt(0).directory.exists():
                return run
            run.paths.job.symlink_to(_NO_JOB)  # the batch script ends where another job is named
        except FileExistsError:
            job = directories.begun_job(run.paths)  # it has begun, and Slurm has forgotten it since
            return _with_job(run, Submission(job=job, found_again=True)) if job else run
        except FileNotFoundError:
            return run  # it was removed meanwhile
    planned = record.planned(run)
    old = run.submission or Submission(planned.site, 0.0, planned.scheduler)
    message = "The run was not submitted: there is no job of it"
    hint = f"Submit it again: hpcml rerun {run.id}."
    new = old._replace(error=message, hint=hint, exit_status=ANSWER_LOST)
    directories.write_json(run.paths.submission, new.as_json())
    return run._replace(submission=new)


def _age(run: directories.Run) -> float:
    """Return the seconds since the run's folder was written, by the clock of its file system."""
    probe = files.beside(run.paths.plan)
    os.close(files.create(probe))
    now = probe.stat().st_mtime
    probe.unlink()
    return now - run.paths.plan.stat().st_mtime


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
        old = run.submission or Submission(planned.site, 0.0, planned.scheduler, bool(planned.restart))
        new = answer._replace(
            scheduler=old.scheduler, site=old.site, time=old.time, notes=old.notes, requeue=old.requeue
        )
    if new != run.submission:
        directories.write_json(run.paths.submission, new.as_json())
    return run._replace(submission=new)
