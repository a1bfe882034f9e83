"""A supervisor that does not answer, as a process beside it sees it: what is said, and the end of one that is stopped.

Only one that is stopped is ended: what waits for a file system (in whatever state, by the file system's client) will
answer when that does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import traceback

from hpcml import errors
from hpcml.failures.end import End
from hpcml.files import write
from hpcml.node.outcome import EventLog, report_end, say, write_status
from hpcml.node.settings import Context
from hpcml.paths import SCRIPT

_STOPPED = ("T", "t")
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
    record = End(errors.ROLE_LOST, SCRIPT, "hpcml", reason, _HINT, node=context.node, role=SCRIPT)
    record = record._replace(lost_nodes=(context.node,))
    try:
        write_status(record, context, over=False)
        report_end(record, context)
        write(context.attempt.lost, f"{errors.ROLE_LOST}\n")
    except OSError:  # the end itself is worth more than its record
        traceback.print_exc()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _name(context: Context) -> str:
    return f"hpcml's supervisor process on {context.node}"
