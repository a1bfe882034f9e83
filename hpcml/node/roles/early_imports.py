"""Import on scheduler and workers, while the script starts, what its graphs will have them import.

Dask's scheduler unpickles a collection's graph, and a worker its tasks: each imports the collection's library at the
first graph, one after the other, when the script has already imported it itself. With dask.dataframe on CPUs these were
two seconds, with cuDF three to four.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.util
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcml.node.settings import Settings

ASK = "hpcml-import"  # what the scheduler sends to workers
SENT = 0.05  # seconds after which Dask has sent what it gathers for 2 ms (distributed.batched)
LARGEST = 1 << 20  # bytes of a script that is looked at
_ARRAY, _FRAME, _CUDF = "dask.array", "dask.dataframe", "dask_cudf"
# What a module of the first kind brings to scheduler and workers.
_NEEDS = {_ARRAY: (_ARRAY,), _FRAME: (_FRAME,), _CUDF: (_FRAME, _CUDF), "dask_ml": (_ARRAY, _FRAME)}


def wanted(settings: Settings) -> list[str]:
    """Return the modules to import early: what the script's own text imports of Dask's collections, else nothing."""
    if settings.service or settings.form:
        return []
    try:
        source = Path(settings.script).read_bytes()
        names = set(_imported(ast.parse(source))) if len(source) <= LARGEST else set()
    except (OSError, SyntaxError, ValueError):  # Python will say so when it runs the script
        return []
    found = {need for kind, needs in _NEEDS.items() if any(_within(name, kind) for name in names) for need in needs}
    if not settings.gpu or settings.gpu.mode != "dask":
        found.discard(_CUDF)  # of a script that also runs on GPUs
    elif _FRAME in found:
        found.add(_CUDF)  # the backend of data frames there, as hpcml.connect(backend="auto") chooses it
    return sorted(found)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def begin(modules: Sequence[str], schedulers: Sequence[Any] = ()) -> None:
    """Have all workers of some schedulers import modules, and import them here once the messages are on their way."""
    for scheduler in schedulers:
        for address in list(scheduler.workers):
            scheduler.worker_send(address, {"op": ASK, "modules": list(modules)})
    asyncio.get_running_loop().call_later(SENT, import_now, modules)


def import_now(modules: Sequence[str]) -> None:
    """Import modules; the log says how long it took.

    It holds up the event loop: a thread's import could meet that of a graph. What is not installed, or cannot be
    imported, is left to the graph that needs it, whose error reaches the script; its words are not said here, where
    the cause of another error is looked for.
    """
    began = time.perf_counter()
    done = []
    for name in modules:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            continue
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a library's import may raise anything
            print(f"hpcml: {name} was not imported early ({type(error).__name__}).", flush=True)
        else:
            done.append(name)
    if done:
        print(f"hpcml: imported early in {time.perf_counter() - began:.1f} s: {', '.join(done)}", flush=True)


def take_part(worker: Any) -> None:
    """Have a worker import when the scheduler asks; before it starts, because Dask takes up its handlers then."""
    worker.stream_handlers[ASK] = import_now
