"""The state of a run: its own files first, then its scheduler; an answer that nobody has is UNKNOWN, not a guess."""

# No `from __future__ import annotations`: hpcml/typed_json.py reads the types of fields, from texts slowly.
import contextlib
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from hpcml import earlier_names, kinds, outputs_brought_back, safe_files, schedulers
from hpcml.errors import (
    ALLOCATION_LOST,
    ANSWER_LOST,
    CANCELLED,
    IMAGE,
    PREEMPTED,
    START_FAILED,
    STORAGE,
    TIME_LIMIT,
    SlurmUnreachableError,
    StorageError,
)
from hpcml.failures.end import SLURM, End, Reason
from hpcml.kind import Stage
from hpcml.request.record import Awaited
from hpcml.run_files import Event
from hpcml.runs import directories
from hpcml.runs import record as records
from hpcml.runs.directories import complete
from hpcml.runs.record import Planned
from hpcml.schedulers import JobState, Submission
from hpcml.services import Known, Target
from hpcml.sites.settings_layers import process_environment
from hpcml.states import HAS_NODES, STATE_BY_PHASE, Phase, State, Wait
from hpcml.typed_json import Table, plain, read
from hpcml.units import format_age
from hpcml.workload_forms import Form

_WITH_SIGTERM = (State.CANCELLED, State.TIMEOUT, State.PREEMPTED)  # ends that Slurm announces, then waits for KillWait
EARLY = "workers.start=early"  # the setting with which the cluster starts before every script
NO_CLUSTER = "it starts when the script opens a Dask client"
_UNWRITTEN = {  # what the batch script's exit status says of a run without status.json
    STORAGE: "the run could not write its status: its folder was missing or not yours, or full or read-only",
    START_FAILED: "the batch script could neither start the run nor write its status",
}
# By the job's state: the exit status and the sentence of an end that the run itself could not write, and its state.
_JOB_ENDS: dict[str, tuple[int, str, State]] = {
    State.TIMEOUT: (TIME_LIMIT, "the time limit was reached", State.TIMEOUT),
    State.DEADLINE: (TIME_LIMIT, "the job's deadline was reached", State.TIMEOUT),
    State.CANCELLED: (CANCELLED, "the job was cancelled", State.CANCELLED),
    State.OUT_OF_MEMORY: (
        137,
        "Slurm reports that a process of the job was out of memory (OUT_OF_MEMORY)",
        State.OUT_OF_MEMORY,
    ),
    State.NODE_FAIL: (ALLOCATION_LOST, "a node of the allocation failed", State.NODE_FAIL),
    State.BOOT_FAIL: (ALLOCATION_LOST, "a node did not boot", State.NODE_FAIL),
    State.PREEMPTED: (
        PREEMPTED,
        "the job was preempted: Slurm gave its nodes to another job (PREEMPTED)",
        State.PREEMPTED,
    ),
    State.REVOKED: (ALLOCATION_LOST, "another cluster of the Slurm federation started the job (REVOKED)", State.FAILED),
}


class Allocation(NamedTuple):
    """The job of a run, and its nodes."""

    job: str = ""  # Slurm's id of the newest attempt's job, empty without one
    job_state: str = ""  # Slurm's word for it, empty where Slurm was not asked
    estimate: str = ""  # Slurm's estimate of its start, in ISO 8601, empty if it has none
    wait: Wait = Wait.PASSES  # why it waits
    silent: str = ""  # why Slurm could not be asked; all else is then from the run's own files
    nodes: tuple[str, ...] = ()  # names, from the first on; empty before the start


class ServiceLine(NamedTuple):
    """A service of the run, and the line that opens it."""

    name: str
    node: str
    ready: bool
    message: str  # a clause
    command: str  # to type on the laptop, or on this machine if the run is here

    @property
    def is_special(self) -> bool:
        """Whether only this run, or its form, has it: each run with Dask has a dashboard."""
        return self.name != "dashboard"

    @property
    def sentence(self) -> str:
        """All of it for people."""
        return f"{self.name}: {self.message}; to open it: {self.command}"


class Progress(NamedTuple):
    """What the newest attempt has reported."""

    attempt: int = 0  # its number, from 0
    times: Mapping[str, float] = {}  # by event, in seconds since 1970
    seconds_before: int = 0  # that the attempts before this one had their nodes
    clocks: Mapping[str, tuple[float, float]] = {}  # by node: seconds ahead of the first node's, and their error
    staging: str = ""  # how the image is copied to the nodes, empty if it is not
    ahead: bool = False  # whether its processes started before it, in a hold with --keep-cluster
    not_ahead: str = ""  # why they did not, a clause
    versions: str = ""  # of Python and the packages, in a sentence
    differences: tuple[str, ...] = ()  # between nodes, a sentence each
    repairs: Mapping[str, Mapping[str, str]] = {}  # of libraries: by name, the fields of repairs.Decision
    blocked_on: str = ""  # the file and the function of the kernel that last blocked the script on a file system
    services: tuple[ServiceLine, ...] = ()  # to which a tunnel can lead now, or soon
    warnings: tuple[str, ...] = ()  # sentences
    setup_warnings: tuple[str, ...] = ()  # those of them that are about lines of runtime.setup


class Cluster(NamedTuple):
    """The Dask cluster of the newest attempt, or its ranks."""

    has_cluster: bool = True  # of Dask, or one starts; False also while it waits for the script's first client
    workers: int = 0  # that are registered; the ranks that can start
    silent_workers: Mapping[str, float] = {}  # by node with a worker without heartbeats: since when, s since 1970
    idle_since: float = 0.0  # since when no rank has used a CPU, s since 1970; 0: one did, or it is not known
    protocol: str = ""  # how workers exchange data, and why so
    address: str = ""  # at which the ranks meet: their MASTER_ADDR
    security: str = ""  # who may connect, in a sentence
    interconnect: str = ""  # the result of the interconnect's check, in a sentence, empty without one
    interconnect_ok: bool = True  # False if the interconnect is not as it was asked for


class Files(NamedTuple):
    """The files that the script wrote into the copy of its code."""

    original: str = ""  # the folder that the run has a copy of, empty while nothing was brought there
    brought: tuple[str, ...] = ()  # names of files in it that were brought there
    not_brought: tuple[Mapping[str, str], ...] = ()  # of those that only the run has: name, why, run


class Held(NamedTuple):
    """The runs in a kept allocation, and how long none was in it."""

    runs: tuple[str, ...] = ()  # ids of those that run
    runs_ended: int = 0
    nodes_free: int = 0
    nodes_lost: tuple[str, ...] = ()  # that do not answer
    idle_before: float = 0.0  # seconds without a run before the present wait
    unused_since: float = 0.0  # when the present wait began, s since 1970; 0 while runs are in it


class Status(NamedTuple):
    """A run at one moment; a field of a group has a name that no other group has."""

    run: str  # its id
    directory: str = ""  # its path
    phase: str = Phase.UNKNOWN
    message: str = ""  # a clause: what it waits for, does, or ended with
    hint: str = ""  # what to do or to note, in sentences
    planned: Planned = Planned()
    allocation: Allocation = Allocation()
    progress: Progress = Progress()
    cluster: Cluster = Cluster()
    written: Files = Files()
    held: Held = Held()
    ended: End | None = None  # how it ended, is ending, or why it was refused; None before

    @classmethod
    def of(cls, run: str, site: str = "", phase: str = Phase.UNKNOWN, message: str = "", **values: Any) -> Self:
        """Return the status of a run; ``values`` as for :meth:`changed`."""
        return cls(run, phase=phase, message=message).changed(site=site, **values)

    def changed(self, **values: Any) -> Self:
        """Return a copy with these values; a field of a group or of the end goes by its own name."""
        by_group: dict[str, dict[str, Any]] = {}
        top: dict[str, Any] = {}
        for name, value in values.items():
            if group := GROUP_BY_FIELD.get(name):
                by_group.setdefault(group, {})[name] = value
            else:
                top[name] = value
        groups: dict[str, Any] = {
            group: (getattr(self, group) or End())._replace(**part) for group, part in by_group.items()
        }
        return self._replace(**top, **groups)

    def fields(self) -> dict[str, Any]:
        """Return all fields by name, those of groups and of the end too."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self._fields if name not in GROUPS}
        for group in GROUPS:
            values |= getattr(self, group)._asdict()
        del values["ended"]
        end = {name: getattr(self.ending, name) for name in _OF_THE_END}
        records = {"others": plain(self.ending.others), "services": plain(self.progress.services)}
        return {**values, **end, "exit_status": self.exit_status, **records}

    @property
    def ending(self) -> End:
        """How it ended or is ending, empty before."""
        return self.ended or End()

    @property
    def exit_status(self) -> int | None:
        """Its exit status, None until it has one."""
        return self.ended.exit_status if self.ended else None

    @property
    def state(self) -> str:
        """The run's state in Slurm's words; REFUSED, PREPARED and UNKNOWN where there is no job that has one."""
        if self.phase in STATE_BY_PHASE:
            return STATE_BY_PHASE[self.phase]
        failed, job_state = self.exit_status, self.allocation.job_state
        return State.OUT_OF_MEMORY if failed and job_state == State.OUT_OF_MEMORY else self.ending.ended_as

    @property
    def end(self) -> End:
        """How it ended, or is now."""
        return self.ending._replace(
            message=self.message,
            hint=self.hint,
            ended_as=self.state,
            over=self.over,
            attempt=self.progress.attempt,
            warnings=self.progress.warnings,
        )

    @property
    def idle_seconds(self) -> float:
        """How long no run was in it, if it is a kept allocation; until its end, or now."""
        held, until = self.held, self.ending.time if self.over else time.time()
        return held.idle_before + (max(0.0, until - held.unused_since) if held.unused_since else 0.0)

    @property
    def idling(self) -> str:
        """How long no run was in a kept allocation, and what that cost, in a clause; empty for other runs."""
        if not self.idle_seconds:
            return ""
        hours = self.idle_seconds / 3600 * (len(self.allocation.nodes) or self.planned.node_count)
        cost = [f"{hours:.3g} node-h", *([f"{hours * self.planned.gpus:.3g} GPU-h"] if self.planned.gpus else [])]
        return f"idle for {format_age(self.idle_seconds)} ({', '.join(cost)})"

    @property
    def noun(self) -> str:
        """The kind's word for one of its processes."""
        return kinds.get(self.planned.kind).noun

    @property
    def alone(self) -> bool:
        """Whether the script runs without the kind's processes: the Dask cluster waits for its first client."""
        return self.planned.late and not self.cluster.has_cluster

    @property
    def no_cluster(self) -> str:
        """Why there is no Dask cluster where the script runs alone, for people."""
        return "none: the script opened no Dask client" if self.over else f"not started: {NO_CLUSTER}"

    @property
    def over(self) -> bool:
        """Whether nothing of the run can come any more."""
        return self.phase in (Phase.ENDED, Phase.REFUSED)

    @property
    def failed(self) -> bool:
        """Whether it was refused, lost or ended with another status than 0; a cancelled run did what was wanted."""
        if self.state == State.CANCELLED or self.exit_status == CANCELLED:
            return False
        return self.over and (self.phase == Phase.REFUSED or bool(self.exit_status))

    def silences(self) -> tuple[str, ...]:
        """Return for how many seconds workers are silent (a sentence a node) or ranks idle."""
        if self.phase != Phase.RUNNING:
            return ()
        now = time.time()
        silent = tuple(
            f"{node}: a {self.noun} sent no heartbeat for {max(0, int(now - since))} s"
            for node, since in self.cluster.silent_workers.items()
        )
        if not (since := self.cluster.idle_since):
            return silent
        idle = f"no {self.noun} has used a CPU for {max(0, int(now - since))} s"
        return (*silent, f"{idle}: hpcml stacks {self.run} shows where")

    @property
    def end_time(self) -> float | None:
        """When it ended, in seconds since 1970; None if no process of the run was left to write this."""
        return self.progress.times.get("torn-down", self.progress.times.get("script-ended")) if self.over else None

    def seconds(self, now: float | None = None) -> int | None:
        """Return the time for which it has had its nodes, in seconds until its end or until now; None if unknown."""
        begin = self.progress.times.get("allocated")
        end = self.end_time if self.over else now or time.time()
        return None if begin is None or end is None else max(0, round(end - begin))

    def as_json(self) -> dict[str, object]:
        """Return the status as a JSON-ready mapping, without the groups."""
        values = {"run": self.run, "state": self.state, "seconds": self.seconds(), **self.fields()}
        values |= {"in_image": self.planned.in_image, "service": self.planned.form.service}
        session = (line for line in self.progress.services if line.name == "jupyter" and line.ready)
        values["jupyter"] = next((f"running on {line.node}; to open it: {line.command}" for line in session), "")
        values["times"] = earlier_names.with_earlier(self.progress.times)
        values |= {"idle_seconds": round(self.idle_seconds, 1)}
        left_out = (*_NOT_PRINTED, *((*Held._fields, "idle_seconds") if self.planned.form is not Form.HOLD else ()))
        return earlier_names.with_earlier({name: values[name] for name in values if name not in left_out})


GROUPS = tuple(name for name, default in Status._field_defaults.items() if hasattr(default, "_fields"))
GROUP_BY_FIELD = {field: group for group in GROUPS for field in Status._field_defaults[group]._fields}
_OF_THE_END = tuple(
    name for name in End._fields if name not in (*Status._fields, *GROUP_BY_FIELD, "over", "time")
)  # the others are the status's own
GROUP_BY_FIELD |= dict.fromkeys(_OF_THE_END, "ended")
_NOT_PRINTED = (
    "gpus",
    "ended_as",
    "form",
    "late",
    "scheduler",
    "image",
    "time_limit",
    "after",
    "restart",
    "partition",
    "clusters",
    "declared",
)


def status(run: directories.Run, job: JobState | None = None, *, ask: bool = True) -> Status:
    """Return the status of a run now.

    Parameters
    ----------
    job
        The state of the job, if it was requested already (one question for many runs).
    ask
        Whether to ask Slurm if ``job`` is not given. Otherwise only the files of the run count.

    Raises
    ------
    StorageError
        If the run's record lacks something, or cannot be read.
    """
    with complete(run.paths.directory):
        current = _from_files(run)
    if records.is_prepared(run) and not run.job and current.phase == Phase.UNKNOWN:
        hint = f"Submit the run with: {run.submission.line if run.submission else ''}"
        return current.changed(phase=Phase.PREPARED, message="not submitted yet", hint=hint)
    if (
        not (run.submission and run.submission.error)
        and (current.phase != Phase.ENDED or run.may_start_again)
        and (ask or job is not None)
    ):
        current = _ask_owner(current, run, job)
    if current.phase in HAS_NODES and (room := directories.full(run.paths.directory)):
        hint = f"{room[0].upper()}{room[1:]}: new output of the script and the logs is lost."
        return current.changed(hint=hint)
    return current


def now(run: directories.Run) -> tuple[directories.Run, Status]:
    """Return a run with its job, and its status, which says so if Slurm does not answer."""
    silent = ""
    try:
        run = records.adopt(run)
    except SlurmUnreachableError as error:
        silent = error.message
    current = status(run)
    return run, settled(run, current.changed(silent=current.allocation.silent or silent))


def quote(run: directories.Run, current: Status) -> tuple[str, ...]:
    """Return the lines that show a run's end, of a script those that its log has now.

    Slurm can write a script's last lines into the log after the supervisor has recorded the end.
    """
    end = current.ending
    if not current.over or end.by != "script" or end.points.submitted:
        return end.quote
    from hpcml.failures import job_log

    return job_log.of_script(run.paths.logs / Path(end.log or run.paths.script_log.name).name, end) or end.quote


def settled(run: directories.Run, current: Status) -> Status:
    """Bring the files of a run that could not do it itself, because it was killed; return the status with them."""
    if not current.over or current.phase == Phase.REFUSED:
        return current
    current = current.changed(quote=quote(run, current))
    known = outputs_brought_back.of(run.paths)
    if known and known.attempt == current.progress.attempt:
        return current
    from hpcml.runs import files_of_killed_runs

    try:
        result = files_of_killed_runs.settle(run.paths, current.progress.attempt)
    except OSError as error:
        why = f"The files that the script wrote beside its code stay in {run.paths.code}: {error}"
        return current.changed(warnings=(*current.progress.warnings, why))
    return _with_files(current, result)


def _with_files(current: Status, result: outputs_brought_back.Written | None) -> Status:
    if result is None:
        return current
    sentence = result.sentence()
    if sentence and sentence not in current.progress.warnings:
        current = current.changed(warnings=(*current.progress.warnings, sentence))
    left = tuple(file._asdict() for file in result.unsaved)
    brought = tuple(result.brought)
    return current.changed(original=result.home if brought else "", brought=brought, not_brought=left)


def has_results(run: directories.Run) -> bool:
    """Whether the run's folder for results has files."""
    with contextlib.suppress(OSError), os.scandir(run.paths.out) as entries:
        return any(True for _ in entries)
    return False


def unreadable(directory: Path, error: StorageError) -> Status:
    """Return the status of a run whose files cannot be read."""
    return Status(directory.name, str(directory), message=error.message)


def _from_files(run: directories.Run) -> Status:
    """Return the status of a run by its own files alone."""
    record = records.load(run)
    cluster = Cluster(kinds.get(record.planned.kind).has_cluster and not record.planned.late)
    job = Allocation(run.job)
    new = Status(run.id, str(run.paths.directory), planned=record.planned, allocation=job, cluster=cluster)
    if (refusal := run.submission) and refusal.error:
        return new.changed(
            phase=Phase.UNKNOWN
            if refusal.exit_status == ANSWER_LOST and not records.was_given_up(run)
            else Phase.REFUSED,
            message=refusal.error,
            exit_status=refusal.exit_status,
            hint=refusal.hint,
            quote=refusal.quote,
        )
    current = new.changed(**_reported(record.planned, record.events))
    current = current._replace(message=_message(current))
    if end := record.end:
        current = _with_end(current, end)
    current = _with_files(current, outputs_brought_back.of(run.paths))
    own = current.planned.form.traits.web_service
    if current.phase == Phase.RUNNING and ((services := records.services(run.paths)) or own):
        host = "" if schedulers.get(current.planned.scheduler).ONE_MACHINE else f"--host {_login_host(run)} "
        way = f"hpcml {host}tunnel"
        lines = [_service_line(name, known, way, run.id) for name, known in services.items()]
        if own and own not in services:
            current = current._replace(message=f"{current.planned.form.traits.title} starts")
            lines.insert(0, ServiceLine(own, "", False, "not ready yet", f"{way} --service {own} {run.id}"))
        return current.changed(services=tuple(lines))
    return current


def _service_line(name: str, known: Known, command: str, run: str) -> ServiceLine:
    option = "--to" if Target.named(name) else "--service"
    silent = f"not ready for {format_age(time.time() - known.since)}: {known.clause}" if known.clause else ""
    where = f"ready on {known.node}" + (f", {known.wanted.place}" if known.wanted else "")
    return ServiceLine(name, known.node, not silent, silent or where, f"{command} {option} {name} {run}")


def _login_host(run: directories.Run) -> str:
    """Return the laptop's name for this machine: as the run's site says, else by the user and the host's name."""
    request = records.Record(run.paths).request
    host = request.site.get("login.host") if request else None
    if isinstance(host, dict) and host.get("value"):
        return shlex.quote(str(host["value"]))
    user = process_environment().get("USER", "")
    return shlex.quote(f"{user}{'@' if user else ''}{os.uname().nodename}")


def _with_end(current: Status, end: End) -> Status:
    """Return a status with how the run ended, or is ending while its roles are torn down."""
    phase = Phase.ENDED if end.over else Phase.ENDING
    ended = end._replace(ended_as=end.state)
    return current._replace(phase=phase, message=end.message, hint=end.hint, ended=ended)


_OF_AN_ATTEMPT: dict[str, Any] = {  # fields that begin again with each attempt
    "phase": Phase.STARTING,
    "clocks": {},
    "silent_workers": {},
    "idle_since": 0.0,
    "versions": "",
    "interconnect": "",
    "interconnect_ok": True,
    "differences": (),
    "repairs": {},
    "blocked_on": "",
}


def _reported(planned: Planned, events: tuple[Event, ...]) -> dict[str, Any]:
    """Return the values of a status's fields after all events."""
    times: dict[str, float] = {}
    values: dict[str, Any] = {"times": times}
    for event in events:
        if event.attempt != values.get("attempt", 0):  # Slurm has started the job again
            took = round(max(times.values()) - times["allocated"]) if "allocated" in times else 0
            before = values.get("seconds_before", 0) + max(took, 0)
            times = {}
            values |= {**_OF_AN_ATTEMPT, "attempt": event.attempt, "times": times, "seconds_before": before}
        times[event.name] = event.time
        _add(values, planned, event)
    return values


def _add(values: dict[str, Any], planned: Planned, event: Event) -> None:
    """Add what one more event means for the values of fields."""
    fields = event.facts
    changes = kinds.get(planned.kind).seen(event.name, fields)
    if "differences" in changes:
        changes["differences"] = values.get("differences", ()) + changes["differences"]
    values |= changes
    if "security" in fields.facts:
        values["security"] = fields.get("security", str)
    if event.name == "warning":
        sentence = fields.get("sentence", str)
        values["warnings"] = (*values.get("warnings", ()), sentence)
        if "setup" in fields.facts:
            values["setup_warnings"] = (*values.get("setup_warnings", ()), sentence)
    elif event.name == "time-limit-near":
        values["hint"] = _near_limit(planned, fields.number("seconds"))
    else:
        _add_of_node(values, event.name, fields)


def _add_of_node(values: dict[str, Any], name: str, fields: Table) -> None:
    """Add what an event about nodes or the script means for the values of fields."""
    match name:
        case "allocated":
            values |= {"phase": Phase.STARTING, "nodes": fields.texts("nodes"), "workers": 0}
            values |= {"warnings": (), "setup_warnings": (), "hint": ""}
            not_ahead = fields.get("not_ahead", str, "")
            values |= {"ahead": "not_ahead" in fields.facts and not not_ahead, "not_ahead": not_ahead}
        case "image-staging":
            values |= {"phase": Phase.STARTING, "staging": fields.get("mode", str)}
        case "environment-ready":
            values |= {"versions": fields.get("words", str), "differences": fields.texts("differences")}
        case "repairs":
            from hpcml.repairs import Decision

            decisions = read(dict[str, Decision], fields.facts["repairs"])
            values["repairs"] = {name: decision._asdict() for name, decision in decisions.items()}
        case "clock":
            clock = {fields.get("node", str): (fields.number("ahead"), fields.number("within"))}
            values["clocks"] = {**values.get("clocks", {}), **clock}
        case "script-blocked":
            values["blocked_on"] = fields.get("on", str)
        case "script-started":
            values["phase"] = Phase.RUNNING


def _near_limit(planned: Planned, seconds: float) -> str:
    traits = planned.form.traits
    effect = f"{traits.title} pages in browsers save their documents" if traits.web_service else traits.near_limit
    return f"The time limit is near (about {format_age(seconds)} left): {effect}."


def _message(current: Status) -> str:
    """Return the message for what a run waits before its script starts, or that this runs."""
    script = current.planned.form.traits.title
    if current.phase == Phase.RUNNING and current.planned.form is Form.HOLD:
        return f"runs in the hold: {', '.join(current.held.runs)}" if current.held.runs else "the hold waits for runs"
    kind, times = kinds.get(current.planned.kind), current.progress.times
    if current.phase == Phase.RUNNING:
        count, expected = current.cluster.workers, current.planned.expected
        if current.alone:
            return f"{script} runs, without a Dask cluster"
        return f"{script} runs" + (f", with {count} of {expected} {kind.noun}s" if count < expected else "")
    if current.phase != Phase.STARTING:
        return ""
    if kind.ready in times or current.planned.late:
        return next((stage.waiting for stage in optional_stages(current)), f"{script} starts")
    if stage := later_stage(current):
        return stage.waiting.format_map(current.fields())
    if "image-staging" in times and "image-staged" not in times:
        return f"copying the image to the nodes ({current.progress.staging})"
    if current.progress.staging and "allocated" not in times:
        return "the processes of the run start in the image"
    return kind.startup[0].waiting.format_map(current.fields())


def later_stage(current: Status) -> Stage | None:
    """Return the stage of the startup that a run is in, None before the second."""
    stages = reversed(kinds.get(current.planned.kind).startup[1:])
    return next((stage for stage in stages if stage.begin in current.progress.times), None)


def optional_stages(current: Status) -> list[Stage]:
    """Return the stages of the startup that a run may do without, and that it is in now."""
    times = current.progress.times
    return [
        stage for stage in kinds.get(current.planned.kind).startup if stage.asked in times and stage.end not in times
    ]


def _ask_owner(current: Status, run: directories.Run, asked: JobState | None) -> Status:
    """Ask the scheduler about a run that has not written its end."""
    if not run.submission:
        hint = (
            f"Look for a job with the comment hpcml:{run.id}: squeue --me -o '%i %k'. "
            f"If there is no such job, the run counts as not submitted after {records.LOST_AFTER / 60:g} minutes."
        )
        return current.changed(
            phase=Phase.UNKNOWN, message="Slurm's answer to the submission was not recorded", hint=hint
        )
    try:
        with complete(run.paths.directory):
            run, job = present_job(run, asked)
            current = current.changed(job=run.job)
    except SlurmUnreachableError as error:
        current = current.changed(silent=error.message)
        if isinstance(error, schedulers.NotAskedError):  # it may have ended since its own files were written
            return current.changed(phase=Phase.UNKNOWN, message=error.message)
        if current.phase == Phase.UNKNOWN:
            message = "the run has written nothing yet, and Slurm does not answer"
            return current.changed(message=message, hint=error.hint)
        return current
    return _with_answer(current, run, job)


def present_job(run: directories.Run, asked: JobState | None = None) -> tuple[directories.Run, JobState]:
    """Return a run with the job that is its own now, and that job's state: of a job that has ended, the one after it.

    ``asked``: the state of the job, if it was requested already.
    """
    job = schedulers.state(run.submission or Submission()) if asked is None else schedulers.readable(asked)
    if job.ended and (after := directories.follow_up(run)) and after.submission:
        return (run, job) if after.job == run.job else (after, schedulers.state(after.submission))  # it ended waiting
    if job.ended and run.may_start_again and (begun := directories.begun_job(run.paths)) not in ("", run.job):
        assert run.submission is not None
        run = run._replace(submission=run.submission._replace(job=begun))  # it has become the run's own meanwhile
        return run, schedulers.state(run.submission or Submission())
    return run, job


def _with_answer(current: Status, run: directories.Run, job: JobState) -> Status:
    """Take in what the scheduler says of the job; the run's own events are newer than Slurm's word."""
    current = current.changed(job_state=job.state, estimate=job.start if job.pending else "", wait=job.wait)
    if current.phase == Phase.ENDED:
        if job.ended:
            return _not_continued(current, run, job)
        # An attempt of a job that may be put back into the queue has ended: the run has not, the job is there still.
        again = current.changed(phase=Phase.ENDING, ended=None, hint="")
        return again.changed(phase=Phase.QUEUED, message=_waits_again(run, job)) if job.pending else again
    if job.ended:
        before = _never_started(current, run) or _cancelled_before_start(current, run, job)
        return before or _ended_without_word(current, run, job)
    if job.pending and current.phase != Phase.UNKNOWN and run.may_start_again:  # it was killed, and left no word
        return current.changed(phase=Phase.QUEUED, message=_waits_again(run, job))
    if current.phase != Phase.UNKNOWN:
        return current
    if current.planned.after and (job.wait is Wait.JOBS or _waits_here(run, job)):
        awaited = " and for ".join(run_before.clause() for run_before in current.planned.after)
        return current.changed(phase=Phase.QUEUED, message=f"waiting for {awaited}", job_state=State.PENDING)
    if job.pending:
        return current.changed(phase=Phase.QUEUED, message=job.reason)
    message = "the run starts" if job.active else f"Slurm reports {job.state}"
    return current.changed(phase=Phase.STARTING, message=message)


def _waits_again(run: directories.Run, job: JobState) -> str:
    """Return the reason why a run waits again: its job is back in the queue, or another has the next attempt."""
    same = job.wait is not Wait.JOBS and directories.begun_job(run.paths) in ("", run.job)
    return f"{'Slurm requeued the job' if same else 'the next attempt waits'}: {job.reason}"


def _not_continued(current: Status, run: directories.Run, job: JobState) -> Status:
    """Return the end of a run of whose last attempt it is written; its next one may have ended before it began."""
    by_hpcml = job.state == schedulers.UNKNOWN.state and run.submission and run.submission.cancelled
    if (
        not (job.state == State.CANCELLED or by_hpcml)
        or not run.paths.attempt(current.progress.attempt).goes_on.exists()
    ):
        return current
    message = (
        "the run was cancelled while its next attempt waited in the queue; "
        f"the last attempt ended with: {current.message}"
    )
    hint = "The run's checkpoints are in checkpoints/ of the run directory."
    return _with_end(current, records.cancelled(SLURM, message, hint))


def _waits_here(run: directories.Run, job: JobState) -> bool:
    """Whether a run on this machine has not begun: its process is still what waits for others."""
    is_here = run.submission is not None and schedulers.get(run.submission.scheduler).ONE_MACHINE
    return is_here and job.active and records.newest_attempt(run.paths) is None


def ended(status: Status) -> str:
    """Return in a clause how a run ended."""
    if status.exit_status is None:
        return f"hpcml does not know how that run ended ({status.message})"
    return "that run succeeded" if status.exit_status == 0 else f"that run exited with status {status.exit_status}"


def never_started(awaited: Awaited, status: Status) -> tuple[str, str]:
    """Return the sentence that a run never started because one that it waited for ended otherwise, and what to do."""
    message = f"the run never started: it waited for {awaited.clause()}, and {ended(status)}"
    return (
        message,
        f"Show the reason: hpcml why {awaited.run}. Then submit that run again, and then this run with --after.",
    )


def _never_started(current: Status, run: directories.Run) -> Status | None:
    """Return the end of a run that Slurm dropped because one that it waited for ended otherwise; None of any other."""
    if current.progress.times or records.newest_attempt(run.paths) is not None:
        return None
    for awaited in current.planned.after:
        try:
            other = status(directories.load(run.paths.directory.with_name(awaited.run)))
        except StorageError:
            continue  # removed: nobody knows how it ended
        if other.over and not awaited.met_by(other.exit_status):
            message, hint = never_started(awaited, other)
            return _with_end(current, records.cancelled(SLURM, message, hint, Reason.NEVER_SATISFIED))
    return None


def _cancelled_before_start(current: Status, run: directories.Run, job: JobState) -> Status | None:
    """Return the end of a run whose job was cancelled before it started; None of any other.

    The end is written into the run's files, because Slurm forgets the job.
    """
    when = run.submission.cancelled if run.submission else 0.0
    cancelled = job.state == State.CANCELLED or (when and job.state == schedulers.UNKNOWN.state)
    if not cancelled or current.progress.times or records.newest_attempt(run.paths) is not None:
        return None
    message, by = "the job was cancelled (scancel) before it started", SLURM
    if when:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
        message, by = f"you cancelled the run with hpcml cancel at {at}, before it started", "user"
    hint = f"Submit the run again: hpcml rerun {run.id}."
    end = records.cancelled(by, message, hint)
    if run.submission and not run.submission.line:  # of a prepared run another job may be submitted
        with contextlib.suppress(OSError):  # a full disk is no reason not to show it
            directories.write_json(run.paths.status, end.as_json())
    return _with_end(current, end)


def _ended_without_word(current: Status, run: directories.Run, job: JobState) -> Status:
    """The run is over but did not write that it ended: its first node died, or it never got to the supervisor.

    What Slurm says is the cause, if it says one; without it step.sh's record counts, and then the job's log.
    """
    if current.exit_status is not None:
        return current.changed(phase=Phase.ENDED)  # the end was written, the teardown was cut short
    if job.state in _JOB_ENDS:
        return _lost(current, run, *_JOB_ENDS[job.state])
    if supervisor := records.supervisor_exit(run.paths):
        return _step_ended(current, run, supervisor)
    if job.state == State.FAILED and run.submission:
        exit_status = schedulers.end(run.submission).exit_status
        if exit_status in _UNWRITTEN:
            return _lost(current, run, exit_status, _UNWRITTEN[exit_status])
    forgotten = "Slurm no longer knows the job" if job == schedulers.UNKNOWN else f"Slurm: {job.state}"
    message = job.reason or f"the job ended without a status ({forgotten})"
    end = _lost(current, run, ALLOCATION_LOST, message)
    is_another = job.state == schedulers.UNKNOWN.state and current.allocation.job and job.reason
    return end.changed(hint=f"Submit the run again: hpcml rerun {run.id}.") if is_another else end


def _step_ended(before: Status, run: directories.Run, supervisor: records.SupervisorEnd) -> Status:
    """The supervisor's step has ended without a status: it never started, or it was killed."""
    from hpcml.failures import role_end

    exit_status = supervisor.exit_status
    if "allocated" in before.progress.times:  # what its log says is the script's
        ended = role_end.of_role(exit_status, ()).what
        message = f"the script's job step {ended} before hpcml recorded how the run ended"
        return _lost(before, run, exit_status, message)
    log = safe_files.tail(run.paths.script_log)
    if image := before.planned.image:
        full_log = safe_files.tail(run.paths.script_log, 200) or safe_files.tail(run.paths.job_log, 200)
        why = role_end.not_entered("\n".join(full_log), exit_status, supervisor.note)
        current = _lost(before, run, IMAGE, f"{supervisor.node}: {why.what}")
        hint = why.hint.replace("IMAGE", image)
    else:
        why = role_end.of_role(exit_status, log, supervisor.note)
        current = _lost(before, run, START_FAILED, f"before the script started, its job step {why.what}")
        hint = why.hint or current.hint
    return current.changed(hint=hint, quote=log or current.ending.quote, reason=why.reason)


def _lost(current: Status, run: directories.Run, exit_status: int, message: str, state: str = State.FAILED) -> Status:
    quote = safe_files.tail(run.paths.job_log)
    hint = f"Read the job's log: {run.paths.job_log}."
    if room := directories.full(run.paths.directory):
        message += f"; {room}"
        hint = "Free some space, or choose another runs folder (--set paths.runs=…). Then submit the run again."
    elif state == State.CANCELLED:
        hint = f"Submit the run again: hpcml rerun {run.id}."
    elif not current.progress.times and not quote:
        hint = "Nothing is in the job's log. Check that the first node has the folder of the job's output, and "
        hint += "that all nodes share the runs folder (paths.runs)."
        if bash_env := run.submission.bash_env if run.submission else "":
            hint = (
                f"{hint} BASH_ENV was set at the submission, so bash reads {bash_env} before the batch script. "
                "Check also whether this file exits or fails."
            )
    cut_short = "ending" in current.progress.times and state in _WITH_SIGTERM
    if cut_short:
        warning = f"Slurm killed the run before hpcml had written how it ended: hpcml why {run.id}."
        current = current.changed(warnings=(*current.progress.warnings, warning))
    return _with_end(current, End(exit_status, "", SLURM, message, hint, quote, state, cut_short=cut_short))
