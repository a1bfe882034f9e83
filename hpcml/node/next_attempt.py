"""Whether another attempt follows: of a run that continues until it is done (``hpcml submit --until-done``)."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from hpcml import errors
from hpcml.failures.end import End
from hpcml.node import full_disk, shared_files
from hpcml.node.context import Context
from hpcml.node.job import job_id
from hpcml.paths import RunPaths
from hpcml.states import State

_ENDS = (errors.TIME_LIMIT, errors.ALLOCATION_LOST, errors.PREEMPTED)  # what another attempt can mend
_HAD_ITS_TIME = (errors.TIME_LIMIT, errors.STOPPED)  # others, as a preemption, may have come before the first save
_MORE = "The run's checkpoints are in checkpoints/ of the run directory."
_SAVE = (
    "In the script, save a checkpoint before the time limit (hpcml.run.on_stop), "
    "and load it at the start (hpcml.run.saved)."
)


def decided(context: Context, outcome: End) -> End:
    """Return the end of the attempt, and leave the note by which the batch script begins the next one."""
    stopped = outcome.by == "script" and outcome.exit_status == errors.STOPPED
    ended_by_others = outcome.by != "script" and (outcome.exit_status in _ENDS or outcome.state == State.REQUEUED)
    if not context.settings.attempts.several_jobs or not (stopped or ended_by_others):
        return outcome
    if no_progress(context, outcome):
        reason = f"{errors.MEANING[errors.NO_PROGRESS]}; the last attempt: {outcome.message}"
        end = End(errors.NO_PROGRESS, outcome.phase, "hpcml", reason, _SAVE, outcome.quote)
        return end._replace(killed_ranks=outcome.killed_ranks)
    if limit := reached(context):
        return outcome._replace(message=f"{outcome.message}; hpcml starts no further attempt: {limit}", hint=_MORE)
    full_disk.write_end(context.run, context.attempt.goes_on, {})
    return outcome._replace(message=f"{outcome.message}; the next attempt follows")


def keep_last_end(context: Context) -> None:
    """Keep how the attempt before has ended, whose place this one's end will take."""
    last = context.run.attempt(context.number - 1)
    end = shared_files.read_json(context.run.status) if context.number else None
    if end and end.get("attempt") == context.number - 1 and last.directory.is_dir():
        full_disk.write_end(context.run, last.end, end)


def reached(context: Context) -> str:
    """Return the limit that keeps another attempt from following, empty if there is none."""
    settings = context.settings
    if context.number >= settings.attempts.max_restarts:
        return f"--max-restarts {settings.attempts.max_restarts} is reached"
    used, one = node_hours(context.run, settings.job.nodes), settings.job.nodes * settings.job.time_limit / 3600
    if settings.attempts.max_node_hours and used + one > settings.attempts.max_node_hours:
        more = f", and another attempt may take {one:.3g} more" if one else ""
        return f"{used:.3g} of {settings.attempts.max_node_hours:g} node-hours (--max-node-hours) are used{more}"
    if not settings.job.one_machine and not context.run.next_job.is_symlink():
        return f"the next job could not be queued (see hpcml logs {context.run.directory.name} job)"
    return ""


def waits_anew(context: Context) -> str:
    """Return a sentence if the next attempt will be this very job, as no other was taken; empty if it is another."""
    job, waiting = job_id(), context.run.next_job
    if not (context.settings.attempts.several_jobs and job and waiting.is_symlink() and str(waiting.readlink()) == job):
        return ""
    return "Slurm did not accept the job of the next attempt. hpcml requeues this job when it ends."


def no_progress(context: Context, outcome: End) -> bool:
    """Whether neither this attempt nor the last before that had its time has left a newer checkpoint, nor one between.

    That is by the file system's own clock.
    """
    if outcome.exit_status not in _HAD_ITS_TIME:
        return False
    for number in range(context.number - 1, -1, -1):
        before = context.run.attempt(number)
        end = shared_files.read_json(before.end)
        if end and end.get("exit_status") in _HAD_ITS_TIME:
            return newest(context.run.checkpoints) < before.begun.stat().st_mtime_ns
    return False


def newest(folder: Path) -> int:
    """Return the time of the newest entry of a folder, in nanoseconds since 1970; 0 if it has none."""
    last = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile, or leads nowhere
                    last = max(last, entry.stat().st_mtime_ns)
    return last


def node_hours(run: RunPaths, nodes: int) -> float:
    """Return the number of node-hours that the run's attempts have had, by their first and last events."""
    spans: dict[int, list[float]] = {}
    for line in run.events.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # a full disk leaves half a line
            event = json.loads(line)
            spans.setdefault(event["attempt"], []).append(event["time"])
    return sum(max(times) - min(times) for times in spans.values()) * nodes / 3600
