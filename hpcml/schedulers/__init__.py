"""What starts runs and tells their states: the interface of all schedulers (docs/schedulers.md)."""

# No `from __future__ import annotations`: hpcml/typed_json.py reads the types of fields, from texts slowly.
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from hpcml.errors import HpcmlError, SiteError, SlurmUnreachableError, StorageError
from hpcml.kind import Role
from hpcml.paths import RunPaths
from hpcml.request.record import RunRequest
from hpcml.schedulers.machine import Machine
from hpcml.sites.schema import Site
from hpcml.states import ACTIVE, ENDED, PENDING, State, Wait

OF_A_TASK = ("SLURM_PROCID", "SLURM_NTASKS")  # variables by which a script knows which of several tasks it is


class JobRequest(NamedTuple):
    """What a run asks of its scheduler.

    ``spec`` is the request with the site's defaults in it, ``asked`` as the user gave it: what it names is
    overridden by no profile. ``signal_lead`` is how many seconds before the time limit the batch script gets SIGUSR1.
    ``roles`` are those of the run's kind, which the batch script starts beside the supervisor.
    """

    spec: RunRequest
    asked: RunRequest
    paths: RunPaths
    signal_lead: int
    roles: tuple[Role, ...]


class Launcher(NamedTuple):
    """The words before a step's command: a program, ``shell`` text that bash is to read, and quoted options."""

    program: str
    shell: str
    options: tuple[str, ...]


class JobLayout(NamedTuple):
    """What a scheduler puts into the batch script, and what it leaves to hpcml. A *word* is text that bash reads."""

    directives: tuple[tuple[str, str], ...] = ()  # options and values, empty for a flag
    directive_word: str = ""  # begins the line of each directive
    lines: tuple[str, ...] = ()  # of the user's batch script, which the scheduler reads as they are
    warning: str = "USR1"  # the signal to the batch script before the time limit
    forwarded: tuple[str, ...] = ()  # signals to the batch script that are passed on to the user's
    may_start_again: bool = False  # the scheduler may put the job back into its queue
    prologue: tuple[str, ...] = ()  # lines of bash before the steps
    launchers: Mapping[
        str, Launcher
    ] = {}  # by role, and ``stage``; without one a role is a process of the batch script
    nodes_word: str = "1"  # the number of nodes
    starts_word: str = "0"  # how many times the job has started before
    job_word: str = ""  # the id of the run's own job, empty without one
    follow_up: str = ""  # submits the batch script again for when the job has ended, and prints the new job's id
    forget: str = ""  # cancels the job whose id follows
    may_put_back: str = ""  # has the job itself allowed back into the queue, where no other is taken
    put_back: str = ""  # puts the job back into the queue
    stage_modes: tuple[str, ...] = ("copy",)  # the values of runtime.stage that can copy an image to the nodes
    memory: int = 0  # bytes that the job asks for of a node, 0 if not known
    cpus: int = 0  # the same of its CPUs
    node_gpus: int = 0  # GPUs of a node of which the job asks for some and their share, else 0
    whole_nodes: bool = False  # certain: no other job is on the job's nodes
    one_machine: bool = False  # all nodes are this machine: hpcml keeps the time limit, and removes what a run leaves
    reasons: tuple[str, ...] = ()  # why it came out so
    notices: tuple[str, ...] = ()  # what the user should know
    ignored: tuple[str, ...] = ()  # those of them on options that have no effect: each submission shows them
    array: tuple[int, ...] = ()  # the indices of a job array's tasks, each of which is a run; empty without an array
    at_once: int = 0  # so many of these tasks at the same time; 0: all
    index_word: str = ""  # the index of the task that a script of the array is


class JobState(NamedTuple):
    """A job as its scheduler sees it, in Slurm's words.

    ``state`` is UNKNOWN if there is no such job any more (``reason`` may say how that is known), and UNREADABLE if the
    answer said neither (``reason`` is then a sentence). Of a job that waits ``reason`` says why for people, ``wait``
    says it for code, and ``start`` when it may begin. ``exit`` is its ``status:signal`` if it said one. ``asked`` is
    False of a job that was not asked for alone, where the answer for many could not be read.
    """

    state: str
    reason: str = ""
    start: str = ""
    nodes: str = ""
    exit: str = ""
    wait: Wait = Wait.PASSES
    asked: bool = True

    @property
    def pending(self) -> bool:
        """Whether the job has not begun yet."""
        return self.state in PENDING

    @property
    def active(self) -> bool:
        """Whether the job has nodes."""
        return self.state in ACTIVE

    @property
    def ended(self) -> bool:
        """Whether the job is over. A word that is not known here is no end."""
        return self.state in ENDED


class JobEnd(NamedTuple):
    """What a scheduler says of how a job ended; ``signal`` ended its batch script, ``failed_nodes`` are named so.

    ``exit_status`` is the batch script's.
    """

    signal: int = 0
    failed_nodes: str = ""
    exit_status: int = 0


class NotAskedError(SlurmUnreachableError):
    """A question for many jobs had no readable answer, and the job was not asked for alone."""


class AnswerLostError(HpcmlError):
    """It is not known whether the scheduler has accepted a job."""


UNKNOWN = JobState(State.UNKNOWN)
FOR_JOBS = "waiting for the jobs that this job depends on"  # why a job waits
UNREADABLE = State.UNREADABLE
NOT_ASKED = "Slurm did not answer a query for many jobs at once. To query only this job: hpcml status RUN."


class Prospect(NamedTuple):
    """What a scheduler says of a submission before it is made; what it does not tell is empty.

    ``start`` is when it would begin (ISO 8601, by the clock of this machine), ``weights`` the partition's billing
    weights, and ``largest`` whether the largest weighted resource counts and not their sum.
    """

    start: str = ""
    weights: Mapping[str, str] = {}
    largest: bool = False


class Submission(NamedTuple):
    """How a run was handed over, as submission.json keeps it; fields that say nothing are empty.

    A scheduler fills in what names the job: ``job`` and ``cluster``, or ``pid`` and ``started`` of a process here, and
    ``found_again`` where its answer was lost. ``run`` is the run's id, which Slurm's job carries as its comment;
    ``directory`` names a run among others of one job. ``array`` is the id of the job array of which the run is a task:
    the job carries it as its comment, in the place of the run's. ``cancelled`` is when ``hpcml cancel`` cancelled the
    job, in seconds since 1970. A refusal has ``error`` and the facts behind it. ``requeue``: the job may start again.
    ``hold`` is the directory of the kept allocation in which the run starts: the job, or process, is then the hold's.
    ``bash_env`` is the file that bash reads before the batch script. ``line`` is what a person types to submit a run
    that was only prepared; its job may be another until one has begun. ``said`` has sbatch's output without the job id.
    """

    site: str = ""
    time: float = 0.0
    scheduler: str = "slurm"
    requeue: bool = False
    notes: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    bash_env: str = ""
    job: str = ""
    run: str = ""
    array: str = ""
    cluster: str = ""
    cancelled: float = 0.0
    found_again: bool = False
    pid: int = 0
    started: str = ""
    directory: str = ""
    hold: str = ""
    line: str = ""
    error: str = ""
    place: str = ""
    hint: str = ""
    exit_status: int = 0
    quote: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What names the run to its scheduler, empty if it has no job.

        It is a job id and the run's, a process and its start, or a job and the run's directory. A job id is as sbatch
        prints it: ``20001;joltik`` on another cluster than the login node's. In a kept allocation it is the hold's key,
        and then, a line each, the directories of hold and run.
        """
        if self.hold:
            return "\n".join((self._replace(hold="", directory="").key, self.hold, self.directory))
        job = f"{self.job};{self.cluster}" if self.job and self.cluster else self.job
        if job and (name := self.directory or self.array or self.run):
            return f"{job} {name}"
        return f"{self.pid} {self.started}" if self.pid else job

    def as_json(self) -> dict[str, object]:
        """Return its facts as a JSON-ready mapping."""
        return {name: value for name, value in self._asdict().items() if value}


class Submitter(Protocol):
    """What starts and ends runs: asked by the plan, a submission and ``hpcml cancel``."""

    ONE_MACHINE: bool  # runs are on the machine that they are submitted from, and no ssh leads to their nodes
    BATCH_SCRIPTS: bool  # it reads the lines of a user's batch script
    OWN_JOBS: bool  # each run has a job of its own, which another can follow; False: it is a step of an existing job
    NODE_OPTIONS: tuple[str, ...]  # the options that exclude and list nodes; none where there are no nodes to choose

    def lay_out(self, site: Site, request: JobRequest) -> JobLayout:
        """Return the scheduler's part of the batch script.

        Nothing is on disk, and nothing is asked: a dry run calls it too. It raises UsageError or SiteError for what the
        site cannot give.
        """

    def line(self, run: RunPaths) -> str:
        """Return the line of shell that submits the run's batch script; UsageError if there is none to type.

        Called before anything is written. The run's directory is then written with this line in submission.json.
        """

    def submit(self, site: Site, run: RunPaths) -> Submission:
        """Submit the run's batch script once; return its submission, which the caller writes to submission.json.

        The run's directory is complete but for submission.json, signals to this process wait, and no second call comes
        for this run. SiteError (the answer was no) and SlurmUnreachableError (no answer, nothing done): there is no
        job, and submission.json gets the refusal. AnswerLostError of status ANSWER_LOST: there may be a job, which
        :meth:`Teller.find` searches until LOST_AFTER; one that begins later ends at once. After death of this process
        there is no submission.json, which means the same.
        """

    def check(self, script: Path) -> str:
        """Return the scheduler's answer to a script that it is only shown, for ``--check``.

        The script is in a temporary folder. After a failure (UsageError: it checks none) there is no job either.
        """

    def cancel(self, job: str) -> str:
        """Send SIGTERM to a run and end it; return the cancelled things in words, empty if there was nothing any more.

        ``job`` is the key of a Submission; a job with the same id but of another run is left alone. The caller then
        notes the time in submission.json. SlurmUnreachableError: nothing is noted, the job may go on, and a second call
        does no harm.
        """


class Teller(Protocol):
    """What says how runs are: asked by status, ls, wait and why. Nothing on disk changes, whatever a call returns."""

    def find(self, run_ids: Sequence[str], clusters: str = "") -> dict[str, Submission]:
        """Return the answers of ``submit``, of runs whose answer was lost, or that a person submitted.

        ``clusters`` are those that the runs asked for (``a,b``), empty for the login node's own.
        A run without a job is left out; of several jobs one that has not ended counts. The caller writes what is found
        to submission.json. SlurmUnreachableError: the runs stay open, and the next command asks again.
        """

    def states(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Return the states of jobs by the keys of their Submissions, in one query.

        No answer is no end: SlurmUnreachableError, or UNREADABLE for a job, and status then shows what the run's own
        files tell.
        """

    def end(self, job: str) -> JobEnd:
        """Return the scheduler's record of a job's end; nothing, instead of an error, where nobody answers."""


class Surroundings(Protocol):
    """The variables around hpcml's own process: asked before a program of the scheduler's starts, and by the doctor."""

    def clean_environment(self) -> dict[str, str]:
        """Return the environment without what an outer job, or the user's shell, set for the scheduler's commands."""

    def foreign_variables(self) -> list[str]:
        """Return the user's variables that change what the scheduler's own commands do or print."""

    def outer_job(self) -> str:
        """Return the id of the job that this process is in, empty outside one."""


class Scheduler(Submitter, Teller, Surroundings, Protocol):
    """What each scheduler does; a module with these functions is one. The protocols below are capabilities."""


class Adviser(Protocol):
    """What a scheduler knows before a submission; a site whose scheduler has none is asked nothing.

    Nothing is on disk, and no call fails: without an answer within ``seconds`` the submission continues without it.
    """

    def prospect(self, script: Path, partition: str, seconds: float) -> Prospect:
        """Return the prospect of a script that is only shown, and of a partition if one is named; else nothing."""

    def has_partition(self, name: str, seconds: float) -> bool:
        """Return True if it has a partition, True also without an answer."""

    def with_variables(self, spec: RunRequest, overridden: Callable[[str], bool]) -> RunRequest:
        """Return a request with what the user's variables for the scheduler say where the command line says nothing.

        ``overridden`` tells whether a default of that name was set by something that counts more.
        """

    def ignored_defaults(self) -> list[str]:
        """Return the user's variables that hold defaults for the scheduler's own commands, none of which count."""


class Nodes(Protocol):
    """What a scheduler does on the nodes of jobs that have some; a site whose scheduler has none is one machine."""

    def mpi_kinds(self, seconds: float) -> tuple[str, ...]:
        """Return the kinds of PMI by which it connects MPI's ranks; none without an answer within a deadline."""

    def requested_memory(self, job: str) -> float:
        """Return the bytes that a job asked for on each node, 0 if the scheduler does not tell."""

    def gpu_directives(self, site: Site, gpus: int, asked_type: str) -> list[tuple[str, str]]:
        """Return the directives that ask for GPUs on each node."""

    def step_on(self, job: str, node: str, name: str, *, whole: bool = False) -> list[str]:
        """Return the words that run a command on a node of a job, with its input and output, for `hpcml tunnel`.

        ``job`` is the key of a Submission; SiteError if the job cannot be reached from this machine. The command has
        one CPU and no GPU, or as ``whole`` all those of the job, for `hpcml ssh-config`.
        """

    def shell_on(self, job: str, node: str) -> list[str]:
        """Return the words that run a program on a node of a job and on this terminal, for `hpcml shell`."""


class OtherJobs(Protocol):
    """Jobs that are no runs: a map's arrays, an elastic cluster's workers, and a survey's look at a node.

    A scheduler may do without; a module with these functions has them.
    """

    def most_tasks(self) -> int:
        """Return the most tasks of an array whose first index is 0; 0 without arrays."""

    def array_options(
        self, directives: Sequence[tuple[str, str]], count: int, at_once: int
    ) -> tuple[tuple[str, str], ...]:
        """Return a job's directives as those of an array of ``count`` tasks; 0 at once are all."""

    def array_launcher(self, launcher: Launcher, folder: Path) -> Launcher:
        """Return the launcher of a task's processes, whose logs are in a folder."""

    def task_states(self, jobs: Sequence[str]) -> dict[tuple[str, int], str]:
        """Return the states of arrays' tasks by number and index; ``jobs`` are the keys of the arrays."""

    def cluster_options(
        self, directives: Sequence[tuple[str, str]], job: str, logs: Path
    ) -> tuple[tuple[str, str], ...]:
        """Return a run's directives as those of a cluster's job; ``jobs_of_clusters`` finds it."""

    def jobs_of_clusters(self) -> dict[str, list[str]]:
        """Return the ids of this user's jobs in the queue, by the elastic cluster that they are of."""

    def log_pattern(self, path: Path) -> str:
        """Return a path as the scheduler's option for a log takes it."""

    def submit_script(self, script: Path) -> Submission:
        """Submit a script; AnswerLostError if it is not known whether the job exists."""

    def cancel_named(self, name: str) -> None:
        """Cancel this user's jobs of a name."""


def find_adviser(name: str) -> Adviser | None:
    """Return the adviser of a scheduler before a submission, by the scheduler's name; None if it knows nothing."""
    from hpcml.schedulers import slurm

    return slurm if name == "slurm" else None


def with_variables(name: str, spec: RunRequest, overridden: Callable[[str], bool]) -> RunRequest:
    """Return a request with the user's variables for a scheduler in it; see :class:`Adviser`."""
    adviser = find_adviser(name)
    return adviser.with_variables(spec, overridden) if adviser else spec


def find_nodes(name: str) -> Nodes | None:
    """Return the functions of a scheduler on the nodes of its jobs, by the scheduler's name; None without nodes."""
    from hpcml.schedulers import existing_allocation, slurm

    modules: dict[str, Nodes] = {"slurm": slurm, "allocation": existing_allocation, "hold": existing_allocation}
    return modules.get(name)


def nodes_of(name: str) -> Nodes | None:
    """Return the starter of programs on a run's nodes, None if they are this machine; SiteError if there is no way."""
    nodes = find_nodes(name)
    if nodes is None and not get(name).ONE_MACHINE:
        hint = "Log in to the node with ssh, if the site allows this."
        raise SiteError(f"hpcml cannot start programs on the nodes of jobs of '{name}'", place="scheduler", hint=hint)
    return nodes


def in_allocation(name: str) -> str:
    """Return the scheduler of runs in an existing job of a scheduler, by the scheduler's name; empty without one."""
    return {"slurm": "allocation"}.get(name, "")


def in_hold(name: str) -> str:
    """Return the scheduler of runs in a kept allocation of a scheduler, by that scheduler's name."""
    return {"slurm": "hold", "local": "local-hold"}.get(name, "")


def find_other_jobs(name: str) -> OtherJobs | None:
    """Return the functions of a scheduler for jobs that are no runs, by the scheduler's name; None without it."""
    from hpcml.schedulers import slurm

    return slurm if name == "slurm" else None


def other_jobs(name: str) -> OtherJobs:
    """Return the functions of a scheduler for jobs that are no runs, by the scheduler's name; SiteError without it."""
    if jobs := find_other_jobs(name):
        return jobs
    raise SiteError(
        f"The site's scheduler '{name}' supports only hpcml submit", place="scheduler", hint="Use hpcml submit."
    )


def find_machine(name: str) -> Machine | None:
    """Return the machine of a scheduler by the scheduler's name; None if it says nothing of one."""
    from hpcml.schedulers import slurm_machine

    return slurm_machine if name == "slurm" else None


def machine_of(name: str) -> Machine:
    """Return the machine of a scheduler by the scheduler's name; SiteError if it says nothing of one."""
    if machine := find_machine(name):
        return machine
    hint = "Choose another site with --site. To list the sites: hpcml site ls."
    raise SiteError(
        f"hpcml cannot ask the site's scheduler '{name}' about nodes and partitions", place="scheduler", hint=hint
    )


def get(name: str) -> Scheduler:
    """Return a scheduler by its name; StorageError if there is none: a profile's is checked, a record's may be any."""
    from hpcml.schedulers import existing_allocation, hold, local, slurm

    modules: dict[str, Scheduler] = {"slurm": slurm, "local": local, "allocation": existing_allocation}
    modules |= {"hold": hold.IN_JOB, "local-hold": hold.HERE}
    if name not in modules:
        hint = "Update hpcml: a newer hpcml may have written the run's files. Or someone changed these files."
        raise StorageError(
            f"The run's files name a scheduler that this hpcml does not know: {name!a}", place=name, hint=hint
        )
    return modules[name]


def state(submission: Submission) -> JobState:
    """Return the state of one run's job; raise SlurmUnreachableError if its scheduler gives no readable answer."""
    return readable(get(submission.scheduler).states([submission.key])[submission.key])


def end(submission: Submission) -> JobEnd:
    """Return the end of a run's job by its scheduler."""
    return get(submission.scheduler).end(submission.key)


def readable(state: JobState) -> JobState:
    """Return a job's state if the scheduler's answer had one, else raise SlurmUnreachableError."""
    if state.state == UNREADABLE:
        hint = "Try again in some minutes. Running jobs are not affected."
        unreachable = SlurmUnreachableError if state.asked else NotAskedError
        raise unreachable(state.reason, transient=True, place="the job's state", hint=hint)
    return state


def states(submissions: Mapping[str, Submission]) -> dict[str, JobState]:
    """Return the states of runs' jobs by run, with one question to each scheduler."""
    job_states = dict.fromkeys(submissions, JobState(UNREADABLE, "The run's files do not name the run's job"))
    for name in {submission.scheduler for submission in submissions.values()}:
        jobs = {run: submission.key for run, submission in submissions.items() if submission.scheduler == name}
        with contextlib.suppress(StorageError):
            answers = get(name).states(list(jobs.values()))
            job_states |= {run: answers[job] for run, job in jobs.items()}
    return job_states
