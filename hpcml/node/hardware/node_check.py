"""Look at the node before its workers start: what it has is written down, and what cannot work is refused in words."""

from __future__ import annotations

import sys
import time
from typing import Any

from hpcml.node import files
from hpcml.node.processes import Question
from hpcml.node.settings import Context

DEADLINE = 20.0  # seconds; a driver that hangs must not keep the node


class UnfitError(Exception):
    """The node cannot do what the run asks of it."""


class Inspection:
    """The probe of this node, in a child process: it asks NVML and UCX, which the parent of workers must not touch.

    CPU workers over TLS need nothing of it, and their node is not looked at.
    """

    def __init__(self, context: Context) -> None:
        self.context, settings = context, context.settings
        needed = settings.workers.gpu or settings.network.protocol == "ucx" or settings.network.interconnect == "rdma"
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
        facts = self.question.answer(time.monotonic() + DEADLINE)
        if "schema" not in facts:
            print(f"hpcml: what this node has is not known: {facts['error']}.", file=sys.stderr, flush=True)
            return
        path = self.context.attempt.probe_of(self.context.node)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        files.write_json(path, facts)
        from hpcml.node.hardware import preflight

        gpu = self.context.settings.workers.gpu
        troubles = preflight.troubles(
            facts,
            gpus_expected=gpu.count if gpu else 0,
            cuda=gpu.cuda if gpu else "",
            protocol=self.context.settings.network.protocol,
        )
        for trouble in troubles:
            print(f"hpcml: {trouble.sentence}. {trouble.hint}", file=sys.stderr, flush=True)
        if fatal := [trouble for trouble in troubles if trouble.fatal]:
            raise UnfitError(f"{fatal[0].sentence}. {fatal[0].hint}".rstrip("."))


def _probe() -> dict[str, Any]:
    from hpcml.node.hardware import probe

    return probe.probe()
