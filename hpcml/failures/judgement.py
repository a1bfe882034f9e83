"""Find the cause of a failed run: the first fault, never one of its consequences.

The end of the run decides where to look. If the script raised an error, that error is the cause. If the end is a
consequence (a lost worker, a broken connection), the earliest log line that starts a failure is the cause. Without
such a line the cause is unknown.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import errors
from hpcml.failures import evidence, output
from hpcml.failures.end import End, MemoryLimit
from hpcml.failures.evidence import Hit, Line, Piece, When
from hpcml.failures.rule import Retry, Role, Rule
from hpcml.failures.rules import BY_NAME, COLLECTIVE, filled
from hpcml.forms import Form
from hpcml.kind import Kind
from hpcml.paths import SCRIPT, AttemptPaths, RunPaths
from hpcml.states import State
from hpcml.units import format_bytes

MOST_LOGS = 16  # workers' logs that are read where a run ends
KINDS = ("oom", "timeout", "node", "error", "unknown")  # of failures, by what may help
_NO_ROLES = ("job", "library", "record")  # sources of lines that are no role's log
_LOGS = "hpcml logs RUN"  # the command, in a remedy
_SENT = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # by others
# How programs and libraries say that SIGKILL ended a process which they had started.
_KILLED = re.compile(
    r"died with <Signals\.SIGKILL|killed by signal: Killed|BrokenProcessPool|terminated abruptly|TerminatedWorkerError|"
    r"\bSIGKILL\b|\bsignal:? 9\b|exit(?:code| code| status|ed with)?(?: with)?(?: code| status)?[ :=]+(?:-9|137)\b|"
    r"^(?:.{0,200}: line \d+: +\d+ )?Killed\b"
)
_SHOWN = 3  # lines of evidence, and of what followed; ranks that are named
_OTHER_PROCESS = re.compile(r"Process (\d+) has ")  # PyTorch's word for another process that uses the GPU
_TOLD = 300  # characters of an error's message in a sentence
_ANOTHER_ATTEMPT = 90.0  # seconds before the attempt began; the clocks of nodes may differ
_NOT_MEASURED = 1.0  # seconds by which a node's clock may be wrong that was not measured
# Ends that hpcml itself decided: its own sentence is the best explanation.
_FINAL = {
    errors.STORAGE: "disk full or not usable",
    errors.CANCELLED: "cancelled",
    errors.NO_PROGRESS: "no newer checkpoint",
    errors.IMAGE: "image cannot be used",
    errors.VERSIONS: "versions differ",
    errors.PREEMPTED: "preempted",
    errors.IDLE: "idle too long",
    errors.INTERNAL: "defect in hpcml",
}
_OPEN = {  # ends that follow from a fault elsewhere
    errors.START_FAILED: "could not start",
    errors.ALLOCATION_LOST: "ended without a status",
}
_SIGNALS = {
    signal.SIGSEGV: "segfault",
    signal.SIGBUS: "bus-error",
    signal.SIGABRT: "abort",
    signal.SIGILL: "illegal",
}
_CRASHES = {*_SIGNALS.values(), "ucx-signal"}  # rules that say no more than a signal does
_SETS_UP = {"no-module-command", "unknown-module", "conda-init", "conda-environment"}  # rules of commands that do so
_LACKS = {"no-module", "shared-library"}  # rules of what such a command may provide
_NAMED_BY_LINES = {"segfault", "abort"}  # rules whose next steps speak of lines that name a library
_OF_ANOTHER_NODE = {"node-failure", "credential"}  # their lines are in the logs of the nodes that were well
_SPEAK_FOR_OTHERS = {"nccl-system"}  # their own log tells what was behind them
_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# How Python itself continues, and how a pool of processes sends the traceback of a child's error, which is above it.
_PASSED_ON = (
    "CancelledError",
    "GeneratorExit",
    "StopIteration",
    "StopAsyncIteration",
    "RemoteTraceback",
    "_RemoteTraceback",
    "JaxStackTraceBeforeTransformation",  # the traceback of the error that it causes
)
_TRIED = ("ImportError", "ModuleNotFoundError", "KeyError", "AttributeError", "FileNotFoundError", *_PASSED_ON)
# How a process is told that another one, with which it shares memory or a pipe, is gone.
_LOST_PROCESS = ("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError")
_OF_TIMEOUT = 124  # the status with which the command timeout ends, where it ended its program
_NOT_REBUILT = re.compile(r"function takes exactly \d+ arguments? \(\d+ given\)")  # type(error)(text) of a UnicodeError

Clocks = Mapping[
    str, tuple[float, float]
]  # by node: seconds ahead of the first node's, and by how many that may be wrong


class Case(NamedTuple):
    """A run that has ended, and what its files show beside the logs."""

    end: End
    kind: Kind | None = None  # of the run; None where its ends and its startup do not count, as of a sweep's point
    times: Mapping[str, float] = {}  # of its events, in seconds since 1970
    error: Mapping[str, Any] = {}  # the error that the script did not catch (script-error.json)
    last_error: Line | None = None  # the last line of the script's output where it ends a traceback
    others: Sequence[tuple[Line, Mapping[str, Any]]] = ()  # the errors that ended other ranks, in their order
    finished: Sequence[Line] = ()  # the last line of each rank that ended with status 0 before the run's end
    output: Piece = Piece("", 0)  # the end of the script's output; of ranks, of the one that failed first
    form: Form = Form.SCRIPT  # what was started
    script_log: str = f"{SCRIPT}.log"  # the name of the script's log
    clocks: Clocks = {}
    pools: Mapping[
        int, tuple[str, int]
    ] = {}  # by process: a worker of the first node, and bytes of its GPU memory pool

    @property
    def subject(self) -> str:
        """What failed, in a clause: the script, the program, or the rank that failed first."""
        if self.end.rank is not None:
            return f"rank {self.end.rank} on {self.end.node}"
        return f"the {self.noun}"

    @property
    def noun(self) -> str:
        """What was started, in a word."""
        return "program" if self.form is Form.PROGRAM else "script"

    @property
    def of_ranks(self) -> bool:
        """Whether the script is several processes."""
        return self.end.rank is not None or (self.kind is not None and self.kind.ranks is not None)

    def own(self, text: str, number: int = 0, time: float = 0.0) -> Line:
        """Return a line of the output of what failed."""
        source = "rank" if self.end.rank else SCRIPT
        return Line(text, source, f"logs/{self.end.log or self.script_log}", number, time, self.end.node, self.end.rank)

    def short_by_status(self, *, followed: bool) -> dict[int, str]:
        """Return by exit status why hpcml ends a run, ``followed``: for something that began elsewhere."""
        of_kind = self.kind.ends if self.kind else ()
        general = _OPEN if followed else _FINAL
        return {**general, **{one.status: one.short for one in of_kind if one.followed == followed}}


class Cause(NamedTuple):
    """Why a run failed."""

    what: str  # a clause
    short: str  # at most six words
    known: bool = True  # False where there is no evidence of it
    rule: str = ""  # the name of the rule that knows it, empty if none does
    remedy: str = ""
    retry: Retry = Retry.NONE
    evidence: tuple[Line, ...] = ()
    followed: tuple[Line, ...] = ()
    occurrences: int = 0  # lines that show the same, on ``nodes``
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()  # the first of those that show the same, of which there are ``occurrences``
    where: str = ""  # these ranks in words, empty where ``what`` names them

    @property
    def sentence(self) -> str:
        """The cause in one line."""
        nodes, occurrences = self.nodes, self.occurrences
        text = self.what[:1].upper() + self.what[1:] if self.known else f"Not known: {self.what}"
        named = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more nodes" if len(nodes) > 4 else "")
        if self.ranks:
            text += f" ({self.where})" if self.where else ""
        elif occurrences > 1:
            text += f" ({occurrences} times{f' on {named}' if named else ''})"
        elif named:
            text += f" (on {named})"
        return f"{text.rstrip('.')}."


def kind_of(rule: str, *, evident: bool = True) -> str:
    """Return the kind of a failure by its rule (empty: there is none); unknown where nothing shows the cause."""
    if rule in ("rmm-pool", "gpu-memory", "cublas-memory", "xla-memory"):  # more of the node's memory is no remedy
        return "oom"
    retry = BY_NAME[rule].retry if rule in BY_NAME else Retry.NONE
    kind = {Retry.MEMORY: "oom", Retry.TIME: "timeout", Retry.EXCLUDE: "node"}.get(retry, "error")
    return kind if evident else "unknown"


def of_run(paths: RunPaths, attempt: AttemptPaths, case: Case) -> Cause | None:
    """Return why a run failed, by the files of its last attempt and the run's logs."""
    hits = evidence.hits(paths, MOST_LOGS, case.end.log, case.end.log_begin) if case.end.failed else []
    return judge(with_files(paths, attempt, case), hits)


def short_cause(
    paths: RunPaths, attempt: AttemptPaths, end: End, kind: Kind, times: Mapping[str, float], form: Form, clocks: Clocks
) -> str:
    """Return why a run failed in some words, empty where that is not known."""
    cause = of_run(paths, attempt, Case(end, kind, times, form=form, clocks=clocks))
    return cause.short if cause and cause.known else ""


def with_files(paths: RunPaths, attempt: AttemptPaths, case: Case) -> Case:
    """Return a case with what the script's own files show."""
    case = case._replace(script_log=paths.script_log.name)
    error = evidence.script_error(attempt.script_error)
    log = paths.logs / Path(case.end.log or paths.script_log.name).name
    last_error = evidence.last_error(log, case.end.log_begin)
    if last_error:
        last_error = case.own(last_error.text, last_error.number)
    others = evidence.errors_of_ranks(paths, attempt) if case.of_ranks else []
    finished = [_with_last_line(paths, line) for line in evidence.finished_ranks(paths, attempt) if case.of_ranks]
    case = case._replace(error=error, last_error=last_error, others=others, finished=finished)
    pools = evidence.gpu_pools(attempt.gpu_pools)
    return case._replace(output=evidence.last_piece(log, case.end.log_begin), pools=pools)


def _with_last_line(paths: RunPaths, line: Line) -> Line:
    """Return where a rank's output is with the last line that it printed."""
    words = output.last_line(evidence.last_piece(paths.logs / Path(line.file).name))
    return line._replace(text=words.text[:_TOLD], number=words.number) if words else line._replace(text="(no output)")


def judge(case: Case, hits: Sequence[Hit]) -> Cause | None:
    """Return why a run failed, from how it ended and the lines of its logs; None if it did not fail."""
    if not case.end.failed:
        return None
    cause, end = _with_pool(case, _judged(case, hits)), case.end
    rule = BY_NAME.get(cause.rule)
    if rule and rule.of_ranks and case.of_ranks and cause.remedy == rule.remedy:
        cause = cause._replace(remedy=rule.of_ranks)
    if end.rank is None:
        return cause
    remedy = cause.remedy.replace(_LOGS, f"{_LOGS} rank:{cause.ranks[0] if cause.ranks else end.rank}")
    if not cause.ranks and end.by == "script":
        cause = cause._replace(ranks=(end.rank,), nodes=cause.nodes or (end.node,))
    return cause._replace(remedy=remedy)


def _with_pool(case: Case, cause: Cause) -> Cause:
    """Name the worker of this run that holds the GPU's memory, where the error names the worker's process."""
    if cause.rule != "gpu-memory":
        return cause
    numbers = [int(number) for line in cause.evidence for number in _OTHER_PROCESS.findall(line.text)]
    for number in numbers:
        if number in case.pools:
            worker, pool = case.pools[number]
            owner = f"process {number} is this run's Dask worker {worker}, which reserved {format_bytes(pool)} of it"
            remedy = "Compute in Dask tasks, or give the worker less memory: --set gpu.rmm_pool_size=0.5."
            return cause._replace(what=f"{cause.what}: {owner}", remedy=remedy)
    return cause


def _judged(case: Case, hits: Sequence[Hit]) -> Cause:
    end, status, by_script = case.end, case.end.exit_status, case.end.by == "script"
    began = case.times.get("allocated", 0.0)
    hits = [_corrected(hit, case.clocks) for hit in hits]
    hits = [hit for hit in hits if not hit.line.time or hit.line.time > began - _ANOTHER_ATTEMPT]
    hits = _with_ranks(case, hits)
    if by_script and status == errors.STOPPED:
        remedy = (
            "With --until-done, hpcml starts a stopped script again with its checkpoints: "
            "hpcml rerun RUN --until-done. This new run starts without the old checkpoints."
        )
        return Cause(errors.MEANING[status], "saved and stopped", remedy=end.hint or remedy)
    if end.state == State.TIMEOUT or (not by_script and status == errors.TIME_LIMIT):
        return _time_limit(case, hits)
    if not by_script and (rule := BY_NAME.get(end.reason)):
        nodes = end.lost_nodes if rule.retry is Retry.EXCLUDE else ()
        remedy, lines = end.hint or rule.remedy, _quoted(case)
        return Cause(end.message, rule.short, True, rule.name, remedy, rule.retry, lines, nodes=nodes)
    final = case.short_by_status(followed=False)
    if not by_script and status in final:
        return Cause(end.message, final[status], remedy=end.hint, evidence=_quoted(case))
    if end.state == State.CANCELLED:
        return Cause(end.message, "cancelled", remedy=end.hint)
    if _was_out_of_memory(case, hits):
        return _out_of_memory(case, hits)
    if by_script and (cause := _child_out_of_memory(case, hits)):
        return cause
    if not by_script:
        return _lost(case, hits)
    return _raised(case, hits) if case.error.get("chain") else _ended(case, hits)


# -- causes ----------------------------------------------------------------------------------------------------------


def _by_rule(rule: Rule, clause: str = "", **fields: Any) -> Cause:
    return Cause(clause or rule.cause, rule.short, True, rule.name, rule.remedy, rule.retry, occurrences=1, **fields)


def _of(hit: Hit, hits: Sequence[Hit], clause: str = "", *, named: bool = False) -> Cause:
    """Return the cause that a line shows, with all lines that show the same, and what followed.

    ``named``: the clause names whose cause it is.
    """
    rule = hit.rule
    same = [other for other in hits if other.rule.name == rule.name]
    first: dict[tuple[str, str], Line] = {}
    for other in (hit, *same):
        first.setdefault((other.line.file, other.line.node), other.line)
    later = [other for other in hits if other.rule.role in (Role.CASCADE, Role.CONFIRMATION)]
    followed: dict[str, Line] = {}
    for other in sorted(later, key=lambda one: one.line.time):
        followed.setdefault(other.rule.name, other.line)
    nodes = [line.node for line in first.values()]
    if rule.name in _OF_ANOTHER_NODE:
        nodes = _named_nodes((hit, *same))
    clause = clause or filled(rule.cause, hit.groups)
    others = sorted(line.rank for line in first.values() if line.rank not in (None, hit.line.rank))
    ranks = [*others] if hit.line.rank is None else [hit.line.rank, *others]
    where = _of_ranks(ranks, hit.line.node)
    if named:
        where = f"also {_of_ranks(ranks[1:], '', _SHOWN - 1)}" if ranks[1:] else ""
    if rule.name == COLLECTIVE:
        clause += f"; {where} waited for it" if where else ""
        clause += f" ({hit.groups[1]}, SeqNum={hit.groups[0]})" if hit.groups[0] else ""
    cause = _by_rule(
        rule,
        f"{clause} ({hit.place})" if hit.place else clause,
        evidence=tuple(first.values())[:_SHOWN],
        followed=tuple(followed.values())[:_SHOWN],
        nodes=tuple(dict.fromkeys(filter(None, nodes))),
        ranks=tuple(ranks[:_SHOWN]),
        where="" if rule.name == COLLECTIVE else where,
    )
    # A process ends once, whatever it wrote of that.
    count = len(ranks) or len([one for one in same if not one.own]) + any(one.own for one in same)
    return cause._replace(short=filled(rule.short, hit.groups), occurrences=max(count, 1))


def _of_ranks(ranks: Sequence[int], node: str, most: int = _SHOWN) -> str:
    """Return ranks in words, of many the first; of one with its node."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} on {node}" if node else f"rank {ranks[0]}"
    more = f" and {len(ranks) - most} more" if len(ranks) > most else ""
    return f"ranks {', '.join(map(str, ranks[:most]))}{more}" if ranks else ""


def _named_nodes(hits: Sequence[Hit]) -> list[str]:
    return [hit.groups[0] for hit in hits if hit.groups]


def _known(text: str, line: Line, *, own: bool = False) -> Hit | None:
    """Return the rule's hit in an error's text, if a rule matches; of several the one that starts a failure."""
    hits = [hit._replace(line=line, own=own) for hit in evidence.hits_in(evidence.Piece(text, 1), SCRIPT)]
    hits = [hit for hit in hits if hit.rule.role in (Role.ROOT, Role.CASCADE)]
    return min(hits, key=lambda hit: hit.rule.role is not Role.ROOT, default=None)


def _roots(hits: Sequence[Hit], *, with_script: bool) -> list[Hit]:
    """Return the lines that begin a failure; ``with_script``: also those of the script's output."""
    return [hit for hit in hits if hit.rule.role is Role.ROOT and (with_script or not hit.own)]


def _printed(case: Case, hits: Sequence[Hit], clause: str, *, crashed: bool = False) -> Cause | None:
    """Return the cause that the last lines of the script's output show; of a crash, the lines before it.

    It is what the first line tells that begins a failure, after a ``clause`` on the end. Of a line that only tells of
    another's failure it is what others' logs show. None if there is neither.
    """
    near = evidence.hits_in(output.near_end(_output(case), crashed=crashed), SCRIPT)
    own = [hit._replace(line=case.own(hit.line.text, hit.line.number, hit.line.time), own=True) for hit in near]
    known = [hit for hit in own if hit.rule.name not in _CRASHES]
    if root := next((hit for hit in known if hit.rule.role is Role.ROOT), None):
        return _of(root, [*hits, root], f"{clause}: {filled(root.rule.cause, root.groups)}", named=True)
    cascade = next((hit for hit in known if hit.rule.role is Role.CASCADE), None)
    cause = _after(case, cascade, hits) if cascade else None
    return cause if cause and cause.known else None


def _output(case: Case) -> Piece:
    return case.output if case.output.text else Piece("\n".join(case.end.quote), 0)


def _quoted(case: Case) -> tuple[Line, ...]:
    """Return the last lines that say something, of those that were written down with the end."""
    quote, by_script = case.end.quote, case.end.by == "script"
    lines = [text for text in quote if output.last_line(Piece(text, 0))] if by_script else quote
    return tuple(case.own(text) if by_script else Line(text, "record") for text in lines[-_SHOWN:])


def _time_limit(case: Case, hits: Sequence[Hit]) -> Cause:
    """Return the phase in which the time limit came, or the file system that blocked the script until then."""
    shown = tuple(hit.line for hit in hits if hit.rule.name == "time-limit")[:1]
    waits = [hit for hit in hits if hit.rule.name in ("frozen", "thawed")][-1:]
    if waits and waits[0].rule.name == "frozen":
        cause = _of(waits[0], waits)
        text = f"{cause.what}, until the time limit was reached"
        return cause._replace(what=text, nodes=(waits[0].groups[0],), followed=shown)
    startup = reversed(case.kind.startup if case.kind else ())
    phases = {
        f"{SCRIPT}-started": "while the script ran",
        **{stage.begin: stage.during for stage in startup},
        "image-staging": "while the image was copied",
    }
    phase = next((clause for event, clause in phases.items() if event in case.times), "before the run began")
    rule = BY_NAME["time-limit"]
    return _by_rule(rule, f"{rule.cause} {phase}", evidence=shown)._replace(remedy=case.end.hint or rule.remedy)


def waited(hits: Sequence[Hit]) -> Cause | None:
    """Return that a rank waited for another, which did not come, in a run that still runs; None if none did."""
    marked = _with_ranks(Case(End()), hits)
    late = [hit for hit in marked if hit.rule.name == COLLECTIVE]
    return _of(late[0], late) if late else None


def _was_out_of_memory(case: Case, hits: Sequence[Hit]) -> bool:
    """Whether the script or the job was killed out of memory: only a kill that is confirmed counts."""
    end = case.end
    if end.state == State.OUT_OF_MEMORY or end.memory_limit == MemoryLimit.NODE:
        return True
    is_open = end.exit_status in case.short_by_status(followed=True)
    killed = end.exit_status == 128 + signal.SIGKILL or (end.by != "script" and is_open)
    return killed and any(hit.rule.role is Role.CONFIRMATION for hit in hits)


def _child_out_of_memory(case: Case, hits: Sequence[Hit]) -> Cause | None:
    """Return that a process was killed out of memory which the script had started; None if that is not confirmed."""
    confirmed = [hit for hit in hits if hit.rule.role is Role.CONFIRMATION]
    if not confirmed:
        return None
    chain = [f"{one.get('type')}: {one.get('message')}" for one in case.error.get("chain", ())]
    near = output.near_end(_output(case), crashed=False)
    lines = [(text, 0) for text in chain] + [
        (text, near.first + place if near.first else 0) for place, text in enumerate(near.text.split("\n"))
    ]
    shown = next((case.own(_in_one_line(text)[:_TOLD], number) for text, number in lines if _KILLED.search(text)), None)
    if shown is None:
        return None
    clause = f"a process that {case.subject} started was killed because the node's memory limit was reached"
    rule, nodes = BY_NAME["oom-kill"], [hit.line.node for hit in confirmed]
    return _by_rule(
        rule,
        clause,
        evidence=(shown, *(hit.line for hit in confirmed))[:_SHOWN],
        nodes=tuple(dict.fromkeys(filter(None, nodes))),
    )


def _out_of_memory(case: Case, hits: Sequence[Hit]) -> Cause:
    rule, end = BY_NAME["oom-kill"], case.end
    confirmed = [hit for hit in hits if hit.rule.role is Role.CONFIRMATION or hit.rule.name == "worker-oom"]
    if not confirmed:
        return _by_rule(rule, end.message, evidence=_quoted(case))._replace(occurrences=0)
    cause = _of(min(confirmed, key=lambda hit: hit.line.time or math.inf), hits, rule.cause)
    # Slurm says it of a role's step in that role's log.
    lines_of_roles = [hit.line for hit in confirmed if hit.rule.name == "oom-kill" and hit.line.source not in _NO_ROLES]
    roles = {line.source for line in lines_of_roles}
    alone = len(roles) == 1 and roles != {SCRIPT} and not any(line.node for line in lines_of_roles)
    lost = {line.source for line in lines_of_roles if not line.node and line.source == end.role}
    who = case.subject if end.by == "script" else f"the {(lost or roles).pop()}" if lost or alone else ""
    clause = f"{who} was killed because the node's memory limit was reached" if who else cause.what
    lines = tuple(hit.line for hit in confirmed)[:_SHOWN]
    cause = cause._replace(what=clause, rule=rule.name, evidence=lines, followed=(), short=rule.short)
    if end.by != "script":
        return cause
    return cause._replace(occurrences=1, ranks=(), where="", nodes=(end.node,) if end.node else cause.nodes)


def _lost(case: Case, hits: Sequence[Hit]) -> Cause:
    """Return why Slurm or hpcml ended the run; without a log line it is the sentence of the end itself."""
    end = case.end
    if end.state == State.NODE_FAIL:
        named = [hit for hit in hits if hit.rule.name == "node-failure"]
        nodes = tuple(dict.fromkeys(filter(None, _named_nodes(named))))
        return _by_rule(BY_NAME["node-failure"], evidence=tuple(hit.line for hit in named[:_SHOWN]), nodes=nodes)
    status, record = end.exit_status, Line(end.message, "record", "status.json")
    if root := _first(_roots(hits, with_script=status != errors.WORKERS_NEVER_CAME)):
        cause = _of(root, hits)
        nodes = cause.nodes or (end.lost_nodes if root.rule.name in _OF_ANOTHER_NODE else ())
        return cause._replace(nodes=nodes, followed=(record, *cause.followed)[:_SHOWN])
    in_quote = evidence.hits_in(evidence.Piece("\n".join(end.quote), 0), "record")  # of the log of ``end.node``
    end_hits = [hit for hit in in_quote if hit.rule.role is Role.ROOT]
    if end_hits := [hit._replace(line=hit.line._replace(node=end.node)) for hit in end_hits]:
        cause = _of(end_hits[0], end_hits)
        return cause._replace(nodes=cause.nodes or end.lost_nodes, followed=(record,))
    if end.memory_limit == MemoryLimit.PROCESS:
        return _by_rule(BY_NAME["worker-memory"], end.message, evidence=_quoted(case), nodes=end.lost_nodes)
    is_known = status not in (errors.ALLOCATION_LOST, 128 + signal.SIGKILL)
    short = case.short_by_status(followed=True).get(status, "ended")
    return Cause(end.message, short, is_known, "", end.hint, evidence=_quoted(case))


def _after(case: Case, cascade: Hit, hits: Sequence[Hit]) -> Cause:
    """Return the earliest fault in the logs, where the script's end is a consequence; else an unknown cause."""
    if root := _first(_roots(hits, with_script=False)):
        cause = _of(root, hits)
        return cause._replace(followed=(cascade.line, *cause.followed)[:_SHOWN])
    if confirmed := [hit for hit in hits if hit.rule.role is Role.CONFIRMATION]:
        return _of(confirmed[0], hits)._replace(followed=(cascade.line,))
    if another := _raised_by_another(case):
        return another._replace(followed=(cascade.line,))
    if left := _left(case):
        return left._replace(followed=(cascade.line,))
    rule = cascade.rule
    short = " ".join(rule.cause.split()[:6]).rstrip(",:;")
    clause = f"{rule.cause}; the run's logs do not show why"
    return Cause(clause, short, False, rule.name, evidence=(cascade.line,), occurrences=1)


def _left(case: Case) -> Cause | None:
    """Return that ranks ended well, while others still needed them; None if none did."""
    if not case.finished:
        return None
    ranks = [line.rank for line in case.finished if line.rank is not None]
    who = _of_ranks(ranks, case.finished[0].node)
    clause = f"{who} ended with status 0 while other ranks still needed {'it' if len(ranks) == 1 else 'them'}"
    lines = tuple(case.finished[:_SHOWN])
    remedy = f"Give each rank the same number of steps. See the rank's output: {_LOGS}."
    nodes = tuple(dict.fromkeys(line.node for line in case.finished))
    return Cause(
        clause, "a rank ended early", True, "rank-left", remedy, Retry.NONE, lines, (), len(ranks), nodes,
        tuple(ranks[:_SHOWN]),
    )  # fmt: skip


def _raised_by_another(case: Case) -> Cause | None:
    """Return the first error that ended another rank, and is no consequence; None if there is none."""
    for place_of_rank, error in case.others:
        first = error["chain"][_beginning(error["chain"], {})]
        text = _in_one_line(f"{first.get('type')}: {first.get('message')}".rstrip(": "))[:_TOLD]
        place = f" ({error.get('file')}, line {error.get('line')})" if error.get("file") else ""
        line = place_of_rank._replace(text=f"{text}{place}")
        if hit := _known(text, line):
            if hit.rule.role is Role.CASCADE:
                continue
            return _of(hit, [hit])
        name, ranks = text.partition(":")[0], () if line.rank is None else (line.rank,)
        clause, remedy = f"{_of_ranks(ranks, line.node)} raised {text}", _remedy(name, text)
        return Cause(clause, name, True, "script-error", remedy, evidence=(line,), occurrences=1, ranks=ranks)
    return None


def _ended(case: Case, hits: Sequence[Hit]) -> Cause:
    """Return why a script ended without a recorded error: a signal, its own exit, or an error that it printed."""
    if case.end.points.failed:
        return _of_points(case)
    if number := errors.signal_of_status(case.end.exit_status):
        return _signalled(case, hits, signal.Signals(number))
    if child := output.child_error(_output(case)):
        return _of_child(case, hits, child)
    if case.last_error:
        return _printed_error(case, hits, case.last_error._replace(time=case.times.get("script-ended", 0.0)))
    if crashed := [hit for hit in hits if hit.own and hit.rule.name in _SIGNALS.values()]:
        return _of(crashed[0], hits)
    return _exited(case, hits)


def _exited(case: Case, hits: Sequence[Hit]) -> Cause:
    """Return why a script exited with a status: what its last lines say."""
    end, status = case.end, case.end.exit_status
    exited = f"{case.subject} exited with status {status}"
    if isinstance(hindered := case.error.get("not_started"), dict):
        clause = f"{case.subject} could not be started: {str(hindered.get('reason'))[:_TOLD]}"
        hint = str(hindered.get("hint") or "Use a path on a file system that all nodes share.")
        return Cause(clause, _OPEN[errors.START_FAILED], remedy=hint)
    if cause := _printed(case, hits, exited):
        return cause
    last = output.last_line(_output(case))
    if status in (126, 127) and case.noun == "program":
        clause = f"the program {'does not exist on the node' if status == 127 else 'cannot be executed'}"
        clause = f"{exited}: {last.text[:_TOLD]}" if last else clause
        remedy = "Use a path on a file system that all nodes share."
        return Cause(clause, "program cannot be started", evidence=_quoted(case), remedy=remedy)
    by = "" if case.noun == "program" else " (by sys.exit or os._exit)"
    remedy = f"See the output before the exit{by}: {_LOGS}."
    if status == _OF_TIMEOUT and case.noun == "program":
        remedy = f"The command timeout ends with status {status} when its time is over. {remedy}"
    if error := output.printed_error(_output(case)):
        place = f" ({error.place})" if error.place else ""
        return _printed_error(case, hits, case.own(f"{error.words.text}{place}", error.words.number))
    if (said := output.last_complaint(_output(case))) and said != last:
        exited += f"; it printed: {said.text[:_TOLD]}"
    elif last:
        exited += f"; the last line of its output: {last.text[:_TOLD]}"
    return Cause(
        exited, f"{case.noun} exited with status {status}", True, "exit", end.hint or remedy, evidence=_quoted(case)
    )


def _printed_error(case: Case, hits: Sequence[Hit], line: Line) -> Cause:
    """Return the cause of an error with which a script's output ends."""
    if hit := _known(line.text, line, own=True):
        if hit.rule.role is Role.CASCADE:
            return _after(case, hit, hits)
        return _with_environment(_of(hit, [*hits, hit]), hits)
    name = line.text.partition(":")[0].rpartition(".")[2]
    remedy = _remedy(name, line.text)
    clause = f"{case.subject} printed {line.text}"
    cause = Cause(clause, name, True, "script-error", remedy, evidence=(line,), occurrences=1)
    return _with_child(case, cause, name)


def _with_environment(cause: Cause, hits: Sequence[Hit]) -> Cause:
    """Add that the program's own shell could not set up the environment, where a package or a library is missing."""
    before = next((hit for hit in hits if hit.own and hit.rule.name in _SETS_UP), None)
    if before is None or cause.rule not in _LACKS:
        return cause
    clause = f"{cause.what}; before, a command failed: {before.line.text[:_TOLD]}"
    remedy = f"Correct that command first. {cause.remedy}"
    return cause._replace(what=clause, remedy=remedy, evidence=(*cause.evidence, before.line))


def _of_child(case: Case, hits: Sequence[Hit], child: output.ChildError) -> Cause:
    """Return the cause of what a launcher such as torchrun printed of the process that failed first."""
    who = f"torchrun's rank {child.rank}" if child.rank else "a process that torchrun started"
    who += f" (in {case.subject})" if case.end.rank is not None else ""
    who = who if child.launched else case.subject
    if child.killed:
        remedy = f"See the output before the end: {_LOGS}."
        return Cause(f"{who} was ended by {child.killed}", child.killed, True, "signal", remedy, evidence=_quoted(case))
    line = case.own(f"{child.words.text}{f' ({child.place})' if child.place else ''}", child.words.number)
    if hit := _known(child.message, line, own=True):
        if hit.rule.role is Role.CASCADE:
            return _after(case, hit, hits)
        shown = next((text for text in child.message.split("\n") if re.search(hit.rule.pattern, text)), line.text)
        hit = hit._replace(line=line._replace(text=shown[:_TOLD]) if shown not in line.text else line)
        return _of(hit, [*hits, hit], f"{who} failed: {filled(hit.rule.cause, hit.groups)}", named=True)
    name = child.words.text.partition(":")[0].rpartition(".")[2]
    remedy = _remedy(name, child.words.text)
    return Cause(f"{who} raised {line.text}", name, True, "script-error", remedy, evidence=(line,), occurrences=1)


def _of_points(case: Case) -> Cause:
    """Return how many points of a sweep failed, and the cause of the first."""
    points = case.end.points
    first = [f"{one.point}: {one.cause}" for one in points.first]
    short = f"{points.failed} of {points.submitted} points failed"
    lines = tuple(map(case.own, first))
    clause = f"{short}; the first failed point: {first[0][:_TOLD]}" if first else short
    return Cause(clause, short, True, "points", case.end.hint, evidence=lines, occurrences=len(lines))


def _signalled(case: Case, hits: Sequence[Hit], number: signal.Signals) -> Cause:
    clause = f"{case.subject} was killed by {number.name}"
    rule = BY_NAME.get(_SIGNALS.get(number, ""))
    own_hits = [hit for hit in hits if hit.own]
    failed = [hit for hit in own_hits if hit.rule.name == "assertion"]
    if failed and number == signal.SIGABRT:
        return _of(failed[-1], hits, f"{clause}: {failed[-1].groups[0][:_TOLD]}", named=True)
    if number not in _SENT:
        waited = next((hit for hit in own_hits if hit.rule.name == COLLECTIVE), None)
        if waited:  # PyTorch aborts a process a minute after it has said why, and prints much meanwhile
            return _of(waited, hits)
        if cause := _printed(case, hits, clause, crashed=True):
            return cause
        if words := output.last_words(_output(case)):
            said = f"{clause}; before that it printed: {words.text[:_TOLD]}"
            cause = _by_rule(rule, said) if rule else Cause(said, f"killed by {number.name}", True, "signal")
            places = [hit for hit in own_hits if rule and hit.rule.name == rule.name][-1:]
            line = case.own(words.text[:_TOLD], words.number)
            remedy = f"See the output before the crash: {_LOGS}."
            return cause._replace(remedy=remedy, evidence=(line, *(hit.line for hit in places)), occurrences=1)
    if rule is None and number not in _SENT:
        meaning = ": an arithmetic error in compiled code" if number == signal.SIGFPE else ""
        remedy = f"See the output before the crash: {_LOGS}."
        return Cause(f"{clause}{meaning}", f"killed by {number.name}", True, "signal", remedy, evidence=_quoted(case))
    if rule is None:
        if number != signal.SIGKILL and (words := output.last_words(_output(case))):
            clause += f"; before that it printed: {words.text[:_TOLD]}"
        kernel = (
            "The kernel sends SIGKILL when the memory of the job or the node is full. "
            f"If the memory was not full, a person or the site killed {case.subject}."
        )
        remedy = kernel if number == signal.SIGKILL else ""
        unknown = f"{clause}; the sender of the signal is unknown"
        return Cause(unknown, f"killed by {number.name}", False, "signal", remedy, evidence=_quoted(case))
    clause = f"{clause}: {rule.cause}"
    rule_hits = [hit for hit in own_hits if hit.rule.name == rule.name]
    if rule_hits:
        return _of(rule_hits[-1], hits, clause, named=True)
    remedy = f"See the output before the crash: {_LOGS}." if rule.name in _NAMED_BY_LINES else rule.remedy
    return _by_rule(rule, clause, evidence=_quoted(case))._replace(remedy=remedy)


# -- errors of the script --------------------------------------------------------------------------------------------


class _Chain(NamedTuple):
    """The errors of an uncaught error, the first last: their texts, lines that show them, and rules that they meet."""

    texts: list[str]
    lines: list[Line]
    hits: dict[int, Hit]


def _raised(case: Case, hits: Sequence[Hit]) -> Cause:
    """Return the cause of an uncaught error: the first of its chain, unless that is a consequence."""
    errors_of_chain = case.error["chain"]
    chain = _chain(case, hits)
    chain_rules = {hit.rule.name for hit in chain.hits.values()}
    hits = [hit for hit in hits if not hit.own or hit.rule.name not in chain_rules]
    index = _beginning(errors_of_chain, chain.hits)
    hit, line = chain.hits.get(index), chain.lines[index]
    later = tuple(one for position, one in enumerate(chain.lines) if position != index)
    if hit is None:
        return _of_error(case, hits, chain.texts[index], line, later)
    if hit.rule.role is Role.CASCADE:
        return _after(case, hit, hits)
    if worse := _deeper(hit, hits):
        return worse._replace(followed=(chain.lines[0],))
    cause = _no_files(_of(hit, [*hits, hit]), errors_of_chain[index])
    evidence_lines = (line._replace(text=f"{line.text}{_place_of_error(case)}"), *cause.evidence[1:])[:_SHOWN]
    remedy = cause.remedy if cause.nodes else case.end.hint or cause.remedy  # the hint is for the script's own node
    return cause._replace(evidence=evidence_lines, followed=later, remedy=remedy)


def _chain(case: Case, hits: Sequence[Hit]) -> _Chain:
    """Return the errors of the script's uncaught error with the rules that they meet."""
    errors_of_chain = case.error["chain"]
    texts = [f"{one.get('type')}: {one.get('message')}".rstrip(": ") for one in errors_of_chain]
    when = case.times.get("script-ended", 0.0)
    lines = [case.own(_in_one_line(text)[:_TOLD], 0, when) for text in texts]
    if case.last_error and case.last_error.text.endswith(texts[0].split("\n")[0][:_TOLD]):
        lines[0] = lines[0]._replace(number=case.last_error.number)
    met: dict[int, Hit] = {}
    for index, one in enumerate(errors_of_chain):
        if not one.get("hides") and (known := _known(texts[index], lines[index], own=True)):
            met[index] = _with_groups(known, hits)
        elif one["type"] in _LOST_PROCESS and one.get("loader"):
            met[index] = Hit(BY_NAME["loader-killed"], lines[index], own=True)
    return _Chain(texts, lines, met)


def _place_of_error(case: Case, pattern: str = " ({}, line {})") -> str:
    """Return where the script raised its error, empty if that is not known."""
    file, number = str(case.error.get("file") or ""), case.error.get("line")
    return pattern.format(file, number) if file and isinstance(number, int) else ""


def _of_error(case: Case, hits: Sequence[Hit], text: str, line: Line, later: tuple[Line, ...]) -> Cause:
    """Return the cause of an error that no rule knows: its own words."""
    name = text.partition(":")[0]
    is_exit = name == "SystemExit"  # sys.exit("words")
    if is_exit:
        line = line._replace(text=line.text.removeprefix("SystemExit: "))
    at = _place_of_error(case, "{}:{}").rpartition("/")[2].replace(" ", "_")
    short = f"{'sys.exit' if is_exit else name} in {at}" if at else name
    clause = f"{case.subject} {'exited:' if is_exit else 'raised'} {line.text}"
    if at and ":" not in text:  # as TimeoutError: its name is all there is
        clause += f" at {at}: {str(case.error.get('code') or '')[:_TOLD]}"
    remedy = case.end.hint or ("" if is_exit else _remedy(name, line.text))
    if name == "IndexError" and "sys.argv" in str(case.error.get("code")):
        clause, short = f"{clause}: the script was started with too few arguments", "arguments missing"
        remedy = "Write the arguments after the script: hpcml rerun RUN -- ARGUMENTS."
    nodes = dict.fromkeys(one.line.node for one in hits if one.rule.name == "task-error" and one.groups[0] == name)
    line = line._replace(text=f"{line.text}{_place_of_error(case)}")
    cause = Cause(clause, short, True, "script-error", remedy, Retry.NONE, (line,), later, 1, tuple(nodes))
    return _with_child(case, _with_thread(case, cause), name)


def _with_child(case: Case, cause: Cause, name: str) -> Cause:
    """Add what a command printed of its failure, where the error says only that the command failed."""
    words = output.before_traceback(_output(case)) if name == "CalledProcessError" else None
    if words is None:
        return cause
    line = case.own(words.text[:_TOLD], words.number)
    return cause._replace(
        what=f"{cause.what.rstrip('.')}; before that it printed: {line.text}", evidence=(*cause.evidence, line)
    )


def _with_thread(case: Case, cause: Cause) -> Cause:
    """Add the error of a thread that ended before: the script may have waited for what this thread should bring."""
    if not (found := output.thread_error(_output(case))):
        return cause
    thread, words = found
    line = case.own(words.text[:_TOLD], words.number)
    clause = f"{cause.what.rstrip('.')}; before, its thread {thread} raised {line.text}"
    return cause._replace(what=clause, evidence=(*cause.evidence, line))


def _with_groups(hit: Hit, hits: Sequence[Hit]) -> Hit:
    """Return an error's hit with what the program printed of it before: CUDA's assertion names the condition."""
    if any(hit.groups):
        return hit
    printed = (one.groups for one in hits if one.rule is hit.rule and one.own and any(one.groups))
    return hit._replace(groups=next(printed, hit.groups))


def _in_one_line(text: str) -> str:
    """Return a message in one line, because a library's first line often says too little; without a traceback in it."""
    kept, in_traceback = [], False
    for line in text.split("\n"):
        head, begins, _ = line.partition("Traceback (most recent call last):")
        in_traceback = bool(begins) or (in_traceback and line.startswith(" "))
        kept += [head.strip()] if begins or not in_traceback else []
    return " ".join(filter(None, kept))


def _beginning(chain: Sequence[Mapping[str, Any]], hit_by_error: Mapping[int, Hit]) -> int:
    """Return which error of a chain came first, of which the last is the one that was raised first.

    One that was raised to be handled ("try this, else that") is no beginning, unless another was raised from it. An
    error whose words tell nothing gives way to those that were raised from it.
    """
    for index in range(len(chain) - 1, 0, -1):
        if chain[index]["type"] in (_TRIED if chain[index].get("handled") else _PASSED_ON):
            continue
        if _NOT_REBUILT.fullmatch(str(chain[index].get("message"))):
            continue
        above = index
        told = hit_by_error.get(index - 1)
        if chain[index]["type"] in _LOST_PROCESS and told and told.rule.role is Role.ROOT:
            continue  # why that process is gone is what a library found while it handled this
        while above not in hit_by_error and above and not chain[above].get("handled"):
            above -= 1
        return above if above in hit_by_error else index
    return 0


def _deeper(hit: Hit, hits: Sequence[Hit]) -> Cause | None:
    """Return the cause in a library's own log of an error that only passes it on; None if there is none."""
    if hit.rule.name not in _SPEAK_FOR_OTHERS:
        return None
    behind = [
        other for other in _roots(hits, with_script=True) if other.line.source == "library" or "nccl" in other.rule.name
    ]
    one = _first([other for other in behind if other.rule.name not in _SPEAK_FOR_OTHERS])
    return _of(one, hits) if one else None


def _no_files(cause: Cause, error: Mapping[str, Any]) -> Cause:
    """Return the cause with what is full where the script's process has looked: no more files, though there is room."""
    folder = error.get("no_files")
    if not isinstance(folder, str) or not folder:
        return cause
    clause = f"the file system of {folder[:_TOLD]} can hold no more files (no inodes are left)"
    return cause._replace(
        what=clause,
        short="no space for more files",
        remedy="Remove files from that file system. The command df -i shows the number of files.",
    )


def _remedy(kind: str, text: str) -> str:
    """Return the next step after an error that no rule matches, from its text."""
    if kind == "KeyError" and (variable := re.search(r": '([A-Z][A-Z0-9_]+)'$", text)):
        if variable[1] in _OF_RANKS:
            return "Without --ranks hpcml starts the script once. Add --ranks gpu, --ranks node or --ranks N."
        return f"If {variable[1]} is an environment variable, set it for the whole run: --env {variable[1]}=VALUE."
    if kind == "FileNotFoundError" and (path := re.search(r": '([^/'][^']*)'$", text)):
        return f"{path[1]} is relative to the folder from which you submitted. Use an absolute path."
    return f"See the traceback in the log: {_LOGS}."


def with_run(remedy: str, run: str) -> str:
    """Return a next step with the run's id in its command."""
    return re.sub(r"(hpcml (?:logs|rerun)) RUN\b", rf"\1 {run}", remedy)


def _with_ranks(case: Case, hits: Sequence[Hit]) -> list[Hit]:
    """Return lines with the rank that wrote them, and whether that is the process which ended the run."""
    end, marked = case.end, []
    are_ranks = end.rank is not None or any(hit.line.rank is not None for hit in hits)
    for hit in hits:
        own = hit.line.file == f"logs/{end.log}" if end.log else hit.line.source == SCRIPT
        line = hit.line
        if are_ranks and line.source == SCRIPT:  # the script's log is that of rank 0
            line = line._replace(rank=0, node=end.node if end.rank == 0 else line.node)
        marked.append(hit._replace(line=line, own=own))
    return marked


# -- which line was written first, though each has the time of its own node's clock -----------------------------------


def _corrected(hit: Hit, clocks: Clocks) -> Hit:
    """Return a line with the time of the first node's clock, as far as its node's is known."""
    line, when = hit.line, hit.when
    if not line.node:
        return hit  # of the first node
    ahead, within = clocks.get(line.node, (0.0, _NOT_MEASURED))
    stamped = line.time != when.changed
    least = when.least - ahead if when.least else 0.0
    moved = line._replace(time=line.time - ahead) if stamped and line.time else line
    return hit._replace(line=moved, when=When(least, when.most - ahead, when.changed), within=within)


def _first(hits: Sequence[Hit]) -> Hit | None:
    """Return the line that was written first, of those that may have been the one that began more.

    ``hits`` are in the order of the files. Within a file their order is certain. Lines of several files are in the
    order of their times, if these differ by more than the clocks may; else a fault of a node goes before what programs
    said of it, and that before the end of a process.
    """
    of_file: dict[tuple[str, str], Hit] = {}
    for hit in hits:
        of_file.setdefault((hit.line.file, hit.line.node), hit)
    first_hits = list(of_file.values())
    candidates = [hit for hit in first_hits if not any(_before(other, hit) for other in first_hits)]
    return min(candidates or first_hits, key=lambda hit: (_depth(hit), hit.line.time or math.inf), default=None)


def _before(one: Hit, other: Hit) -> bool:
    """Whether a line was certainly written before another."""
    slack = 0.0 if one.line.node == other.line.node else one.within + other.within
    when = one.when
    latest = max(when.changed, when.least) if when.most == math.inf and when.changed else when.most
    return latest + slack < other.when.least


def _depth(hit: Hit) -> int:
    if hit.rule.retry is Retry.EXCLUDE:
        return 0
    return 2 if hit.rule.name.startswith("worker-") else 1
