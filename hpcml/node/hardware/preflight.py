"""A node before its workers start: whether it can do what the run asks of it, by its probe."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from hpcml.node import shared_files
from hpcml.node.hardware import record
from hpcml.node.hardware.problems_for_run import Demand, find_troubles
from hpcml.node.process_helpers import Question

if TYPE_CHECKING:
    from hpcml.node.context import Context
    from hpcml.settings import Settings

DEADLINE = 20.0  # seconds; a driver that hangs must not keep the node


class UnfitError(Exception):
    """The node cannot do what the run asks of it."""


class Inspection:
    """The probe of this node, in a child process: it asks driver and UCX, which the parent of workers must not touch.

    CPU workers over TLS need nothing of it, and their node is not looked at.
    """

    def __init__(self, context: Context) -> None:
        self.context, settings = context, context.settings
        needed = settings.gpus or settings.network.protocol == "ucx" or settings.interconnect.require == "rdma"
        self.question = Question("this node", _probe) if needed else None  # safe: this process has one Python thread

    def end(self) -> None:
        """Wait for the probe, write it down and judge it.

        Raises
        ------
        UnfitError
            If the run cannot work on this node; the sentence says why and what to do.
        """
        if self.question is None:
            return
        table = self.question.answer(time.monotonic() + DEADLINE)
        if "schema" not in table:
            text = f"hpcml could not examine this node's GPUs and network adapters: {table['error']}"
            print(f"hpcml: {text}. The run continues without this check.", file=sys.stderr, flush=True)
            return
        path = self.context.attempt.probe_of(self.context.node)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        shared_files.write_json(path, table)
        troubles = find_troubles(record.from_json(table), demand_of(self.context.settings))
        for trouble in troubles:
            print(f"hpcml: {trouble.sentence}. {trouble.hint}", file=sys.stderr, flush=True)
        if fatal := [trouble for trouble in troubles if trouble.fatal]:
            raise UnfitError(f"{fatal[0].sentence}. {fatal[0].hint}".rstrip("."))


def demand_of(settings: Settings) -> Demand:
    """Return the demand of a run on each node; ranks judge their packages themselves."""
    gpu, gpus = settings.workers.gpu, settings.gpus
    ucx = settings.network.protocol == "ucx"
    rapids = gpu is not None and (gpus > 0 or ucx)
    return Demand(gpus, gpus > 0, rapids, ucx and rapids, rapids, gpu.cuda if gpu else "")


def _probe() -> dict[str, Any]:
    from hpcml.node.hardware import probe

    return record.to_json(probe.probe())
