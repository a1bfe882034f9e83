"""What ``--profile`` asks for on the nodes: whether it is there, Dask's own report, and memray's records."""

from __future__ import annotations

import asyncio
import contextlib
import html
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:  # the script's process may import this module, and should not find Dask loaded
    from distributed import Scheduler

    from hpcml.node.settings import Context

_NEEDS = {"dask": "bokeh", "memray": "memray", "rmm": "rmm"}
_SHARE = 0.3  # of the teardown's deadline, that Dask's report may take with the workers' profiles, and without
_NSYS = ("--force-overwrite=true", "--trace=cuda,nvtx", "--trace-fork-before-exec=true", "--sample=none")
_MEMRAY_ERRORS = 40  # as in logging
_ICON = '<link rel="shortcut icon" href="https://docs.dask.org/en/latest/_static/images/favicon.ico" />'


def missing(context: Context) -> str:
    """Return why a profiler that the run asks for cannot work on this node, empty if all can."""
    for name in context.settings.report.profilers:
        if name == "nsys":
            if shutil.which("nsys") is None:
                return "--profile nsys needs NVIDIA's program nsys, which is not on PATH here (a module, or the image)"
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


class DaskReport:
    """Dask's performance report of the whole run, made on the scheduler however the script ends."""

    def __init__(self, context: Context, scheduler: Scheduler, scratch: Path) -> None:
        self.context, self.scheduler, self.scratch = context, scheduler, scratch
        self.began, self.count = time.time(), scheduler.monitor.count
        scheduler.get_task_stream(start=0, stop=0)  # from now on it is kept
        pages = "distributed.dashboard.components.scheduler"
        self.loading = asyncio.create_task(asyncio.to_thread(importlib.import_module, pages))  # that takes seconds

    async def write(self) -> None:
        """Write the report; what goes wrong is one line in the scheduler's log."""
        tempfile.tempdir = str(self.scratch)  # Dask writes a temporary file by a name that others could see in /tmp
        for attempt in ("with the workers' profiles", "without"):
            try:
                async with asyncio.timeout(_SHARE * self.context.settings.deadlines.teardown):
                    await self.loading
                    text = await self.scheduler.performance_report(
                        self.began, self.count, code=html.escape(self.context.settings.code.script), mode="inline"
                    )
                self._put(text)
            except Exception as error:  # noqa: BLE001 - whatever Dask or Bokeh raise: a profile ends no run
                why = "it took too long" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
                print(f"hpcml: Dask's performance report was not made {attempt}: {why}.", file=sys.stderr, flush=True)
                self.scheduler.get_profile = _nothing
            else:
                return

    def _put(self, text: str) -> None:
        from hpcml import files

        files.write(self.context.run.profiles / "dask.html", text.replace(_ICON, ""))


async def _nothing(**_: object) -> object:
    """Return an empty profile, in the place of asking workers that do not answer."""
    from distributed import profile

    return profile.create()
