"""The supervisor, on the first node: it starts the kind's processes, runs the script, and ends the run."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
import time
import traceback

from hpcml import errors, features_by_point, outputs_brought_back
from hpcml.failures import job_log
from hpcml.failures.end import End
from hpcml.kind import Kind, Processes
from hpcml.node import end_cause, full_disk, next_attempt, scratch, shared_files
from hpcml.node.context import Context, load
from hpcml.node.events_and_end import EventLog, RunEndedError, or_a_full_disk, report_end, say, write_status
from hpcml.node.job import job_id
from hpcml.node.report_at_end import ReportProcess, unused_gpus
from hpcml.node.run_state import RunState
from hpcml.node.tasks.run_tasks import NO_FOLDER, run_tasks
from hpcml.node.tasks.task import OneTask
from hpcml.paths import SUPERVISOR
from hpcml.run_files import Recorded
from hpcml.safe_files import size_of, write
from hpcml.states import State

_PLACE = (
    "Set paths.scratch in the profile, or TMPDIR, to your own folder, "
    "or to a folder like /tmp (owned by root, with the sticky bit)."
)
_LONGEST_LINE = 80  # characters of a line of runtime.setup
_OF_SOCKETS = (errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.ENETDOWN, errno.ENETUNREACH, errno.EAFNOSUPPORT)


def main(kind: Kind) -> int:
    """Supervise a run of a kind and return its exit status."""
    context = load()
    try:
        status = _supervise(context, kind)
    except OSError as error:  # before the first phase, or in the teardown: there is no supervisor that could say it
        cause = full_disk.explanation(error, context.run.directory) if full_disk.is_full(error) else str(error)
        status = _refuse(context, errors.STORAGE, f"the supervisor failed: {cause}", full_disk.HINT)
    _wake_batch_script(context, status)
    return status


def _wake_batch_script(context: Context, status: int) -> None:
    """Leave the exit status where step.sh does, for the batch script, and wake it: both may be stopped (SIGSTOP)."""
    if not (batch := int(os.environ.get("HPCML_BATCH", "0"))):
        return
    try:
        write(context.attempt.exit_of(SUPERVISOR, context.node), f"{status}\n")
    except OSError as error:  # then it takes the status of the step
        print(f"hpcml: the exit status {status} cannot be written: {error}", file=sys.stderr)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it was killed
        os.kill(batch, signal.SIGCONT)


def _supervise(context: Context, kind: Kind) -> int:
    events = EventLog(context.run.events, context.number)
    job, batch = job_id(), int(os.environ.get("HPCML_BEGAN") or 0)
    size = size_of(context.run.script_log)
    kept = shared_files.read_json(context.run.kept) or {}
    events.write("allocated", nodes=list(context.node_names), job=job, node=context.node, began=batch, log=size, **kept)
    try:
        folder = scratch.Folder(context.scratch(longest=context.socket_room))
    except scratch.UnsafePlaceError as error:
        full_disk.write_end(context.run, context.attempt.ended, {"exit_status": errors.START_FAILED})
        return _refuse(context, errors.START_FAILED, str(error), _PLACE)
    with folder, contextlib.ExitStack() as folders:
        state = RunState(context, kind, events, folder.path)
        try:
            processes = _processes(state, folders)
        except RunEndedError as ended:
            full_disk.write_end(context.run, context.attempt.ended, {"exit_status": ended.end.exit_status})
            return _refuse(context, ended.end.exit_status, ended.end.message, ended.end.hint)
        signal.signal(signal.SIGTERM, lambda *_: setattr(state.end_requests, "signalled", True))
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell has its background processes ignore it
        full_disk.renew(context.run)
        _warn_of_setup(state)
        next_attempt.keep_last_end(context)
        if anew := next_attempt.waits_anew(context):
            state.warn(anew)
        outcome = or_a_full_disk(end_cause.from_slurm(context, _run(state, processes), state.job_logs), context)
        outcome = next_attempt.decided(context, outcome.with_killed_ranks())
        was_written = tear_down(state, processes, outcome)
    if outcome.by != "script":
        report_end(outcome, context)
    return outcome.exit_status if was_written else errors.STORAGE


def _warn_of_setup(state: RunState) -> None:
    """Warn of the lines of runtime.setup that failed, which setup.sh counted: ``2:1`` is line 2 with exit status 1."""
    failed = re.findall(r"(?<!\S)(\d{1,4}):(\d{1,3})(?!\S)", os.environ.get("HPCML_SETUP", ""))
    lines = Recorded(state.context.run).plan.setup if failed else ()
    for number, status in failed:
        if not 0 < int(number) <= len(lines):  # a line of the setup has changed the variable itself
            continue
        line = lines[int(number) - 1]
        sentence = (
            f"Line {number} of runtime.setup ({line[:_LONGEST_LINE]}) exited with status {status}. "
            "Correct this line. If it may fail, append '|| true'."
        )
        state.warn(sentence, setup=line, line=int(number), exit_status=int(status))


def _processes(state: RunState, folders: contextlib.ExitStack) -> Processes:
    """Return the kind's processes; an error of a socket is no error of storage."""
    try:
        processes = state.kind.processes(state, folders)
    except OSError as error:
        if error.errno not in _OF_SOCKETS:
            raise
        reason = f"hpcml's supervisor cannot listen on {state.context.node}: {error.strerror or error}"
        raise state.end(errors.START_FAILED, reason, "Set network.interface in the profile.") from error
    return processes


def _refuse(context: Context, status: int, reason: str, hint: str) -> int:
    """End a run without a supervisor that could."""
    outcome = End(status, "allocated", "hpcml", reason, hint)
    write_status(outcome, context)
    report_end(outcome, context)
    return status


def _run(state: RunState, processes: Processes) -> End:
    """Start the processes, run the script; whatever goes wrong is an outcome, so that the teardown always follows."""
    cwd = state.context.settings.code.cwd
    if not os.access(cwd, os.X_OK):
        reason = f"the script's working folder cannot be opened: {cwd}"
        return End(errors.START_FAILED, state.phase, "hpcml", reason, NO_FOLDER)
    try:
        environment = processes.start()
        queue = features_by_point.only("queue of points") if state.context.settings.points.sweep else OneTask
        return run_tasks(state, processes, queue(state, processes, environment | state.script_variables))
    except RunEndedError as ended:
        return ended.end
    except scratch.UnsafePlaceError as error:
        return End(errors.START_FAILED, state.phase, "hpcml", str(error), _PLACE)
    except Exception as error:  # noqa: BLE001 - the nodes must be freed whatever happens
        if isinstance(error, OSError) and full_disk.is_full(error):
            reason = full_disk.explanation(error, state.context.run.directory)
            return End(errors.STORAGE, state.phase, "hpcml", reason, full_disk.HINT)
        traceback.print_exc()  # into the script's log: a defect of hpcml, to be reported
        reason = f"hpcml's supervisor failed: {type(error).__name__}: {error}"
        hint = "This is a bug in hpcml. Please report it with the script's log."
        return End(errors.INTERNAL, state.phase, "hpcml", reason, hint)


def tear_down(state: RunState, processes: Processes, outcome: End) -> bool:
    """Have the processes end themselves, and wait for their steps within the deadline.

    Return True if the run's end could be written.
    """
    start = time.monotonic()
    context = state.context
    full_disk.write_end(context.run, context.attempt.ended, {"exit_status": outcome.exit_status})
    write_status(outcome, context, state.warnings, over=False)
    if outcome.exit_status:
        state.tell_clocks()
    page = ReportProcess(context)
    _wait(state, processes, start + processes.close())
    left = state.steps.alive()
    for pid in left:  # srun kills its tasks when told to end; elsewhere a step is a process group
        with contextlib.suppress(ProcessLookupError):
            if context.settings.job.launched:
                os.kill(pid, signal.SIGTERM)
            else:
                os.killpg(pid, signal.SIGKILL)
    _wait(state, processes, start + context.settings.deadlines.teardown)
    try:
        shared_files.remove_secrets(context.attempt)
    except OSError as error:  # they open nothing any more, and the script's status stays
        say(context, f"the run's secret keys could not be removed: {error}")
    for sentence in processes.remarks() if outcome.state == State.COMPLETED else ():
        state.warn(sentence)
    state.events.write("torn-down", seconds=round(time.monotonic() - start, 3), killed=len(left))
    _bring_files(state)
    page.begin()
    cause = _cause(state, outcome)
    page.end()
    if page.missed:
        state.warn(page.missed)
    if unused := unused_gpus(context):
        state.warn(unused)
    if state.end_requests.batch.state == "T":
        state.warn(f"{context.node}: the batch script was stopped (SIGSTOP); it continues.")
    outcome = outcome._replace(quote=_quote_of_role(state, outcome))
    was_written = write_status(outcome, context, state.warnings, cause=cause)
    full_disk.release(context.run)
    return was_written


def _quote_of_role(state: RunState, outcome: End) -> tuple[str, ...]:
    """Return the lines that show an end; of a role that was lost all: its step has ended, and has written its log."""
    role = next((role for role in state.kind.roles if role.name == outcome.role and not role.every_node), None)
    if role is None or not outcome.quote or outcome.exit_status != errors.ROLE_LOST:
        return outcome.quote
    return job_log.of_role(state.context.run, role, outcome.node)


def _bring_files(state: RunState) -> None:
    """Bring what the script wrote into the copy of its code to where it belongs, unless another attempt needs it."""
    context = state.context
    if not state.script_began or context.attempt.goes_on.exists():
        return
    try:
        result = outputs_brought_back.bring(context.run, context.number, everywhere=False)
    except OSError as error:  # the next `hpcml status` tries it again
        say(context, f"the files that the script wrote beside its code stay in {context.run.code}: {error}")
        return
    if result and (sentence := result.sentence()):
        state.warn(sentence)


def _cause(state: RunState, outcome: End) -> str:
    """Return the cause of the run's failure in some words, for ``hpcml ls``; empty where that is not known."""
    context = state.context
    if not outcome.exit_status:
        return ""
    try:
        judge = features_by_point.only("cause of a run")
        facts = (outcome, state.kind, state.events.times, context.settings.code.form, state.clocks)
        return str(judge(context.run, context.attempt, *facts))
    except Exception as error:  # noqa: BLE001 - the run's end must be written whatever happens
        say(context, f"the cause of the failure could not be examined: {error!r}")
        return ""


def _wait(state: RunState, processes: Processes, deadline: float) -> None:
    """Wait for the end of the steps; what the processes report meanwhile is written down."""
    while state.steps.alive() and time.monotonic() < deadline:
        processes.step()
    if not processes.silent:
        processes.step()  # its last messages
