"""The local machine as a scheduler: a run is a process group of its own, known by its pid and start time."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcml import assets, safe_files, subprocesses, typed_json
from hpcml.config_trust import HPCML
from hpcml.errors import NotFoundError, SiteError, UsageError
from hpcml.gpu_vendor import VENDOR
from hpcml.paths import RunPaths
from hpcml.request.options import OPTIONS
from hpcml.run_files import RecordedPlan
from hpcml.schedulers import JobEnd, JobLayout, JobRequest, JobState, Submission, slurm
from hpcml.sites.schema import Site
from hpcml.states import State

_DEVICES = Path("/dev")
ONE_MACHINE, OWN_JOBS, BATCH_SCRIPTS = True, True, False
NODE_OPTIONS: tuple[str, ...] = ()
clean_environment = slurm.clean_environment  # a run from within a job is no part of that job
foreign_variables, outer_job = slurm.foreign_variables, slurm.outer_job

# What waits for other runs; hpcml need not be installed in this Python.
_WAIT = """
import pathlib, sys
sys.path.append(sys.argv[1])
from hpcml.runs import waiting
waiting.main(pathlib.Path(sys.argv[2]))
"""
# What Slurm would do.
_IGNORED = ("account", "partition", "qos", "clusters", "dependency", "memory_per_node")
_GONE = JobState(
    State.UNKNOWN, "the run's processes exited without writing a status (they were killed, or the machine stopped)"
)


def lay_out(site: Site, request: JobRequest) -> JobLayout:
    """Return the layout of a run whose nodes are all this machine; SiteError for GPUs on several nodes, or for MPI."""
    count = request.spec.size.nodes
    if count > 1 and request.spec.size.gpus_per_node:
        hint = "Use one node. Set the number of GPUs with --gpus-per-node."
        raise SiteError("The local site has one machine, so GPU runs use one node", place="--nodes", hint=hint)
    if any(role.mpi for role in request.roles):
        hint = "Choose a site with Slurm (--site), or start mpirun: hpcml submit --site local -- mpirun -n N PROGRAM."
        raise SiteError("--mpi needs srun, which the local site does not have", place="--mpi", hint=hint)
    reason = f"the local site has one machine: this machine runs the processes of all {count} requested nodes"
    prologue = ("export HPCML_NODE=local HPCML_NODE_NAMES=local",)
    given = request.asked.given()
    ignored = [OPTIONS[name].word for name in _IGNORED if name in given]
    ignored += [option for option, _ in request.spec.place.sbatch]
    notice = f"the local site ignores {', '.join(ignored)}"
    if "memory_per_node" in given:
        notice += ". To limit the memory of each Dask worker: --set workers.memory_limit=SIZE"
    notices: tuple[str, ...] = (notice,) if ignored else ()
    if "cpus_per_node" in given:
        most = f"--cpus-per-node {request.spec.size.cpus_per_node} has one effect: --ranks may be at most this number"
        notices += (f"the local site reserves no CPUs. {most}",)
    if request.spec.size.gpus_per_node and not (any(_DEVICES.glob(VENDOR.devices)) or shutil.which(VENDOR.tool)):
        absent = f"neither {_DEVICES / VENDOR.devices} nor {VENDOR.tool} exists"
        notices += (f"this machine has no {VENDOR.name} GPU for --gpus-per-node: {absent}",)
    return JobLayout(
        prologue=prologue,
        one_machine=ONE_MACHINE,
        whole_nodes=site.resources.exclusive and not site.doubtful("resources.exclusive"),
        reasons=(reason,) if count > 1 else (),
        notices=notices,
        ignored=notices,
    )


def submit(site: Site, run: RunPaths) -> Submission:
    """Start the batch script in the background, or what waits and then becomes it; NotFoundError without bash."""
    command, blocked = ["bash", str(run.script)], []
    if typed_json.on_demand(RecordedPlan, safe_files.read_json(run.plan)).after:
        command = [sys.executable, "-P", "-c", _WAIT, str(assets.package_root()), str(run.directory)]
        blocked = [signal.SIGTERM]  # until it can write that it was cancelled
    environment = clean_environment()
    try:
        pid = subprocesses.start_in_background(
            command, run.job_log, program=HPCML, environment=environment, blocked=blocked
        )
    except subprocesses.CommandMissingError as error:
        raise NotFoundError(f"The run could not be started: {error}", place="PATH", hint="Put bash on PATH.") from error
    return Submission(pid=pid, started=subprocesses.start_time(pid))


def line(run: RunPaths) -> str:
    """Raise UsageError: there is no command to type."""
    raise UsageError(
        "The local site has no sbatch",
        place="--prepare",
        hint="Remove --prepare, or choose a site with Slurm (--site).",
    )


def find(run_ids: Sequence[str], clusters: str = "") -> dict[str, Submission]:
    """Return nothing: no answer is lost here."""
    return {}


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """Return the states of the batch scripts that still run."""
    return {job: JobState(State.RUNNING) if _lives(job) else _GONE for job in jobs}


def _lives(job: str) -> bool:
    pid, _, started = job.partition(" ")
    return pid.isdecimal() and subprocesses.start_time(int(pid)) == started != ""


def end(job: str) -> JobEnd:
    """Return nothing: the run's own files say how it ended."""
    return JobEnd()


def cancel(job: str) -> str:
    """Tell the batch script to end; another process that has its pid by now gets no signal.

    Processes of the run that somebody stopped continue, as Slurm has them: else they could not end. The batch script
    kills a supervisor that does not end.
    """
    if not _lives(job):
        return ""
    pid = int(job.partition(" ")[0])
    if not subprocesses.signal_process(pid, signal.SIGTERM):
        return ""
    for other in subprocesses.session(pid):
        with contextlib.suppress(PermissionError):  # it has another account's rights
            subprocesses.signal_process(other, signal.SIGCONT)
    return f"process {pid}"


def check(script: Path) -> str:
    """Raise UsageError: there is nobody to ask."""
    raise UsageError("The local site has no Slurm", place="--check", hint="Remove --check.")
