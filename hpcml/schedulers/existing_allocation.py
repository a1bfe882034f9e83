"""An existing allocation (salloc, or the user's own batch script): a run is one step of it, on the first node.

The batch script that Slurm would have been given is the command of that step, and starts the roles as steps beside it.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import hold_queue, paths, safe_files, subprocesses
from hpcml.config_trust import HPCML
from hpcml.errors import HpcmlError, SiteError, SlurmUnreachableError, UsageError
from hpcml.kind import Role
from hpcml.paths import RunPaths
from hpcml.schedulers import (
    UNKNOWN,
    JobLayout,
    JobRequest,
    JobState,
    Launcher,
    Submission,
    gres,
    local,
    slurm,
    slurm_options,
)
from hpcml.sites.schema import Site
from hpcml.sites.settings_layers import process_environment
from hpcml.states import State
from hpcml.units import expand_hosts

ONE_MACHINE, OWN_JOBS, BATCH_SCRIPTS = False, False, False
NODE_OPTIONS: tuple[str, ...] = ()
clean_environment = slurm.clean_environment  # without what the allocation, or a step of it, set for Slurm's commands
foreign_variables, outer_job = slurm.foreign_variables, slurm.outer_job
gpu_directives, mpi_kinds = slurm.gpu_directives, slurm.mpi_kinds
find, end = local.find, local.end  # nothing is submitted, and the run's own files say how it ended
NODE_NAMES = "SLURM_JOB_NODELIST"
_JOB_VARIABLES = ("SLURM_JOB_ID", NODE_NAMES, "SLURM_CLUSTER_NAME")  # what srun and the roles need of the job
_SIZES = "export SLURM_CPUS_PER_TASK={} SLURM_MEM_PER_NODE={}"  # as a step of a role has them
_GONE = JobState(State.UNKNOWN, "the run's job steps exited without writing a status (they may have been killed)")
_LOOK = 0.05  # seconds between looks whether the run's step has begun
_TAKE = "Get an allocation with salloc, add hpcml run to your own batch script, or use hpcml submit."
# Steps of the allocation that are no work of the user's: the batch script, and the shell of salloc.
_NO_WORK = re.compile(r"\.(batch|extern|interactive)$")


class Allocation(NamedTuple):
    """What Slurm gave: node names, and of the node that has least of it CPUs, memory in MiB (0: not known) and GPUs.

    ``end`` is in seconds since 1970, 0 without a time limit. GPUs of which Slurm tells no type have none.
    """

    job: str
    nodes: tuple[str, ...]
    cpus: int
    memory: int
    gpus: int
    end: float
    gpu_types: tuple[str, ...] = ()


def current() -> Allocation:
    """Return the allocation that this process is in; one question to Slurm.

    Raises
    ------
    UsageError
        If there is none.
    SiteError
        If it has ended, has not begun, or is none that a run can be in.
    SlurmUnreachableError
        If Slurm does not answer.
    """
    environment = process_environment()
    job = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID") or ""
    if not job:
        raise UsageError("No allocation found: SLURM_JOB_ID is not set", place="hpcml run", hint=_TAKE)
    if run := environment.get("HPCML_RUN_DIR"):
        hint = "Connect to that run's Dask cluster with hpcml.connect(), or start both runs in your own batch script."
        raise UsageError("A run cannot start inside another run", place=f"HPCML_RUN_DIR={run}", hint=hint)
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1" and not sys.stdin.isatty():
        hint = "Call hpcml run without srun: hpcml itself starts a process on each node."
        raise UsageError(f"srun starts {tasks} processes of hpcml run", place="hpcml run", hint=hint)
    if environment.get("SLURM_HET_SIZE"):
        hint = "Use an allocation with one kind of nodes."
        raise SiteError("A run cannot use a heterogeneous allocation", place=f"job {job}", hint=hint)
    return of_job(job)


def of_job(job: str, cluster: str = "") -> Allocation:
    """Return the allocation of a job that runs; SiteError if it is gone, else errors as for :func:`current`."""
    answer = slurm.ask(slurm.for_clusters(cluster, ["scontrol", "--details", "--oneliner", "show", "job", job]))
    if answer.code != 0:
        if "Invalid job id" in answer.text:
            raise SiteError("Slurm no longer knows the job of this allocation", place=f"SLURM_JOB_ID={job}", hint=_TAKE)
        raise slurm.refusal(answer, "scontrol")
    return parse(job, answer.out)


def parse(job: str, text: str) -> Allocation:
    """Return the allocation that ``scontrol --details --oneliner show job`` shows; SiteError if that is unusable."""
    # of an array's first task it tells all tasks
    text = next((line for line in text.splitlines() if line.startswith(f"JobId={job} ")), text)
    fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
    if (state := fields.get("JobState", "")) != State.RUNNING:
        raise SiteError(
            f"The allocation is not running: the state of its job is {state or 'unknown'}",
            place=f"job {job}",
            hint=_TAKE,
        )
    kinds = re.findall(r" Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)", text)
    if not kinds:
        hint = "Use hpcml submit, and please report this to the developers of hpcml."
        raise SiteError("The output of scontrol names no nodes", place=f"job {job}", hint=hint)
    gpus = {gres.total(gres.gpus(text_of_node)) for *_, text_of_node in kinds}
    if len(gpus) > 1:
        numbers = " and ".join(map(str, sorted(gpus)))
        hint = "Use an allocation with the same number of GPUs on all nodes (--gpus-per-node)."
        message = f"The nodes of the allocation have different numbers of GPUs: {numbers}"
        raise SiteError(message, place=f"job {job}", hint=hint)
    return Allocation(
        job,
        tuple(expand_hosts(fields["NodeList"])),
        min(_count(cpu_ids) for _, cpu_ids, _, _ in kinds),
        min(int(memory) for _, _, memory, _ in kinds),
        gpus.pop(),
        _seconds(fields.get("EndTime", "")),
        tuple(sorted({gpu.type for *_, text_of_node in kinds for gpu in gres.gpus(text_of_node)} - {""})),
    )


def _count(ids: str) -> int:
    """Return the number of entries of a list as ``0-3,8``."""
    spans = [span.split("-") for span in ids.split(",")]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def _seconds(stamp: str) -> float:
    try:
        return time.mktime(time.strptime(stamp, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:  # Unknown, NONE: no limit
        return 0.0


def other_steps(job: str) -> list[str]:
    """Return the steps that run in the allocation, as ``12.0 (name) on n[1-2]``; none if Slurm does not answer."""
    inside = process_environment().get("SLURM_STEP_ID", "")
    rows = [row for row in _steps(["--job", job]) if row[0] != f"{job}.{inside}" and not _NO_WORK.search(row[0])]
    return [f"{step} ({name}) on {nodes}" for step, name, nodes in rows]


def _steps(options: Sequence[str]) -> list[tuple[str, str, str]]:
    answer = slurm.ask(["squeue", "--steps", "--noheader", *options, "--format=%i|%j|%N"])
    if answer.code != 0:
        raise slurm.refusal(answer, "squeue")
    return [(row[0], row[1], row[2]) for row in slurm.rows_of(answer) if len(row) == 3]


def lay_out(site: Site, request: JobRequest) -> JobLayout:
    """Return the launchers of steps, with all that the allocation has on each node; UsageError for MPI in a part."""
    spec = request.spec
    roles = (*request.roles, slurm_options.SUPERVISOR, slurm_options.STAGE)
    part = request.asked.place.part
    if part and any(role.mpi for role in roles):
        raise UsageError("--mpi needs whole nodes of the hold", place="--mpi", hint="Request all of a node.")
    kept = "|".join((*sorted(slurm.KEPT), *_JOB_VARIABLES))
    return JobLayout(
        prologue=(
            f'for name in "${{!SLURM_@}}"; do case $name in {kept}) ;; *) unset "$name" ;; esac; done',
            f"export HPCML_ALLOCATION=1; cpus={spec.size.cpus_per_node}",
            slurm_options.NAMES,
            slurm_options.VARIABLES,
            *(_SIZES.format(part[0].cpus, part[0].memory) for _ in part[:1]),
        ),
        launchers={role.name: _process(role) if part else _launcher(site, request, role) for role in roles},
        nodes_word=str(spec.size.nodes),
        starts_word=slurm_options.STARTS,
        stage_modes=slurm_options.STAGE_MODES if not part else ("copy",),
        memory=int(spec.size.memory_per_node),
        cpus=max(spec.size.cpus_per_node, 0),
        whole_nodes=site.resources.exclusive and not site.doubtful("resources.exclusive"),
        reasons=("the nodes and their CPUs, memory and GPUs come from the existing allocation",),
    )


def _launcher(site: Site, request: JobRequest, role: Role) -> Launcher:
    """Return srun as a submission has it, and what its batch script inherits from the directives as options."""
    launcher = slurm_options.launcher(site, request, role)
    memory = int(request.spec.size.memory_per_node) // 1024**2
    asked = (f"--mem={memory}M",) if memory else ()
    gpus = tuple(
        f"{option}={value}" for option, value in slurm_options.gpu_directives(site, request.spec.size.gpus_per_node, "")
    )
    hidden = () if request.spec.size.gpus_per_node else ("--gres=none",)  # those of the allocation, if it has some
    alive = ("--no-kill",) if role.every_node else ()  # on the other nodes if one fails, where the job goes with it
    where = f'{launcher.shell} --nodelist="$HPCML_NODE_NAMES"' if role.every_node else launcher.shell
    return launcher._replace(shell=where, options=(*asked, *gpus, *hidden, *alive, *launcher.options))


def _process(role: Role) -> Launcher:
    """Return the launcher of a role in the run's first step, which has a part of a node, as no other step of it has."""
    name = paths.SCRIPT if role == slurm_options.SUPERVISOR else role.name
    log = f"{name}-$HPCML_NODE.log" if role.every_node else f"{name}.log"
    output = "" if role == slurm_options.STAGE else f' >>"$HPCML_RUN_DIR/logs/{log}" 2>&1'
    return Launcher("env", "", ("/bin/sh", "-c", f'export {slurm_options.NODE}; exec "$@"{output}', "sh"))


def taken(site: Site, part: Sequence[hold_queue.Part]) -> tuple[str, ...]:
    """Return the options of srun for what a run's first step takes: nothing, or a part of a node for all of the run.

    Slurm chooses the CPUs and GPUs of the part, and holds the steps apart.
    """
    if not part:
        return ("--overlap", "--cpus-per-task=1", "--mem=0", "--gres=none")
    gpus, cpus, memory = part[0]
    asked = [f"{option}={value}" for option, value in slurm_options.gpu_directives(site, gpus, "")]
    return (
        "--exact",
        f"--cpus-per-task={cpus}",
        *((f"--mem={memory}M",) if memory else ()),
        *(asked or ["--gres=none"]),
    )


def submit(site: Site, run: RunPaths) -> Submission:
    """Start the run's step, and return the submission when its batch script has begun.

    SiteError if that is not within ``deadlines.scheduler``, or srun refuses; SlurmUnreachableError without srun.
    """
    given = current()
    lifeline = subprocesses.lifeline()
    environment = clean_environment() | _of_the_job(given)
    try:
        pid = subprocesses.start_in_background(
            ["srun", f"--nodelist={given.nodes[0]}", *step_options(run, taken(site, ()))],
            run.job_log,
            program=HPCML,
            environment=environment,
            stdin=lifeline,
        )
    except subprocesses.CommandMissingError as error:
        hint = "Load the site's Slurm module."
        raise SlurmUnreachableError(
            f"Slurm's command could not be started: {error}", place="PATH", hint=hint
        ) from error
    started = subprocesses.start_time(pid)
    deadline = time.monotonic() + float(site.deadlines.scheduler)
    attempts = run.directory / "attempts"
    while not (attempts.is_dir() and any(attempts.iterdir())):
        if subprocesses.start_time(pid) != started:
            if attempts.is_dir() and any(attempts.iterdir()):
                break
            raise _not_started(given.job, run, "srun refused the run's first step")
        if time.monotonic() > deadline:
            subprocesses.signal_process(pid, 9)
            raise _not_started(
                given.job, run, f"The run's first step did not start within {site.deadlines.scheduler.text}"
            )
        time.sleep(_LOOK)
    return Submission(job=given.job, pid=pid, started=started, directory=str(run.directory))


def step_options(run: RunPaths, resources: Sequence[str]) -> list[str]:
    """Return the options of srun for a run's first step, without its node, and the batch script."""
    options = [*resources, "--nodes=1", "--ntasks=1", "--mpi=none"]
    options += ["--cpu-bind=none", "--export=ALL", f"--job-name={run.directory.name}", "--open-mode=append"]
    options += [f"--output={slurm_options.filename_pattern(run.job_log)}"]
    return [*options, *hold_queue.batch_script(run)]


def _not_started(job: str, run: RunPaths, problem: str) -> HpcmlError:
    try:
        holders = other_steps(job)
    except HpcmlError:
        holders = []
    others = f"; other job steps use nodes of the allocation: {', '.join(holders)}" if holders else ""
    hint = (
        "Stop the other job steps first, or wait for them (with wait in a batch script)."
        if holders
        else "Check that srun hostname works in this allocation."
    )
    return SiteError(f"{problem}{others}", place=f"job {job}", hint=hint, quote=safe_files.tail(run.job_log))


def _of_the_job(given: Allocation) -> dict[str, str]:
    """Return the job's variables for srun and the roles; in a step the variables tell of the step's own nodes."""
    environment = process_environment()
    cluster = {name: environment[name] for name in ("SLURM_CLUSTER_NAME",) if name in environment}
    return cluster | {"SLURM_JOB_ID": given.job, NODE_NAMES: ",".join(given.nodes)}


def line(run: RunPaths) -> str:  # noqa: ARG001
    """Raise UsageError: there is no command to type."""
    raise UsageError("hpcml run does not submit a job", place="--prepare", hint="Remove --prepare.")


def states(jobs: Sequence[str]) -> dict[str, JobState]:
    """Return the states of runs: one whose step is there runs, of others the allocation's end tells."""
    keys = {key: key.partition(" ") for key in jobs}
    running = {name for _, name, _ in _steps(["--me"])}
    by_key = {key: JobState(State.RUNNING) for key, (_, _, folder) in keys.items() if Path(folder).name in running}
    rest = {key: job for key, (job, _, _) in keys.items() if key not in by_key}
    of_jobs = slurm.states(sorted(set(rest.values()))) if rest else {}
    for key, job in rest.items():
        state = of_jobs[job]
        by_key[key] = _GONE if state.active or state.pending or state == UNKNOWN else state
    return by_key


def cancel(job: str) -> str:
    """Tell a run's supervisor to end it; the allocation stays."""
    run = RunPaths(Path(job.partition(" ")[2]))
    return "only the run's job steps end; the allocation remains" if note(run, "terminate") else ""


def note(run: RunPaths, name: str) -> bool:
    """Leave the note ``terminate`` or ``time-limit`` for the supervisor; return False if the run has not begun."""
    numbers = [int(path.name) for path in run.directory.glob("attempts/*") if path.name.isdecimal()]
    if numbers:
        safe_files.write(run.attempt(max(numbers)).directory / name, "")
    return bool(numbers)


def requested_memory(job: str) -> float:
    """Return the bytes that the allocation's job asked for on each node."""
    return slurm.requested_memory(job.partition(" ")[0])


def check(script: Path) -> str:  # noqa: ARG001
    """Raise UsageError: nothing is asked for."""
    raise UsageError("hpcml run requests nothing from Slurm", place="--check", hint="Remove --check.")


def step_on(job: str, node: str, name: str, *, whole: bool = False) -> list[str]:
    """Return srun and its options for a command on one node of the allocation."""
    return slurm.step_on(job.partition(" ")[0], node, name, whole=whole)


def shell_on(job: str, node: str) -> list[str]:
    """Return srun and its options for a program on this terminal, on one node of the allocation."""
    return slurm.shell_on(job.partition(" ")[0], node)
