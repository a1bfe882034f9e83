"""The tasks that run: how the supervisor starts them, what ends them before their own end, and how each ended."""

from __future__ import annotations

import time

from hpcml import errors
from hpcml.failures import job_log
from hpcml.failures.end import SLURM, End, MemoryLimit, Reason, of_machine
from hpcml.kind import Processes, RunningTask
from hpcml.node import full_disk, stacks, starts
from hpcml.node.events_and_end import RunEndedError, end_of_hindrance, say
from hpcml.node.oom_and_hangs import HUNG_AFTER, FileSystemHang
from hpcml.node.process_helpers import Process
from hpcml.node.run_state import RunState
from hpcml.node.tasks.error_hint import next_step
from hpcml.node.tasks.task import Queue, Task
from hpcml.paths import SCRIPT
from hpcml.states import State

SLOW_TICK = 5.0  # seconds between looks at what changes slowly: the room of the run's file system, a script that hangs
NO_FOLDER = "The folder from which you submitted must exist on the compute nodes."


def run_tasks(state: RunState, processes: Processes, queue: Queue) -> End:
    """Run the tasks of a queue until it is closed and the last has ended; return the end of the run."""
    state.phase, state.script_began = SCRIPT, True
    tasks = Tasks(state, processes, queue)
    try:
        tasks.follow()
    finally:
        tasks.kill()
        state.awaited.clear()
    return queue.end()


class Tasks:
    """The tasks of the run that run now."""

    def __init__(self, state: RunState, processes: Processes, queue: Queue) -> None:
        self.state, self.processes, self.queue = state, processes, queue
        self.running: dict[Task, RunningTask] = {}
        self.first: Task | None = None  # it stands for the run
        self.must_end: End | None = None  # why the run ends before its tasks do
        self.kill_at, self.slow_looked, self.slow = float("inf"), 0.0, ""
        self.hang = FileSystemHang(0)

    @property
    def pid(self) -> int:
        """The process of the first task, 0 if it has none on this node, or has ended."""
        first = self.running.get(self.first) if self.first else None
        return first.pid if first else 0

    def follow(self) -> None:
        """Start the tasks and follow them to their ends."""
        while self._go_on():
            self.processes.step()
            self.queue.step()
            self._look_slowly()
            if self.must_end is None and (end := self._asked()):
                self.must_end = end
                self._keep_stacks(end)
                self.state.events.write("ending", message=end.message)
                self.kill_at = time.monotonic() + self.state.context.settings.deadlines.script_grace
                if not self.state.end_requests.signalled:
                    self._tell_to_end()
            if self.must_end:
                self._press()

    def kill(self) -> None:
        """Kill what is left of the tasks."""
        for running in self.running.values():
            running.kill()

    def _go_on(self) -> bool:
        """Take note of the tasks that have ended, and start those that begin; return True if any runs, or will."""
        for done, running in [*self.running.items()]:
            if (status := running.poll()) is not None:
                self._end(done, running, status)
        while self.must_end is None and (task := self.queue.take()):
            self._start(task)
        return bool(self.running) or not (self.must_end or self.queue.closed)

    def _start(self, task: Task) -> None:
        """Start a task; one that cannot be started has ended so."""
        try:
            running = self.queue.start(task)
        except OSError as error:
            hindered = starts.hindrance(error, str(error.filename))
            reason = f"the script could not be started: {hindered.reason}"
            hint = NO_FOLDER if error.filename == task.code.cwd else hindered.hint
            self.queue.ended(task, End(errors.START_FAILED, self.state.phase, "hpcml", reason, hint))
            return
        self.running[task] = running
        if self.first is None:
            self.first, self.hang = task, FileSystemHang(running.pid)
            self.state.events.write("script-started", **({"pid": running.pid} if running.pid else {}))

    def _end(self, task: Task, running: RunningTask, status: int) -> None:
        """Take note of the end of a task."""
        must_end = self.must_end if status or task is self.first else None  # any other that exited with 0 is done
        if task is self.first:
            self.state.events.write("script-ended", exit_status=status)
            if must_end is None and not running.out_of_memory(status):  # on its own, or quicker than the supervisor
                self.state.end_requests.look_again()
                must_end = self.state.end_requests.asked(self.state.phase) or self._hindered(status)
        end = end_of(self.state, task, running, status, must_end)
        running.kill()  # what it left
        del self.running[task]
        self.queue.ended(task, end)

    def _hindered(self, status: int) -> End | None:
        """Return the end of a run whose script could not do its work, None if it could."""
        hindrance = self.processes.hindrance(status)
        return end_of_hindrance(hindrance) if hindrance else None

    # -- what ends them ---------------------------------------------------------------------------------------------

    def _asked(self) -> End | None:
        """Return the end that the run must have before its tasks end, None if it has not to."""
        was_near = self.state.end_requests.time_limit_near
        try:
            self.state.end_requests.check(self.state.phase)
            self.processes.check()
            self.queue.check()
        except RunEndedError as ended:
            return ended.end
        finally:
            if self.state.end_requests.time_limit_near and not was_near:  # for `hpcml why`, while it can still answer
                self._ask_for_stacks()
        return None

    def _tell_to_end(self) -> None:
        for running in self.running.values():
            running.tell_to_end()

    def _press(self) -> None:
        """Have tasks end that are to end: by a SIGTERM that only the supervisor got, at last by SIGKILL."""
        if self.state.end_requests.were_for_the_supervisor_alone():
            self._tell_to_end()
        if time.monotonic() > self.kill_at:
            self.kill()

    def _keep_stacks(self, end: End) -> None:
        """Before a run ends that does nothing, have all nodes write where their processes are, for ``hpcml why``."""
        until = time.monotonic() + stacks.BEFORE_END
        if end.exit_status != errors.IDLE or not (request := self._ask_for_stacks()):
            return
        while time.monotonic() < until:
            self.processes.step()
            if self.state.time_to_look() and stacks.are_all_written(
                self.state.context, request, self.state.stacks_written
            ):
                return

    def _ask_for_stacks(self) -> str:
        """Have all nodes write where their processes are; return the number of the request, empty without one.

        A script that a file system blocks could not answer, and the signal would look like an end of its wait.
        """
        if self.state.frozen:
            return ""
        try:
            return stacks.ask(self.state.context, self.pid)
        except OSError as error:
            say(self.state.context, f"the call stacks of the processes were not written: {error}")
            return ""

    # -- what is noticed meanwhile ----------------------------------------------------------------------------------

    def _look_slowly(self) -> None:
        """Warn of a disk without room, of a script that is blocked or stopped, and of saves that take long."""
        state, pid = self.state, self.pid
        if state.clock.seconds - self.slow_looked < SLOW_TICK:
            return
        self.slow_looked = state.clock.seconds
        if full := full_disk.scarce(state.context.run.directory):  # the script may not need it, or room be made
            state.warn(f"{full}: further output of the script and further log lines are lost.")
        if not (self.must_end or state.end_requests.signalled):  # the wait of one that dies just ends
            look_for_hang(state, self.hang)
        if Process.named(pid).state == "T":
            resume = f"kill -CONT {pid} on {state.context.node}"
            state.warn(f"The script is stopped (SIGSTOP). Continue the script ({resume}) or cancel the run.")
        if not self.slow and (slow := state.end_requests.slow_save()):
            self.slow = slow
            state.warn(f"{slow}.")


def look_for_hang(state: RunState, hang: FileSystemHang) -> None:
    """Say when the script waits for a file system, and when it continues."""
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


def end_of(state: RunState, task: Task, running: RunningTask, status: int, must_end: End | None) -> End:
    """Return the end of a task that exited with a status; ``must_end`` is why the run had to end before."""
    why = must_end.exit_status if must_end else 0
    stopped = status == errors.STOPPED and why == errors.TIME_LIMIT
    obeyed = stopped or (status == 0 and why in (errors.TIME_LIMIT, errors.CANCELLED))
    starved = running.out_of_memory(status)
    if must_end is None and running.killed_by_others(status) and state.end_requests.time_limit_near and not starved:
        reason = "the script was killed (SIGKILL) after the warning that the time limit was near"
        must_end = End(errors.TIME_LIMIT, SCRIPT, SLURM, reason)
    # The kernel can take a role in the same moment as the script: then memory is the cause, and not the loss.
    if must_end and not obeyed and not (starved and why == errors.ROLE_LOST):
        return must_end._replace(killed_ranks=running.failed_process().killed_ranks)
    ended_as = must_end.state if must_end and obeyed else State.OUT_OF_MEMORY if starved else ""
    if state.end_requests.time_limit_near and status == errors.STOPPED:
        ended_as = State.TIMEOUT
    limit = MemoryLimit.NODE if starved else ""
    return _own_end(state, task, running, status)._replace(ended_as=ended_as, memory_limit=limit)


def _own_end(state: RunState, task: Task, running: RunningTask, status: int) -> End:
    """Return the end of a task that ended by itself, or its program of hpcml's, with the last lines of what failed."""
    failed = running.failed_process()
    log = state.context.run.logs / failed.log if failed.log else task.log
    by = "hpcml" if task.code.form in state.kind.programs and status == errors.START_FAILED else "script"
    hint = next_step(state.context, task.error) if status else ""
    reason = Reason.EXIT if by == "script" and running.only_exited(status) else ""
    others = tuple(rank for rank in failed.killed_ranks if rank != failed.rank)  # a signal may have ended it first
    facts = failed._replace(killed_ranks=others)._asdict()
    clause = of_machine(running.describe_end(status), one_machine=state.context.settings.job.one_machine)
    end = End(status, SCRIPT, by, clause, hint, reason=reason, **facts)
    return end._replace(quote=job_log.of_script(log, end))
