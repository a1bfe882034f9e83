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

from hpcml import errors
from hpcml.failures import evidence, last_output, note
from hpcml.failures.cause import LOGS, OF_ANOTHER_NODE, SHOWN, TOLD, Case, Cause, in_one_line, named_nodes, roots
from hpcml.failures.earliest_line import Clocks, corrected, first_of, with_ranks
from hpcml.failures.end import LESS_MEMORY, NODE_MEMORY, End, MemoryLimit, of_machine
from hpcml.failures.evidence import Hit, Line
from hpcml.failures.first_script_error import raised
from hpcml.failures.rule import Retry, Role
from hpcml.failures.rules import BY_NAME, COLLECTIVE, filled
from hpcml.failures.script_without_error import ended
from hpcml.kind import Kind
from hpcml.paths import SCRIPT, AttemptPaths, RunPaths
from hpcml.states import State
from hpcml.units import format_bytes
from hpcml.workload_forms import Form

MOST_LOGS = 16  # workers' logs that are read where a run ends
_NO_ROLES = ("job", "library", "record")  # sources of lines that are no role's log
# How programs and libraries say that SIGKILL ended a process which they had started.
_KILLED = re.compile(
    r"died with <Signals\.SIGKILL|killed by signal: Killed|BrokenProcessPool|terminated abruptly|TerminatedWorkerError|"
    r"\bSIGKILL\b|\bsignal:? 9\b|exit(?:code| code| status|ed with)?(?: with)?(?: code| status)?[ :=]+(?:-9|137)\b|"
    r"^(?:.{0,200}: line \d+: +\d+ )?Killed\b"
)
_KERNEL = Line("the kernel's count of processes killed for memory rose (oom_kill)", "record", "status.json")
_COUNTED: dict[str, tuple[Line, ...]] = {MemoryLimit.NODE: (_KERNEL,)}  # what showed an end to be for memory
_OTHER_PROCESS = re.compile(r"Process (\d+) has ")  # PyTorch's word for another process that uses the GPU
_ANOTHER_ATTEMPT = 90.0  # seconds before the attempt began; the clocks of nodes may differ


def of_run(paths: RunPaths, attempt: AttemptPaths, case: Case) -> Cause | None:
    """Return the cause of a run's failure, by the files of its last attempt and the run's logs."""
    end = case.end
    hits = evidence.hits(paths, attempt, MOST_LOGS, end.log, end.log_begin) if end.failed else []
    return judge(with_files(paths, attempt, case), hits)


def short_cause(
    paths: RunPaths, attempt: AttemptPaths, end: End, kind: Kind, times: Mapping[str, float], form: Form, clocks: Clocks
) -> str:
    """Return the cause of a run's failure in some words, empty if it is not known."""
    cause = of_run(paths, attempt, Case(end, kind, times, form=form, clocks=clocks))
    return cause.short if cause and cause.known else ""


def with_files(paths: RunPaths, attempt: AttemptPaths, case: Case) -> Case:
    """Return a case with what the script's own files show."""
    case = case._replace(script_log=paths.script_log.name)
    error = note.script_error(attempt.script_error)
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
    """Return the place of a rank's output, with the last line that it printed."""
    words = last_output.last_line(evidence.last_piece(paths.logs / Path(line.file).name))
    return line._replace(text=words.text[:TOLD], number=words.number) if words else line._replace(text="(no output)")


def judge(case: Case, hits: Sequence[Hit]) -> Cause | None:
    """Return the cause of a run's failure, by its end and the lines of its logs; None if it did not fail."""
    if not case.end.failed:
        return None
    cause, end = _with_pool(case, _judged(case, hits)), case.end
    cause = cause._replace(what=of_machine(cause.what, one_machine=case.one_machine))
    rule = BY_NAME.get(cause.rule)
    if rule and rule.of_ranks and case.of_ranks and cause.remedy == rule.remedy:
        cause = cause._replace(remedy=rule.of_ranks)
    if case.one_machine and cause.rule in ("oom-kill", "worker-oom"):
        cause = cause._replace(remedy=LESS_MEMORY)
    if end.rank is None:
        return cause
    remedy = cause.remedy.replace(LOGS, f"{LOGS} rank:{cause.ranks[0] if cause.ranks else end.rank}")
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
    hits = [corrected(hit, case.clocks) for hit in hits]
    hits = [hit for hit in hits if not hit.line.time or hit.line.time > began - _ANOTHER_ATTEMPT]
    hits = with_ranks(case.end, hits)
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
        remedy, lines = end.hint or rule.remedy, case.quoted
        return Cause(end.message, rule.short, True, rule.name, remedy, rule.retry, lines, nodes=nodes)
    final = case.short_by_status(followed=False)
    if not by_script and status in final:
        return Cause(end.message, final[status], remedy=end.hint, evidence=case.quoted)
    if end.state == State.CANCELLED:
        return Cause(end.message, "cancelled", remedy=end.hint)
    if _was_out_of_memory(case, hits):
        return _out_of_memory(case, hits)
    if by_script and (cause := _child_out_of_memory(case, hits)):
        return cause
    if not by_script:
        return _lost(case, hits)
    return raised(case, hits) if case.error.get("chain") else ended(case, hits)


def _time_limit(case: Case, hits: Sequence[Hit]) -> Cause:
    """Return the phase in which the time limit came, or the file system that blocked the script until then."""
    shown = tuple(hit.line for hit in hits if hit.rule.name == "time-limit")[:1]
    blocked = case.times.get(f"{SCRIPT}-blocked", 0.0)
    if blocked > case.times.get(f"{SCRIPT}-unblocked", 0.0):
        rule = BY_NAME["frozen"]
        clause = f"{filled(rule.cause, (case.blocked_on,))}, until the time limit was reached"
        line = Line(f"the script was blocked on a file system: {case.blocked_on}", "record", "events.jsonl", 0, blocked)
        return Cause.by_rule(rule, clause, evidence=(line,), nodes=case.first_node, followed=shown)
    startup = reversed(case.kind.startup if case.kind else ())
    phases = {
        f"{SCRIPT}-started": "while the script ran",
        **{stage.begin: stage.during for stage in startup},
        "image-staging": "while the image was copied",
    }
    phase = next((clause for event, clause in phases.items() if event in case.times), "before the run began")
    rule = BY_NAME["time-limit"]
    clause = case.end.and_killed(f"{rule.cause} {phase}")
    return Cause.by_rule(rule, clause, evidence=shown)._replace(remedy=case.end.hint or rule.remedy)


def waited(hits: Sequence[Hit]) -> Cause | None:
    """Return the cause that a rank waits for another, in a run that still runs; None if no rank does."""
    marked = with_ranks(End(), hits)
    late = [hit for hit in marked if hit.rule.name == COLLECTIVE]
    return Cause.of_hit(late[0], late) if late else None


def _was_out_of_memory(case: Case, hits: Sequence[Hit]) -> bool:
    """Whether the script or the job was killed out of memory: only a kill that is confirmed counts."""
    end = case.end
    if end.state == State.OUT_OF_MEMORY or end.memory_limit == MemoryLimit.NODE:
        return True
    is_open = end.exit_status in case.short_by_status(followed=True)
    killed = end.exit_status == 128 + signal.SIGKILL or (end.by != "script" and is_open)
    return killed and any(hit.rule.role is Role.CONFIRMATION for hit in hits)


def _confirmed(case: Case, hits: Sequence[Hit]) -> list[Hit]:
    """Return the confirmations of a kill; of ranks without srun's, whose task is a node, if there are others."""
    confirmed = [hit for hit in hits if hit.rule.role is Role.CONFIRMATION]
    return [hit for hit in confirmed if not (case.of_ranks and "srun: error: " in hit.line.text)] or confirmed


def _child_out_of_memory(case: Case, hits: Sequence[Hit]) -> Cause | None:
    """Return the cause that a process of the script was killed out of memory; None if that is not confirmed."""
    confirmed = _confirmed(case, hits)
    if not confirmed:
        return None
    chain = [f"{error.get('type')}: {error.get('message')}" for error in case.error.get("chain", ())]
    near = last_output.near_end(case.last_output, crashed=False)
    lines = [(text, 0) for text in chain] + [
        (text, near.first + place if near.first else 0) for place, text in enumerate(near.text.split("\n"))
    ]
    shown = next((case.own(in_one_line(text)[:TOLD], number) for text, number in lines if _KILLED.search(text)), None)
    if shown is None:
        return None
    clause = f"a process that {case.subject} started was killed because {NODE_MEMORY}"
    rule, nodes = BY_NAME["oom-kill"], [hit.line.node for hit in confirmed]
    return Cause.by_rule(
        rule,
        clause,
        evidence=(shown, *(hit.line for hit in confirmed))[:SHOWN],
        nodes=tuple(dict.fromkeys(filter(None, nodes))),
    )


def _out_of_memory(case: Case, hits: Sequence[Hit]) -> Cause:
    rule, end = BY_NAME["oom-kill"], case.end
    confirmed = [*_confirmed(case, hits), *(hit for hit in hits if hit.rule.name == "worker-oom")]
    if not confirmed:
        shown = (*case.quoted, *_COUNTED.get(end.memory_limit, ()))
        return Cause.by_rule(rule, end.message, evidence=shown)._replace(occurrences=0)
    cause = Cause.of_hit(min(confirmed, key=lambda hit: hit.line.time or math.inf), hits, rule.cause)
    # Slurm says it of a role's step in that role's log.
    lines_of_roles = [hit.line for hit in confirmed if hit.rule.name == "oom-kill" and hit.line.source not in _NO_ROLES]
    roles = {line.source for line in lines_of_roles}
    alone = len(roles) == 1 and roles != {SCRIPT} and not any(line.node for line in lines_of_roles)
    lost = {line.source for line in lines_of_roles if not line.node and line.source == end.role}
    who = case.subject if end.by == "script" else f"the {(lost or roles).pop()}" if lost or alone else ""
    clause = f"{who} was killed because {NODE_MEMORY}" if who else cause.what
    lines = tuple(hit.line for hit in confirmed)[:SHOWN]
    cause = cause._replace(what=clause, rule=rule.name, evidence=lines, followed=(), short=rule.short)
    if end.by != "script":
        return cause
    return cause._replace(occurrences=1, ranks=(), where="", nodes=(end.node,) if end.node else cause.nodes)


def _lost(case: Case, hits: Sequence[Hit]) -> Cause:
    """Return the cause for which Slurm or hpcml ended the run; without a log line it is the end's own sentence."""
    end = case.end
    if end.state == State.NODE_FAIL:
        named = [hit for hit in hits if hit.rule.name == "node-failure"]
        nodes = tuple(dict.fromkeys(filter(None, named_nodes(named))))
        rule, lines = BY_NAME["node-failure"], tuple(hit.line for hit in named[:SHOWN])
        return Cause.by_rule(rule, end.and_killed(rule.cause), evidence=lines, nodes=nodes)
    status, record = end.exit_status, Line(end.message, "record", "status.json")
    if root := first_of(roots(hits, with_script=status != errors.WORKERS_NEVER_CAME)):
        cause = Cause.of_hit(root, hits)
        nodes = cause.nodes or (end.lost_nodes if root.rule.name in OF_ANOTHER_NODE else ())
        return cause._replace(nodes=nodes, followed=(record, *cause.followed)[:SHOWN])
    in_quote = evidence.hits_in(evidence.Piece("\n".join(end.quote), 0), "record")  # of the log of ``end.node``
    end_hits = [hit for hit in in_quote if hit.rule.role is Role.ROOT]
    if end_hits := [hit._replace(line=hit.line._replace(node=end.node)) for hit in end_hits]:
        cause = Cause.of_hit(end_hits[0], end_hits)
        return cause._replace(nodes=cause.nodes or end.lost_nodes, followed=(record,))
    if end.memory_limit == MemoryLimit.PROCESS:
        return Cause.by_rule(BY_NAME["worker-memory"], end.message, evidence=case.quoted, nodes=end.lost_nodes)
    is_known = status not in (errors.ALLOCATION_LOST, 128 + signal.SIGKILL)
    short = case.short_by_status(followed=True).get(status, "ended")
    return Cause(end.message, short, is_known, "", end.hint, evidence=case.quoted)
