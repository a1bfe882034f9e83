"""A run's own files, read once: its plan, events and end, and the job that a lost answer or a typed line gave it."""

# No `from __future__ import annotations`: hpcml/typed_json.py reads the types of fields, from texts slowly.
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcml import earlier_names, kinds, safe_files, schedulers, typed_json
from hpcml.errors import ANSWER_LOST, CANCELLED, NotFoundError, StorageError
from hpcml.failures.end import End
from hpcml.paths import SUPERVISOR, RunPaths
from hpcml.request.record import ENDS, Awaited
from hpcml.run_files import Event, Recorded
from hpcml.runs import directories
from hpcml.runs.directories import complete
from hpcml.schedulers import Submission
from hpcml.services import Known
from hpcml.states import State
from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from hpcml.failures.note import Note


class Planned(NamedTuple):
    """What a run was to be, by plan.json."""

    site: str = ""  # the name of the machine's profile
    scheduler: str = "local"  # a name in hpcml.schedulers
    kind: str = "dask"  # a name in hpcml.kinds
    image: str = ""  # path of the Apptainer image that the roles run in, empty without one
    form: Form = Form.SCRIPT  # what it starts
    node_count: int = 0  # nodes that it asked for
    gpus: int = 0  # of each node
    expected: int = 0  # workers on all nodes together
    late: bool = False  # the Dask cluster starts at the script's first client
    time_limit: int = 0  # seconds of one attempt, 0 without a limit
    after: tuple[Awaited, ...] = ()  # the runs that it waits for
    hold: str = ""  # the id of the kept allocation that it runs in, empty without one
    restart: str = ""  # how another attempt may follow: in the same "job", in "several" jobs, or not (empty)
    command: str = ""  # the script with its arguments, quoted for a shell; empty without a script
    partition: str = ""  # Slurm's, empty if the batch script names none
    clusters: str = ""  # the same
    declared: tuple[str, ...] = ()  # ports of the first node that the submission named: NAME=PORT

    @property
    def several_jobs(self) -> bool:
        """Whether attempts after the first have jobs of their own."""
        return self.restart == "several"

    @property
    def in_image(self) -> bool:
        """Whether the roles run in an image."""
        return bool(self.image)


class Record(Recorded):
    """The files of a run, each read at its first use; one that is damaged or cannot be read is a StorageError."""

    @staticmethod
    def unusable(paths: RunPaths, problems: list[str], path: Path, error: OSError | ValueError) -> None:  # noqa: ARG004
        """Raise the StorageError that names the file."""
        with directories.readable(path):
            raise error


class RunRecord(NamedTuple):
    """What a run's files tell beside its submission."""

    planned: Planned
    events: tuple[Event, ...]
    end: End | None  # None until it has ended, or where it has begun again


def load(run: directories.Run) -> RunRecord:
    """Return the record that a run's files make; StorageError if one of them cannot be read, or is damaged."""
    record = Record(run.paths)
    end = record.end
    if end and _began_again(record.events, end.attempt):
        end = None
    return RunRecord(_planned(record), tuple(record.events), end)


def planned(run: directories.Run) -> Planned:
    """Return the plan of the run, from plan.json; StorageError if it is damaged."""
    return _planned(Record(run.paths))


def code_holder(run: RunPaths) -> RunPaths | None:
    """Return the task of a laptop's array in whose copy of the code all tasks run.

    Of any other run, or one with a damaged plan, it is None: the run's own copy counts.
    """
    try:
        name = Record(run).plan.code_of
    except StorageError:
        return None
    return RunPaths(run.directory.with_name(name)) if directories.submitted_at(name) is not None else None


def check_code_holder(holder: RunPaths | None) -> None:
    """Raise NotFoundError if the task of an array is gone whose copy of the code its other tasks have."""
    if holder and not holder.code.is_dir():
        hint = f"Submit the array again: the run {holder.directory.name} had the copy."
        raise NotFoundError("The array's copy of the code was removed", place=str(holder.code), hint=hint)


def _planned(record: Record) -> Planned:
    plan, inside = record.plan, record.plan.inside
    again = "job" if plan.may_start_again else ""
    with complete(record.paths.directory):
        return Planned(
            site=plan.site,
            scheduler=plan.scheduler,
            kind=_kind(plan.kind),
            image=inside.job.image,
            form=inside.code.form,
            node_count=inside.job.nodes,
            gpus=inside.job.gpus,
            expected=inside.worker_count,
            late=inside.workers.late,
            time_limit=inside.job.time_limit,
            hold=Path(plan.hold).name,
            after=tuple(map(_awaited, plan.after)),
            restart="several" if inside.attempts.several_jobs else again,
            command=inside.code.command(*inside.points.options),
            partition=plan.directive("--partition"),
            clusters=plan.directive("--clusters"),
            declared=inside.services,
        )


def _kind(name: str) -> str:
    if name not in kinds.KINDS:
        raise ValueError(f"{name!a} is not a valid kind of run")
    return name


def _awaited(text: str) -> Awaited:
    run, _, when = text.partition(":")
    if directories.submitted_at(run) is None or when not in ENDS:
        raise ValueError(f"there is no run {text!a} to wait for")
    return Awaited(run, when)


def cancelled(by: str, message: str, hint: str, reason: str = "") -> End:
    """Return the end of a run that was cancelled, or dropped by Slurm, before it or its next attempt started."""
    now = round(time.time(), 3)
    return End(CANCELLED, "queued", by, message, hint, ended_as=State.CANCELLED, time=now, reason=reason)


def _began_again(happened: list[Event], ended: int) -> bool:
    """Whether Slurm has started the job again since an attempt ended: what is written of that end is then old."""
    if any(event.attempt > ended for event in happened):
        return True
    last = {event.name: position for position, event in enumerate(happened)}
    ends = [last[name] for name in ("ending", "script-ended", "torn-down") if name in last]
    return bool(ends) and last.get("allocated", -1) > max(ends)


def newest_attempt(paths: RunPaths) -> int | None:
    """Return the number of the run's newest attempt, None before the first; StorageError if it cannot be read."""
    return max(Record(paths).attempts, default=None)


def supervisor_record(paths: RunPaths) -> Path | None:
    """Return the file in which step.sh recorded the end of the newest attempt's supervisor, if it did."""
    number = newest_attempt(paths)
    if number is None:
        return None
    with directories.storage(paths.directory):
        records = sorted(
            path for name in earlier_names.both(SUPERVISOR) for path in paths.attempt(number).exits.glob(f"{name}@*")
        )
    return next((path for path in records if not path.name.endswith(".new")), None)


class SupervisorEnd(NamedTuple):
    """What step.sh recorded of the supervisor's end: its node, its exit status, and the note that it left."""

    node: str
    exit_status: int
    note: "Note"


def supervisor_exit(paths: RunPaths) -> SupervisorEnd | None:
    """Return the end of the newest attempt's supervisor, if step.sh recorded it."""
    from hpcml.failures.note import read_note

    path = supervisor_record(paths)
    with directories.storage(paths.directory):
        text = safe_files.read(path, 100).decode(errors="replace").strip() if path else ""
    if path is None or not text.isdecimal():
        return None
    return SupervisorEnd(path.name.partition("@")[2], int(text), read_note(path.with_name(f"note@{path.name}")))


def service_files(paths: RunPaths) -> dict[str, Path]:
    """Return by name the records of the newest attempt's services; StorageError if they cannot be listed."""
    folder = paths.attempt(newest_attempt(paths) or 0).service_of("any").parent
    with directories.storage(folder):
        return {path.stem: path for path in sorted(folder.glob("[!.]*.json"))}


def services(paths: RunPaths) -> dict[str, Known]:
    """Return the services of the newest attempt by name; StorageError if a record is damaged."""
    tables = {name: directories.read_json(path) for name, path in service_files(paths).items()}
    with complete(paths.directory):
        return {name: typed_json.read(Known, table.facts) for name, table in tables.items() if table}


# -- jobs that no submission names -------------------------------------------------------------------------------------


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
    current = [(is_prepared(run) and _read_again(run)) or run for run in runs]
    open_runs = {run.id: (_scheduler(run), _clusters(run)) for run in current if is_open(run)}
    submissions: dict[str, Submission] = {}
    for name, clusters in set(open_runs.values()):
        run_ids = [run_id for run_id, asked in open_runs.items() if asked == (name, clusters)]
        submissions |= schedulers.get(name).find(run_ids, clusters)
    current = [_with_job(run, submissions[run.id]) if run.id in submissions else run for run in current]
    return [_given_up(run) if run.id in open_runs and _is_lost(run) else run for run in current]


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
    plan = planned(run)
    old = run.submission or Submission(plan.site, 0.0, plan.scheduler)
    message = "The run was not submitted: it has no job"
    hint = f"Submit it again: hpcml rerun {run.id}."
    new = old._replace(error=message, hint=hint, exit_status=ANSWER_LOST)
    directories.write_json(run.paths.submission, new.as_json())
    return run._replace(submission=new)


def _age(run: directories.Run) -> float:
    """Return the seconds since the run's folder was written, by the clock of its file system."""
    probe = safe_files.beside(run.paths.plan)
    os.close(safe_files.create(probe))
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
    return run.submission.scheduler if run.submission else planned(run).scheduler


def _clusters(run: directories.Run) -> str:
    try:
        return planned(run).clusters
    except StorageError:
        return ""  # who reads the run's state reports the damaged plan


def _with_job(run: directories.Run, answer: Submission) -> directories.Run:
    now = _read_again(run)  # who submits it may have written the answer meanwhile
    if now is None or not (is_prepared(now) or _is_lost(now)):
        return now or run
    run = now
    if run.submission and run.submission.line:
        new = run.submission._replace(job=answer.job, cluster=answer.cluster)
    else:
        plan = planned(run)
        old = run.submission or Submission(plan.site, 0.0, plan.scheduler, bool(plan.restart))
        new = answer._replace(
            scheduler=old.scheduler, site=old.site, time=old.time, notes=old.notes, requeue=old.requeue
        )
    if new != run.submission:
        directories.write_json(run.paths.submission, new.as_json())
    return run._replace(submission=new)
