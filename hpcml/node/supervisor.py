"""The supervisor, on the first node: it starts the kind's processes, runs the script, and ends the run."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import time
import traceback

from hpcml import errors, hooks, written
from hpcml.failures.end import SLURM, End, MemoryLimit, Reason
from hpcml.files import size_of, tail, write
from hpcml.kind import Kind, Processes, RunningScript
from hpcml.node import attempts, end_cause, files, scratch, script_process, stacks, starts, storage
from hpcml.node.job import job_id
from hpcml.node.outcome import EventLog, RunEndedError, end_of_hindrance, or_a_full_disk, report_end, say, write_status
from hpcml.node.processes import Process
from hpcml.node.run_state import RunState
from hpcml.node.script_process import HUNG_AFTER, FileSystemHang
from hpcml.node.settings import Context, load
from hpcml.paths import SCRIPT, SUPERVISOR
from hpcml.recorded import Recorded
from hpcml.states import State

SLOW_TICK = 5.0  # seconds between looks at what changes slowly: the room of the run's file system, a script that hangs
NO_FOLDER = "The folder from which you submitted must exist on the compute nodes."
_PLACE = (
    "Set paths.scratch in the profile, or TMPDIR, to your own folder, "
    "or to a folder like /tmp (owned by root, with the sticky bit)."
)
_LONGEST_LINE = 80  # characters of a line of runtime.setup
_OF_SOCKETS = (errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.ENETDOWN, errno.ENETUNREACH, errno.EAFNOSUPPORT)
REPORT_LONGEST = 3.0  # seconds that the nodes wait for it
SEEN_UNUSED = 20.0  # seconds of a script after which samples tell that a GPU was not used
REPORT_KILLED = 1.0  # seconds until it has gone when it was killed


def main(kind: Kind) -> int:
    """Supervise a run of a kind and return its exit status."""
    context = load()
    try:
        status = _supervise(context, kind)
    except OSError as error:  # before the first phase, or in the teardown: there is no supervisor that could say it
        cause = storage.explanation(error, context.run.directory) if storage.is_full(error) else str(error)
        status = _refuse(context, errors.STORAGE, f"the supervisor failed: {cause}", storage.HINT)
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
    began = size_of(context.run.job_log)
    events = EventLog(context.run.events, context.number)
    job, batch = job_id(), int(os.environ.get("HPCML_BEGAN") or 0)
    size = size_of(context.run.script_log)
    events.write("allocated", nodes=list(context.node_names), job=job, node=context.node, began=batch, log=size)
    try:
        folder = scratch.Folder(context.scratch(longest=context.socket_room))
    except scratch.UnsafePlaceError as error:
        storage.write_end(context.run, context.attempt.ended, {"exit_status": errors.START_FAILED})
        return _refuse(context, errors.START_FAILED, str(error), _PLACE)
    with folder, contextlib.ExitStack() as folders:
        state = RunState(context, kind, events, folder.path)
        try:
            processes = _processes(state, folders)
        except RunEndedError as ended:
            storage.write_end(context.run, context.attempt.ended, {"exit_status": ended.end.exit_status})
            return _refuse(context, ended.end.exit_status, ended.end.message, ended.end.hint)
        signal.signal(signal.SIGTERM, lambda *_: setattr(state.end_requests, "signalled", True))
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell has its background processes ignore it
        storage.renew(context.run)
        _warn_of_setup(state)
        attempts.keep_last_end(context)
        if anew := attempts.waits_anew(context):
            state.warn(anew)
        outcome = or_a_full_disk(end_cause.from_slurm(context, _run(state, processes), began), context)
        outcome = attempts.decided(context, outcome)
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
        return run_script(state, processes, processes.start())
    except RunEndedError as ended:
        return ended.end
    except scratch.UnsafePlaceError as error:
        return End(errors.START_FAILED, state.phase, "hpcml", str(error), _PLACE)
    except Exception as error:  # noqa: BLE001 - the nodes must be freed whatever happens
        if isinstance(error, OSError) and storage.is_full(error):
            reason = storage.explanation(error, state.context.run.directory)
            return End(errors.STORAGE, state.phase, "hpcml", reason, storage.HINT)
        traceback.print_exc()  # into the script's log: a defect of hpcml, to be reported
        reason = f"hpcml's supervisor failed: {type(error).__name__}: {error}"
        hint = "This is a bug in hpcml. Please report it with the script's log."
        return End(errors.INTERNAL, state.phase, "hpcml", reason, hint)


def run_script(state: RunState, processes: Processes, environment: dict[str, str]) -> End:
    """Run the script to its end and return how it ended."""
    state.phase, state.script_began = SCRIPT, True
    try:
        script = processes.run_script(environment | state.script_variables)
    except OSError as error:
        hindered = starts.hindrance(error, str(error.filename))
        reason = f"the script could not be started: {hindered.reason}"
        hint = NO_FOLDER if error.filename == state.context.settings.code.cwd else hindered.hint
        return End(errors.START_FAILED, state.phase, "hpcml", reason, hint)
    state.events.write("script-started", **({"pid": script.pid} if script.pid else {}))
    try:
        outcome = _follow(state, processes, script)
    finally:
        script.kill()
    return outcome


def _follow(state: RunState, processes: Processes, script: RunningScript) -> End:
    must_end: End | None = None
    kill_at, slow_looked = float("inf"), 0.0
    hang, slow = FileSystemHang(script.pid), ""
    while (status := script.poll()) is None:
        processes.step()
        if state.clock.seconds - slow_looked >= SLOW_TICK:
            slow_looked = state.clock.seconds
            if full := storage.scarce(state.context.run.directory):  # the script may not need it, or room be made
                state.warn(f"{full}: further output of the script and further log lines are lost.")
            _look_for_hang(state, hang, told_to_end=bool(must_end or state.end_requests.signalled))
            if Process.named(script.pid).state == "T":
                pid = f"kill -CONT {script.pid} on {state.context.node}"
                state.warn(f"The script is stopped (SIGSTOP). Continue the script ({pid}) or cancel the run.")
            if not slow and (slow := state.end_requests.slow_save()):
                state.warn(f"{slow}.")
        if must_end is None and (must_end := _must_end(state, processes, script)):
            _keep_stacks(state, processes, script, must_end)
            state.events.write("ending", message=must_end.message)
            kill_at = time.monotonic() + state.context.settings.deadlines.script_grace
            if not state.end_requests.signalled:
                script.tell_to_end()
        if must_end:
            _press(state, script, kill_at)
    state.events.write("script-ended", exit_status=status)
    if must_end is None and not script.out_of_memory(status):  # on its own, or quicker than the supervisor
        state.end_requests.look_again()
        must_end = state.end_requests.asked(state.phase) or _hindered(processes, status)
    return _end_of(state, script, status, must_end)


def _press(state: RunState, script: RunningScript, kill_at: float) -> None:
    """Have a script end that is to end: by a SIGTERM that only the supervisor got, at last by SIGKILL."""
    if state.end_requests.were_for_the_supervisor_alone():
        script.tell_to_end()
    if time.monotonic() > kill_at:
        script.kill()


def _hindered(processes: Processes, status: int) -> End | None:
    """Return the end of a run whose script could not do its work, None if it could."""
    hindrance = processes.hindrance(status)
    return end_of_hindrance(hindrance) if hindrance else None


def _keep_stacks(state: RunState, processes: Processes, script: RunningScript, end: End) -> None:
    """Before a run ends that does nothing, have all nodes write where their processes are, for ``hpcml why``."""
    until = time.monotonic() + stacks.BEFORE_END
    if end.exit_status != errors.IDLE or not (request := _ask_for_stacks(state, script)):
        return
    while time.monotonic() < until:
        processes.step()
        if state.time_to_look() and stacks.are_all_written(state.context, request, state.stacks_written):
            return


def _ask_for_stacks(state: RunState, script: RunningScript) -> str:
    """Have all nodes write where their processes are; return the number of the request, empty without one.

    A script that a file system blocks could not answer, and the signal would look like an end of its wait.
    """
    if state.frozen:
        return ""
    try:
        return stacks.ask(state.context, script.pid)
    except OSError as error:
        say(state.context, f"the call stacks of the processes were not written: {error}")
        return ""


def _end_of(state: RunState, script: RunningScript, status: int, must_end: End | None) -> End:
    """Return how the run ended whose script ended so; ``must_end`` is why it was told to."""
    why = must_end.exit_status if must_end else 0
    stopped = status == errors.STOPPED and why == errors.TIME_LIMIT
    obeyed = stopped or (status == 0 and why in (errors.TIME_LIMIT, errors.CANCELLED))
    starved = script.out_of_memory(status)
    if must_end is None and script.killed_by_others(status) and state.end_requests.time_limit_near and not starved:
        reason = "the script was killed (SIGKILL) after the warning that the time limit was near"
        must_end = End(errors.TIME_LIMIT, SCRIPT, SLURM, reason)
    # The kernel can take a role in the same moment as the script: then memory is the cause, and not the loss.
    if must_end and not obeyed and not (starved and why == errors.ROLE_LOST):
        return must_end
    ended_as = must_end.state if must_end and obeyed else State.OUT_OF_MEMORY if starved else ""
    if state.end_requests.time_limit_near and status == errors.STOPPED:
        ended_as = State.TIMEOUT
    limit = MemoryLimit.NODE if starved else ""
    return _own_end(state, script, status)._replace(ended_as=ended_as, memory_limit=limit)


def _own_end(state: RunState, script: RunningScript, status: int) -> End:
    """Return how a script ended by itself, or its program of hpcml's, with the last lines of what failed."""
    failed = script.failed_process()
    log = state.context.run.logs / failed.log if failed.log else state.context.run.script_log
    quote = () if status in (0, errors.STOPPED) else tail(log, width=300, begin=failed.log_begin)
    settings = state.context.settings
    by = "hpcml" if settings.code.form in state.kind.programs and status == errors.START_FAILED else "script"
    hint = script_process.next_step(state.context) if status else ""
    end = End(status, SCRIPT, by, script.describe_end(status), hint, quote)
    reason = Reason.EXIT if by == "script" and script.only_exited(status) else ""
    return end._replace(reason=reason, **failed._asdict())


def _look_for_hang(state: RunState, hang: FileSystemHang, *, told_to_end: bool) -> None:
    """Say when the script waits for a file system, and when it continues; the wait of one that dies just ends."""
    if told_to_end:
        return
    node = state.context.node
    if waits := hang.look(state.clock.seconds):
        state.frozen = True
        state.events.write("script-blocked", node=node, on=waits)
        state.warn(
            f"{node}: the script has been blocked on a file system for {HUNG_AFTER:g} s: "
            f"the file system does not respond ({waits})."
        )
    elif state.frozen:
        state.frozen = False
        state.events.write("script-unblocked", node=node)
        state.warn(f"{node}: the file system responds again; the script continues.")


def _must_end(state: RunState, processes: Processes, script: RunningScript) -> End | None:
    """Return why the script has to end before its own end, None if it has not to."""
    was_near = state.end_requests.time_limit_near
    try:
        state.end_requests.check(state.phase)
        processes.check()
    except RunEndedError as ended:
        return ended.end
    finally:
        if state.end_requests.time_limit_near and not was_near:  # for `hpcml why`, while the script can still answer
            _ask_for_stacks(state, script)
    return None


def tear_down(state: RunState, processes: Processes, outcome: End) -> bool:
    """Have the processes end themselves, and wait for their steps within the deadline.

    Return whether the run's end could be written.
    """
    start = time.monotonic()
    context = state.context
    storage.write_end(context.run, context.attempt.ended, {"exit_status": outcome.exit_status})
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
        files.remove_secrets(context.attempt)
    except OSError as error:  # they open nothing any more, and the script's status stays
        say(context, f"the run's secret keys could not be removed: {error}")
    for sentence in processes.remarks() if outcome.state == State.COMPLETED else ():
        state.warn(sentence)
    state.events.write("torn-down", seconds=round(time.monotonic() - start, 3), killed=len(left))
    _bring_files(state)
    page.begin()
    cause = _cause(state, outcome)
    page.end()
    if unused := unused_gpus(context):
        state.warn(unused)
    if state.end_requests.batch.state == "T":
        state.warn(f"{context.node}: the batch script was stopped (SIGSTOP); it continues.")
    was_written = write_status(outcome, context, state.warnings, cause=cause)
    storage.release(context.run)
    return was_written


def _bring_files(state: RunState) -> None:
    """Bring what the script wrote into the copy of its code to where it belongs, unless another attempt needs it."""
    context = state.context
    if not state.script_began or context.attempt.goes_on.exists():
        return
    try:
        result = written.bring(context.run, context.number, everywhere=False)
    except OSError as error:  # the next `hpcml status` tries it again
        say(context, f"the files that the script wrote beside its code stay in {context.run.code}: {error}")
        return
    if result and (sentence := result.sentence()):
        state.warn(sentence)


def unused_gpus(context: Context) -> str:
    """Return a sentence on GPUs that the samples never saw in use, by the report's figures; empty if there are none."""
    try:
        facts = files.read_json(context.run.report_facts) or {}
    except (OSError, ValueError):  # the report's own process has said why it could not be written
        return ""
    figures, seconds = facts.get("figures", {}), facts.get("script_seconds", 0.0)
    unused, count = int(figures.get("gpus_unused", 0)), int(figures.get("gpus", 0))
    if not unused or facts.get("attempt") != context.number or seconds < SEEN_UNUSED:
        return ""
    which = f"{unused} of the run's {count} GPUs" if count > 1 else "the run's GPU"
    return f"The script did not use {which}. Request fewer GPUs (--gpus-per-node), or give work to every GPU."


def _cause(state: RunState, outcome: End) -> str:
    """Return why the run failed in some words, for ``hpcml ls``; empty where that is not known."""
    context = state.context
    if not outcome.exit_status:
        return ""
    try:
        judge = hooks.only("cause of a run")
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


class ReportProcess:
    """The process: it imports what it needs while the roles are told to close, and makes the report when they have.

    Nothing of it can fail the run: what goes wrong is said in the job's log, with how to make the report later.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.process: subprocess.Popen[bytes] | None = None
        command = [sys.executable, "-P", "-m", "hpcml.kinds.report", str(context.run.directory), str(context.number)]
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, cwd="/")
        except OSError as error:
            self._missed(str(error))

    def begin(self) -> None:
        """Let the process begin: all that the roles write is there."""
        if self.process and self.process.stdin:
            with contextlib.suppress(BrokenPipeError):  # it has failed, which its end tells
                self.process.stdin.write(b"go\n")
                self.process.stdin.flush()

    def end(self) -> None:
        """Wait for the report, not longer than its deadline."""
        if not self.process:
            return
        try:
            _, output = self.process.communicate(timeout=REPORT_LONGEST)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the file system holds it; nobody waits for it
                self.process.communicate(timeout=REPORT_KILLED)
            self._missed(f"the report was not ready within {REPORT_LONGEST:g} s")
            return
        if self.process.returncode:
            last = output.decode(errors="replace").strip().rpartition("\n")[2]
            self._missed(last or f"the report process ended with exit status {self.process.returncode}")

    def _missed(self, why: str) -> None:
        say(
            self.context,
            f"the report was not written ({why}). Write it with: hpcml report {self.context.run.directory.name}",
        )
