"""``hpcml cancel``: cancel a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcml.cli import common
from hpcml.errors import NotFoundError
from hpcml.terminal import say

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_options(parser: ArgumentParser) -> None:
    """Add the common options."""
    common.add_run(parser, default=None)
    common.add_site(parser)
    common.add_json(parser)


def run(options: Namespace) -> int:
    """Tell the run to end; its driver is told first and has its grace."""
    from hpcml import schedulers
    from hpcml.runs import status as run_status
    from hpcml.runs import submit as submission

    run = submission.adopt(common.find_run(options))
    before = run_status.status(run)
    if before.over:
        message, did = f"{run.id} has ended already: {before.message}.", False
    elif run.submission and run.submission.key:
        cancelled = schedulers.get(run.submission.scheduler).cancel(run.submission.key)
        did = bool(cancelled)
        message = f"{run.id} is being cancelled ({cancelled})." if did else f"{run.id} has just ended."
    else:
        raise NotFoundError("The run has no job that could be cancelled", place=run.id, hint=before.hint)
    if options.json:
        common.print_json({"run": run.id, "cancelled": did, "words": message})
    else:
        say(message)
    return 0
