"""``hpcml submit`` of a batch script that is a job array: each task is a run."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from hpcml.cli import common, wait
from hpcml.errors import UsageError
from hpcml.runs import directories, notes
from hpcml.units import counted

if TYPE_CHECKING:
    from argparse import Namespace

    from hpcml.runs.submit import Prepared


def hand_over(options: Namespace, prepared: Prepared, *, waits: bool) -> int:
    """Submit the array, and wait for the ends of its tasks or not; UsageError with ``--prepare``."""
    from hpcml.runs import submit as submission

    made = prepared.plan
    if options.prepare:
        hint = "Remove --prepare to submit it now, or add --dry-run=script to print its script."
        raise UsageError("hpcml prepares no job array", place="--prepare", hint=hint)
    first = made.of_task(made.array[0]).run_id  # by which a laptop that lost its connection asks
    with options.caller.handing_over(first) if options.caller else contextlib.nullcontext():
        runs = submission.submit_all(prepared)
    if not options.json:
        _announce(options, runs, waits=waits)
    elif not waits:
        rows = [common.submitted(run) for run in runs]
        common.print_json({"array": made.run_id, "job": runs[0].job.partition("_")[0], "runs": rows})
    return wait.wait_for(runs, as_json=options.json) if waits else 0


def _announce(options: Namespace, runs: list[directories.Run], *, waits: bool) -> None:
    """Say which runs they are, and how to list, read and end them."""
    first, last = runs[0], runs[-1]
    job, name = first.job.partition("_")[0], first.name.rpartition("_")[0]
    which = first.id if len(runs) == 1 else f"{first.id} … {last.name}"
    host = common.host_of(options)
    lines = [("runs", f"{which}  job {job}, {counted(len(runs), 'task')}")]
    if not waits:
        listed, read, end = (
            common.from_host(host, f"hpcml {words}")
            for words in (f"ls --name '{name}_*'", f"logs {first.name}", f"cancel {job}")
        )
        lines.append(("next", f"{listed}, then {read}. To end all tasks: {end}"))
    for title, text in lines:
        common.say_row(title, text)
    if first.submission:
        notes.show_submitted(first.submission)
