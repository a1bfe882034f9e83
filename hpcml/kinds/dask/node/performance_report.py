"""Dask's performance report of a whole run, made on the scheduler."""

from __future__ import annotations

import asyncio
import html
import importlib
import sys
import tempfile
import time
from pathlib import Path

from distributed import Scheduler, profile

from hpcml import safe_files
from hpcml.node.context import Context

_REPORT_SHARE = 0.3  # of the teardown's deadline, that a report may take with the workers' profiles, and without
_ICON = '<link rel="shortcut icon" href="https://docs.dask.org/en/latest/_static/images/favicon.ico" />'


class PerformanceReport:
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
        for attempt in ("with the workers' profiler output", "without the workers' profiler output"):
            try:
                async with asyncio.timeout(_REPORT_SHARE * self.context.settings.deadlines.teardown):
                    await self.loading
                    text = await self.scheduler.performance_report(
                        self.began, self.count, code=html.escape(self.context.settings.code.script), mode="inline"
                    )
                self._put(text)
            except Exception as error:  # noqa: BLE001 - whatever Dask or Bokeh raise: a profile ends no run
                why = (
                    "the report took too long"
                    if isinstance(error, TimeoutError)
                    else f"{type(error).__name__}: {error}"
                )
                print(
                    f"hpcml: Dask's performance report was not written {attempt}: {why}.", file=sys.stderr, flush=True
                )
                self.scheduler.get_profile = _nothing
            else:
                return

    def _put(self, text: str) -> None:
        safe_files.write(self.context.run.profiles / "dask.html", text.replace(_ICON, ""))


async def _nothing(**_: object) -> object:
    """Return an empty profile, in the place of asking workers that do not answer."""
    return profile.create()
