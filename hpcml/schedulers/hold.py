"""A kept allocation (``hpcml hold``): a run's command leaves a file in the hold's folder, and the hold starts it."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from hpcml import hold_queue, safe_files, typed_json
from hpcml.errors import SiteError, StorageError, UsageError
from hpcml.paths import RunPaths
from hpcml.run_files import RecordedPlan
from hpcml.schedulers import JobLayout, JobRequest, JobState, Scheduler, Submission, existing_allocation, local, slurm
from hpcml.sites.schema import Site
from hpcml.states import State

_AT_ONCE = 20.0  # seconds in which the first process of a run begins whose nodes or part are free
_GONE = JobState(State.UNKNOWN, "the run's processes exited without writing a status (they may have been killed)")


class Hold:
    """Runs in a kept allocation.

    Parameters
    ----------
    of_holds
        The scheduler that started the hold itself.
    of_steps
        Whose batch scripts runs in it have.
    """

    OWN_JOBS, BATCH_SCRIPTS = False, False
    NODE_OPTIONS: tuple[str, ...] = ()
    clean_environment = staticmethod(slurm.clean_environment)
    foreign_variables, outer_job = staticmethod(slurm.foreign_variables), staticmethod(slurm.outer_job)
    find, end = staticmethod(local.find), staticmethod(local.end)  # no answer is lost, and the run's files have its end

    def __init__(self, of_holds: Scheduler, of_steps: Scheduler) -> None:
        self.of_holds, self.of_steps = of_holds, of_steps
        self.ONE_MACHINE = of_steps.ONE_MACHINE

    def lay_out(self, site: Site, request: JobRequest) -> JobLayout:
        """Return the batch script's part as in any existing allocation, or on this machine."""
        return self.of_steps.lay_out(site, request)

    def submit(self, site: Site, run: RunPaths) -> Submission:
        """Put the run into the hold; SiteError if it takes none any more, StorageError if it cannot be written."""
        plan = typed_json.on_demand(RecordedPlan, safe_files.read_json(run.plan))
        hold = RunPaths(Path(plan.hold))
        start = hold_queue.Start(hold_queue.batch_script(run), slurm.clean_environment())
        if not self.ONE_MACHINE:
            of_job = ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME")
            command = ("srun", *existing_allocation.step_options(run, existing_allocation.taken(site, plan.part)))
            start = hold_queue.Start(command, start.environment, of_job, "--nodelist", existing_allocation.NODE_NAMES)
        new = hold.hold / f".{run.directory.name}"
        try:
            safe_files.write(new, json.dumps(typed_json.plain(start)))
            new.rename(hold.queue / run.directory.name)
        except OSError as error:
            with contextlib.suppress(OSError):  # it has the shell's variables
                new.unlink(missing_ok=True)
            if isinstance(error, FileNotFoundError):
                hint = "Start another hold: hpcml hold."
                problem = "The hold takes no further run: it is ending"
                raise SiteError(problem, place=hold.directory.name, hint=hint) from error
            hint = "Free space, then start the run again."
            raise StorageError(
                f"The run could not be put into the hold: {error.strerror}", place=str(hold.hold), hint=hint
            ) from error
        of_hold = typed_json.read(Submission, safe_files.read_json(hold.submission))
        run_id = "" if of_hold.pid else hold.directory.name
        return of_hold._replace(
            run=run_id, hold=str(hold.directory), directory=str(run.directory), said=(), cancelled=0.0
        )

    def line(self, run: RunPaths) -> str:  # noqa: ARG002
        """Raise UsageError: there is no command to type."""
        raise UsageError("A run in a hold is not a job", place="--prepare", hint="Remove --prepare.")

    def check(self, script: Path) -> str:  # noqa: ARG002
        """Raise UsageError: nothing is asked for."""
        raise UsageError("A run in a hold requests nothing from Slurm", place="--check", hint="Remove --check.")

    def states(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Return the states of runs: what is in the hold's folder counts while the hold's job is there."""
        parts = {job: job.split("\n") for job in jobs}
        of_holds = self.of_holds.states(sorted({key for key, *_ in parts.values()}))
        return {
            job: _state(of_holds[key], Path(hold), Path(run), has_steps=not self.ONE_MACHINE)
            for job, (key, hold, run) in parts.items()
        }

    def cancel(self, job: str) -> str:
        """Take a run out of the queue, or have the hold tell it to end; the hold continues."""
        _, directory, name = job.split("\n")
        hold, name = RunPaths(Path(directory)), Path(name).name
        continues = f"the hold continues; to end the hold: hpcml cancel {hold.directory.name}"
        with contextlib.suppress(FileNotFoundError):
            (hold.queue / name).unlink()
            return f"it waited in the hold; {continues}"
        with contextlib.suppress(FileNotFoundError):
            (hold.held / name).rename(hold.told / name)
            return continues
        return continues if (hold.told / name).exists() else ""


def _state(hold: JobState, folder: Path, run: Path, *, has_steps: bool) -> JobState:
    """Return the state of a run in a hold whose job is in a state; a step of Slurm's may have to wait."""
    paths = RunPaths(folder)
    if not (hold.pending or hold.active):
        return _GONE if hold.state == State.UNKNOWN else hold
    if (paths.queue / run.name).exists():  # in the order in which the file is renamed
        begins = f"waiting for the hold {folder.name} to start ({hold.reason})"
        return JobState(State.PENDING, begins if hold.pending else f"waiting for nodes of the hold {folder.name}")
    with contextlib.suppress(FileNotFoundError):
        late = time.time() - (paths.held / run.name).stat().st_mtime > _AT_ONCE
        if has_steps and late and not (run / "attempts").exists():
            why = f"Slurm has not started its job step: other steps in the hold {folder.name} may use the node"
            return JobState(State.PENDING, why)
        return JobState(State.RUNNING)
    return JobState(State.RUNNING) if (paths.told / run.name).exists() else _GONE


IN_JOB, HERE = Hold(slurm, existing_allocation), Hold(local, local)
