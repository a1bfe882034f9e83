"""``hpcml.map()``: call a function once for each of many points, each call a job of its own.

The jobs are submitit's: on Slurm the tasks of arrays, on this machine processes.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
from submitit import Job
from submitit.core.utils import DelayedSubmission
from submitit.local.local import LocalExecutor, LocalJob
from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

from hpcml import safe_files, schedulers
from hpcml.api import keywords_to_job
from hpcml.errors import HpcmlError, SiteError, SlurmUnreachableError, UsageError
from hpcml.paths import RunPaths
from hpcml.plan.batch_script import directive, join, quote
from hpcml.plan.make_plan import Plan
from hpcml.repairs import file_names
from hpcml.request.record import Code
from hpcml.sites import settings_layers
from hpcml.sites.schema import Site
from hpcml.states import ENDED, State
from hpcml.terminal import note
from hpcml.workload_forms import Form

_FOLDER = ".maps"  # below the folder of runs
_SUBMITIT = ("-u", "-m", "submitit.core._submit")
_SCHEDULER = "slurm"  # the only one whose arrays submitit's jobs are
_GONE = "GONE"  # the state of a job that Slurm no longer knows
_OVER = ENDED - {State.UNKNOWN} | {_GONE}  # submitit's UNKNOWN is a job that Slurm was not asked about
_ASK = 30  # seconds between questions to Slurm, at most
_NO_LIMIT = 5_000_000.0  # minutes
_NOTICE = 2  # seconds from the word of the time limit to the end on this machine
_LOOK = 0.1  # seconds between looks for room on this machine


def map(  # noqa: A001 - as every library calls it
    function: Callable[[Any], Any], points: Iterable[object], *, at_once: int | None = None, **options: Any
) -> list[Job[Any]]:
    """Call a function for each point in a job of its own, and return submitit's jobs in the order of the points.

    Parameters
    ----------
    function
        What is called with one point. One that was defined in the program itself travels with the job; another is
        imported there from its module.
    points
        The points, each of which can be pickled.
    at_once
        How many points run at once: on Slurm all that it starts, on the local site as many as the CPUs allow, one with
        GPUs. There the call returns when the last point has started.
    options
        Those of ``hpcml submit`` that describe a job: ``site``, ``time``, ``gpus_per_node``, ``cpus_per_node``,
        ``memory_per_node``, ``partition``, ``account``, ``env``, …; they hold for each point. With ``nodes`` the
        function is called on each node.

    Returns
    -------
    list of submitit.Job
        ``result()`` waits and returns what the function returned, or raises an error with the function's traceback;
        with several nodes ``results()`` is the list of what each returned, first node first.

    Raises
    ------
    HpcmlError
        If nothing was submitted: a wrong option, a function that cannot be pickled, Slurm's refusal.
    """
    given = list(points)
    _check(function, given, at_once)
    name = getattr(function, "__name__", "") or type(function).__name__
    code = Code(Path(name), cwd=settings_layers.here(), form=Form.MAP)
    loaded, spec = keywords_to_job.parse("hpcml.map", "map", code, {"nodes": 1, **options})
    if not given:
        return []
    top = keywords_to_job.place(loaded, _FOLDER, spec.name)
    if "%" in str(top):
        hint = "Choose another runs folder with set={'paths.runs': …}."
        raise UsageError("submitit cannot use a runs folder with '%' in its path", place=str(top), hint=hint)
    made = keywords_to_job.plan_at(loaded, spec, top / f"{top.name}.0")
    if made.inside.job.image:
        hint = "Run without the image: set={'runtime.kind': 'python'}. Or use hpcml.submit() with a script."
        raise SiteError("hpcml.map cannot run inside an image", place=made.inside.job.image, hint=hint)
    for text in made.notices:
        note(text)
    if loaded.site.repairs.file_names:
        file_names.keep()
    keywords_to_job.make(top, loaded)
    lead = enter(made, keywords_to_job.program_folder(), spec.environment)
    with settings_layers.narrowed_umask():
        if schedulers.get(loaded.site.scheduler).ONE_MACHINE:
            cpus = max(1, spec.size.cpus_per_node)
            return start_here(made, lead, function, given, at_once=at_once or 0, cpus=cpus)

        def plan_of(number: int) -> Plan:
            return keywords_to_job.plan_at(loaded, spec, top / f"{top.name}.{number}")

        return submit(loaded.site, plan_of, lead, function, given, at_once or 0)


def _check(function: object, points: list[object], at_once: int | None) -> None:
    """Refuse what could not be called, or not be sent."""
    if not callable(function):
        raise UsageError(f"{function!r} is not callable", place="hpcml.map", hint="Use a function with one argument.")
    if at_once is not None and at_once < 1:
        raise UsageError(
            f"at_once={at_once} is too small: no point could run", place="hpcml.map", hint="Set at_once to 1 or more."
        )
    for role, value in (("The function", function), ("A point", points)):
        try:
            cloudpickle.dumps(value)
        except Exception as error:  # an object of the user's may fail in any way there
            hint = "Open files and connections inside the function."
            raise UsageError(f"{role} cannot be pickled: {error}", place="hpcml.map", hint=hint) from error


class _Watcher(SlurmInfoWatcher):  # type: ignore[misc]
    """submitit's, but for squeue: it asks sacct alone, and waits for ever where a site has no accounting."""

    def __init__(self, delay_s: int) -> None:
        super().__init__(delay_s)
        self.runs: dict[str, str] = {}  # the id that an array carries as its comment, by its number

    def update(self) -> None:
        """Ask for the states of all jobs that have not ended."""
        self._last_status_check = time.time()
        waiting = {job: tuple(job.split("_")) for job in self._registered - self._finished}
        try:
            states = schedulers.other_jobs(_SCHEDULER).task_states(
                sorted({f"{array} {self.runs[array]}" for array, _ in waiting.values()})
            )
        except SlurmUnreachableError:
            return  # nothing is known, and so nothing has ended
        for job, (array, index) in waiting.items():
            self._info_dict[job] = {"State": states.get((array, int(index)), _GONE)}
            if self.is_done(job, mode="cache"):
                self._finished.add(job)

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Return True if a job has ended; a preempted one has, since it is not put back."""
        return self.get_state(job_id, mode=mode) in _OVER


class SlurmPoint(SlurmJob):  # type: ignore[misc]
    """A point of ``hpcml.map``: a task of an array on Slurm."""

    watcher = _Watcher(_ASK)

    def _register_in_watcher(self) -> None:
        self.watcher.runs[self.job_id.partition("_")[0]] = self.paths.folder.name
        super()._register_in_watcher()

    def cancel(self, check: bool = True) -> None:  # noqa: ARG002 - submitit's signature
        """Cancel the task; an HpcmlError if Slurm does not do it."""
        schedulers.get(_SCHEDULER).cancel(f"{self.job_id} {self.paths.folder.name}")


def enter(made: Plan, folder: str, variables: Sequence[tuple[str, str]]) -> str:
    """Return the shell that leads a process into the environment of the site's runs, and starts Python there."""
    lines = ["#!/bin/bash", f'[ "$PYTHONSAFEPATH" != {settings_layers.SAFE_PATH} ] || unset PYTHONSAFEPATH']
    lines += [f"umask {made.inside.code.umask:03o}", *keywords_to_job.environment(made, *variables)]
    lines += [f'export PYTHONPATH={quote(folder)}"${{PYTHONPATH:+:$PYTHONPATH}}"']
    lines += [f'exec {quote(made.steps[-1].command[0])} -P "$@"', ""]  # -P: no module of the working folder
    return "\n".join(lines)


def submit(
    site: Site,
    plan_of: Callable[[int], Plan],
    lead: str,
    function: Callable[[Any], Any],
    points: Sequence[object],
    at_once: int,
) -> list[SlurmPoint]:
    """Submit points as arrays, none larger than Slurm takes, and return their jobs.

    Raises
    ------
    HpcmlError
        If Slurm refuses one; those before it are cancelled.
    """
    largest = schedulers.other_jobs(site.scheduler).most_tasks()
    if largest < 1:
        hint = "Submit a script for each point with hpcml.submit()."
        raise SiteError("This Slurm does not support job arrays", place="MaxArraySize", hint=hint)
    arrays: list[list[SlurmPoint]] = []
    try:
        for first in range(0, len(points), largest):
            part = points[first : first + largest]
            arrays.append(_submit_array(site, plan_of(len(arrays)), lead, function, part, at_once))
    except HpcmlError:
        for jobs in arrays:
            schedulers.get(_SCHEDULER).cancel(f"{jobs[0].job_id.partition('_')[0]} {jobs[0].paths.folder.name}")
        raise
    return [job for jobs in arrays for job in jobs]


def _submit_array(
    site: Site, made: Plan, lead: str, function: Callable[[Any], Any], points: Sequence[object], at_once: int
) -> list[SlurmPoint]:
    run = RunPaths(Path(made.directory))
    run.directory.mkdir(mode=0o700)
    run.logs.mkdir(mode=0o700)
    pickles = [run.directory / f"{index}.pkl" for index in range(len(points))]
    for point, path in zip(points, pickles, strict=True):
        DelayedSubmission(function, point).dump(path)
    safe_files.write(run.directory / "enter.sh", lead)
    safe_files.write(run.script, _script(made, run, len(points), at_once))
    array, nodes = schedulers.get(_SCHEDULER).submit(site, run).job, range(made.inside.job.nodes)
    jobs = [SlurmPoint(run.directory, f"{array}_{index}", nodes) for index in range(len(points))]
    for job, path in zip(jobs, pickles, strict=True):
        job.paths.move_temporary_file(path, "submitted_pickle")  # submitit waits for it on the node
    return jobs


def _script(made: Plan, run: RunPaths, count: int, at_once: int) -> str:
    """Return the batch script of an array."""
    options = schedulers.other_jobs(_SCHEDULER).array_options(made.directives, count, at_once)
    on_every_node = next(step.launcher for step in made.steps if step.role == "worker")
    assert on_every_node is not None
    launcher = schedulers.other_jobs(_SCHEDULER).array_launcher(on_every_node, run.directory)
    command = [*launcher.options, "/bin/bash", str(run.directory / "enter.sh"), *_SUBMITIT, str(run.directory)]
    lines = [
        "#!/bin/bash",
        *(f"{made.directive_word} {directive(option)}" for option in options),
        "umask 077",
        *made.prologue,
    ]
    lines += ["export SUBMITIT_EXECUTOR=slurm", f"exec {launcher.program} {launcher.shell} {join(command)}", ""]
    return "\n".join(lines)


def start_here(
    made: Plan, lead: str, function: Callable[[Any], Any], points: Sequence[object], *, at_once: int, cpus: int
) -> list[LocalJob[Any]]:
    """Start points as processes of this machine, and return their jobs when the last has started.

    So many run at once; where that is not said, as many as have ``cpus`` each, with GPUs one.
    """
    top, inside = Path(made.directory), made.inside
    gpus, limit = inside.gpus, inside.job.time_limit
    at_once = at_once or (1 if gpus else max(1, len(os.sched_getaffinity(0)) // cpus))
    top.mkdir(mode=0o700)
    safe_files.write(top / "enter.sh", lead)
    jobs: list[LocalJob[Any]] = []
    running: dict[int, LocalJob[Any]] = {}  # by slot: each has GPUs of its own
    atexit.register(_end, jobs)
    for number, point in enumerate(points):
        while len(running := {slot: job for slot, job in running.items() if not job.done()}) == at_once:
            time.sleep(_LOOK)  # each point has its time limit
        slot = min(set(range(at_once)) - running.keys())
        executor = LocalExecutor(
            top / str(number),  # its own: process ids, which name a job's files, come again
            max_num_timeout=0,
            max_pickle_size_gb=float("inf"),
            python=join(("/bin/bash", str(top / "enter.sh"))),
        )
        executor.update_parameters(
            timeout_min=(limit + _NOTICE) / 60 if limit else _NO_LIMIT,
            signal_delay_s=_NOTICE,
            tasks_per_node=inside.job.nodes,
            stderr_to_stdout=True,
            gpus_per_node=gpus,
            visible_gpus=range(slot * gpus, (slot + 1) * gpus),
        )
        with settings_layers.safe_path():
            running[slot] = executor.submit(function, point)
        jobs.append(running[slot])
    return jobs


def _end(jobs: Sequence[LocalJob[Any]]) -> None:
    """End the processes of this machine with the program that started them."""
    for job in jobs:
        if not job.done():
            job.cancel()
