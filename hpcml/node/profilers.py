"""What ``--profile`` asks for on the nodes: whether it is there, nsys around the processes, and memray's records."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:  # the script's process may import this module, which has no need of it
    from hpcml.node.settings import Context

_NEEDS = {"dask": "bokeh", "memray": "memray", "rmm": "rmm"}
_NSYS = ("--force-overwrite=true", "--trace=cuda,nvtx", "--trace-fork-before-exec=true", "--sample=none")
_MEMRAY_ERRORS = 40  # as in logging


def missing(context: Context) -> str:
    """Return why a profiler that the run asks for cannot work on this node, empty if all can."""
    for name in context.settings.report.profilers:
        if name == "nsys":
            if shutil.which("nsys") is None:
                return "--profile nsys needs NVIDIA's nsys on PATH: load the module of nsys, or use an image with nsys"
        elif importlib.util.find_spec(_NEEDS[name]) is None:
            return f"--profile {name} needs the package {_NEEDS[name]}, which the run's environment does not have"
    return ""


def enter_nsys(context: Context) -> None:
    """Start this process again below nsys, if that is asked for and it is not there yet; it follows forked workers.

    Raises
    ------
    OSError
        If nsys cannot be started.
    """
    inside = os.environ.pop("HPCML_NSYS", "")  # no matter of the workers
    if "nsys" in context.settings.report.profilers and not inside:
        output = f"--output={context.run.profiles}/nsys-{context.node}.{context.number}"
        command = ["nsys", "profile", output, *_NSYS, sys.executable, *sys.orig_argv[1:]]
        os.execvpe("nsys", command, {**os.environ, "HPCML_NSYS": "1"})  # noqa: S606 - there is nothing for a shell


def allocations(path: Path | str) -> contextlib.AbstractContextManager[None]:
    """Import memray, and return what records this process's allocations while it is entered; for no path nothing."""
    if not path:
        return contextlib.nullcontext()
    try:
        return _recorded(importlib.import_module("memray"), path)
    except ImportError as error:
        _tell(path, error)
        return contextlib.nullcontext()


@contextlib.contextmanager
def _recorded(memray: Any, path: Path | str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        try:
            memray.set_log_level(_MEMRAY_ERRORS)  # its warnings would stand in the script's output
            stack.enter_context(memray.Tracker(destination=memray.FileDestination(path, overwrite=True)))
        except (OSError, RuntimeError) as error:  # a profile ends no run
            _tell(path, error)
        yield


def _tell(path: Path | str, error: Exception) -> None:
    print(f"hpcml: memray does not record into {path}: {error}.", file=sys.stderr)
