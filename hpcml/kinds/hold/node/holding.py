"""What takes runs in a kept allocation, starts each on nodes that are free, and follows it to its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from hpcml import errors, hold_queue, typed_json
from hpcml.failures.end import End
from hpcml.kind import FailedProcess
from hpcml.kinds.hold import END
from hpcml.kinds.hold.node.prestarted_run import Ahead, difference, launched, parts
from hpcml.node import full_disk, shared_files
from hpcml.node.context import Context
from hpcml.node.run_state import RunState
from hpcml.paths import AttemptPaths, RunPaths
from hpcml.run_files import Recorded, RecordedPlan
from hpcml.safe_files import read_json
from hpcml.states import State

LOOK = 0.05  # seconds between two looks for runs, which list two folders of the shared file system
LIVELY = 60.0  # seconds after a run began or ended in which the next may soon come
SLOW_LOOK = 0.25  # seconds between two looks after that
WARNING = 120.0  # seconds before an idle hold ends in which it says so; at most half of its idle time
TOLD_TO_END = 128 + signal.SIGTERM  # its exit status, as that of a script


class HeldRun:
    """A run in the hold: its first process, the nodes that it has, and when it has to end."""

    def __init__(
        self, context: Context, name: str, nodes: tuple[str, ...], start: hold_queue.Start, ready: Ahead | None
    ) -> None:
        self.name, self.nodes, self.start, self.ready = name, nodes, start, ready
        self.paths = RunPaths(context.run.directory.parent / name)
        plan = Recorded(self.paths).plan
        self.part, settings = plan.part, plan.inside
        self.image = settings.job.image  # which is entered with folders of one run
        self.lead, self.grace = settings.job.signal_lead, settings.deadlines.script_grace + settings.deadlines.teardown
        limit = 0 if settings.job.one_machine else settings.job.time_limit  # there the run keeps it itself
        self.ends = time.monotonic() + limit if limit else float("inf")
        self.near = False  # whether it was warned of its limit
        self.kill_at = float("inf")
        # ``lifeline``: its first process has the other end, and sees when this one has gone
        self.process, self.lifeline = ready.become(self.paths) if ready else launched(start, nodes, self.paths.job_log)

    @property
    def attempt(self) -> AttemptPaths | None:
        """Its attempt, None before that has begun."""
        numbers = [int(name) for name in shared_files.listed(self.paths.directory / "attempts") if name.isdecimal()]
        return self.paths.attempt(max(numbers)) if numbers else None

    def keep_limit(self, hold_is_near: bool) -> None:
        """Tell the run when its time limit, or the hold's, is near, and when it is reached."""
        now = time.monotonic()
        if not self.near and (hold_is_near or now > self.ends - self.lead) and (attempt := self.attempt):
            self.near = True
            full_disk.write_end(self.paths, attempt.time_limit, {})
        if now > self.ends:
            self.ends = float("inf")
            self.tell_to_end(errors.TIME_LIMIT, "the time limit was reached")
        if now > self.kill_at:
            self.kill()

    def tell_to_end(self, status: int, message: str, by: str = "hpcml") -> None:
        """Tell the run to end, with the end that this means; one that has not begun is killed."""
        if self.kill_at < float("inf"):
            return
        self.kill_at = time.monotonic() + self.grace + END / 2
        if not (attempt := self.attempt):
            self.process.send_signal(signal.SIGTERM)
            return
        full_disk.write_end(self.paths, attempt.hold_ends, End(status, "", by, message).as_json())
        full_disk.write_end(self.paths, attempt.terminate, {})

    def kill(self) -> None:
        """Kill its first process: of a step of Slurm's all others end with it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close what this process has of it."""
        os.close(self.lifeline)
        if self.ready:
            self.ready.remove()


class Holding:
    """The hold in the place of a script: it ends with 0 when it was idle for too long."""

    pid = 0

    def __init__(self, state: RunState) -> None:
        self.state, self.context = state, state.context
        self.paths, self.runs = self.context.run, dict[str, HeldRun]()
        self.paths.queue.mkdir(mode=0o700, exist_ok=True)  # a hold that Slurm has requeued had renamed it
        self.paths.held.mkdir(mode=0o700, exist_ok=True)
        self.paths.told.mkdir(mode=0o700, exist_ok=True)
        job, names, self.keeps = self.context.settings.job, self.context.node_names, self.context.settings.code.keeps
        self.free = [*names] if not job.one_machine else [*names] * job.nodes  # of which no run has a part
        self.parts = dict[str, list[hold_queue.Part]]()  # that runs have of other nodes
        self.lost: set[str] = set()  # nodes that do not answer
        self.looked, self.ended, self.idle = 0.0, 0, 0.0  # ``idle``: seconds, before the present wait
        self.used = self.waits_since = self.changed = time.monotonic()
        self.told = self.is_closed = self.warned = self.waits = False  # ``waits``: a run, for nodes
        self.last: HeldRun | None = None  # the run that ended last, where its like is to start ahead
        self.ahead: Ahead | None = None
        self.ending: list[Ahead] = []  # those that are to end, as no run has them
        self.count = 0
        shutil.rmtree(self.paths.ahead, ignore_errors=True)  # of a supervisor before this one
        self.patient: set[str] = set()  # runs behind the one that waits longest that may wait too
        self._tell()

    # -- as a task --------------------------------------------------------------------------------------------------

    def poll(self) -> int | None:
        """Return the exit status once no run is left, and none will come."""
        if self.runs or self.ahead or self.ending or not self.is_closed:
            return None
        return TOLD_TO_END if self.told or self.state.end_requests.time_limit_near else 0

    def tell_to_end(self) -> None:
        """Tell the runs to end, and take none any more."""
        self.told = True
        self._close()
        near = self.state.end_requests.time_limit_near
        status, how = (errors.TIME_LIMIT, "reached its time limit") if near else (errors.CANCELLED, "was cancelled")
        for run in self.runs.values():
            run.tell_to_end(status, f"the hold {how}", by="hpcml" if near else "user")

    def kill(self) -> None:
        """Kill what is left of the runs."""
        for run in self.runs.values():
            run.kill()
        for ready in (*self.ending, *([self.ahead] if self.ahead else [])):
            ready.kill()
            ready.remove()

    def killed_by_others(self, status: int) -> bool:  # noqa: ARG002 - it is no process
        """Whether somebody killed it: it is no process."""
        return False

    out_of_memory = killed_by_others

    def describe_end(self, status: int) -> str:
        """Return the words for its end."""
        return "the hold ended" if not status else "the hold had to end"

    def only_exited(self, status: int) -> bool:  # noqa: ARG002 - it says all
        """Whether that says no more than the exit status."""
        return False

    def failed_process(self) -> FailedProcess:
        """Return nothing: it has no process."""
        return FailedProcess()

    # -- the runs ---------------------------------------------------------------------------------------------------

    def step(self, *, used: bool = False) -> None:
        """Take note of runs that have ended or are to end, and start those that wait; ``used``: something works."""
        now = time.monotonic()
        if used:
            self.used = now
        for run in [*self.runs.values()]:
            if run.process.poll() is not None:
                self._end(run)
        if now - self.looked < (LOOK if now - self.changed < LIVELY else SLOW_LOOK):
            return
        self.looked = now
        near = self.state.end_requests.time_limit_near
        for name in shared_files.listed(self.paths.told) & self.runs.keys():
            self.runs[name].tell_to_end(errors.CANCELLED, "the run was cancelled", by="user")
        for run in self.runs.values():
            run.keep_limit(near)
        if near:
            self._close()
        while not self.is_closed and self._take():
            pass
        self._keep_ahead()
        self._look_for_idleness()

    def lose(self, nodes: set[str]) -> None:
        """Start no run on these nodes from now, which do not answer, and write down which they are."""
        if nodes != self.lost:
            self.lost = nodes
            self._tell()

    def _take(self) -> bool:
        """Start the run that waits longest, if the nodes for it are free; return True to look again."""
        waiting = sorted(shared_files.listed(self.paths.queue), key=lambda name: name.rsplit("-", 3)[1:])
        self.waits = bool(waiting)
        if not waiting:
            return False
        name = waiting[0]
        plan = Recorded(RunPaths(self.paths.directory.parent / name)).plan
        count, free = plan.inside.job.nodes, self._free_for(plan.part)
        left = len(free) + len(self.parts.keys() - {*free})
        left += sum(len(run.nodes) for run in self.runs.values() if not run.part)
        waits = len(free) < count <= left and not plan.no_wait
        if waits and not (name := self._hasty(waiting[1:])):  # one that is not to wait may not overtake: it is refused
            return False
        entry = self.paths.held / name
        try:
            (self.paths.queue / name).rename(entry)
        except FileNotFoundError:  # it was cancelled meanwhile
            return True
        except OSError:  # the file system may recover
            return False
        if (start := self._read(entry)) is None:
            with contextlib.suppress(OSError):
                entry.unlink(missing_ok=True)
            return True
        problem, status = _problem(count, len(free), left, behind=name != waiting[0])
        try:
            if not problem:
                self._begin(self._start(name, plan, tuple(free[:count]), start))
        except OSError as error:
            problem = str(error.strerror)
        if problem:
            message = f"the run could not be started in the hold: {problem}"
            self._never_began(name, End(status, "queued", "hpcml", message))
            entry.unlink(missing_ok=True)
        return True

    def _read(self, entry: Path) -> hold_queue.Start | None:
        """Return the start of a run, and empty its file; None if that cannot be, and then the run has ended."""
        try:
            start = typed_json.read(hold_queue.Start, read_json(entry))
            os.truncate(entry, 0)  # the variables may be secret; not made again where it was cancelled meanwhile
        except FileNotFoundError:  # it was cancelled meanwhile
            end = End(errors.CANCELLED, "queued", "user", "the run was cancelled", ended_as=State.CANCELLED)
            (self.paths.told / entry.name).unlink(missing_ok=True)
        except (OSError, ValueError) as error:  # somebody changed it (hpcml run writes whole files), or the disk fails
            problem = f"its entry in the hold cannot be read: {getattr(error, 'strerror', '') or error}"
            self.state.warn(f"hpcml does not start {entry.name}: {problem}")
            end = End(errors.START_FAILED, "queued", "hpcml", f"the run never started: {problem}")
        else:
            return start
        if (self.paths.directory.parent / entry.name).is_dir():
            self._never_began(entry.name, end)
        return None

    def _hasty(self, waiting: Sequence[str]) -> str:
        """Return the first of these runs that is not to wait, empty if all may; each is read once."""
        for name in waiting:
            if name not in self.patient and Recorded(RunPaths(self.paths.directory.parent / name)).plan.no_wait:
                return name
            self.patient.add(name)
        return ""

    def _begin(self, run: HeldRun) -> None:
        """Take note of a run that has begun, and of its nodes or its part of one."""
        for node in run.nodes:
            if node in self.free:
                self.free.remove(node)
            if run.part:
                self.parts.setdefault(node, []).append(run.part[0])
        self.runs[run.name] = run
        self.changed = time.monotonic()
        if len(self.runs) == 1:
            self.idle += time.monotonic() - self.waits_since
        self._tell()

    def _free_for(self, part: tuple[hold_queue.Part, ...]) -> list[str]:
        """Return the nodes that a run can have now: free ones, and for a part those first where others have parts."""
        shared = [node for node, taken in self.parts.items() if part and part[0].fits(taken, part[1])]
        return [node for node in (*shared, *self.free) if node not in self.lost]

    def _start(self, name: str, plan: RecordedPlan, nodes: tuple[str, ...], start: hold_queue.Start) -> HeldRun:
        """Start a run, with the processes that started ahead if it would start the same; else it says why not."""
        ready, self.ahead = self.ahead, None
        if not self.keeps or not self.ended:
            return HeldRun(self.context, name, nodes, start, None)
        run, why = RunPaths(self.paths.directory.parent / name), "the last run has only just ended"
        if plan.inside.job.image:
            why = "the run has an image"
        if ready:
            why = "the run has a part of a node" if plan.part else self._lacking(ready)
            try:
                why = why or difference(ready.parts, parts(run, start, len(nodes)))
                if not why:
                    shared_files.write_json(run.kept, {"not_ahead": ""})
                    return HeldRun(self.context, name, ready.nodes, start, ready)
            except OSError as error:
                why = str(error.strerror)
            self._give_up(ready)
        shared_files.write_json(run.kept, {"not_ahead": why})
        return HeldRun(self.context, name, nodes, start, None)

    def _start_again(self, run: HeldRun) -> bool:
        """Start a run whose processes had started ahead, and ended before it began; return False if that cannot be."""
        with contextlib.suppress(BrokenPipeError):  # what is left of them does not watch this run any more
            os.write(run.lifeline, b"/dev/null\n")
        try:
            shared_files.write_json(run.paths.kept, {"not_ahead": "the processes that had started ended"})
            shutil.rmtree(run.paths.directory / "attempts", ignore_errors=True)
            run.paths.script_log.unlink(missing_ok=True)
            self.runs[run.name] = HeldRun(self.context, run.name, run.nodes, run.start, None)
        except OSError as error:
            self.state.warn(f"The run {run.name} could not be started again: {error.strerror or error}")
            return False
        run.close()
        return True

    def _lacking(self, ready: Ahead) -> str:
        """Return the reason why no run can have processes that started ahead, empty if one can."""
        if not ready.lives:
            return "the processes that had started ended"
        return "" if self._are_free(ready.nodes) else "other nodes than those of the last run"

    def _are_free(self, nodes: tuple[str, ...]) -> bool:
        return not self.lost & {*nodes} and all(self.free.count(node) >= nodes.count(node) for node in nodes)

    def _give_up(self, ready: Ahead) -> None:
        ready.end()
        self.ending.append(ready)

    def _keep_ahead(self) -> None:
        """Start the processes of the next run when a run has ended and none waits; let them go at the hold's end."""
        for ready in [ready for ready in self.ending if ready.has_ended()]:
            ready.remove()
            self.ending.remove(ready)
        if self.ahead and not (self.is_closed or self.ahead.lives):
            self.state.warn("The processes of the next run ended before it. It starts without them")
        if self.ahead and (self.is_closed or not self.ahead.lives):
            self._give_up(self.ahead)
            self.ahead = None
        last, self.last = self.last, None
        if last is None or self.is_closed or self.waits or not self._are_free(last.nodes):
            return
        if self.ahead:
            self._give_up(self.ahead)
        self.count += 1
        try:
            self.paths.ahead.mkdir(mode=0o700, exist_ok=True)
            self.ahead = Ahead(self.paths.ahead / str(self.count), last.paths, last.start, last.nodes)
        except OSError as error:
            self.ahead = None
            self.state.warn(f"The processes of the next run could not be started ahead: {error.strerror or error}")

    def _end(self, run: HeldRun) -> None:
        """Give the nodes of a run back that has ended."""
        if run.ready and not run.paths.events.exists() and run.kill_at == float("inf") and self._start_again(run):
            return
        run.close()
        del self.runs[run.name]
        for node in run.nodes:
            if run.part:
                self.parts[node].remove(run.part[0])
            if not self.parts.get(node):
                self.parts.pop(node, None)
                self.free.insert(0, node)
        self.last = run if self.keeps and not (run.part or run.image) else None
        self.ended += 1
        self.used = self.waits_since = self.changed = time.monotonic()
        self._tell()
        for folder in (self.paths.held, self.paths.told):
            (folder / run.name).unlink(missing_ok=True)

    def _tell(self) -> None:
        """Write down which runs are in the hold, and for how long none was."""
        since, free = 0.0 if self.runs else round(time.time(), 1), sum(node not in self.lost for node in self.free)
        facts = {
            "runs": [*self.runs],
            "ended": self.ended,
            "free": free,
            "lost": sorted(self.lost),
            "idle": round(self.idle, 1),
            "since": since,
        }
        self.state.events.write("held", **facts)

    def _look_for_idleness(self) -> None:
        """End the hold if it was idle for too long; a run that came in the last moment keeps it."""
        idle, now = self.context.settings.code.idle, time.monotonic()
        if self.runs or self.waits:
            self.used = now
        if idle and now - self.used > idle and not self.is_closed:
            self._close(if_empty=True)

    def warning(self) -> str:
        """Return once, two minutes before an idle hold ends, when that will be; empty otherwise."""
        idle = self.context.settings.code.idle
        left = self.used + idle - time.monotonic() if idle else float("inf")
        near, before = left < min(WARNING, idle / 2), self.warned
        self.warned = near
        if not near or before or self.is_closed:
            return ""
        at = time.strftime("%H:%M:%S", time.localtime(time.time() + left))
        return f"The hold is idle, and ends at {at} unless a run starts in it"

    def _close(self, *, if_empty: bool = False) -> None:
        """Take no run any more; those that wait have ended so, or with ``if_empty`` the hold stays open for them."""
        if self.is_closed:
            return
        self.is_closed = True
        with contextlib.suppress(FileNotFoundError):
            self.paths.queue.rename(self.paths.closed)
        waiting = shared_files.listed(self.paths.closed)
        if waiting and if_empty:
            self.paths.closed.rename(self.paths.queue)
            self.is_closed = False
            return
        hint = "Start another hold (hpcml hold), and the run again."
        for name in waiting:
            message = "the run never started: the hold ended before"
            end = End(errors.CANCELLED, "queued", "hpcml", message, hint, ended_as=State.CANCELLED)
            self._never_began(name, end)
            (self.paths.closed / name).unlink(missing_ok=True)

    def _never_began(self, name: str, end: End) -> None:
        """Write down how a run ended that did not begin."""
        paths = RunPaths(Path(self.paths.directory.parent / name))
        full_disk.write_end(paths, paths.status, end._replace(time=round(time.time(), 3), over=True).as_json())


def _problem(count: int, free: int, left: int, *, behind: bool) -> tuple[str, int]:
    """Return the reason why a run does not start, empty if it does, and the exit status that this means."""
    if not 0 < count <= left:
        return (f"only {left} nodes of the hold answer" if count else "its plan.json is damaged"), errors.START_FAILED
    if count > free:
        how = "another run waits" if behind else "its nodes are in use"
        return f"{how}, and --no-wait refuses to wait", errors.REFUSED
    return "", errors.START_FAILED
