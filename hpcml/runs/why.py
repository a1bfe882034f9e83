"""Why a run failed: its cause with the lines that show it, a next step, and the option to try again with."""

from __future__ import annotations

import math
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import attempt_history, installed_packages, kinds, schedulers, typed_json
from hpcml.errors import ALLOCATION_LOST, CANCELLED, IDLE, ConfigError, NotFoundError, StorageError
from hpcml.failures import evidence, judgement, stack_groups
from hpcml.failures.cause import Case, Cause, with_run
from hpcml.failures.end import IDLE_HINT, LESS_MEMORY, SLURM, OtherEnd, Reason
from hpcml.failures.evidence import Line
from hpcml.failures.rule import Retry, Role
from hpcml.failures.rules import BY_NAME, COLLECTIVE, of_refusal
from hpcml.failures.stack_groups import Group
from hpcml.paths import SCRIPT
from hpcml.request.record import RunRequest
from hpcml.run_files import Recorded, RecordedSpec
from hpcml.runs import directories, handle, packages
from hpcml.runs import stacks as live_stacks
from hpcml.runs import status as run_status
from hpcml.runs.directories import complete
from hpcml.runs.record import Record
from hpcml.runs.status import Status
from hpcml.schedulers import machine, partition_fit
from hpcml.sites import lookup
from hpcml.sites.schema import Site
from hpcml.states import Phase, State, Wait
from hpcml.units import Memory, TimeLimit, expand_hosts, format_memory_for_slurm, format_seconds
from hpcml.workload_forms import Form

MOST_LOGS = 128  # workers' logs that are read
_MORE = 1.5  # times what was asked for is worth a try
_NO_MORE_TIME = (
    "The site does not allow a longer time limit. Let the script save checkpoints and submit the script "
    "with --until-done, or use more nodes."
)
_WARNINGS = 3
_ASKED_WITHIN = 5.0  # seconds for a question about Slurm's configuration
_IN_A_SENTENCE = ("short", "known", "occurrences", "nodes", "ranks", "where")
_OF_THE_CAUSE = ("rule", "followed", *_IN_A_SENTENCE)
_GROUPS, _NAMED = 6, 4  # groups of processes with equal stacks that are quoted, and processes of each
_NO_MODULE = re.compile(r"No module named (?:\\?')?(\w+)")


class Answer(NamedTuple):
    """Why a run failed, or its state if it did not."""

    run: str
    state: str
    failed: bool
    cause: str = ""  # a clause
    short: str = ""  # the cause in at most six words
    known: bool = True  # False where there is no evidence of the cause; ``look`` then says where some may be
    rule: str = ""
    occurrences: int = 0
    nodes: tuple[str, ...] = ()
    evidence: tuple[Line, ...] = ()
    followed: tuple[Line, ...] = ()
    warnings: tuple[Line, ...] = ()
    next_step: str = ""
    options: tuple[str, ...] = ()  # what to submit it again with
    again: str = ""  # the command that does so
    look: tuple[str, ...] = ()  # commands
    waiting: tuple[stack_groups.Wait, ...] = ()  # where the ranks are, or were before the end, if none uses a CPU
    attempts: tuple[str, ...] = ()  # a sentence for each attempt before the last one
    rank: int | None = None  # the rank that failed first, or that shows the cause; None without ranks
    node: str = ""  # its node
    log: str = ""  # the path of its output in the run's directory
    ranks: tuple[int, ...] = ()  # the first of those that show the same, of which there are ``occurrences``
    where: str = ""  # these ranks in words, empty where ``cause`` names them
    others: tuple[OtherEnd, ...] = ()  # ranks that failed with ``rank``, in another way
    kill_wait: int | None = None  # Slurm's KillWait in seconds, if it killed the run before its end was written

    @property
    def sentence(self) -> str:
        """The cause in one line."""
        return Cause(self.cause, **{name: getattr(self, name) for name in _IN_A_SENTENCE}).sentence

    def as_json(self) -> dict[str, object]:
        """Return the answer as a JSON-ready mapping."""
        table: dict[str, object] = typed_json.plain(self)
        return table


def look(run: directories.Run) -> tuple[Status, Answer]:
    """Return the status of a run, and the cause of its failure if it failed.

    Raises
    ------
    StorageError
        If the run's record cannot be read.
    """
    run, current = run_status.now(run)
    earlier = attempt_history.earlier(Recorded(run.paths), current.progress.attempt)
    return current, of_status(run, current)._replace(attempts=tuple(map(attempt_history.sentence, earlier)))


def of_status(run: directories.Run, status: Status) -> Answer:
    """Return the cause of the failure of a run with this status."""
    if status.phase == Phase.REFUSED:
        return refused(status)
    sentences = (*status.progress.warnings[-_WARNINGS:], *status.silences())
    lines = tuple(Line(sentence, "record", "events.jsonl") for sentence in sentences)
    if not status.over:
        return _of_active(run, status, lines)
    attempt = run.paths.attempt(status.progress.attempt)
    hits = evidence.hits(run.paths, attempt, MOST_LOGS, status.ending.log, status.ending.log_begin)
    judged = judgement.judge(_case(run, status), hits)
    if judged is None:
        return Answer(run.id, status.state, False, "the run succeeded: there is no failure to explain", warnings=lines)
    if not judged.known or judged.rule == Reason.BATCH_KILLED or (status.state == State.NODE_FAIL and not judged.nodes):
        judged = _by_scheduler(run, status, judged)
    if judged.rule in ("no-module", "no-submodule"):
        judged = _removed_module(run, judged)
    groups = _kept_stacks(run, status, judged.rule)
    waiting = stack_groups.waits(groups) if status.cluster.idle_since or status.exit_status == IDLE else ()
    judged = _with_waiting(status, judged, waiting)
    judged, kill_wait = _cut_short(run, status, judged)
    retry, remedy = _again(run, judged)
    sentences = status.progress.setup_warnings
    if status.progress.blocked_on and judged.rule != "frozen":
        sentences += (f"the script was blocked on a file system: {status.progress.blocked_on}",)
    of_events = tuple(Line(sentence, "record", "events.jsonl") for sentence in sentences)
    warnings: dict[str, Line] = {}
    for hit in hits:
        if hit.rule.role is Role.WARNING:
            warnings.setdefault(hit.rule.name, hit.line)
    return Answer(
        run.id,
        status.state,
        failed=True,
        cause=judged.what,
        **{name: getattr(judged, name) for name in _OF_THE_CAUSE},
        evidence=(*judged.evidence, *_lines(groups, f"attempts/{status.progress.attempt}/stacks")),
        waiting=waiting,
        warnings=(*of_events, *warnings.values())[:_WARNINGS],
        next_step=with_run(remedy, run.id),
        options=retry,
        again=" ".join(("hpcml rerun", run.id, *retry)) if retry else "",
        look=() if judged.known else _where(run),
        others=status.ending.others,
        kill_wait=kill_wait,
        **_rank(status, judged),
    )


def _rank(status: Status, cause: Cause) -> dict[str, Any]:
    """Return the rank that shows a cause, with its node and its log: the first that failed, or another."""
    rank, node, log = status.ending.rank, status.ending.node, status.ending.log
    for line in cause.evidence[:1]:
        if cause.ranks and line.rank == cause.ranks[0] != rank:
            rank, node, log = line.rank, line.node, Path(line.file).name
    if rank == 0 and not node:
        node = next(iter(status.allocation.nodes), "")
    return {"rank": rank, "node": node, "log": f"logs/{log}" if log else ""}


def _while_ranks_wait(run: directories.Run, attempt: int, answer: Answer) -> Answer:
    """Return the answer for ranks that run, with a collective operation that one of them did not join in time."""
    cause = judgement.waited(evidence.hits(run.paths, run.paths.attempt(attempt), MOST_LOGS))
    if cause is None:
        return answer
    return answer._replace(
        cause=f"{answer.cause}, but {cause.what}",
        evidence=cause.evidence,
        next_step=f"Show where the ranks wait: hpcml stacks {run.id}.",
        rule=cause.rule,
        ranks=cause.ranks,
    )


def _while_idle(run: directories.Run, status: Status, answer: Answer) -> Answer:
    """Return the answer for a run none of whose ranks uses a CPU, with where they are now."""
    idle = f"no {status.noun} has used a CPU for {format_seconds(time.time() - status.cluster.idle_since)}"
    step = f"If the ranks should compute, end the run: hpcml cancel {run.id}. Then correct the script."
    so_far = f"{answer.cause}; {idle}" if answer.rule else f"{answer.cause}, but {idle}"
    answer = answer._replace(next_step=f"Show where the ranks wait: hpcml stacks {run.id}. {step}")
    try:
        groups = live_stacks.ask(run, status).groups
    except (NotFoundError, StorageError) as error:  # the run has just ended, or is another user's
        lines = (*answer.warnings, Line(error.message, "record"))
        return answer._replace(cause=so_far, warnings=lines)
    waiting = stack_groups.waits(groups)
    cause = ": ".join(filter(None, (so_far, stack_groups.wait_sentence(waiting))))
    return answer._replace(cause=cause, evidence=_lines(groups), waiting=waiting)


def _with_waiting(status: Status, cause: Cause, waiting: Sequence[stack_groups.Wait]) -> Cause:
    """Return the cause of a run that ended while no rank used a CPU: more time would not have helped."""
    waits = stack_groups.wait_sentence(waiting)
    if status.cluster.idle_since and cause.rule == "time-limit":
        clause = f"{cause.what}, and no {status.noun} had used a CPU for some time"
        remedy = "The ranks waited for each other, or for something else: correct the script. "
        remedy += "deadlines.idle ends such a run early, as --set deadlines.idle=30m."
        cause = cause._replace(what=clause, short="time limit, ranks waited", remedy=remedy, retry=Retry.NONE)
    if status.exit_status == IDLE and waiting:
        cause = cause._replace(remedy=IDLE_HINT.format(stack_groups.place_to_check(waiting)))
    return cause._replace(what=f"{cause.what}: {waits}") if waits else cause


def _kept_stacks(run: directories.Run, status: Status, rule: str) -> list[Group]:
    """Return the groups of processes that did the same before the end of a run."""
    is_kept = status.exit_status in stack_groups.KEPT or rule == COLLECTIVE or _was_seen_idle(run, status)
    if not is_kept or rule == "points":
        return []
    with complete(run.paths.directory):
        return stack_groups.kept(run.paths, status.progress.attempt)


def _was_seen_idle(run: directories.Run, status: Status) -> bool:
    """Whether ``hpcml why`` or ``hpcml stacks`` took the stacks of a run while it was idle, before its cancellation."""
    request = run.paths.attempt(status.progress.attempt).stacks_request
    asked_at = request.stat().st_mtime if request.exists() else 0.0
    return status.exit_status == CANCELLED and 0 < status.cluster.idle_since < asked_at


def _lines(groups: Sequence[Group], place: str = "") -> tuple[Line, ...]:
    """Return the lines that ``hpcml stacks`` shows of groups, one for each."""
    sentences = [f"{group.sentence}: {group.names(_NAMED)}" for group in groups[:_GROUPS]]
    sentences += [f"Only {_GROUPS} of {len(groups)} groups of processes are shown."] * (len(groups) > _GROUPS)
    return tuple(Line(sentence, "record", place) for sentence in sentences)


def _by_scheduler(run: directories.Run, status: Status, cause: Cause) -> Cause:
    """Return the cause with what the scheduler says of the job's end, which is asked where nothing else tells it."""
    if not run.submission or not run.submission.key or status.ending.by not in (SLURM, "hpcml"):
        return cause
    ended = schedulers.end(run.submission)
    if status.state == State.NODE_FAIL:
        return (
            cause._replace(nodes=hosts(ended.failed_nodes)) if ended.failed_nodes else _first_node(run, status, cause)
        )
    named = ended.signal in {number.value for number in signal.Signals}  # Slurm may tell it late
    if status.exit_status != ALLOCATION_LOST or not (named or status.ending.by == "hpcml"):
        return cause
    rule = BY_NAME[Reason.BATCH_KILLED]
    problem = rule.cause + (f" by {signal.Signals(ended.signal).name}" if named else "")
    return cause._replace(what=problem, short=rule.short, known=True, rule=rule.name, remedy=rule.remedy)


def _kill_wait(run: directories.Run) -> int | None:
    """Return Slurm's KillWait in seconds; None if this machine's Slurm does not say it, or the job's is another one."""
    submission = run.submission
    asked = schedulers.find_machine(submission.scheduler) if submission and not submission.cluster else None
    return machine.kill_wait(asked.configuration(_ASKED_WITHIN)) if asked else None


def _cut_short(run: directories.Run, status: Status, cause: Cause) -> tuple[Cause, int | None]:
    """Return the cause and KillWait of a run that Slurm killed before its end was written, with what prevents it."""
    if not status.ending.cut_short:
        return cause, None
    wait = _kill_wait(run)
    clause, remedy = f"{cause.what}, and Slurm killed the run before hpcml had written how it ended", cause.remedy
    grace = Record(run.paths).plan.inside.deadlines.script_grace
    if wait is not None and wait <= grace:
        clause += f": Slurm kills {wait} s after SIGTERM (KillWait), but deadlines.script_grace is {grace:g} s"
        remedy = f"{remedy} {machine.grace_within(wait)}".strip()
    return cause._replace(what=clause, remedy=remedy), wait


def _removed_module(run: directories.Run, cause: Cause) -> Cause:
    """Return the cause with what is known of a missing module: whether it was installed at submission, and is now."""
    missing = [match[1] for line in cause.evidence if (match := _NO_MODULE.search(line.text))]
    record = Record(run.paths)
    if not missing or not record.request or not (python := record.plan.python):
        return cause
    name = missing[0]
    if name not in record.request.modules.split():
        code, is_general = record.plan.inside.code, cause.remedy == BY_NAME["no-module"].remedy
        is_other = code.form is Form.PROGRAM or code.interpreter or record.plan.inside.job.image
        if is_other or not is_general or name in sys.stdlib_module_names:
            return cause
        return cause._replace(remedy=installed_packages.add(python, name))
    if name in packages.modules(python):
        remedy = f"The environment of {python} has the module on this machine. "
        if record.plan.inside.code.form is Form.PROGRAM:
            remedy += "The program started another Python: write this path in your command."
        else:
            remedy += "Put this environment on a shared file system."
        return cause._replace(remedy=remedy)
    problem = f"the module {name} was installed at submission and is now missing"
    return cause._replace(
        what=problem, remedy=f"Install the module again in the environment of {python}, then submit again."
    )


def hosts(listed: str) -> tuple[str, ...]:
    """Return the names in a host list; what is none, as a file of names, stays as it is."""
    try:
        return tuple(expand_hosts(listed))
    except ValueError:
        return (listed,)


def _first_node(run: directories.Run, status: Status, cause: Cause) -> Cause:
    """Return the first node as the one that failed if the supervisor, which runs there, wrote no end."""
    if run.paths.status.exists() or not status.allocation.nodes or not status.progress.times:
        return cause
    problem = "the first node failed or lost its network: hpcml's process on this node exited without writing a status"
    return cause._replace(what=problem, nodes=status.allocation.nodes[:1])


def _of_active(run: directories.Run, status: Status, lines: tuple[Line, ...]) -> Answer:
    """Return the wait of a run that has not ended, if it waits, and the lines of its processes."""
    wait = status.allocation.wait
    cause = f"the run waits: {status.message}" if status.phase == Phase.QUEUED else status.message
    step = f"Cancel the run: hpcml cancel {run.id}." if wait.is_vain else status.hint
    if status.phase == Phase.RUNNING and status.planned.form.traits.kind == "":  # ranks that wait in MPI use a CPU
        step = step or f"Show where each process is: hpcml stacks {run.id}."
    rule = Reason.NEVER_SATISFIED if wait is Wait.DEPENDENCY else ""
    answer = Answer(run.id, status.state, wait.is_vain, cause, rule=rule, warnings=lines, next_step=step)
    if status.phase != Phase.RUNNING:
        return answer
    if status.noun == "rank":
        answer = _while_ranks_wait(run, status.progress.attempt, answer)
    return _while_idle(run, status, answer) if status.cluster.idle_since else answer


def refused(status: Status) -> Answer:
    """Return the reason why Slurm or hpcml did not take a run."""
    rule = of_refusal(status.message, status.ending.quote)
    lines = tuple(Line(text, "record", "submission.json") for text in status.ending.quote[-3:])
    return Answer(
        status.run,
        status.state,
        True,
        status.message,
        rule.rule.short if rule else "refused",
        rule=rule.rule.name if rule else "",
        evidence=lines,
        next_step=status.hint,
    )


def _case(run: directories.Run, status: Status) -> Case:
    kind, form = kinds.get(status.planned.kind), status.planned.form
    progress, first_node = status.progress, status.allocation.nodes[:1]
    case = Case(status.end, kind, progress.times, form=form, clocks=progress.clocks, first_node=first_node)
    local = Record(run.paths).plan.inside.job.one_machine
    case = case._replace(blocked_on=progress.blocked_on, one_machine=local)
    return judgement.with_files(run.paths, run.paths.attempt(status.progress.attempt), case)


def options(run: directories.Run, cause: Cause) -> tuple[str, ...]:
    """Return the options that a cause makes worth a try, whatever the site allows; none if the request is unknown."""
    record = Record(run.paths)
    job, workers = record.plan.inside.job, record.plan.inside.workers
    match cause.retry:
        case Retry.EXCLUDE if cause.nodes and not job.one_machine:
            return ("--exclude", ",".join((*_excluded(record), *cause.nodes)))
        case Retry.TIME if job.time_limit:
            return ("--time", _longer(job.time_limit))
        case Retry.MEMORY if cause.rule == "worker-memory" and workers.memory_limit:
            return ("--set", f"workers.memory_limit={_larger(workers.memory_limit)}")
        case Retry.MEMORY if size := record.plan.memory:
            return ("--memory-per-node", _larger(size))
    return ()


def _again(run: directories.Run, cause: Cause) -> tuple[tuple[str, ...], str]:
    """Return the options to try again with, and the next step; if the only machine's memory was full, with less."""
    plan = Record(run.paths).plan
    kind, workers, of_worker = kinds.get(plan.kind), plan.inside.workers, cause.rule.startswith("worker-")
    if cause.retry is not Retry.MEMORY or not plan.inside.job.one_machine or (of_worker and workers.memory_limit):
        return _within_limits(run, options(run, cause), cause.remedy)
    full = "This machine has no more memory."
    if cause.rule == "memory-error":  # a single allocation, which the machine refused though it may have free memory
        full = "The allocation exceeded this machine's memory, or the limit of the process (ulimit -v)."
    if (few := workers.per_node // 2) and (kind.ranks or of_worker):
        option = ("--ranks", f"{few}") if kind.ranks else ("--set", f"workers.per_node={few}")
        return option, f"{full} Start fewer {kind.noun}s ({' '.join(option)})."
    return (), f"{full} {LESS_MEMORY}"


def _within_limits(run: directories.Run, wanted: tuple[str, ...], remedy: str) -> tuple[tuple[str, ...], str]:
    """Return options that the run's site takes, and the next step: other ones where it gives no more."""
    record = Record(run.paths)
    request, plan, inside = record.request, record.plan, record.plan.inside
    if not wanted or wanted[0] == "--exclude" or request is None or not inside.job.nodes:
        return wanted, remedy
    with complete(run.paths.directory):
        workers = inside.workers.per_node or 1
        try:
            site = lookup.recorded(request.site)
        except ConfigError:  # another version of hpcml wrote it: its limits are not known here
            return wanted, remedy
        asked, (option, text) = _request(request.spec, inside.job.nodes, site), wanted
        if option == "--time":
            more = asked.changed(time=TimeLimit(text))
        else:
            size = int(Memory(text.rpartition("=")[2])) * (workers if option == "--set" else 1)
            more = asked.changed(memory_per_node=Memory(format_memory_for_slurm(size)))
        if _takes(site, more):
            return wanted, remedy
        if option == "--time":
            return (), _NO_MORE_TIME
        kind = kinds.get(plan.kind)
        fewer = [f"fewer threads for each {kind.noun} (--set {kind.threads}=…)"] if kind.threads else []
        if kind.ranks:  # more nodes have as many ranks each
            few = f" (--ranks {workers // 2})" if workers > 1 else ""
            remedy = f"The site does not allow more memory per node: start fewer ranks on each node{few}."
            return (("--ranks", str(workers // 2)) if few else ()), remedy
        *ways, last = "smaller chunks", "more nodes (--nodes)", *fewer
        remedy = f"The site does not allow more memory per node: use {', '.join(ways)} or {last}."
        threads = inside.workers.threads or plan.cpus // max(workers, 1)
        if kind.threads and threads > 1:
            return ("--set", f"{kind.threads}={threads // 2}"), remedy
        twice = asked.changed(nodes=2 * asked.size.nodes)
        return (("--nodes", str(twice.size.nodes)) if _takes(site, twice) else ()), remedy


def _request(spec: RecordedSpec, nodes: int, site: Site) -> RunRequest:
    """Return the part of a recorded request that partitions and QoS limit."""
    gpus = spec.gpus_per_node
    return RunRequest.of(
        Path(),
        (),
        Path(),
        nodes=nodes,
        gpus_per_node=site.defaults.gpus_per_node if gpus is None else gpus,
        partition=spec.partition,
        qos=spec.qos or site.defaults.qos,
    )


def _takes(site: Site, spec: RunRequest) -> bool:
    """Whether a partition takes a request: the one that was asked for, else any that the profile lists."""
    names = [spec.place.partition] if spec.place.partition or not site.partitions else list(site.partitions)
    return any(
        not partition_fit.misfit(site, name, spec) and not partition_fit.doubtful_misfits(site, name, spec)
        for name in names
    )


def _excluded(record: Record) -> list[str]:
    """Return the nodes that the request excludes already: the option in the next submission takes their place."""
    options = record.request.spec.sbatch if record.request else ()
    return [node for option, value in options if option == "--exclude" for node in hosts(value)]


def _larger(size: float) -> str:
    """Return half as much memory again, as ``--memory-per-node`` takes it."""
    gib = 1024**3
    wanted = size * _MORE
    return f"{math.ceil(wanted / gib)}G" if wanted >= 2 * gib else f"{math.ceil(wanted / 1024**2)}M"


def _longer(seconds: int) -> str:
    """Return half as much time again, in whole minutes, of hours in tens of them."""
    step = 600 if seconds >= 3600 else 60
    wanted = math.ceil(seconds * _MORE / step) * step
    return f"{wanted // 3600}:{wanted // 60 % 60:02d}:00"


def _where(run: directories.Run) -> tuple[str, ...]:
    """Return the commands that show what there is of a run whose cause is not known."""
    places = [
        f"hpcml logs {run.id} {role}"
        for role in dict.fromkeys(("job", SCRIPT, *handle.LOGS.values()))
        if any(piece.text.strip() for path in handle.log_files(run, role) for piece in evidence.pieces(path))
    ]
    if run.job:
        cluster = f" -M {run.submission.cluster}" if run.submission and run.submission.cluster else ""
        places.append(f"sacct{cluster} -j {run.job} --format=JobID,State,ExitCode,DerivedExitCode,NodeList,Elapsed")
    return tuple(places)
