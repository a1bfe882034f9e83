"""What a script imports by its own text, and what the processes of its cluster therefore import before it is needed."""

from __future__ import annotations

import ast
import importlib
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from hpcml.settings import Gpu, Settings
from hpcml.workload_forms import Form

LARGEST_SCRIPT = 1 << 20  # bytes of a script that is looked at
_ARRAY, _FRAME = "dask.array", "dask.dataframe"
# What a script may import without a need for cuDF: not what loads or starts code that its text does not show.
_HIDES_CODE = {"importlib", "multiprocessing", "pickle", "runpy", "subprocess"}
_WITHOUT_CUDF = {*sys.stdlib_module_names, "cupy", "dask", "distributed", "hpcml", "numpy"} - _HIDES_CODE
_TABLES = (_FRAME, "dask.bag", "dask.datasets")
# The modules that a worker needs for what a script imports; none of them makes a CUDA context, which no fork survives.
_NEEDS = {_ARRAY: (_ARRAY,), _FRAME: (_FRAME,), "dask_cudf": (_FRAME,), "dask_ml": (_ARRAY, _FRAME)}

_GPU_LIBRARIES = ("cupy", "cudf", "dask_cudf", "cuml", "cuml.dask", "xgboost")


def of_script(settings: Settings) -> set[str]:
    """Return the imports of the script's own text; nothing if there is no script or it cannot be read."""
    if settings.code.form is not Form.SCRIPT:
        return set()
    try:
        source = Path(settings.code.script).read_bytes()
        return set(_imported(ast.parse(source))) if len(source) <= LARGEST_SCRIPT else set()
    except (OSError, SyntaxError, ValueError):  # Python will say so when it runs the script
        return set()


def early(names: Collection[str]) -> list[str]:
    """Return the modules to import early for a script that imports ``names``: what it needs of Dask's collections.

    Otherwise each worker imports them at its first task: with eight workers on two cores, one import for all almost
    halves the processor time of a data frame's first result.
    """
    return sorted(
        {need for kind, needs in _NEEDS.items() if any(_within(name, kind) for name in names) for need in needs}
    )


def late(names: Collection[str]) -> list[str]:
    """Return the GPU libraries that a script imports: a worker imports them once it has its GPU, the scheduler too.

    Dask's scheduler imports them when it unpickles the script's graph, and no worker has work until then.
    """
    return [library for library in _GPU_LIBRARIES if any(_within(name, library) for name in names)]


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


def import_libraries(names: Collection[str], gpu: Gpu | None) -> None:
    """Import what all workers of a node need, once, before they are forked; a gpus.NoGpuError without RAPIDS."""
    from distributed.versions import get_versions

    from hpcml.kinds.dask.node import gpus

    get_versions()  # every worker tells the scheduler; Dask keeps the answer
    if gpu:
        gpus.load(gpu, cudf=may_use_cudf(names, gpu))


def import_all(modules: Sequence[str], when: str) -> None:
    """Import modules; the log says ``when`` and how long it took.

    What is not installed, or cannot be imported, is left to the graph that needs it: that error reaches the script. Its
    words are not said here, where the cause of another error is looked for.
    """
    began = time.perf_counter()
    done = []
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a library's import may raise anything
            print(f"hpcml: {name} could not be imported {when} ({type(error).__name__}).", flush=True)
        else:
            done.append(name)
    if done:
        seconds = f"{time.perf_counter() - began:.1f} s"
        print(f"hpcml: imported these modules {when}, in {seconds}: {', '.join(done)}", flush=True)
