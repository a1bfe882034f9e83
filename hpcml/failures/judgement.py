"""Which of what a run shows is the cause of its failure: the first that began it, never what followed.

How the run ended decides where to look. A script that raised an error of its own tells the cause itself, whatever
workers survived before. Where the end only follows from another (a lost worker, a broken connection), the earliest
line of a log that begins a failure is the cause. Without one it is unknown.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcml import errors
from hpcml.failures import evidence, order
from hpcml.failures.evidence import Hit, Line
from hpcml.failures.order import Clocks
from hpcml.failures.rules import BY_NAME, Retry, Role, filled
from hpcml.paths import AttemptPaths, RunPaths

MOST_LOGS = 16  # workers' logs that are read where a run ends
_SHOWN = 3  # lines of evidence, and of what followed
_TOLD = 300  # characters of an error's message in a sentence
_ANOTHER_ATTEMPT = 90.0  # seconds before the attempt began; the clocks of nodes may differ
# What hpcml has found out itself and told in a sentence that no log tells better.
_FINAL = {
    errors.STORAGE: "disk full or not usable",
    errors.CANCELLED: "cancelled",
    errors.NO_PROGRESS: "no newer checkpoint",
    errors.IMAGE: "image cannot be used",
    errors.FABRIC: "not the transport asked for",
    errors.VERSIONS: "versions differ",
    errors.PREEMPTED: "preempted",
    errors.IDLE: "idle too long",
    errors.INTERNAL: "defect in hpcml",
}
_OPEN = {  # what hpcml ended a run for, which began elsewhere
    errors.START_FAILED: "could not start",
    errors.WORKERS_NEVER_CAME: "workers did not come",
    errors.ROLE_LOST: "workers or scheduler lost",
    errors.ALLOCATION_LOST: "ended without a word",
}
_SIGNALS = {
    signal.SIGSEGV: "segfault",
    signal.SIGBUS: "bus-error",
    signal.SIGABRT: "abort",
    signal.SIGILL: "illegal",
}
_OF_ANOTHER_NODE = {"node-failure", "credential"}  # their lines stand in the logs of the nodes that were well


class Ending(NamedTuple):
    """How a run ended; ``error`` is script-error.json, ``form`` what its script is, ``times`` its events'.

    ``points`` is a sweep's points-end.json. ``clocks`` are the nodes' against the first node's.
    """

    exit_status: int
    by: str
    state: str
    message: str
    hint: str = ""
    quote: tuple[str, ...] = ()
    times: Mapping[str, float] = {}
    error: Mapping[str, Any] = {}
    last_error: Line | None = None
    form: str = ""
    clocks: Clocks = {}
    points: Mapping[str, Any] = {}

    @property
    def failed(self) -> bool:
        """Whether there is a failure to explain."""
        return bool(self.exit_status) or self.state not in ("COMPLETED", "")


class Cause(NamedTuple):
    """Why a run failed.

    ``what`` is one clause, ``short`` at most six words; ``known`` is False where there is no evidence of it.
    ``rule`` is the name of the rule, empty where there is none. ``occurrences`` lines on ``nodes`` show the same.
    """

    what: str
    short: str
    known: bool = True
    rule: str = ""
    remedy: str = ""
    retry: Retry = Retry.NONE
    evidence: tuple[Line, ...] = ()
    followed: tuple[Line, ...] = ()
    occurrences: int = 0
    nodes: tuple[str, ...] = ()


def judge(end: Ending, hits: Sequence[Hit]) -> Cause | None:
    """Return why a run failed, from how it ended and the lines of its logs; None if it did not fail."""
    if not end.failed:
        return None
    began = end.times.get("allocated", 0.0)
    hits = [order.corrected(hit, end.clocks) for hit in hits]
    hits = [hit for hit in hits if not hit.line.time or hit.line.time > began - _ANOTHER_ATTEMPT]
    status = end.exit_status
    if end.by == "script" and status == errors.STOPPED:
        remedy = "Submitted with --until-done it goes on by itself, from its last checkpoint."
        return Cause(errors.MEANING[status], "stopped, to be continued", remedy=end.hint or remedy)
    if end.state == "TIMEOUT" or (end.by != "script" and status == errors.TIME_LIMIT):
        return _time_limit(end, hits)
    if end.by != "script" and status == errors.CANCELLED and (hit := _known(end.message, Line(end.message, "record"))):
        return Cause(end.message, hit.rule.short, True, hit.rule.name, end.hint)
    if end.by != "script" and status in _FINAL:
        return Cause(end.message, _FINAL[status], remedy=end.hint, evidence=_quoted(end))
    if end.state == "CANCELLED":
        return Cause(end.message, "cancelled", remedy=end.hint)
    if _starved(end, hits):
        return _out_of_memory(end, hits)
    if end.by == "script" and end.error.get("chain"):
        return _raised(end, hits)
    if end.by == "script":
        return _ended(end, hits)
    return _lost(end, hits)


def of_run(paths: RunPaths, attempt: AttemptPaths, end: Ending) -> Cause | None:
    """Return why a run failed that ended so, by the files of its last attempt and the run's logs."""
    end = with_files(paths, attempt, end)
    return judge(end, evidence.hits(paths, MOST_LOGS) if end.failed else [])


def with_files(paths: RunPaths, attempt: AttemptPaths, end: Ending) -> Ending:
    """Return an ending with what the script's own files tell of it."""
    error, points = evidence.script_error(attempt.script_error), evidence.points_end(attempt.points_end)
    return end._replace(error=error, last_error=evidence.last_error(paths.driver_log), points=points)


def _roots(hits: Sequence[Hit], *, own: bool) -> list[Hit]:
    """Return the lines that begin a failure; ``own``: the script's output counts too."""
    return [hit for hit in hits if hit.rule.role is Role.ROOT and (own or hit.line.source != "driver")]


def _of(hit: Hit, hits: Sequence[Hit], what: str = "") -> Cause:
    """Return the cause that a line tells, with all lines that tell the same, and what followed."""
    rule = hit.rule
    same = [other for other in hits if other.rule.name == rule.name]
    first: dict[tuple[str, str], Line] = {}
    for other in (hit, *same):
        first.setdefault((other.line.file, other.line.node), other.line)
    after = sorted(
        (other for other in hits if other.rule.role in (Role.CASCADE, Role.CONFIRMATION)), key=lambda one: one.line.time
    )
    followed: dict[str, Line] = {}
    for other in after:
        followed.setdefault(other.rule.name, other.line)
    nodes = dict.fromkeys(line.node for line in first.values() if line.node)
    if rule.name in _OF_ANOTHER_NODE:
        nodes = dict.fromkeys(other.groups[0] for other in (hit, *same) if other.groups and other.groups[0])
    sentence = what or filled(rule.cause, hit.groups)
    if hit.place:
        sentence += f" ({hit.place})"
    return Cause(
        sentence,
        filled(rule.short, hit.groups),
        True,
        rule.name,
        rule.remedy,
        rule.retry,
        tuple(first.values())[:_SHOWN],
        tuple(followed.values())[:_SHOWN],
        max(len(same), 1),
        tuple(nodes),
    )


def _quoted(end: Ending) -> tuple[Line, ...]:
    return tuple(Line(text, "record") for text in end.quote[-_SHOWN:])


def _time_limit(end: Ending, hits: Sequence[Hit]) -> Cause:
    """Say in which phase the time limit came."""
    times = end.times
    if "driver-started" in times:
        where = "while the script ran"
    elif "workers-ready" in times:
        where = "while the interconnect was checked"
    elif "scheduler-up" in times:
        where = "before all workers were there"
    elif "allocated" in times:
        where = "before the scheduler was up"
    elif "image-staging" in times:
        where = "while the image was copied"
    else:
        where = "before the run began"
    found = [hit.line for hit in hits if hit.rule.name == "time-limit"]
    rule = BY_NAME["time-limit"]
    frozen = [hit for hit in hits if hit.rule.name in ("frozen", "thawed")]
    if frozen and frozen[-1].rule.name == "frozen":
        cause = _of(frozen[-1], frozen[-1:])
        what = f"{cause.what}, until the time limit was reached"
        return cause._replace(what=what, nodes=(frozen[-1].groups[0],), followed=tuple(found[:1]))
    remedy = end.hint or rule.remedy
    return Cause(
        f"the time limit was reached {where}",
        "time limit",
        True,
        rule.name,
        remedy,
        rule.retry,
        tuple(found[:1]),
        (),
        1,
    )


def _starved(end: Ending, hits: Sequence[Hit]) -> bool:
    """Whether the script or the job was killed for want of memory: only a kill that is confirmed counts."""
    if end.state == "OUT_OF_MEMORY" or "memory limit was reached (out of memory)" in end.message:
        return True
    killed = end.exit_status == 128 + signal.SIGKILL or (end.by != "script" and end.exit_status in _OPEN)
    return killed and any(hit.rule.role is Role.CONFIRMATION for hit in hits)


def _out_of_memory(end: Ending, hits: Sequence[Hit]) -> Cause:
    confirmed = [hit for hit in hits if hit.rule.role is Role.CONFIRMATION or hit.rule.name == "worker-oom"]
    rule = BY_NAME["oom-kill"]
    if confirmed:
        found = _of(min(confirmed, key=lambda hit: hit.line.time or float("inf")), hits, rule.cause)
        who = "the script" if end.by == "script" else _victim(confirmed)
        what = f"{who} was killed because the node's memory limit was reached" if who else found.what
        lines = tuple(hit.line for hit in confirmed)[:_SHOWN]
        return found._replace(what=what, rule=rule.name, evidence=lines, followed=(), short=rule.short)
    return Cause(end.message, rule.short, True, rule.name, rule.remedy, rule.retry, _quoted(end))


def _victim(confirmed: Sequence[Hit]) -> str:
    """Return whom the kernel killed where Slurm says it of a role's step, in that role's log; empty if of none."""
    sources = {hit.line.source for hit in confirmed if hit.rule.name == "oom-kill"}
    return "the scheduler" if sources & {"scheduler", "worker", "driver"} == {"scheduler"} else ""


def _of_points(end: Ending) -> Cause:
    """Points of a sweep failed: how many, and why the first did."""
    first = [str(text) for text in end.points.get("first", ())]
    short = f"{end.points['failed']} of {end.points.get('points')} points failed"
    lines = tuple(Line(text, "driver", "logs/driver.log") for text in first)
    what = f"{short}, the first with {first[0][:_TOLD]}" if first else short
    return Cause(what, short, True, "points", end.hint, evidence=lines, occurrences=len(lines))


def _raised(end: Ending, hits: Sequence[Hit]) -> Cause:
    """The script ended by an error that nobody caught: the first of its chain is the cause, unless it only followed."""
    chain = [f"{one.get('type')}: {one.get('message')}".rstrip(": ") for one in end.error["chain"]]
    file, number = str(end.error.get("file") or ""), end.error.get("line")
    code = str(end.error.get("code") or "")
    when = end.times.get("driver-ended", 0.0)
    lines = [Line(_in_one_line(text), "driver", "logs/driver.log", 0, when) for text in chain]
    if end.last_error and end.last_error.text.endswith(chain[0].split("\n")[0][:_TOLD]):
        lines[0] = lines[0]._replace(number=end.last_error.number)
    known = {
        index: found
        for index, text in enumerate(chain)
        if not end.error["chain"][index].get("hides") and (found := _known(text, lines[index]))
    }
    told = {hit.rule.name for hit in known.values()}
    hits = [hit for hit in hits if hit.line.source != "driver" or hit.rule.name not in told]
    index = _beginning(end.error["chain"], known)
    hit = known.get(index)
    if hit and hit.rule.role is Role.CASCADE:
        return _after(hit, hits)
    own = f"{file}, line {number}" if file and isinstance(number, int) else ""
    later = tuple(line for position, line in enumerate(lines) if position != index)
    if hit and (worse := _deeper(hit, hits)):
        return worse._replace(followed=(lines[0],))
    if hit:
        cause = _no_files(_of(hit, [*hits, hit]), end.error["chain"][index])
        shown = (lines[index]._replace(text=_at(lines[index].text, own)), *cause.evidence[1:])
        remedy = cause.remedy if cause.nodes else end.hint or cause.remedy  # the hint is for the script's own node
        return cause._replace(evidence=shown[:_SHOWN], followed=later, remedy=remedy)
    name = chain[index].partition(":")[0]
    if name == "SystemExit":  # sys.exit("words")
        lines[index] = lines[index]._replace(text=lines[index].text.removeprefix("SystemExit: "))
    short = f"{'sys.exit' if name == 'SystemExit' else name} in {_short(file)}:{number}" if own else name
    verb = "ended itself:" if name == "SystemExit" else "raised"
    what = f"the script {verb} {lines[index].text}"
    if own and not chain[index].partition(":")[2]:  # as TimeoutError: its name is all there is
        what += f" at {_short(file)}:{number}: {code[:_TOLD]}"
    line = lines[index]._replace(text=_at(lines[index].text, own))
    remedy = end.hint or ("" if name == "SystemExit" else _remedy(name, lines[index].text))
    nodes = dict.fromkeys(hit.line.node for hit in hits if hit.rule.name == "task-error" and hit.groups[0] == name)
    return Cause(what, short, True, "script-error", remedy, Retry.NONE, (line,), later, 1, tuple(nodes))


def _in_one_line(message: str) -> str:
    """Return a message without its breaks: the first line of a library's message often tells too little."""
    return " ".join(filter(None, map(str.strip, message.split("\n"))))[:_TOLD]


_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _remedy(kind: str, text: str) -> str:
    """Return the next step after an error that no rule knows, from its words."""
    if kind == "KeyError" and (variable := re.search(r": '([A-Z][A-Z0-9_]+)'$", text)):
        if variable[1] in _OF_RANKS:
            return "hpcml starts the script once, on the first node: it starts no ranks."
        return f"If {variable[1]} is an environment variable, set it for the whole run: --env {variable[1]}=VALUE."
    if kind == "FileNotFoundError" and (path := re.search(r": '([^/'][^']*)'$", text)):
        return f"{path[1]} is a relative path, which counts from the folder of the submission: give the whole path."
    return "The traceback in the script's log shows how it came there."


# How Python itself goes on, and how a pool of processes sends the traceback of a child's error, which stands above it.
_PASSED_ON = (
    "CancelledError",
    "GeneratorExit",
    "StopIteration",
    "StopAsyncIteration",
    "RemoteTraceback",
    "_RemoteTraceback",
)
_NOT_REBUILT = re.compile(r"function takes exactly \d+ arguments? \(\d+ given\)")  # type(error)(text) of a UnicodeError
_TRIED = ("ImportError", "ModuleNotFoundError", "KeyError", "AttributeError", "FileNotFoundError", *_PASSED_ON)


def _beginning(chain: Sequence[Mapping[str, Any]], known: Mapping[int, Hit]) -> int:
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
        while above not in known and above and not chain[above].get("handled"):
            above -= 1
        return above if above in known else index
    return 0


def _no_files(cause: Cause, error: Mapping[str, Any]) -> Cause:
    """Return the cause with what is full where the script's process has looked: no more files, though there is room."""
    folder = error.get("no_files")
    if not isinstance(folder, str) or not folder:
        return cause
    what = f"the file system of {folder[:_TOLD]} can hold no more files (no inodes are left)"
    return cause._replace(what=what, short="no room for more files", remedy="Remove files there: df -i tells how many.")


def _short(file: str) -> str:
    return file.rpartition("/")[2].replace(" ", "_")


def _at(text: str, place: str) -> str:
    return f"{text} ({place})" if place else text


def _known(text: str, line: Line) -> Hit | None:
    """Return what an error's own words tell, if a rule knows them; of several the one that begins a failure."""
    found = [
        hit._replace(line=line)
        for hit in evidence.hits_in(evidence.Piece(text, 1), "driver")
        if hit.rule.role in (Role.ROOT, Role.CASCADE)
    ]
    return min(found, key=lambda hit: hit.rule.role is not Role.ROOT, default=None)


_SPEAK_FOR_OTHERS = {"nccl-system"}  # their own log tells what was behind them


def _deeper(hit: Hit, hits: Sequence[Hit]) -> Cause | None:
    if hit.rule.name not in _SPEAK_FOR_OTHERS:
        return None
    behind = [other for other in _roots(hits, own=True) if other.line.source == "library" or "nccl" in other.rule.name]
    behind = [other for other in behind if other.rule.name not in _SPEAK_FOR_OTHERS]
    one = order.first(behind)
    return _of(one, hits) if one else None


def _after(cascade: Hit, hits: Sequence[Hit]) -> Cause:
    """The script's end followed from something else: the earliest beginning in the logs, or unknown."""
    if root := order.first(_roots(hits, own=False)):
        found = _of(root, hits)
        return found._replace(followed=(cascade.line, *found.followed)[:_SHOWN])
    confirmed = [hit for hit in hits if hit.rule.role is Role.CONFIRMATION]
    if confirmed:
        return _of(confirmed[0], hits)._replace(followed=(cascade.line,))
    rule = cascade.rule
    what = f"{rule.cause}, and nothing in the run's logs says why"
    return Cause(what, f"{_six(rule.cause)}", False, rule.name, evidence=(cascade.line,), occurrences=1)


def _six(text: str) -> str:
    return " ".join(text.split()[:6]).rstrip(",:;")


def _ended(end: Ending, hits: Sequence[Hit]) -> Cause:
    """The script ended without an error that was written down: by a signal, by itself, or with an error it printed."""
    if end.points.get("failed"):
        return _of_points(end)
    status = end.exit_status
    number = status - 128
    if status > 128 and number in signal.valid_signals():
        return _signalled(end, hits, signal.Signals(number))
    kind = "program" if end.form == "program" else "script"
    if status in (126, 127) and kind == "program":
        what = f"the program {'is not there on the node' if status == 127 else 'cannot be executed'}"
        return Cause(
            what, "program cannot be started", evidence=_quoted(end), remedy="Is it on a path that all nodes see?"
        )
    if end.last_error:
        line = end.last_error._replace(time=end.times.get("driver-ended", 0.0))
        known = _known(line.text, line)
        if known and known.rule.role is Role.CASCADE:
            return _after(known, hits)
        if known:
            return _of(known, [*hits, known])
        name = line.text.partition(":")[0].rpartition(".")[2]
        remedy = _remedy(name, line.text)
        return Cause(
            f"the {kind} printed {line.text}", name, True, "script-error", remedy, evidence=(line,), occurrences=1
        )
    if crashed := [hit for hit in hits if hit.line.source == "driver" and hit.rule.name in _SIGNALS.values()]:
        return _of(crashed[0], hits)
    what = f"the {kind} ended with exit status {status}"
    remedy = "" if kind == "program" else "It calls sys.exit or os._exit, or a library does."
    if end.quote:
        what += f"; its last line: {end.quote[-1][:_TOLD]}"
    lines = tuple(Line(text, "driver", "logs/driver.log") for text in end.quote[-_SHOWN:])
    return Cause(what, f"{kind} chose exit status {status}", True, "exit", end.hint or remedy, evidence=lines)


def _signalled(end: Ending, hits: Sequence[Hit], number: signal.Signals) -> Cause:
    rule = BY_NAME.get(_SIGNALS.get(number, ""))
    if rule:
        found = [hit for hit in hits if hit.rule.name == rule.name and hit.line.source == "driver"]
        what = f"the script was killed by {number.name}: {rule.cause}"
        failed = [hit for hit in hits if hit.rule.name == "assertion" and hit.line.source == "driver"]
        if failed and number == signal.SIGABRT:
            return _of(failed[-1], hits, f"the script was killed by {number.name}: {failed[-1].groups[0][:_TOLD]}")
        if found:
            return _of(found[-1], hits, what)
        return Cause(what, rule.short, True, rule.name, rule.remedy, rule.retry, _quoted(end), (), 1)
    what = f"the script was killed by {number.name}, and nothing says by whom"
    remedy = "SIGKILL comes from the kernel for want of memory, from a person or from the site." if number == 9 else ""
    return Cause(what, f"killed by {number.name}", False, "signal", remedy, evidence=_quoted(end))


def _lost(end: Ending, hits: Sequence[Hit]) -> Cause:
    """Slurm or hpcml ended the run for something that began elsewhere; its own sentence is the least there is."""
    status = end.exit_status
    text = "\n".join((end.message, *end.quote))
    told = [hit for hit in evidence.hits_in(evidence.Piece(text, 0), "record") if hit.rule.role is Role.ROOT]
    told = [hit._replace(line=hit.line._replace(node=_node_in(end.message))) for hit in told]
    if end.state == "NODE_FAIL":
        rule = BY_NAME["node-failure"]
        named = [hit for hit in hits if hit.rule.name == rule.name]
        nodes = tuple(dict.fromkeys(hit.groups[0] for hit in named if hit.groups and hit.groups[0]))
        lines = tuple(hit.line for hit in named[:_SHOWN])
        return Cause(rule.cause, rule.short, True, rule.name, rule.remedy, rule.retry, lines, (), 1, nodes)
    if root := order.first(_roots(hits, own=status != errors.WORKERS_NEVER_CAME)):
        found = _of(root, hits)
        if root.rule.name in _OF_ANOTHER_NODE and not found.nodes and (node := _node_in(end.message)):
            found = found._replace(nodes=(node,))
        return found._replace(followed=(Line(end.message, "record", "status.json"), *found.followed)[:_SHOWN])
    if told:
        found = _of(told[0], told)
        return found._replace(followed=(Line(end.message, "record", "status.json"),))
    known = status not in (errors.ALLOCATION_LOST, 128 + signal.SIGKILL)
    return Cause(end.message, _OPEN.get(status, "ended"), known, "", end.hint, evidence=_quoted(end))


def _node_in(message: str) -> str:
    """Return the node that a sentence of hpcml begins with or names as the first."""
    for part in message.removeprefix("workers were lost: ").split("; "):
        head = part.partition(": ")[0]
        if head and " " not in head:
            return head
    return ""
