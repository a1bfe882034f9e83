"""Why a script failed that raised or printed an error: the first of its errors, or what this followed from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcml.failures import last_output
from hpcml.failures.cause import LOGS, SHOWN, TOLD, Case, Cause, in_one_line, known_by_rule, of_ranks, roots
from hpcml.failures.earliest_line import first_of
from hpcml.failures.evidence import Hit, Line
from hpcml.failures.rule import Retry, Role
from hpcml.failures.rules import BY_NAME, filled

_SETS_UP = {"no-module-command", "unknown-module", "conda-init", "conda-environment"}  # rules of commands that do so
_LACKS = {"no-module", "shared-library"}  # rules of what such a command may provide
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
# The errors of a process that has lost another one, with which it shares memory or a pipe.
_LOST_PROCESS = ("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError")
_NOT_REBUILT = re.compile(r"function takes exactly \d+ arguments? \(\d+ given\)")  # type(error)(text) of a UnicodeError


class _Chain(NamedTuple):
    """The errors of an uncaught error, the first last: their texts, lines that show them, and rules that they meet."""

    texts: list[str]
    lines: list[Line]
    hits: dict[int, Hit]


def raised(case: Case, hits: Sequence[Hit]) -> Cause:
    """Return the cause of an uncaught error: the first of its chain, unless that is a consequence."""
    errors_of_chain = case.error["chain"]
    chain = _chain(case, hits)
    chain_rules = {hit.rule.name for hit in chain.hits.values()}
    hits = [hit for hit in hits if not hit.own or hit.rule.name not in chain_rules]
    index = _beginning(errors_of_chain, chain.hits)
    hit, line = chain.hits.get(index), chain.lines[index]
    later = tuple(one for position, one in enumerate(chain.lines) if position != index)
    if hit is None:
        task = errors_of_chain[index].get("task")
        who = f"a Dask task of {case.subject} ({task})" if task else case.subject
        return _of_error(case, hits, chain.texts[index], line, later, who)
    if hit.rule.role is Role.CASCADE:
        return after(case, hit, hits)
    if worse := _deeper(hit, hits):
        return worse._replace(followed=(chain.lines[0],))
    cause = _no_files(Cause.of_hit(hit, [*hits, hit]), errors_of_chain[index])
    evidence_lines = (line._replace(text=f"{line.text}{_place_of_error(case)}"), *cause.evidence[1:])[:SHOWN]
    remedy = cause.remedy if cause.nodes else case.end.hint or cause.remedy  # the hint is for the script's own node
    return cause._replace(evidence=evidence_lines, followed=later, remedy=remedy)


def _chain(case: Case, hits: Sequence[Hit]) -> _Chain:
    """Return the errors of the script's uncaught error with the rules that they meet."""
    errors_of_chain = case.error["chain"]
    texts = [f"{error.get('type')}: {error.get('message')}".rstrip(": ") for error in errors_of_chain]
    when = case.times.get("script-ended", 0.0)
    lines = [case.own(in_one_line(text)[:TOLD], 0, when) for text in texts]
    if case.last_error and case.last_error.text.endswith(texts[0].split("\n")[0][:TOLD]):
        lines[0] = lines[0]._replace(number=case.last_error.number)
    met: dict[int, Hit] = {}
    for index, one in enumerate(errors_of_chain):
        if not one.get("hides") and (known := known_by_rule(texts[index], lines[index], own=True)):
            met[index] = _with_groups(known, hits)
        elif one["type"] in _LOST_PROCESS and one.get("loader"):
            met[index] = Hit(BY_NAME["loader-killed"], lines[index], own=True)
    return _Chain(texts, lines, met)


def _place_of_error(case: Case, pattern: str = " ({}, line {})") -> str:
    """Return the place at which the script raised its error, empty if that is not known."""
    file, number = str(case.error.get("file") or ""), case.error.get("line")
    return pattern.format(file, number) if file and isinstance(number, int) else ""


def _of_error(case: Case, hits: Sequence[Hit], text: str, line: Line, later: tuple[Line, ...], who: str) -> Cause:
    """Return the cause of an error that no rule knows: its own words."""
    name = text.partition(":")[0]
    is_exit = name == "SystemExit"  # sys.exit("words")
    if is_exit:
        line = line._replace(text=line.text.removeprefix("SystemExit: "))
    at = _place_of_error(case, "{}:{}").rpartition("/")[2].replace(" ", "_")
    short = f"{'sys.exit' if is_exit else name} in {at}" if at else name
    clause = f"{who} {'exited:' if is_exit else 'raised'} {line.text}"
    if at and ":" not in text:  # as TimeoutError: its name is all there is
        clause += f" at {at}: {str(case.error.get('code') or '')[:TOLD]}"
    remedy = case.end.hint or ("" if is_exit else _remedy(name, line.text))
    if name == "IndexError" and "sys.argv" in str(case.error.get("code")):
        clause, short = f"{clause}: the script was started with too few arguments", "arguments missing"
        remedy = "Write the arguments after the script: hpcml rerun RUN -- ARGUMENTS."
    nodes = dict.fromkeys(hit.line.node for hit in hits if hit.rule.name == "task-error" and hit.groups[0] == name)
    line = line._replace(text=f"{line.text}{_place_of_error(case)}")
    cause = Cause(clause, short, True, "script-error", remedy, Retry.NONE, (line,), later, 1, tuple(nodes))
    return _with_child(case, _with_thread(case, cause), name)


def _with_child(case: Case, cause: Cause, name: str) -> Cause:
    """Add what a command printed of its failure, where the error says only that the command failed."""
    words = last_output.before_traceback(case.last_output) if name == "CalledProcessError" else None
    if words is None:
        return cause
    line = case.own(words.text[:TOLD], words.number)
    return cause._replace(
        what=f"{cause.what.rstrip('.')}; before that it printed: {line.text}", evidence=(*cause.evidence, line)
    )


def _with_thread(case: Case, cause: Cause) -> Cause:
    """Add the error of a thread that ended before: the script may have waited for what this thread should bring."""
    if not (found := last_output.thread_error(case.last_output)):
        return cause
    thread, words = found
    line = case.own(words.text[:TOLD], words.number)
    clause = f"{cause.what.rstrip('.')}; before, its thread {thread} raised {line.text}"
    return cause._replace(what=clause, evidence=(*cause.evidence, line))


def _with_groups(hit: Hit, hits: Sequence[Hit]) -> Hit:
    """Return an error's hit with what the program printed of it before: CUDA's assertion names the condition."""
    if any(hit.groups):
        return hit
    printed = (other.groups for other in hits if other.rule is hit.rule and other.own and any(other.groups))
    return hit._replace(groups=next(printed, hit.groups))


def _beginning(chain: Sequence[Mapping[str, Any]], hit_by_error: Mapping[int, Hit]) -> int:
    """Return the index of the error that caused a chain, of which the last is the one that was raised first.

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
        other for other in roots(hits, with_script=True) if other.line.source == "library" or "nccl" in other.rule.name
    ]
    one = first_of([other for other in behind if other.rule.name not in _SPEAK_FOR_OTHERS])
    return Cause.of_hit(one, hits) if one else None


def _no_files(cause: Cause, error: Mapping[str, Any]) -> Cause:
    """Return the cause with what is full where the script's process has looked: no more files, though there is room."""
    folder = error.get("no_files")
    if not isinstance(folder, str) or not folder:
        return cause
    clause = f"the file system of {folder[:TOLD]} can hold no more files (no inodes are left)"
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
        return f"Check whether {path[1]} exists. This path is relative to the folder from which you submitted."
    if kind == "NameError" and "'get_ipython'" in text:
        return "Only a notebook has get_ipython(). Submit the notebook itself (.ipynb), or remove these lines."
    return f"See the traceback in the log: {LOGS}."


def printed_error(case: Case, hits: Sequence[Hit], line: Line) -> Cause:
    """Return the cause of an error with which a script's output ends."""
    if hit := known_by_rule(line.text, line, own=True):
        if hit.rule.role is Role.CASCADE:
            return after(case, hit, hits)
        return _with_environment(Cause.of_hit(hit, [*hits, hit]), hits)
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
    clause = f"{cause.what}; before, a command failed: {before.line.text[:TOLD]}"
    remedy = f"Correct that command first. {cause.remedy}"
    return cause._replace(what=clause, remedy=remedy, evidence=(*cause.evidence, before.line))


def of_child(case: Case, hits: Sequence[Hit], child: last_output.ChildError) -> Cause:
    """Return the cause of what a launcher such as torchrun printed of the process that failed first."""
    who = f"torchrun's rank {child.rank}" if child.rank else "a process that torchrun started"
    who += f" (in {case.subject})" if case.end.rank is not None else ""
    who = who if child.launched else case.subject
    if child.killed:
        remedy = f"See the output before the end: {LOGS}."
        return Cause(f"{who} was ended by {child.killed}", child.killed, True, "signal", remedy, evidence=case.quoted)
    line = case.own(f"{child.words.text}{f' ({child.place})' if child.place else ''}", child.words.number)
    if hit := known_by_rule(child.message, line, own=True):
        if hit.rule.role is Role.CASCADE:
            return after(case, hit, hits)
        shown = next((text for text in child.message.split("\n") if re.search(hit.rule.pattern, text)), line.text)
        hit = hit._replace(line=line._replace(text=shown[:TOLD]) if shown not in line.text else line)
        return Cause.of_hit(hit, [*hits, hit], f"{who} failed: {filled(hit.rule.cause, hit.groups)}", named=True)
    name = child.words.text.partition(":")[0].rpartition(".")[2]
    remedy = _remedy(name, child.words.text)
    return Cause(f"{who} raised {line.text}", name, True, "script-error", remedy, evidence=(line,), occurrences=1)


def after(case: Case, cascade: Hit, hits: Sequence[Hit]) -> Cause:
    """Return the earliest fault in the logs, where the script's end is a consequence; else an unknown cause."""
    if root := first_of(roots(hits, with_script=False)):
        cause = Cause.of_hit(root, hits)
        return cause._replace(followed=(cascade.line, *cause.followed)[:SHOWN])
    if confirmed := [hit for hit in hits if hit.rule.role is Role.CONFIRMATION]:
        return Cause.of_hit(confirmed[0], hits)._replace(followed=(cascade.line,))
    if another := _raised_by_another(case):
        return another._replace(followed=(cascade.line,))
    if left := _left(case):
        return left._replace(followed=(cascade.line,))
    rule = cascade.rule
    short = " ".join(rule.cause.split()[:6]).rstrip(",:;")
    clause = f"{rule.cause}; the run's logs do not show why"
    return Cause(clause, short, False, rule.name, evidence=(cascade.line,), occurrences=1)


def _left(case: Case) -> Cause | None:
    """Return the cause that ranks ended with 0 while others still needed them; None if none did."""
    if not case.finished:
        return None
    ranks = [line.rank for line in case.finished if line.rank is not None]
    who = of_ranks(ranks, case.finished[0].node)
    clause = f"{who} ended with status 0 while other ranks still needed {'it' if len(ranks) == 1 else 'them'}"
    lines = tuple(case.finished[:SHOWN])
    remedy = f"Give each rank the same number of steps. See the rank's output: {LOGS}."
    nodes = tuple(dict.fromkeys(line.node for line in case.finished))
    return Cause(
        clause, "a rank ended early", True, "rank-left", remedy, Retry.NONE, lines, (), len(ranks), nodes,
        tuple(ranks[:SHOWN]),
    )  # fmt: skip


def _raised_by_another(case: Case) -> Cause | None:
    """Return the first error that ended another rank, and is no consequence; None if there is none."""
    for place_of_rank, error in case.others:
        first = error["chain"][_beginning(error["chain"], {})]
        text = in_one_line(f"{first.get('type')}: {first.get('message')}".rstrip(": "))[:TOLD]
        place = f" ({error.get('file')}, line {error.get('line')})" if error.get("file") else ""
        line = place_of_rank._replace(text=f"{text}{place}")
        if hit := known_by_rule(text, line):
            if hit.rule.role is Role.CASCADE:
                continue
            return Cause.of_hit(hit, [hit])
        name, ranks = text.partition(":")[0], () if line.rank is None else (line.rank,)
        clause, remedy = f"{of_ranks(ranks, line.node)} raised {text}", _remedy(name, text)
        return Cause(clause, name, True, "script-error", remedy, evidence=(line,), occurrences=1, ranks=ranks)
    return None
