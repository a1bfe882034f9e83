"""A cluster that the script opens in a run: what the workers get with it, and what they do not get."""

from __future__ import annotations

import ast
import functools
import os
import sys
import types
import weakref
from collections.abc import Mapping
from typing import Any

from dask.utils import format_bytes, parse_bytes
from distributed.core import Status
from distributed.protocol.pickle import dumps

from hpcml.kinds.dask.node import handover, job_script
from hpcml.node import script_module
from hpcml.node.settings import load

Place = tuple[str, int, bool]  # a file, its line, and whether it is the script's own

_resources: dict[str, float] = {}  # of all clusters so far
_opened: weakref.WeakSet[Any] = weakref.WeakSet()
_said: set[str] = set()  # what workers do not get, of all clusters so far
_last = (b"", handover.Handover())  # what was handed over last, as it travelled too


class Opening:
    """What the script has when it opens a cluster: its workers have it before the script's first task."""

    def __init__(
        self, owner: Any, asked: str, place: Place, options: Mapping[str, Any], *, module: str,
        resources: Mapping[str, float],
    ) -> None:  # fmt: skip
        """Collect it for a cluster or client; ``module``: see :func:`module_for_workers`."""
        self.owner, self.asked, self.place = weakref.ref(owner), asked, place
        settings = load().settings
        self.shared, gpus = settings.points.at_once > 1, settings.workers.gpu is not None
        variables, self.lacking = job_script.asked(options, _kind(owner), os.environ, gpus=gpus)
        variables |= {name: str(value) for name, value in (options.get("env") or {}).items()}
        self.handover, refused = handover.collect(variables, settings.code.arguments, gpus=gpus)
        self.lacking += refused
        _resources.update(resources)
        self.handover.resources, self.handover.module = dict(_resources), module
        self.memory = options.get("memory_limit")

    async def hand_over(self, scheduler: Any) -> list[str]:
        """Give it to the scheduler and its workers; return in words what they do not get, and what else changes."""
        global _last  # noqa: PLW0603 - a process has one run's workers
        notes = []
        self.lacking += await self._less_memory(scheduler)
        packed = self._packed()
        if packed != _last[0] and (self.handover or _last[0]):
            notes = self._of_others()
            self.lacking += await handover.give(scheduler, self.handover, shared=self.shared)
            _last = (packed, self.handover)
        if (owner := self.owner()) is not None:
            _opened.add(owner)
        if lacking := [words for words in self.lacking if words not in _said]:
            _said.update(lacking)
            notes.append(f"the workers do not get {'; '.join(lacking)}")
        return notes

    def _packed(self) -> bytes:
        """Return the handover as it travels, without settings that cannot."""
        for name, value in list(self.handover.settings.items()):
            try:
                dumps(value)
            except Exception as error:  # noqa: BLE001 - any object's own
                del self.handover.settings[name]
                self.lacking.append(f"Dask's {name} (it cannot be sent: {type(error).__name__})")
        return bytes(dumps(self.handover))

    def _of_others(self) -> list[str]:
        """Return in words what tasks of clusters that are still open get too: a run has one set of workers."""
        running = (Status.running, "running")
        others = [one for one in _opened if one is not self.owner() and one.status in running]
        changes = ", ".join(self.handover.changes(_last[1]))
        return [f"clusters opened before have the same workers, which now get {changes}"] if others and changes else []

    async def _less_memory(self, scheduler: Any) -> list[str]:
        """Return in words that workers have less memory than was asked for."""
        if not isinstance(self.memory, str | int) or self.memory == "auto":
            return []
        wanted = int(parse_bytes(self.memory))
        workers = (await scheduler.identity(n_workers=-1))["workers"].values()
        least = min((worker["memory_limit"] or wanted for worker in workers), default=wanted)
        if least >= wanted:
            return []
        asked, given = format_bytes(wanted), format_bytes(least)
        return [f"memory_limit={asked}: each has {given} (--memory-per-node, workers.per_node)"]


def _kind(owner: Any) -> str:
    """Return the name by which Dask's configuration has options for a cluster of dask-jobqueue."""
    kind = type(owner)
    return str(getattr(kind, "config_name", "") or kind.__name__.removesuffix("Cluster").lower())


def module_for_workers(frame: types.FrameType | None) -> str:
    """Return when workers import the script as children of it would: "now", "asked" (for a name), empty for never.

    Only for a cluster that is opened below the main guard, in ``frame``: else an import would open it again.
    """
    main = sys.modules["__main__"]
    while frame and not (frame.f_code.co_name == "<module>" and frame.f_globals is vars(main)):
        frame = frame.f_back
    path = getattr(main, "__file__", None)
    is_script = "hpcml.node.script.launcher" in sys.modules  # not a process that the script started
    if frame is None or path is None or not is_script:
        return ""
    line, body = frame.f_lineno, _body(path)
    guards = [node for node in body if script_module.is_guard(node)]
    if not any(node.lineno <= line <= (node.end_lineno or 0) for node in guards):
        return ""
    if any(map(script_module.has_effects, body)):
        return "now"
    return "" if all(map(script_module.is_definition, (node for node in body if node not in guards))) else "asked"


@functools.cache
def _body(path: str) -> list[ast.stmt]:
    return script_module.read(path).body


def move_to_main() -> None:
    """In a process of multiprocessing's spawn: say ``__main__`` of the script's functions and classes.

    There the script is the module ``__mp_main__``, which workers cannot import. What ``__main__`` has travels whole.
    """
    spawned = sys.modules.get("__mp_main__")
    if spawned is not None and getattr(spawned, "__name__", "") == "__mp_main__":
        _move_to_main(spawned)


def _move_to_main(owner: Any) -> None:
    for member in list(vars(owner).values()):
        function = getattr(member, "__func__", member)  # of a static method or a class method
        if isinstance(function, types.FunctionType | type) and function.__module__ == "__mp_main__":
            function.__module__ = "__main__"
            if isinstance(function, type):
                _move_to_main(function)
