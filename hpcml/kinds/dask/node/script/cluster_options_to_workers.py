"""A cluster that the script opens in a run: what the workers get with it, and what they do not get."""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
import sys
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import dask.config
from dask.utils import format_bytes, parse_bytes
from distributed.core import Status
from distributed.protocol.pickle import dumps

from hpcml.kinds.dask.node import main_in_workers
from hpcml.kinds.dask.node.script import state_to_workers
from hpcml.node.context import load

Place = tuple[str, int, bool]  # a file, its line, and whether it is the script's own

_resources: dict[str, float] = {}  # of all clusters so far
_opened: weakref.WeakSet[Any] = weakref.WeakSet()
_said: set[str] = set()  # what workers do not get, of all clusters so far
_last = (b"", state_to_workers.Handover())  # what was handed over last, as it travelled too
_REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_FOR_GPUS = re.compile(r"--gres[= ]\S*gpu|--gpus|-G\s*\d|ngpus=[1-9]|-gpu\b", re.IGNORECASE)
_PROLOGUE = ("job-script-prologue", "env-extra")
_DIRECTIVES = ("job-extra-directives", "job-extra")


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
        variables, self.lacking = of_job_script(options, _kind(owner), os.environ, gpus=gpus)
        variables |= {name: str(value) for name, value in (options.get("env") or {}).items()}
        self.handover, refused = state_to_workers.collect(variables, settings.code.arguments, gpus=gpus)
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
            self.lacking += await state_to_workers.give(scheduler, self.handover, shared=self.shared)
            _last = (packed, self.handover)
        if (owner := self.owner()) is not None:
            _opened.add(owner)
        if lacking := [sentence for sentence in self.lacking if sentence not in _said]:
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
                self.lacking.append(f"Dask's setting {name} (the value cannot be sent: {type(error).__name__})")
        return bytes(dumps(self.handover))

    def _of_others(self) -> list[str]:
        """Return in words what tasks of clusters that are still open get too: a run has one set of workers."""
        running = (Status.running, "running")
        others = [cluster for cluster in _opened if cluster is not self.owner() and cluster.status in running]
        changes = ", ".join(self.handover.changes(_last[1]))
        return (
            [f"clusters that the script opened earlier use the same workers, which now get {changes}"]
            if others and changes
            else []
        )

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
        return [
            f"memory_limit={asked}: each worker has {given} (change this with --memory-per-node or workers.per_node)"
        ]


def _kind(owner: Any) -> str:
    """Return the name by which Dask's configuration has options for a cluster of dask-jobqueue."""
    kind = type(owner)
    return str(getattr(kind, "config_name", "") or kind.__name__.removesuffix("Cluster").lower())


def module_for_workers(frame: types.FrameType | None) -> str:
    """Return the time of the script's import in workers, as in children: "now", "asked" (for a name), empty for never.

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
    guards = [node for node in body if main_in_workers.is_guard(node)]
    if not any(node.lineno <= line <= (node.end_lineno or 0) for node in guards):
        return ""
    if any(map(main_in_workers.has_effects, body)):
        return "now"
    return "" if all(map(main_in_workers.is_definition, (node for node in body if node not in guards))) else "asked"


@functools.cache
def _body(path: str) -> list[ast.stmt]:
    return main_in_workers.read(path).body


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


def of_job_script(options: Mapping[str, Any], kind: str, environment: Mapping[str, str], *, gpus: bool
          ) -> tuple[dict[str, str], list[str]]:  # fmt: skip
    """Return the variables of a cluster's job script, and in words what workers of this run do not get of it.

    Parameters
    ----------
    options
        Those of the cluster.
    kind
        Its name in Dask's configuration, which may have the same options.
    environment
        The script's variables, for references to them.
    gpus
        Whether the workers have GPUs.
    """
    variables, lacking = exports(_job_lines(options, kind, _PROLOGUE), environment)
    directives = " ".join(_job_lines(options, kind, _DIRECTIVES))
    if not gpus and _FOR_GPUS.search(directives):
        lacking.append(f"the GPUs that {directives} requests (submit with --gpus-per-node)")
    return variables, lacking


def _job_lines(options: Mapping[str, Any], kind: str, names: Iterable[str]) -> list[str]:
    for name in names:
        value = options.get(name.replace("-", "_"))
        value = dask.config.get(f"jobqueue.{kind}.{name}", None) if value is None else value
        if value:
            return [str(line) for line in ([value] if isinstance(value, str) else value)]
    return []


def exports(lines: Iterable[str], environment: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that lines of shell export, and the lines that need a shell."""
    exported: dict[str, str] = {}
    plain: dict[str, str] = {}  # set, and not exported so far
    lacking = []
    for line in (part.strip() for text in lines for part in text.splitlines()):
        arguments = _shell_words(line)
        if arguments is None:
            lacking.append(f"the job script's line '{line}' (set runtime.modules or runtime.setup)")
            continue
        is_export = arguments[:1] == ["export"]
        for name, equals, value in (word.partition("=") for word in arguments[is_export:]):
            if equals:
                variables = {**environment, **plain, **exported}
                value = _REFERENCE.sub(lambda match: variables.get(match[1] or match[2], ""), value)  # noqa: B023, PLW2901
            if is_export or name in exported or name in environment:
                exported[name] = value if equals else plain.get(name, environment.get(name, ""))
            else:
                plain[name] = value
    return exported, lacking


def _shell_words(line: str) -> list[str] | None:
    """Return the words of ``export NAME=value …`` or ``NAME=value …``; None of a line that needs a shell."""
    if re.search(r"`|\$\(|[;|&<>]|\$\{\w*[^\w}]|'[^']*\$|\\\$|~", line):
        return None
    try:
        arguments = shlex.split(line, comments=True)
    except ValueError:
        return None
    names = arguments[arguments[:1] == ["export"] :]
    pattern = r"[A-Za-z_]\w*(=.*)?" if arguments[:1] == ["export"] else r"[A-Za-z_]\w*=.*"
    return arguments if all(re.fullmatch(pattern, name, re.DOTALL) for name in names) else None
