"""Who ends the run before the script does: the time limit, a cancellation, a preemption; Slurm's log says which."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hpcml import errors
from hpcml.failures import job_log
from hpcml.failures.end import SLURM, End, Reason
from hpcml.failures.note import read_note
from hpcml.failures.role_end import CONTAINER_FAILED, RoleEnd, not_entered, of_role
from hpcml.failures.rules import BY_NAME
from hpcml.kind import Role
from hpcml.node import full_disk, shared_files
from hpcml.node.context import Context
from hpcml.node.events_and_end import EventLog, RunEndedError
from hpcml.node.job import end_time, job_id, number_in_logs
from hpcml.node.process_helpers import Process, output
from hpcml.states import State

LINE = 1.0  # seconds that Slurm's line has, which another process writes beside its signal
ASK = 3.0  # seconds that the controller has to answer
NOTES_TICK = 0.25  # seconds between looks at the files that the batch script leaves
_SIGNAL_EARLY = 90.0  # seconds: Slurm's signal comes up to 60 s before its time, and a job takes a moment to begin
SHELL = 2.0  # seconds in which step.sh notes that it got the supervisor's SIGTERM too
SETTLE = 0.3  # seconds for Slurm's own signal to arrive beside the batch script's file
_WHOLE = (200, 4096)  # lines and characters of each: Apptainer's hold paths, and all its options behind a wrong one
_NOT_ENTERED = (errors.IMAGE, CONTAINER_FAILED)  # image.sh's own, and Apptainer's
_TOLD_TO_END: dict[str, int] = {State.CANCELLED: errors.CANCELLED, State.TIMEOUT: errors.TIME_LIMIT}
_CANCELLED: dict[str, Any] = {
    "exit_status": errors.CANCELLED,
    "by": "user",
    "message": "the run was cancelled",
    "hint": "",
}
_TIME_LIMIT: dict[str, Any] = {
    "exit_status": errors.TIME_LIMIT,
    "by": SLURM,
    "message": BY_NAME["time-limit"].cause,
    "hint": BY_NAME["time-limit"].remedy,
}
_PREEMPTED: dict[str, Any] = {
    "exit_status": errors.PREEMPTED,
    "by": SLURM,
    "message": BY_NAME["preempted"].cause,
    "hint": BY_NAME["preempted"].remedy,
}
_PUT_BACK: dict[str, Any] = {
    "exit_status": errors.CANCELLED,
    "by": SLURM,
    "message": "Slurm requeued the job",
    "hint": "",
    "ended_as": State.REQUEUED,
}


class EndRequests:
    """The time limit and a cancellation, which come as files from the batch script, or as SIGTERM (``signalled``)."""

    def __init__(self, context: Context, events: EventLog) -> None:
        self.context, self.events = context, events
        self.signalled = self.time_limit_near = self.is_judged = False
        self.started = time.monotonic()
        self.requested_at = self.listed_at = 0.0
        self.names: set[str] = set()
        self.longest_save = 0.0
        self.ends = _end_time(context)
        self.batch = Process.named(int(os.environ.get("HPCML_BATCH", "0")))

    def check(self, phase: str) -> None:
        """Take note of the time limit, and end the run (RunEndedError) if that was asked for."""
        attempt, now, left = self.context.attempt, time.monotonic(), self._left
        if now - self.listed_at > NOTES_TICK:
            self.listed_at, self.names = now, shared_files.listed(attempt.directory)
            self._look_at_saves()
        if self.batch.began and not self.batch.alive:  # looked at each time: Slurm ends the other steps right after it
            why = BY_NAME[Reason.BATCH_KILLED].cause
            raise RunEndedError(End(errors.ALLOCATION_LOST, phase, "hpcml", why, reason=Reason.BATCH_KILLED))
        self._look_at_the_limit(left)
        if not (self.signalled or left < 0 or attempt.terminate.name in self.names):
            return
        self.requested_at = self.requested_at or now
        if not self.signalled and left >= 0 and now - self.requested_at < SETTLE:
            return
        raise RunEndedError(self._end(phase, left))

    def were_for_the_supervisor_alone(self) -> bool:
        """Whether SIGTERM reached the supervisor and not its step, so that nobody tells the script; True only once."""
        if not self.signalled or self.is_judged or time.monotonic() - self.requested_at < SHELL:
            return False
        self.is_judged = True
        return not self.context.attempt.terminate.exists()

    def look_again(self) -> None:
        """Take note of what came since the last look: the script may have seen it first, and obeyed."""
        self.names = shared_files.listed(self.context.attempt.directory)
        self._look_at_the_limit(self._left)

    def asked(self, phase: str) -> End | None:
        """Return the end that was asked for when it was looked last; None if none was."""
        asked = self.signalled or self.context.attempt.terminate.name in self.names
        return self._end(phase, self._left) if asked else None

    def _look_at_the_limit(self, left: float) -> None:
        note = self.context.attempt.time_limit
        if not self.time_limit_near and (note.name in self.names or self._margin_reached(left)):
            self.time_limit_near = True
            if note.name not in self.names:
                full_disk.write_end(self.context.run, note, {})
            left = min(left, self.ends - time.time())  # Slurm's signal may come up to a minute early
            self.events.write("time-limit-near", seconds=max(self.lead, left) if left < float("inf") else self.lead)

    def _end(self, phase: str, left: float) -> End:
        cancelled = self.context.settings.job.one_machine and left > 0  # where Slurm ends the job, its log tells
        usual: dict[str, Any] = _TIME_LIMIT if self.time_limit_near and not cancelled else _CANCELLED
        told = (
            shared_files.read_json(self.context.attempt.hold_ends) or {}
        )  # by a kept allocation: why the run has to end
        return End(phase=phase, **(usual | {name: told[name] for name in usual.keys() & told.keys()}))

    @property
    def _left(self) -> float:
        """How many seconds the run has until its time limit, infinite where Slurm counts them."""
        settings = self.context.settings
        if not (settings.job.one_machine and settings.job.time_limit):
            return float("inf")
        return settings.job.time_limit - (time.monotonic() - self.started)

    @property
    def lead(self) -> float:
        """How many seconds before the time limit the script is warned: twice its longest save, if that is more."""
        settings = self.context.settings
        most = settings.job.time_limit / 2 or float("inf")
        return max(settings.job.signal_lead, min(2 * self.longest_save, most))

    def _margin_reached(self, left: float) -> bool:
        """Whether the time limit is near.

        Slurm's signal tells of the margin that was asked for, also where an administrator has moved the limit. In a
        short job Slurm may send it before the job's processes can take it, and never again.
        """
        job = self.context.settings.job
        short = 0 < job.time_limit < job.signal_lead + _SIGNAL_EARLY and not _in_allocation()
        if left == float("inf") and (short or self.lead > job.signal_lead):
            left = self.ends - time.time()
        return left < self.lead

    def _look_at_saves(self) -> None:
        path = self.context.attempt.saves
        if path.name in self.names:
            self.longest_save = float((shared_files.read_json(path) or {}).get("longest", 0.0))

    def slow_save(self) -> str:
        """Return a warning if the script has little time for a save before it must end; empty if it has enough."""
        settings, seconds = self.context.settings, self.longest_save
        grace = settings.deadlines.script_grace
        if 2 * seconds > grace:
            left = f"{grace:g} s after a cancellation or preemption (deadlines.script_grace)"
        elif 2 * seconds > self.lead or (self.lead > settings.job.signal_lead and not self._knows_its_end):
            left = f"{settings.job.signal_lead:g} s before the time limit (slurm.signal_lead)"
        else:
            return ""
        return f"saving a checkpoint took {seconds:.1f} s; the next save may not finish in the {left}"

    @property
    def _knows_its_end(self) -> bool:
        return self.context.settings.job.one_machine or self.ends < float("inf")


def _end_time(context: Context) -> float:
    """Return the time at which Slurm ends the job, in seconds since 1970; infinite if that is unknown."""
    said, limit = end_time(), context.settings.job.time_limit
    if said < float("inf") or not limit or _in_allocation():
        return said
    return float(os.environ.get("HPCML_BEGAN") or "inf") + limit


def from_slurm(context: Context, outcome: End, logs: Mapping[Path, int]) -> End:
    """Return an outcome of a run that was asked to end with the cause that Slurm gives.

    ``logs`` are the files into which Slurm writes it, each with its length when this attempt began.
    """
    stopped = outcome.by == "script" and outcome.exit_status == errors.STOPPED
    if context.settings.job.one_machine or stopped or outcome.state not in _TOLD_TO_END:
        return outcome
    deadline = time.monotonic() + (0.0 if _in_allocation() else LINE)
    while (cause := why_ended(logs)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if outcome.by != "script":
        return _by_cause(outcome, cause)
    # It ended with 0 when it was told to, which stays. Told by a signal to its steps alone, the job was not cancelled.
    state = _by_cause(outcome._replace(exit_status=_TOLD_TO_END[outcome.state], by="user", ended_as=""), cause).state
    told_by_signal = state == State.CANCELLED and not _in_allocation() and (cause is None or _still_runs())
    return outcome._replace(ended_as="" if told_by_signal else state)


def _shown_job() -> str:
    """Return the record of the job that Slurm's controller shows; nothing if the node cannot ask it."""
    return output(["scontrol", "--oneliner", "show", "job", job_id()], ASK)


def _still_runs() -> bool:
    """Whether Slurm has not ended the job, as far as the node can ask: it writes CANCELLED for a mere signal too."""
    return re.search(r"\bJobState=RUNNING\b", _shown_job()) is not None


def role_end(context: Context, role: Role, node: str, exits: Collection[str]) -> RoleEnd | None:
    """Return the end of a role on a node, None while its step has not written its exit status.

    ``exits`` are the names in the folder of exit statuses.
    """
    path = context.attempt.exit_of(role.name, node)
    if path.name not in exits:
        return None
    status, note = int(path.read_text()), read_note(context.attempt.note_of(role.name, node))
    if context.settings.job.image and status in _NOT_ENTERED:
        log = job_log.of_role(context.run, role, node, _WHOLE)
        return RoleEnd(status, not_entered("\n".join(log), status, note), entered=False)
    return RoleEnd(status, of_role(status, job_log.of_role(context.run, role, node), note))


def _in_allocation() -> bool:
    """Whether the run is one of several in a job: it can be cancelled without the job, of which Slurm says nothing."""
    return "HPCML_ALLOCATION" in os.environ


def _by_cause(outcome: End, cause: str | None) -> End:
    if cause is None or (cause == "" and _in_allocation()):  # a step of several in a job was cancelled, for any reason
        return _told_by_signal(outcome)
    exit_status = errors.ALLOCATION_LOST if "NODE" in cause else errors.CANCELLED
    reason = f"Slurm ended the job: {cause.lower()}"
    other = {"exit_status": exit_status, "by": SLURM, "message": reason, "hint": ""}
    causes = {"": _CANCELLED, "PREEMPTION": _PREEMPTED, "TIME LIMIT": _TIME_LIMIT, "JOB REQUEUE": _PUT_BACK}
    return outcome._replace(**causes.get(cause, other))


def why_ended(logs: Mapping[Path, int], *, with_steps: bool = True) -> str | None:
    """Return the cause by which Slurm ended the job, empty for a plain cancellation; None if it has not said so.

    ``logs`` as for :func:`from_slurm`, ``with_steps`` as for :func:`hpcml.failures.job_log.why_ended`.
    """
    for path, begin in logs.items():
        try:
            with path.open("rb") as file:
                file.seek(max(begin, os.fstat(file.fileno()).st_size - (1 << 20)))
                text = file.read(1 << 20).decode(errors="replace")
        except OSError:
            continue
        if (cause := job_log.why_ended(text, number_in_logs(), with_steps=with_steps)) is not None:
            return cause
    return None


def _put_back(job: str) -> bool:
    """Put a job that Slurm's record shows as ``--requeue`` back into its queue; return True if Slurm took it.

    Slurm itself does so at the end of the grace time, but not with a job that has saved and ended before.
    """
    if not re.search(r"\bRequeue=1\b", job):
        return False
    command = ["sh", "-c", 'scontrol requeue "$1" && echo taken', "sh", job_id()]
    return output(command, ASK).endswith("taken")


def _told_by_signal(outcome: End) -> End:
    """Only the steps got the signal: by ``scancel --signal``, or because a preempted job has a grace time.

    Where Slurm's commands can be reached from the node, the controller says whether it was the latter.
    """
    if outcome.exit_status != errors.CANCELLED:
        return outcome
    job = _shown_job()
    if re.search(r"\bPreemptTime=\d", job):
        # A job in which a user's script starts the run is that script's to end.
        return outcome._replace(**(_PUT_BACK if not _in_allocation() and _put_back(job) else _PREEMPTED))
    if _in_allocation():
        return outcome
    reason = "the run's job steps received SIGTERM; Slurm wrote no reason into the job's log"
    hint = "" if job else "The node could not reach Slurm's controller."
    return outcome._replace(by=SLURM, message=reason, hint=hint)
