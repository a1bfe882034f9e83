"""The workers of a node: the agent imports Dask once and forks them."""

from __future__ import annotations

import ast
import importlib
import math
import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from hpcml.errors import WORKERS_NEVER_CAME
from hpcml.files import tail, write
from hpcml.forms import Form
from hpcml.kinds.dask.node import temporary_directory, worker_environment
from hpcml.kinds.dask.node.messages import SCHEDULER_IS_UP, START
from hpcml.kinds.dask.roles import WORKER
from hpcml.node import agent, profilers, scratch
from hpcml.node.hardware.preflight import Inspection, UnfitError
from hpcml.node.processes import long_import
from hpcml.node.settings import load
from hpcml.settings import Gpu, Settings

_LIBRARY_LINES = 40  # lines of UCX's and NCCL's own logs that are kept of a node
_TROUBLE = re.compile(r"NCCL WARN| UCX  (?:ERROR|FATAL) ")
LARGEST_SCRIPT = 1 << 20  # bytes of a script that is looked at
_ARRAY, _FRAME = "dask.array", "dask.dataframe"
# What a script may import without a need for cuDF: not what loads or starts code that its text does not show.
_HIDES_CODE = {"importlib", "multiprocessing", "pickle", "runpy", "subprocess"}
_WITHOUT_CUDF = {*sys.stdlib_module_names, "cupy", "dask", "distributed", "hpcml", "numpy"} - _HIDES_CODE
_TABLES = (_FRAME, "dask.bag", "dask.datasets")
# The modules that a worker needs for what a script imports; none of them makes a CUDA context, which no fork survives.
_NEEDS = {_ARRAY: (_ARRAY,), _FRAME: (_FRAME,), "dask_cudf": (_FRAME,), "dask_ml": (_ARRAY, _FRAME)}


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
    imported = imports_of_script(context.settings)
    with long_import():  # after the sign of life; before the fork, for all workers
        worker_environment.set_variables(os.environ)
        from distributed.versions import get_versions

        from hpcml.kinds.dask.node import dask_worker, gpus

        get_versions()  # every worker tells the scheduler; Dask keeps the answer
        try:
            try:
                if gpu := context.settings.workers.gpu:
                    gpus.load(gpu, cudf=may_use_cudf(imported, gpu))
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
        import_early(early_imports(imported))
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


def imports_of_script(settings: Settings) -> set[str]:
    """Return what the script's own text imports; nothing if there is no script or it cannot be read."""
    if settings.code.form is not Form.SCRIPT:
        return set()
    try:
        source = Path(settings.code.script).read_bytes()
        return set(_imported(ast.parse(source))) if len(source) <= LARGEST_SCRIPT else set()
    except (OSError, SyntaxError, ValueError):  # Python will say so when it runs the script
        return set()


def early_imports(names: Collection[str]) -> list[str]:
    """Return the modules to import early for a script that imports ``names``: what it needs of Dask's collections."""
    return sorted(
        {need for kind, needs in _NEEDS.items() if any(_within(name, kind) for name in names) for need in needs}
    )


def may_use_cudf(names: Collection[str], gpu: Gpu) -> bool:
    """Return False if neither the script's imports nor the settings need cuDF, whose import costs a start two seconds.

    A task that uses cuDF nevertheless imports it in its worker.
    """
    if not names or gpu.cudf_spill or "cupy" not in gpu.rmm_allocator_libs:  # cuDF's import has CuPy use RMM too
        return True
    return any(
        name.partition(".")[0] not in _WITHOUT_CUDF or any(_within(name, table) for table in _TABLES) for name in names
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def import_early(modules: Sequence[str]) -> None:
    """Import modules once for all workers of the node, before they are forked; the log says how long it took.

    Each worker imports a collection's library at its first task. With eight workers on two cores, one import for all
    almost halves the processor time of a data frame's first result.

    What is not installed, or cannot be imported, is left to the graph that needs it: that error reaches the script. Its
    words are not said here, where the cause of another error is looked for.
    """
    began = time.perf_counter()
    done = []
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a library's import may raise anything
            print(
                f"hpcml: {name} could not be imported before the workers started ({type(error).__name__}).", flush=True
            )
        else:
            done.append(name)
    if done:
        print(
            "hpcml: imported these modules before the workers started, "
            f"in {time.perf_counter() - began:.1f} s: {', '.join(done)}",
            flush=True,
        )
