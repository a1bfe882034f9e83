"""The workers of a node: the agent imports Dask once and forks them."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from pathlib import Path

from hpcml.errors import WORKERS_NEVER_CAME
from hpcml.kinds.dask.node import script_imports, temporary_directory, worker_environment
from hpcml.kinds.dask.node.messages import SCHEDULER_IS_UP, START
from hpcml.kinds.dask.roles import WORKER
from hpcml.node import agent, profilers, scratch
from hpcml.node.context import load
from hpcml.node.hardware.preflight import Inspection, UnfitError
from hpcml.node.process_helpers import long_import
from hpcml.safe_files import tail, write

_LIBRARY_LINES = 40  # lines of UCX's and NCCL's own logs that are kept of a node
_TROUBLE = re.compile(r"NCCL WARN| UCX  (?:ERROR|FATAL) ")


def main() -> int:
    """Keep the node's workers running until the scheduler closes them."""
    context = load()
    node = agent.begin(context, agent.Members(WORKER.name, context.settings.workers.restarts, WORKERS_NEVER_CAME, True))
    if not os.access(context.settings.code.cwd, os.X_OK):
        return node.refuse(f"the script's working folder cannot be opened: {context.settings.code.cwd}")
    if lacking := profilers.missing(context) or profilers.enter(context):
        return node.refuse(lacking)
    agent.watch(context)
    if context.settings.workers.late and not agent.Bystander(node).wait_for(START):
        node.mark("ended")
        return 0
    inspection = Inspection(context)  # a child of its own, beside the imports
    imported = script_imports.of_script(context.settings)
    with long_import():  # after the sign of life; before the fork, for all workers
        worker_environment.set_variables(os.environ)
        from hpcml.kinds.dask.node import dask_worker, gpus

        try:
            try:
                script_imports.import_libraries(imported, context.settings.workers.gpu)
            finally:
                inspection.end()  # what it finds wrong with the node goes before what the environment lacks
            folder = scratch.Folder(temporary_directory.of_role(context))
        except scratch.UnsafePlaceError as error:
            return node.refuse(f"{error}; {scratch.SET_SCRATCH}")
        except (gpus.NoGpuError, UnfitError) as error:
            return node.refuse(str(error))

    names = context.worker_names(context.node)
    node.slots = [agent.Slot(name) for name in names]
    share = dask_worker.Share.of_node(context, len(names))
    if too_little := dask_worker.too_little_memory(context, share, len(names), agent.resident(os.getpid())):
        return node.refuse(too_little)
    with long_import():
        script_imports.import_all(script_imports.early(imported), "before the workers started")
    try:
        return agent.keep(
            node,
            lambda slot: dask_worker.run(context, slot, folder.path, share),
            share.memory_limit,
            Address(node, folder.path / dask_worker.ADDRESS),
        )
    finally:
        for slot in node.slots:
            agent.end(slot)
        _keep_troubles(folder.path)
        folder.remove()


def _keep_troubles(folder: Path) -> None:
    """Print what UCX and NCCL wrote of troubles into their own files, which go with the node's scratch."""
    reported = 0
    for path in sorted((*folder.glob("*/nccl-*.log"), *folder.glob("*/ucx-*.log"))):
        for line in tail(path, _LIBRARY_LINES):
            if _TROUBLE.search(line) and reported < _LIBRARY_LINES:
                reported += 1
                print(line[:400], file=sys.stderr)


class Address:
    """Where the scheduler is: the supervisor says so to one process of a node, for all its workers.

    They are forked before it is known, make ready for it, and read it from the node-local file ``local``.
    """

    late = "the supervisor did not say in time where the Dask scheduler is"

    def __init__(self, node: agent.Node, local: Path) -> None:
        self.node, self.local = node, local
        deadlines = node.context.settings.deadlines
        self.deadline = time.monotonic() + deadlines.scheduler + deadlines.workers

    def look(self) -> bool:
        """Hear the supervisor, and pass the address on once it is there; return False if it will never be."""
        for order in self.node.hear():
            if order.get("do") == SCHEDULER_IS_UP:
                write(self.local, "".join(f"{address} {order['protocol']}\n" for address in order["addresses"]))
                self.deadline = math.inf
            elif order.get("do") == "close" and self.deadline < math.inf:
                return False
        return time.monotonic() < self.deadline
