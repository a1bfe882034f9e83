"""Look at the node before its workers start: what it has is written down, and what cannot work is refused in words."""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback

from hpcml.node import files, processes
from hpcml.node.settings import Context

DEADLINE = 20.0  # seconds; a driver that hangs must not keep the node


class UnfitError(Exception):
    """The node cannot do what the run asks of it."""


class Inspection:
    """The probe of this node, in a child process: it asks NVML and UCX, which the parent of workers must not touch.

    CPU workers over TLS need nothing of it, and their node is not looked at.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.pid = 0
        settings = context.settings
        if not (settings.gpu or settings.protocol == "ucx" or settings.fabric == "rdma"):
            return
        path = context.attempt.probe_of(context.node)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self.done, writer = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()  # safe: this process has one Python thread
        if self.pid:
            os.close(writer)
            return
        status = 1
        try:
            processes.end_with(parent)
            from hpcml.node.hardware import probe

            files.write_json(path, probe.probe())
            status = 0
        except BaseException:  # noqa: BLE001 - the child must never return into the parent's code
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def end(self) -> None:
        """Wait for the probe and judge what it found.

        Raises
        ------
        UnfitError
            If the run cannot work on this node; the sentence says why and what to do.
        """
        if not self.pid:
            return
        ready, _, _ = select.select([self.done], [], [], DEADLINE)
        os.close(self.done)
        if not ready:
            os.kill(self.pid, signal.SIGKILL)
            print(f"hpcml: the look at this node did not end within {DEADLINE:g} s and was given up.", file=sys.stderr)
        os.waitpid(self.pid, 0)
        facts = files.read_json(self.context.attempt.probe_of(self.context.node))
        if facts is None:
            return
        from hpcml.node.hardware import preflight

        settings = self.context.settings
        troubles = preflight.troubles(
            facts,
            gpus_expected=settings.gpu.count if settings.gpu else 0,
            cuda=settings.gpu.cuda if settings.gpu else "",
            protocol=settings.protocol,
        )
        for trouble in troubles:
            print(f"hpcml: {trouble.sentence}. {trouble.hint}", file=sys.stderr, flush=True)
        if fatal := [trouble for trouble in troubles if trouble.fatal]:
            raise UnfitError(f"{fatal[0].sentence}. {fatal[0].hint}".rstrip("."))
