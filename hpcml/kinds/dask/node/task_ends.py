"""What became of the script's tasks: which failed, and which were given up before they were done.

A script that ends with 0 may have waited for none of them: Dask keeps an error for who asks for the result, and drops
what nobody wants any more.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.protocol import pickle

_BEFORE_THEY_RAN = frozenset(("waiting", "queued", "no-worker", "processing"))  # Dask's states
_BY_THE_SCRIPT = ("client-releases-keys", "remove-client")  # its last future is gone, or its client; not Future.cancel
_LONGEST = 200  # characters of an error
_PLACE = re.compile(r'File "([^"]+)", line ([0-9]+)')
_LIBRARIES = (f"{sys.prefix}/", f"{sys.base_prefix}/", "<")


class TaskEnds(SchedulerPlugin):  # type: ignore[misc]
    """Counts them for one scheduler; of the errors it keeps the first."""

    name = "hpcml-task-ends"

    def __init__(self) -> None:
        self.failed = self.given_up = 0
        self.first = ""

    def transition(self, key: Any, start: str, finish: str, *_: Any, stimulus_id: str = "", **facts: Any) -> None:
        """Dask's hook: a task has another state."""
        if start not in _BEFORE_THEY_RAN:
            return
        if finish == "erred" and facts.get("cause") == key:  # what only waits for a failed task has no cause here
            self.failed += 1
            self.first = self.first or _described(**facts)
        elif finish in {"released", "forgotten"} and stimulus_id.startswith(_BY_THE_SCRIPT):
            self.given_up += 1


def _described(
    *, exception: Any = None, exception_text: str | None = None, traceback_text: str | None = None, **_: Any
) -> str:
    error = exception_text or ""
    if not error and isinstance(exception, bytes):  # the scheduler's own: KilledWorker, NoWorkerError
        made = pickle.loads(exception)
        error = f"{type(made).__name__}: {made}"
    places = _PLACE.findall(traceback_text or "")
    own = [place for place in places if not place[0].startswith(_LIBRARIES) and "/site-packages/" not in place[0]]
    line = "".join(one if one.isprintable() else "?" for one in " ".join(error.split()))
    short = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    if not places:
        return short
    file, line_number = (own or places)[-1]
    return f"{short} ({file.rpartition('/')[2]}:{line_number})"


def sentences(scheduler: Scheduler) -> list[str]:
    """Return what a user has to know of the tasks of a script that ended with 0."""
    ends: TaskEnds | None = scheduler.plugins.get(TaskEnds.name)
    said: list[str] = []
    if ends is None:  # the script took it away
        return said
    if failed := ends.failed:
        those = f"{failed:,} tasks failed, the first with" if failed > 1 else "a task failed with"
        said.append(f"{those} {ends.first or 'an error'}, and the script ended with 0 all the same.")
    if undone := ends.given_up + sum(task.state in _BEFORE_THEY_RAN for task in scheduler.tasks.values()):
        those = f"{undone:,} tasks were" if undone > 1 else "a task was"
        said.append(f"{those} not done when the script ended or dropped the future: nothing waited for the result.")
    return said
