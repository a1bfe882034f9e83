"""The scheduler role's start: it imports Dask at once, or when the script opens its first client."""

from __future__ import annotations

import importlib

from hpcml.kinds.dask.node.messages import START
from hpcml.kinds.dask.roles import SCHEDULER
from hpcml.node import script_environment
from hpcml.node.context import load
from hpcml.node.link.uplink import Uplink
from hpcml.node.process_helpers import long_import


def main() -> int:
    """Serve until the supervisor says close; do nothing in a run whose script opens no client."""
    # Slurm signals every process at once when a job is cancelled or out of time: the supervisor answers, and the
    # scheduler stays until the supervisor tells it to close.
    context = load()
    script_environment.answer_no_signals()
    link = Uplink(context, SCHEDULER.name)
    link.open()
    if context.settings.workers.late and not link.wait_for(START):
        return 0
    with long_import():
        scheduler = importlib.import_module("hpcml.kinds.dask.node.dask_scheduler")
    return int(scheduler.main(context, link))
