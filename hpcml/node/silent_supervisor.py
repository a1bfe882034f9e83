"""A supervisor that does not answer, as a process beside it sees it: what is said, and the end of one that is stopped.

Only one that is stopped is ended: what waits for a file system (in whatever state, by the file system's client) will
answer when that does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from typing import TYPE_CHECKING

from hpcml import errors
from hpcml.failures.end import End
from hpcml.node.context import Context
from hpcml.node.events_and_end import EventLog, report_end, say, write_status
from hpcml.node.link.messages import sign_every
from hpcml.node.process_helpers import OwnTime
from hpcml.paths import SCRIPT, SUPERVISOR
from hpcml.safe_files import write

if TYPE_CHECKING:
    from hpcml.node.link.uplink import Uplink

_STOPPED = ("T", "t")
_SIGNS = 2  # signs of life without which a supervisor passes nothing on
_STATES = {
    "T": " (the process is stopped: SIGSTOP)",
    "t": " (a debugger stopped the process)",
    "D": " (process state D: blocked on a file system, or frozen)",
    "": " (the state of the process is not visible)",
}
_HINT = "You or an administrator may have stopped hpcml's main process on the first node. Submit the run again."


def warn_after(deadline: float) -> float:
    """Return after how many seconds without an answer hpcml warns; ``deadline`` is deadlines.answer."""
    return max(deadline / 10, 5.0)  # a job that Slurm suspends stops step by step


def is_stopped(state: str) -> bool:
    """Whether a process in this state, as ps(1) shows it, was stopped by somebody."""
    return state in _STOPPED


def warn(context: Context, state: str, silent: float) -> None:
    """Say in the job's log and the events that the supervisor has not answered for some seconds."""
    deadline = context.settings.deadlines.answer
    ends = f"; the run ends after {deadline:g} s without an answer" if is_stopped(state) else ""
    sentence = f"{_name(context)} has not answered for {silent:.0f} s{_STATES.get(state, '')}{ends}"
    try:
        say(context, f"warning: {sentence}")
        with EventLog(context.run.events, context.number) as events:
            events.write("warning", sentence=f"{sentence}.")
    except OSError:  # into the log of the process that looks, which continues
        traceback.print_exc()


def end(context: Context, pid: int, state: str, silent: float) -> None:
    """Write down that the supervisor is stopped, and kill it: then the batch script ends the rest."""
    reason = f"{_name(context)} did not answer for {silent:.0f} s{_STATES.get(state, '')}"
    record = End(errors.ROLE_LOST, SCRIPT, "hpcml", reason, _HINT, node=context.node, role=SUPERVISOR)
    record = record._replace(lost_nodes=(context.node,))
    try:
        write_status(record, context, over=False)
        report_end(record, context)
        write(context.attempt.lost, f"{errors.ROLE_LOST}\n")
    except OSError:  # the end itself is worth more than its record
        traceback.print_exc()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Watch:
    """An agent's watch over the supervisor, by its own time: a suspended job, or an agent that waits, is no silence."""

    def __init__(self, context: Context) -> None:
        self.context, self.clock = context, OwnTime()
        self.heard, self.busy, self.warned = 0.0, 0.0, False

    def hear(self, busy: float = 0.0) -> None:
        """Take note of a sign of life; ``busy``: for how many seconds the supervisor's loop has waited."""
        self.heard, self.busy = self.clock.seconds, busy

    @property
    def answers(self) -> bool:
        """Whether the supervisor does what it is asked for: it gives signs, and waits for nothing."""
        return max(self.clock.seconds - self.heard, self.busy) < _SIGNS * sign_every(
            self.context.settings.deadlines.answer
        )

    def look(self, link: Uplink) -> None:
        """Close the line to a supervisor that has not been heard for deadlines.answer; on its node, say what it does.

        There it is ended if it is stopped. Otherwise it waits for something, and will answer.
        """
        self.clock.tick()
        if link.boxes and (link.line is None or link.line.why):  # files bring no signs
            self.hear()
        silent, longest = self.clock.seconds - self.heard, self.context.settings.deadlines.answer
        waits = max(silent, self.busy)
        if link.supervisor and waits > warn_after(longest) and not self.warned:
            warn(self.context, link.supervisor.state, waits)
        self.warned = waits > warn_after(longest)
        if silent <= longest:
            return
        if link.supervisor and link.supervisor.alive:
            self.end_supervisor(link)
        else:
            link.drop(f"it has not answered for {longest:g} s")
            self.hear()  # the next line has as long

    def end_supervisor(self, link: Uplink) -> None:
        """End a supervisor on this node that is stopped."""
        if link.supervisor and is_stopped(state := link.supervisor.state):
            end(self.context, link.supervisor.pid, state, self.clock.seconds - self.heard)


def _name(context: Context) -> str:
    return f"hpcml's supervisor process on {context.node}"
