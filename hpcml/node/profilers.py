"""What ``--profile`` asks for on the nodes: whether it is there, nsys or ncu around the workers, memray's records."""

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
    from hpcml.node.context import Context

_NEEDS = {"dask": "bokeh", "memray": "memray", "rmm": "rmm"}
# NVIDIA's programs that start the workers' process. They follow forked workers. ncu runs each kernel several times.
_NSYS = ("--force-overwrite=true", "--trace=cuda,nvtx", "--trace-fork-before-exec=true", "--sample=none", "--output")
_NCU = ("--force-overwrite", "--target-processes=all", "--launch-count=200", "--export")
_AROUND = {"nsys": ("nsys", "profile", *_NSYS), "ncu": ("ncu", *_NCU)}
_INSIDE = "HPCML_NSYS"  # in the environment of a process that one of them started
_MEMRAY_ERRORS = 40  # as in logging


def missing(context: Context) -> str:
    """Return the reason why a profiler that the run asks for cannot work on this node, empty if all can."""
    for name in context.settings.report.profilers:
        if name in _AROUND:
            if shutil.which(name) is None:
                needs = f"--profile {name} needs NVIDIA's {name} on PATH"
                return f"{needs}: load the module of {name}, or use an image with {name}"
        elif importlib.util.find_spec(_NEEDS[name]) is None:
            return f"--profile {name} needs the package {_NEEDS[name]}, which the run's environment does not have"
    return ""


def enter(context: Context) -> str:
    """Start this process again below nsys or ncu, if the run asks for one and this process is not below it yet.

    Return a sentence if it cannot be started, else an empty text.
    """
    inside = os.environ.pop(_INSIDE, "")  # no matter of the workers
    for name in [name for name in context.settings.report.profilers if name in _AROUND and not inside]:
        *command, output = _AROUND[name]
        command += [f"{output}={context.run.profiles}/{name}-{context.node}.{context.number}", sys.executable]
        try:
            os.execvpe(name, [*command, *sys.orig_argv[1:]], {**os.environ, _INSIDE: "1"})  # noqa: S606 - there is nothing for a shell
        except OSError as error:
            return f"{name} cannot be started: {error.strerror}"
    return ""


def allocations(path: Path | str) -> contextlib.AbstractContextManager[None]:
    """Import memray, and return the context that records the process's allocations in it; for no path nothing."""
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
