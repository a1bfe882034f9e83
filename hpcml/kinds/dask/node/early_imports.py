"""Import once for all workers of a node, before they are forked, what the script's graphs will have them import.

Each worker imports a collection's library at its first task. With eight workers on two cores, one import for all
almost halves the processor time of a data frame's first result.
"""

from __future__ import annotations

import ast
import importlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcml.forms import Form
from hpcml.node.settings import Settings

LARGEST = 1 << 20  # bytes of a script that is looked at
_ARRAY, _FRAME = "dask.array", "dask.dataframe"
# The modules that a worker needs for what a script imports; none of them makes a CUDA context, which no fork survives.
_NEEDS = {_ARRAY: (_ARRAY,), _FRAME: (_FRAME,), "dask_cudf": (_FRAME,), "dask_ml": (_ARRAY, _FRAME)}


def wanted(settings: Settings) -> list[str]:
    """Return the modules to import early: what the script's own text imports of Dask's collections, else nothing."""
    if settings.code.form is not Form.SCRIPT:
        return []
    try:
        source = Path(settings.code.script).read_bytes()
        names = set(_imported(ast.parse(source))) if len(source) <= LARGEST else set()
    except (OSError, SyntaxError, ValueError):  # Python will say so when it runs the script
        return []
    return sorted(
        {need for kind, needs in _NEEDS.items() if any(_within(name, kind) for name in names) for need in needs}
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def import_now(modules: Sequence[str]) -> None:
    """Import modules; the log says how long it took.

    What is not installed, or cannot be imported, is left to the graph that needs it: that error reaches the script. Its
    words are not said here, where the cause of another error is looked for.
    """
    began = time.perf_counter()
    done = []
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a library's import may raise anything
            print(f"hpcml: {name} was not imported early ({type(error).__name__}).", flush=True)
        else:
            done.append(name)
    if done:
        print(f"hpcml: imported early in {time.perf_counter() - began:.1f} s: {', '.join(done)}", flush=True)
