"""Why a script failed that left no error: a signal, its own exit, or what its last lines say."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from hpcml import errors
from hpcml.failures import evidence, last_output
from hpcml.failures.cause import LOGS, OPEN, TOLD, Case, Cause
from hpcml.failures.evidence import Hit
from hpcml.failures.first_script_error import after, of_child, printed_error
from hpcml.failures.rule import Role
from hpcml.failures.rules import BY_NAME, COLLECTIVE, filled
from hpcml.paths import SCRIPT

_SENT = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # by others
_SIGNALS = {
    signal.SIGSEGV: "segfault",
    signal.SIGBUS: "bus-error",
    signal.SIGABRT: "abort",
    signal.SIGILL: "illegal",
}
_CRASHES = {*_SIGNALS.values(), "ucx-signal"}  # rules that say no more than a signal does
_NAMED_BY_LINES = {"segfault", "abort"}  # rules whose next steps speak of lines that name a library
_OF_TIMEOUT = 124  # the status with which the command timeout ends, where it ended its program


def ended(case: Case, hits: Sequence[Hit]) -> Cause:
    """Return the cause of a script's end without a recorded error: a signal, an exit, or a printed error."""
    if case.end.points.failed:
        return _of_points(case)
    if case.end.points.submitted and case.end.exit_status == errors.TIME_LIMIT:
        return Cause(case.end.message, "points remain", True, "points", case.end.hint)
    if number := errors.signal_of_status(case.end.exit_status):
        return _signalled(case, hits, signal.Signals(number))
    if child := last_output.child_error(case.last_output):
        return of_child(case, hits, child)
    if case.last_error:
        return printed_error(case, hits, case.last_error._replace(time=case.times.get("script-ended", 0.0)))
    if crashed := [hit for hit in hits if hit.own and hit.rule.name in _SIGNALS.values()]:
        return Cause.of_hit(crashed[0], hits)
    return _exited(case, hits)


def _exited(case: Case, hits: Sequence[Hit]) -> Cause:
    """Return the cause of a script's exit status, by its last lines."""
    end, status = case.end, case.end.exit_status
    exited = f"{case.subject} exited with status {status}"
    if isinstance(hindered := case.error.get("not_started"), dict):
        clause = f"{case.subject} could not be started: {str(hindered.get('reason'))[:TOLD]}"
        hint = str(hindered.get("hint") or "Use a path on a file system that all nodes share.")
        return Cause(clause, OPEN[errors.START_FAILED], remedy=hint)
    raised = _raised(case, hits)
    if cause := _printed(case, hits, exited):  # mpi4py calls MPI_Abort after an uncaught error
        uncaught = raised and cause.rule == "mpi-abort" and status == 1  # another status is the program's own
        return raised._replace(followed=cause.evidence) if raised and uncaught else cause
    last = last_output.last_line(case.last_output)
    if status in (126, 127) and case.noun == "program":
        return _no_program(case, f"{exited}: {last.text[:TOLD]}" if last else "")
    by = " (by sys.exit or os._exit)" if case.is_python else ""
    remedy = f"See the output before the exit{by}: {LOGS}."
    if status == _OF_TIMEOUT and not case.is_python:
        remedy = f"The command timeout ends with status {status} when its time is over. {remedy}"
    if raised:
        return raised
    if task := last_output.failed_task(case.last_output):
        exited += f"; {task}"
    elif (said := last_output.last_complaint(case.last_output)) and said != last:
        exited += f"; it printed: {said.text[:TOLD]}"
    elif last:
        exited += f"; the last line of its output: {last.text[:TOLD]}"
    return Cause(
        exited, f"{case.noun} exited with status {status}", True, "exit", end.hint or remedy, evidence=case.quoted
    )


def _raised(case: Case, hits: Sequence[Hit]) -> Cause | None:
    """Return the cause that the last traceback near the output's end shows; None without one."""
    error = last_output.printed_error(case.last_output)
    place = f" ({error.place})" if error and error.place else ""
    return printed_error(case, hits, case.own(f"{error.words.text}{place}", error.words.number)) if error else None


def _no_program(case: Case, said: str) -> Cause:
    """Return the cause of the statuses by which a shell tells that it could not start a program."""
    clause = f"the program {'does not exist on the node' if case.end.exit_status == 127 else 'cannot be executed'}"
    remedy = "Use a path on a file system that all nodes share."
    if re.search(r": (?:line )?\d+: (?:exec: )?[^:/\s]+: (?:command )?not found$", said):
        remedy = "No folder of the job's PATH has this command. Write its absolute path, or correct PATH."
    return Cause(said or clause, "program cannot be started", evidence=case.quoted, remedy=remedy)


def _printed(case: Case, hits: Sequence[Hit], clause: str, *, crashed: bool = False) -> Cause | None:
    """Return the cause that the last lines of the script's output show; of a crash, the lines before it.

    It is what the first line tells that begins a failure, after a ``clause`` on the end. Of a line that only tells of
    another's failure it is what others' logs show. None if there is neither.
    """
    near = evidence.hits_in(last_output.near_end(case.last_output, crashed=crashed), SCRIPT)
    own = [hit._replace(line=case.own(hit.line.text, hit.line.number, hit.line.time), own=True) for hit in near]
    known = [hit for hit in own if hit.rule.name not in _CRASHES]
    if root := next((hit for hit in known if hit.rule.role is Role.ROOT), None):
        clause = "" if root.rule.name == "mpi-start" else f"{clause}: "  # mpirun's status is no signal
        return Cause.of_hit(root, [*hits, root], f"{clause}{filled(root.rule.cause, root.groups)}", named=True)
    cascade = next((hit for hit in known if hit.rule.role is Role.CASCADE), None)
    cause = after(case, cascade, hits) if cascade else None
    return cause if cause and cause.known else None


def _of_points(case: Case) -> Cause:
    """Return the number of a sweep's failed points, and the cause of the first."""
    points = case.end.points
    first = [f"{failed.point}: {failed.cause}" for failed in points.first]
    short = f"{points.failed} of {points.submitted} points failed"
    lines = tuple(map(case.own, first))
    clause = f"{short}; the first failed point: {first[0][:TOLD]}" if first else short
    return Cause(clause, short, True, "points", case.end.hint, evidence=lines, occurrences=len(lines))


def _signalled(case: Case, hits: Sequence[Hit], number: signal.Signals) -> Cause:
    clause = f"{case.subject} was killed by {number.name}"
    rule = BY_NAME.get(_SIGNALS.get(number, ""))
    own_hits = [hit for hit in hits if hit.own]
    failed = [hit for hit in own_hits if hit.rule.name == "assertion"]
    if failed and number == signal.SIGABRT:
        return Cause.of_hit(failed[-1], hits, f"{clause}: {failed[-1].groups[0][:TOLD]}", named=True)
    if number not in _SENT:
        waited = next((hit for hit in own_hits if hit.rule.name == COLLECTIVE), None)
        if waited:  # PyTorch aborts a process a minute after it has said why, and prints much meanwhile
            return Cause.of_hit(waited, hits)
        if cause := _printed(case, hits, clause, crashed=True):
            return cause
        if words := last_output.last_words(case.last_output):
            said = f"{clause}; before that it printed: {words.text[:TOLD]}"
            cause = Cause.by_rule(rule, said) if rule else Cause(said, f"killed by {number.name}", True, "signal")
            places = [hit for hit in own_hits if rule and hit.rule.name == rule.name][-1:]
            line = case.own(words.text[:TOLD], words.number)
            remedy = f"See the output before the crash: {LOGS}."
            return cause._replace(remedy=remedy, evidence=(line, *(hit.line for hit in places)), occurrences=1)
    if rule is None and number not in _SENT:
        meaning = ": an arithmetic error in compiled code" if number == signal.SIGFPE else ""
        remedy = f"See the output before the crash: {LOGS}."
        return Cause(f"{clause}{meaning}", f"killed by {number.name}", True, "signal", remedy, evidence=case.quoted)
    if rule is None:
        if number != signal.SIGKILL and (words := last_output.last_words(case.last_output)):
            clause += f"; before that it printed: {words.text[:TOLD]}"
        kernel = (
            "The kernel sends SIGKILL when the memory of the job or the node is full. "
            f"If the memory was not full, a person or the site killed {case.subject}."
        )
        remedy = kernel if number == signal.SIGKILL else ""
        unknown = f"{clause}; the sender of the signal is unknown"
        return Cause(unknown, f"killed by {number.name}", False, "signal", remedy, evidence=case.quoted)
    clause = f"{clause}: {rule.cause}"
    rule_hits = [hit for hit in own_hits if hit.rule.name == rule.name]
    if rule_hits:
        return Cause.of_hit(rule_hits[-1], hits, clause, named=True)
    remedy = f"See the output before the crash: {LOGS}." if rule.name in _NAMED_BY_LINES else rule.remedy
    return Cause.by_rule(rule, clause, evidence=case.quoted)._replace(remedy=remedy)
