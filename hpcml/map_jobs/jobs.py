"""The jobs of ``hpcml.map``: on Slurm an array's tasks, on this machine processes; submitit runs in both."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from submitit.core.utils import DelayedSubmission, JobPaths
from submitit.local.local import LocalExecutor, LocalJob

from hpcml import files, subprocesses
from hpcml.errors import (
    ALLOCATION_LOST,
    CANCELLED,
    PREEMPTED,
    TIME_LIMIT,
    HpcmlError,
    PointError,
    SiteError,
    SlurmUnreachableError,
)
from hpcml.map_jobs.call import Call
from hpcml.paths import RunPaths
from hpcml.plan.batch_script import directive, join, quote
from hpcml.plan.plan import Plan
from hpcml.runs import maps
from hpcml.schedulers import ENDED, Submission, slurm, slurm_arrays, slurm_options
from hpcml.sites import layers
from hpcml.sites.schema import Site

_SUBMITIT = ("-u", "-m", "submitit.core._submit")
_NOT_OF_A_POINT = ("--signal", "--requeue", "--no-requeue")  # nobody there waits for the signal; a point runs once
_STATUSES = {"TIMEOUT": TIME_LIMIT, "CANCELLED": CANCELLED, "OUT_OF_MEMORY": 137, "PREEMPTED": PREEMPTED}
_ASK = (2.0, 30.0)  # seconds between questions to Slurm, at first and at most
_LATE = 20.0  # seconds that a result may need to be seen from here after its job
_NO_LIMIT = 5_000_000.0  # minutes
_NOTICE = 2  # seconds from the word of the time limit to the end on this machine


class Task(NamedTuple):
    """A point's job: the files of its results, one for each node, its log, and the id of the run of its array."""

    results: tuple[Path, ...]
    log: Path
    job: str
    run: str = ""


class Jobs(Protocol):
    """What the futures ask of a site."""

    tasks: dict[int, Task]

    def begin(self, waiting: Sequence[int]) -> None:
        """Start those of the waiting points that may start now."""

    def problem(self, number: int) -> HpcmlError | None:
        """Return why a point that has left no results has ended; None while it may go on."""

    def cancel(self, number: int) -> None:
        """End a point."""


def enter(made: Plan, folder: str, variables: Sequence[tuple[str, str]]) -> str:
    """Return the shell that leads a process into the environment of the site's runs, and starts Python there."""
    lines = ["#!/bin/bash", f'[ "$PYTHONSAFEPATH" != {layers.SAFE_PATH} ] || unset PYTHONSAFEPATH']
    lines += [f"umask {made.inside.umask:03o}", *made.setup]
    lines += [f"module load {quote(module)} || exit 80" for module in made.modules]
    lines += [f"export {name}={quote(value)}" for name, value in (*made.environment, *variables)]
    lines += [f'export PYTHONPATH={quote(folder)}"${{PYTHONPATH:+:$PYTHONPATH}}"']
    lines += [f'exec {quote(made.steps[-1].command[0])} -P "$@"', ""]  # -P: no module of the working folder
    return "\n".join(lines)


class SlurmJobs:
    """Points as tasks of arrays, none larger than Slurm takes."""

    def __init__(self, site: Site, runs: Sequence[tuple[Plan, Sequence[int]]], lead: str, at_once: int) -> None:
        self.site, self.runs, self.lead, self.at_once = site, runs, lead, at_once
        self.tasks: dict[int, Task] = {}
        self.refused: dict[int, HpcmlError] = {}
        self.places: dict[int, tuple[str, int]] = {}
        self.known: dict[tuple[str, int], str] = {}
        self.gone_since: dict[int, float] = {}
        self.distance, self.ask_at = _ASK[0], 0.0
        self.answered = False

    def submit(self, call: Call, points: Sequence[object]) -> None:
        """Submit all arrays; what Slurm refuses after the first is told by the futures of those points."""
        for made, numbers in self.runs:
            run = RunPaths(Path(made.directory))
            for folder in (run.directory, run.logs):
                folder.mkdir(mode=0o700)
            pickles = [run.directory / f"{index}.pkl" for index in range(len(numbers))]
            for number, path in zip(numbers, pickles, strict=True):
                DelayedSubmission(call, points[number]).dump(path)
            files.write(run.directory / "enter.sh", self.lead)
            files.write(run.script, self._script(made, run, len(numbers)))
            try:
                submission = slurm.submit(self.site, run)
            except HpcmlError as error:
                maps.record(run, Submission(error=error.message, exit_status=error.exit_status))
                if not self.tasks:
                    raise
                self.refused |= dict.fromkeys(numbers, error)
                continue
            maps.record(run, submission)
            for index, (number, path) in enumerate(zip(numbers, pickles, strict=True)):
                name = f"{submission.job}_{index}"
                path.rename(JobPaths(run.directory, name).submitted_pickle)
                results = tuple(JobPaths(run.directory, name, rank).result_pickle for rank in range(made.inside.nodes))
                self.tasks[number] = Task(results, run.logs / f"{index}-0.log", name, run.directory.name)
                self.places[number] = submission.job, index

    def _script(self, made: Plan, run: RunPaths, count: int) -> str:
        options = [option for option in made.directives if option[0] not in _NOT_OF_A_POINT]
        throttle = f"%{self.at_once}" if self.at_once else ""
        options += [("--no-requeue", ""), ("--array", f"0-{count - 1}{throttle}")]
        launcher = next(step.launcher for step in made.steps if step.role == "worker")
        assert launcher is not None
        own = ("--output", "--job-name", "--kill-on-bad-exit")
        words = [word for word in launcher.options if not word.startswith(own)]
        words += [f"--output={slurm_options.filename_pattern(run.logs)}/%a-%t.log", "--kill-on-bad-exit=1"]
        words += ["/bin/bash", str(run.directory / "enter.sh"), *_SUBMITIT, str(run.directory)]
        return "\n".join((
            "#!/bin/bash",
            *(f"#SBATCH {directive(option)}" for option in options),
            "umask 077",
            *made.prologue,
            "export SUBMITIT_EXECUTOR=slurm",
            f"exec {launcher.program} {launcher.shell} {join(words)}",
            "",
        ))  # fmt: skip

    def begin(self, waiting: Sequence[int]) -> None:
        """Ask how the tasks stand, at growing distances."""
        if time.monotonic() < self.ask_at:
            return
        try:
            jobs = sorted({self._array(number) for number in waiting if number in self.places})
            self.known = slurm_arrays.states(jobs) if jobs else {}
            self.answered = True
        except SlurmUnreachableError:
            self.answered = False  # nothing is known, and so nothing has ended
        self.distance = min(self.distance * 1.5, _ASK[1])
        self.ask_at = time.monotonic() + self.distance

    def problem(self, number: int) -> HpcmlError | None:
        """Return why a point ended: Slurm says that its task has, or knows it no more, and no results are seen."""
        if number in self.refused:
            return self.refused[number]
        state = self.known.get(self.places[number], "")
        if not self.answered or (state and state not in ENDED):
            self.gone_since.pop(number, None)
            return None
        if time.monotonic() - self.gone_since.setdefault(number, time.monotonic()) < _LATE:
            return None
        state = state or slurm_arrays.accounted(self._array(number), self.places[number][1])
        return ended(number, self.tasks[number], state)

    def cancel(self, number: int) -> None:
        """Cancel the task of a point."""
        if number in self.places:
            slurm.cancel(f"{self.tasks[number].job} {self.tasks[number].run}")

    def _array(self, number: int) -> str:
        """Return the number of a point's array with the id that the array carries as its comment."""
        return f"{self.places[number][0]} {self.tasks[number].run}"


class LocalJobs:
    """Points as processes of submitit's local executor, some at a time."""

    def __init__(self, made: Plan, lead: str, at_once: int, gpus: int) -> None:
        self.made, self.gpus = made, gpus
        self.tasks: dict[int, Task] = {}
        self.jobs: dict[int, LocalJob[Any]] = {}
        self.slots: dict[int, int] = {}
        self.free = list(range(at_once))
        self.cancelled: set[int] = set()
        self.lock = threading.Lock()  # a point that is cancelled while it starts would have no end
        self.script = Path(made.directory) / "enter.sh"
        files.write(self.script, lead)
        process = os.getpid()  # its points end with it
        maps.record(
            RunPaths(Path(made.directory)),
            Submission(scheduler="local", pid=process, started=subprocesses.start_time(process)),
        )

    def submit(self, call: Call, points: Sequence[object]) -> None:
        """Keep what is to be done; it begins with the first look."""
        self.call, self.points = call, points

    def begin(self, waiting: Sequence[int]) -> None:
        """Start points while there is room; each has a folder of its own, since process ids come again."""
        for number in list(self.slots):
            if self.jobs[number].done():
                self.free.append(self.slots.pop(number))
        for number in (number for number in waiting if number not in self.jobs):
            if not self.free:
                return
            with self.lock:
                if number not in self.cancelled:
                    self._start(number, self.free.pop())

    def _start(self, number: int, slot: int) -> None:
        folder = Path(self.made.directory) / str(number)
        python = join(("/bin/bash", str(self.script)))
        executor = LocalExecutor(folder, max_num_timeout=0, max_pickle_size_gb=float("inf"), python=python)
        limit = self.made.inside.time_limit
        executor.update_parameters(
            timeout_min=(limit + _NOTICE) / 60 if limit else _NO_LIMIT,
            signal_delay_s=_NOTICE,
            tasks_per_node=self.made.inside.nodes,
            stderr_to_stdout=True,
            gpus_per_node=self.gpus,
            visible_gpus=[slot * self.gpus + gpu for gpu in range(self.gpus)],
        )
        with layers.safe_path():
            self.jobs[number] = job = executor.submit(self.call, self.points[number])
        self.slots[number] = slot
        paths = [JobPaths(folder, job.job_id, rank) for rank in range(self.made.inside.nodes)]
        self.tasks[number] = Task(tuple(path.result_pickle for path in paths), paths[0].stdout, job.job_id)

    def problem(self, number: int) -> HpcmlError | None:
        """Return why a point ended: its process has gone."""
        if number not in self.jobs or not self.jobs[number].done():
            return None
        if all(path.exists() for path in self.tasks[number].results):
            return None  # since they were looked for
        return ended(number, self.tasks[number], "")

    def cancel(self, number: int) -> None:
        """End the process of a point."""
        with self.lock:
            self.cancelled.add(number)
            if number in self.jobs:
                self.jobs[number].cancel()


def ended(number: int, task: Task, state: str) -> PointError:
    """Return the error of a point whose job ended without a result."""
    what = f"Point {number} ended without a result" + (f": Slurm says {state}" if state else "")
    log = files.tail(task.log)
    place = str(task.log) if log else f"job {task.job}"
    hint = "Its process was ended, or ended itself: its log shows more." if log else "See the log of the job beside it."
    return PointError(what, place=place, hint=hint, exit_status=_STATUSES.get(state, ALLOCATION_LOST), quote=log)


def none_too_large(count: int, largest: int) -> list[range]:
    """Return the points' numbers divided into arrays; SiteError if this Slurm has no arrays."""
    if largest < 1:
        hint = "Submit each with hpcml.submit()."
        raise SiteError("This Slurm has no job arrays", place="MaxArraySize", hint=hint)
    return [range(first, min(first + largest, count)) for first in range(0, count, largest)]
