"""A run as an object: what ``hpcml.submit`` returns, and what the commands about one run do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcml import kinds, safe_files, schedulers
from hpcml.errors import (
    INTERNAL,
    HpcmlError,
    LinkError,
    NotFoundError,
    SlurmUnreachableError,
    UsageError,
    did_you_mean,
    nearest,
)
from hpcml.paths import SCRIPT, AttemptPaths
from hpcml.runs import directories, merged_rank_logs, waiting
from hpcml.runs import record as records
from hpcml.runs import status as run_status
from hpcml.runs.directories import complete
from hpcml.runs.status import EARLY, Status
from hpcml.states import Phase
from hpcml.terminal import shown

if TYPE_CHECKING:
    from distributed import Client

# By each word for a log the name of the role whose it is; "job" is the batch script.
LOGS = {
    **{role.name: role.name for role in kinds.roles().values()},
    **{f"{role.name}s": role.name for role in kinds.roles().values() if role.every_node},
    **{name: name for name in (SCRIPT, "job")},
    "driver": SCRIPT,  # its name before 0.1.0
}
OF_POINT = "point:"
_LONGEST_LOG = 1 << 30  # bytes
LOOPBACK = "127.0.0.1"  # of a run on one node, which nothing else needs to reach
_CONNECT_WITHIN = 5.0  # seconds for the scheduler's address to accept a connection


class Cancelled(NamedTuple):
    """What became of a cancellation: whether the run was asked to end, and that in words."""

    told: bool
    message: str


class Scheduler(NamedTuple):
    """Where a run's Dask scheduler is, the protocol that its workers move data by, and the attempt's files."""

    attempt: AttemptPaths
    address: str
    protocol: str


class RunHandle:
    """A run that was submitted, by this process or another: its state, its results, and its end.

    :func:`hpcml.submit`, :func:`hpcml.find_run` and :func:`hpcml.list_runs` return such handles. Each question reads
    the run's own files, and asks Slurm where they do not tell. All can raise ``hpcml.HpcmlError``: a StorageError if
    the run's record cannot be read, a SlurmUnreachableError if Slurm has to be asked and does not answer.
    """

    def __init__(self, run: directories.Run) -> None:
        self.run = run

    @property
    def id(self) -> str:
        """The run's id, e.g. ``kmeans-20261121-074500-1a2b``."""
        return self.run.id

    @property
    def job(self) -> str:
        """Slurm's job id, empty on the local site."""
        return self.run.job

    @property
    def line(self) -> str:
        """What submits a run that was only prepared (``submit(…, prepare=True)``), empty when a job of it has begun."""
        return self.run.submission.line if self.run.submission else ""

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self.run.paths.directory

    @property
    def out(self) -> Path:
        """The folder for results, which the script knows as ``hpcml.run.out``."""
        return self.run.paths.out

    @property
    def state(self) -> str:
        """Slurm's word for the state of the run (PENDING, RUNNING, …); REFUSED, PREPARED or UNKNOWN without a job."""
        return self.now().state

    @property
    def exit_status(self) -> int | None:
        """The run's exit status (docs/exit-status.md), None until it has ended."""
        status = self.now()
        return status.exit_status if status.over else None

    def status(self) -> SimpleNamespace:
        """Return all that is known of the run now: what ``hpcml status --json`` prints, as attributes."""
        from hpcml.runs import request_cost

        status = self.now()
        return SimpleNamespace(**request_cost.described(self.run, status))

    def now(self) -> Status:
        """Return the run's status as hpcml itself uses it."""
        self.run = records.adopt(self.run)
        current = run_status.status(self.run)
        return current.changed(quote=run_status.quote(self.run, current)) if current.over else current

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the run's end and return its exit status, 0 if all went well.

        Parameters
        ----------
        timeout
            Seconds to wait; without it there is no limit but the run's own.

        Raises
        ------
        TimeoutError
            If the run has not ended within ``timeout``; it continues.
        HpcmlError
            If its record cannot be read, or Slurm does not answer for five minutes.
        """
        return exit_status_of(self.wait_status(timeout))

    def wait_status(self, timeout: float | None = None) -> Status:
        """Wait as :meth:`wait` does, and return all that is known of the run at its end."""
        end = None if timeout is None else time.monotonic() + timeout
        last: Status | None = None

        def look() -> None:
            if end is not None and time.monotonic() >= end and not (last and last.over):
                raise TimeoutError(f"the run {self.id} has not ended within {timeout:g} s; the run continues")

        for last in waiting.follow(self.run, look):  # noqa: B007 - `look` reads it
            pass
        assert last is not None
        return last

    def logs(self, role: str = SCRIPT) -> str:
        """Return the log of ``script`` (what the script printed), ``scheduler``, ``worker`` (of all nodes) or ``job``.

        Of ranks: ``rank`` are the lines of all, each after its rank; ``rank:3`` is the log of one.

        Raises
        ------
        UsageError
            If there is no such role.
        StorageError
            If a log cannot be read, or holds more than a GiB.
        """
        role, texts = role_of(role), []
        ranks = kinds.get(records.load(self.run).planned.kind).ranks
        if ranks and role == ranks.name:
            logs = merged_rank_logs.Merged(self.run)
            return b"".join([*logs.lines(), *logs.rest()]).decode(errors="replace")
        for path in log_files(self.run, role):
            with directories.storage(path):
                text = safe_files.read(path, _LONGEST_LOG).decode(errors="replace")
            texts.append(f"==> {path.name} <==\n{text}" if on_every_node(role) else text)
        return "".join(texts)

    def cancel(self) -> bool:
        """Tell the run to end, as ``hpcml cancel`` does; return False if it has ended already.

        Raises
        ------
        NotFoundError
            If it has no job that could be cancelled.
        """
        return cancel(self.run).told

    def cluster(self, **options: Any) -> Client:
        """Return a ``distributed.Client`` that is connected to the cluster of this run, by the run's own keys.

        It works where the address of the run's scheduler can be reached: on the machine of a local run, and on a login
        node in the same network as the compute nodes. ``options`` are those of ``distributed.Client``. Close the client
        when you are done; the run continues.

        Raises
        ------
        NotFoundError
            If the run has no cluster now.
        LinkError
            If this machine cannot reach it.
        RuntimeError
            If Dask's ``distributed`` is not installed in this environment.
        """
        import socket

        from hpcml import script_api

        status = self.now()
        scheduler = scheduler_of(self.run, status)
        host, _, port = scheduler.address.rpartition("://")[2].rpartition(":")
        if (
            host == LOOPBACK
            and self.job
            and (node := status.allocation.nodes[0]) != socket.gethostname().partition(".")[0]
        ):
            # whoever listens at that port here is another
            message = f"The Dask scheduler of this one-node run listens only on the loopback address of {node}"
            hint = f"Submit the run on two or more nodes, or start Python on the run's node: hpcml shell {self.id}."
            raise LinkError(message, place=scheduler.address, hint=hint)
        hint = f"Run this program on a login node of the cluster. To open only the dashboard: hpcml tunnel {self.id}."
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_WITHIN).close()
            return script_api.connect_to(scheduler.attempt, scheduler.address, **options)
        except OSError as error:
            message = f"This machine cannot reach the run's Dask scheduler: {error.strerror or error}"
            raise LinkError(message, place=scheduler.address, hint=hint) from error

    def __repr__(self) -> str:
        job = f", job {self.job}" if self.job else ""
        return f"<hpcml run {self.id}{job}, {shown(self.directory)}>"


def exit_status_of(last: Status) -> int:
    """Return the exit status that a command or a wait for a run ends with."""
    return INTERNAL if last.exit_status is None else last.exit_status


def role_of(word: str) -> str:
    """Return the role whose logs a word means, or the word of one rank; UsageError if there is none."""
    if merged_rank_logs.OF_ONE.fullmatch(word):
        return word
    if word not in LOGS:
        hint = did_you_mean(nearest(word, LOGS), f"One of: {', '.join(sorted({*LOGS.values()}))}.")
        raise UsageError(f"A run has no log '{word}'", place="hpcml logs", hint=hint)
    return LOGS[word]


def log_files(run: directories.Run, role: str) -> list[Path]:
    """Return the logs of a role, of one rank, or of the point of a sweep with a key, that are there."""
    if one := merged_rank_logs.OF_ONE.fullmatch(role):
        path = merged_rank_logs.of_ranks(run).get(int(one[1]))
        return [path] if path and path.exists() else []
    if role.startswith(OF_POINT):
        return [path for path in [run.paths.point_records / f"{role.removeprefix(OF_POINT)}.log"] if path.exists()]
    if on_every_node(role):
        return sorted(run.paths.logs.glob(f"{role}-*.log"))
    return [path for path in [run.paths.log(role)] if path.exists()]


def on_every_node(role: str) -> bool:
    """Whether a role has a log for each node."""
    everywhere = kinds.roles().get(role)
    return everywhere is not None and everywhere.every_node


def cancel(run: directories.Run) -> Cancelled:
    """Tell a run to end; its supervisor is signalled first and has its grace. One that has ended is no error.

    Raises
    ------
    NotFoundError
        If it has no job that could be cancelled.
    SiteError, SlurmUnreachableError
        As Slurm answers.
    """
    run = records.adopt(run)
    before = run_status.status(run)
    if before.over:
        return Cancelled(False, f"{run.id} has ended already: {before.message}.")
    if not (run.submission and run.submission.key):
        hint = (
            f"The run was not submitted. Remove it: hpcml rm {run.id}."
            if before.phase == Phase.PREPARED
            else before.hint
        )
        raise NotFoundError("The run has no job to cancel", place=run.id, hint=hint)
    if (after := directories.follow_up(run)) and after.submission:  # first: it begins when this one ends
        waiting = schedulers.get(after.submission.scheduler).cancel(after.submission.key)
    result = schedulers.get(run.submission.scheduler).cancel(run.submission.key)
    if after and before.allocation.job == after.job:
        result = waiting
    if result and not run.submission.line:  # of a prepared run another job may be submitted
        _note_cancel(run)
    return Cancelled(
        bool(result), f"{run.id} is being cancelled ({result})." if result else f"{run.id} has just ended."
    )


def _note_cancel(run: directories.Run) -> None:
    """Write when the run was cancelled into its files: Slurm forgets a job that never started."""
    table = directories.read_json(run.paths.submission)
    with contextlib.suppress(OSError):  # the job is cancelled all the same
        directories.write_json(run.paths.submission, {**(table.facts if table else {}), "cancelled": time.time()})


def scheduler_of(run: directories.Run, status: Status) -> Scheduler:
    """Return the place of the Dask scheduler of a running run; NotFoundError if it has none now."""
    attempt = run.paths.attempt(records.newest_attempt(run.paths) or 0)
    table = None if status.over or status.phase == Phase.QUEUED else directories.read_json(attempt.scheduler)
    if table is None:
        place, hint = f"{run.id}: {status.state}: {status.message}", f"Show the run's state: hpcml status {run.id}."
        if status.alone and not status.over:
            hint = f"To start a cluster before the script, submit it with --set {EARLY}."
        raise NotFoundError("The run's Dask cluster is not running", place=place, hint=hint)
    with complete(run.paths.directory):
        return Scheduler(attempt, table.get("address", str), table.get("protocol", str))


def node_variables(run: directories.Run, status: Status) -> dict[str, str]:
    """Return the variables that name a run to programs on its nodes."""
    return {
        "HPCML_RUN_DIR": str(run.paths.directory),
        "HPCML_ATTEMPT": str(records.newest_attempt(run.paths) or 0),
        "HPCML_NODES": str(len(status.allocation.nodes)),
        "HPCML_GPUS": str(records.Record(run.paths).plan.gpus),
    }


class Standing(NamedTuple):
    """The state of one of many runs: ``alive`` also if it may be; ``problem`` is why nothing is known of it."""

    run: directories.Run
    status: Status | None
    alive: bool
    problem: str = ""


def standings(runs: Sequence[directories.Run]) -> list[Standing]:
    """Return the states of runs, with a question or two to each scheduler; what cannot be known is a ``problem``."""
    silent = ""
    states: dict[str, schedulers.JobState] = {}
    try:
        jobs = records.of_open(runs)
        runs = [jobs.get(run.id, run) for run in runs]
        states = _states(runs)
        ended = [run for run in runs if run.may_start_again and (state := states.get(run.id)) and state.ended]
        next_ones = {run.id: after for run in ended if (after := directories.follow_up(run))}
        states |= _states(list(next_ones.values()), list(next_ones))
        runs = [next_ones.get(run.id, run) for run in runs]
    except SlurmUnreachableError as error:
        silent = error.message
    return [_standing(run, states.get(run.id), silent) for run in runs]


def _states(runs: Sequence[directories.Run], names: Sequence[str] = ()) -> dict[str, schedulers.JobState]:
    """Return the states of the jobs of those runs that have one, by their ids, or by other ``names``."""
    pairs = zip(names or [run.id for run in runs], runs, strict=True)
    return schedulers.states({name: run.submission for name, run in pairs if run.submission and run.submission.key})


def _standing(run: directories.Run, state: schedulers.JobState | None, silent: str) -> Standing:
    """Return the standing of a run by its job's state; ``silent`` is why its scheduler said nothing."""
    readable = None if state and state.state == schedulers.UNREADABLE else state
    try:
        status = run_status.status(run, readable, ask=False)
    except HpcmlError as error:
        return Standing(run, None, True, error.message)
    alive = not status.over or bool(state and (state.pending or state.active))
    if status.phase == Phase.PREPARED:
        alive = bool(silent)
    if silent and run.may_start_again:
        alive = True
    return Standing(run, status, alive, silent if alive else "")
