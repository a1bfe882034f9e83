"""What a script changed before it opened a cluster, given to the run's workers and scheduler.

Workers of a LocalCluster are children of the script: they inherit its variables, folder, limits and umask, and Dask and
multiprocessing give them its path of modules, its arguments, ``dask.config`` and the script as ``__main__``. Here a
worker plugin does it, for workers that come later too, before the script's first task.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib.util
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dask.config
from distributed import WorkerPlugin
from distributed.core import clean_exception
from distributed.protocol.pickle import dumps

from hpcml.kinds.dask.node import main_in_workers, worker_environment
from hpcml.node.job import node_name
from hpcml.node.script import interpreter_state

NAME = "hpcml-handover"
# Variables that a library or the loader reads once: a running worker has read them.
_READ_ONCE = ("LD_", "PYTHON", "MALLOC_", "GLIBC_TUNABLES", "LC_", "LANG", "KMP_")
_OF_LIBRARIES = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")  # scikit-learn sets them when it is imported, in tasks too
_READ_ONCE_BY_GPUS = ("CUDA_", "NCCL_", "UCX_", "RMM_", "CUDF_", "CUPY_")
_HASH_SEED = "6640"  # Dask's own
_THREADS = {"OMP_NUM_THREADS": "openmp", "OPENBLAS_NUM_THREADS": "blas", "MKL_NUM_THREADS": "blas"}
# Settings of Dask that are the run's own, and those of them whose change is worth a word.
_RUNS_SETTINGS = ("scheduler-address", "scheduler-file", "scheduler", "shuffle", "temporary-directory", "jobqueue",
                  "distributed.client", "distributed.comm", "distributed.deploy", "distributed.nanny",
                  "distributed.scheduler", "distributed.worker.preload",
                  "distributed.worker.memory.terminate")  # fmt: skip
_WORTH_A_WORD = ("temporary-directory", "distributed.comm.", "distributed.scheduler.", "distributed.worker.")
_MEMORY = "distributed.worker.memory"
_LIMITS = {"Max cpu time": "CPU", "Max file size": "FSIZE", "Max data size": "DATA", "Max stack size": "STACK",
           "Max core file size": "CORE", "Max open files": "NOFILE", "Max locked memory": "MEMLOCK",
           "Max address space": "AS"}  # fmt: skip


@dataclass(slots=True)
class Handover:
    """What workers take up; an attribute is empty where the script changed nothing."""

    environment: dict[str, str | None] = field(default_factory=dict)
    path: tuple[list[str], list[str]] | None = None  # the script's before its first line, and now
    folder: str = ""
    argv: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    umask: int | None = None
    nice: int = 0
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    start_method: str = ""
    authkey: bytes = b""
    module: str = ""  # "now" or "asked": when the script is imported whole
    resources: dict[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self != Handover()

    def changes(self, last: Handover) -> list[str]:
        """Return the differences from the last one, in words."""
        named = [(self.environment, last.environment), (self.settings, last.settings)]
        changed = [name for mine, theirs in named for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        others = {"path": "sys.path", "folder": "the working directory", "argv": "sys.argv", "umask": "umask",
                  "limits": "limits", "resources": "resources"}  # fmt: skip
        return changed + [sentence for name, sentence in others.items() if getattr(self, name) != getattr(last, name)]


def collect(environment: Mapping[str, str], argv: Sequence[str], *, gpus: bool) -> tuple[Handover, list[str]]:
    """Return the changes of this process since the script's start, and in words those that workers do not get.

    Parameters
    ----------
    environment
        Variables for the workers alone: ``env=`` of a cluster, and what its job script exports.
    argv
        The arguments that the workers have: a point of a sweep has more.
    gpus
        Whether the run has GPU workers, which have read more variables.
    """
    before = interpreter_state.BEFORE
    if not before:
        return Handover(environment=dict(environment)), []
    now = interpreter_state.current()
    changed = {**_of_nanny(), **_changed(before["environment"], now["environment"]), **environment}
    given = {name: value for name, value in changed.items() if not name.startswith(worker_environment.RUNS_OWN)}
    settings, refused = _settings(before["environment"], changed)
    refused += [name for name in changed if name.endswith("_VISIBLE_DEVICES")]
    once = _READ_ONCE + (_READ_ONCE_BY_GPUS if gpus else ())
    late = [name for name in given if name.startswith(once) and name not in ("PYTHONPATH", *_OF_LIBRARIES)]
    late += [name for name in given if name in _THREADS and not _has_threadpoolctl()]
    if late:
        refused.append(f"{', '.join(late)} for libraries that are already loaded (set the variable before you submit)")
    same = {name: before[name] == now[name] for name in before}
    return Handover(
        environment=given,
        path=None if same["path"] else (before["path"], now["path"]),
        folder="" if same["folder"] else now["folder"],
        argv=[] if now["argv"][1:] == [*argv] else list(map(str, now["argv"])),
        settings=settings,
        umask=None if same["umask"] else now["umask"],
        nice=now["nice"] - before["nice"],
        limits=dict(_limits(before["limits"], now["limits"])),
        **_of_multiprocessing(),
    ), refused


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that differ, without those that a Nanny sets in its own process: workers have them."""
    of_nanny = {**dask.config.get("distributed.nanny.pre-spawn-environ"), "PYTHONHASHSEED": _HASH_SEED}
    changed_settings = {(name, str(value)) for name, value in of_nanny.items() if name not in before}
    names = dict.fromkeys((*before, *now))
    return {name: now.get(name) for name in names
            if before.get(name) != now.get(name) and (name, now.get(name)) not in changed_settings}  # fmt: skip


def _limits(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, tuple[int, int]]]:
    for name, kind in _LIMITS.items():
        if before.get(name) != now.get(name):
            yield kind, resource.getrlimit(getattr(resource, f"RLIMIT_{kind}"))


def _of_nanny() -> dict[str, str | None]:
    """Return the variables for workers that the script has put into Dask's own settings for them."""
    usual: dict[str, Any] = {}
    dask.config.refresh(usual, defaults=dask.config.defaults, env=interpreter_state.BEFORE["environment"])
    changed: dict[str, str | None] = {}
    for key in worker_environment.KEYS:
        now, before = dask.config.get(key, {}), dask.config.get(key, {}, config=usual)
        changed |= {name: str(value) for name, value in now.items() if before.get(name) != value and value is not None}
    return {name: os.environ.get(name, value) for name, value in changed.items()}


def _settings(start: Mapping[str, str], changed: Mapping[str, str | None]) -> tuple[dict[str, Any], list[str]]:
    """Return Dask's settings that the script changed, and in words those that are the run's."""
    usual: dict[str, Any] = {}
    dask.config.refresh(usual, defaults=dask.config.defaults, env=start)
    of_variables = dask.config.collect_env({name: value for name, value in changed.items() if value is not None})
    before = {_plain(key): value for key, value in _leaves(usual)}
    now = dict(_leaves(of_variables)) | dict(_leaves(dask.config.config))
    different = {key: value for key, value in now.items() if not _equal(before.get(_plain(key), dask), value)}
    run_keys = [key for key in different if f"{_plain(key)}.".startswith(tuple(f"{part}." for part in _RUNS_SETTINGS))]
    notable = [key for key in run_keys if _plain(key).startswith(_WORTH_A_WORD)]
    refused = (
        [f"Dask's {', '.join(notable)} (hpcml sets these values; change them before you submit)"] if notable else []
    )
    return {key: value for key, value in different.items() if key not in run_keys}, refused


def _plain(key: str) -> str:
    """Return a key as Dask's own files have it: variables make underscores of its dashes."""
    return key.replace("_", "-")


def _equal(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # noqa: BLE001 - an array, or an object of the script's
        return False


def _leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        key = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, key)
        else:
            yield key, value


def _of_multiprocessing() -> dict[str, Any]:
    """Return a start method that was set, and the key of managers if the script has one."""
    settings: dict[str, Any] = {}
    if context := sys.modules.get("multiprocessing.context"):
        chosen = context._default_context  # noqa: SLF001 - to ask get_start_method is to choose one
        actual, usual = chosen._actual_context, chosen._default_context  # noqa: SLF001
        settings["start_method"] = "" if actual in (None, usual) else str(actual.get_start_method())
    if "multiprocessing.managers" in sys.modules:
        from multiprocessing import current_process

        settings["authkey"] = bytes(current_process().authkey)
    return settings


def _has_threadpoolctl() -> bool:
    return importlib.util.find_spec("threadpoolctl") is not None


class HandoverPlugin(WorkerPlugin):  # type: ignore[misc]
    """Gives a worker what the script changed; it is undone when the plugin is removed or replaced."""

    name = NAME

    def __init__(self, handover: Handover) -> None:
        self.handover = handover
        self.problems: list[str] = []

    async def setup(self, worker: Any) -> None:
        """Take it up."""
        self.undo = contextlib.ExitStack()
        self.problems = apply(self.handover, self.undo, first=[worker.local_directory])
        before = contextvars.copy_context()
        _of_process(self.handover, self.undo, self.problems)
        now = contextvars.copy_context()
        worker.of_script = [(one, value) for one, value in now.items() if before.get(one) is not value]
        _of_memory(self.handover.settings, self.undo, worker)
        for problem in self.problems:
            print(f"hpcml: the workers do not get this setting of the script: {problem}.", file=sys.stderr, flush=True)
        if self.handover.resources:
            await worker.set_resources(**self.handover.resources)

    def teardown(self, worker: Any) -> None:
        """Undo it."""
        self.undo.close()
        worker.of_script = []


def apply(handover: Handover, undo: contextlib.ExitStack, first: Sequence[str] = ()) -> list[str]:
    """Give this process variables, path, folder, arguments and Dask's settings; return the problems."""
    problems = []
    for name, value in handover.environment.items():
        undo.callback(_set_variable, name, os.environ.get(name))
        _set_variable(name, value)
    if handover.path:
        before, now = handover.path
        kept_entries = [entry for entry in sys.path if entry in first]
        rest = [entry for entry in sys.path if entry not in (*before, *now, *kept_entries)]
        undo.callback(sys.path.__setitem__, slice(None), list(sys.path))
        sys.path[:] = [*kept_entries, *now, *rest]
    if handover.argv:
        undo.callback(sys.argv.__setitem__, slice(None), list(sys.argv))
        sys.argv[:] = handover.argv
    if handover.folder:
        try:
            before_folder = os.getcwd()  # noqa: PTH109 - pathlib would say the same
            os.chdir(handover.folder)
            undo.callback(os.chdir, before_folder)
        except OSError as error:
            problems.append(f"the working directory {handover.folder}: {error.strerror}")
    if handover.settings:
        undo.enter_context(dask.config.set(handover.settings))
    return problems


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
    if name == "TZ":
        time.tzset()
    elif name in ("TMPDIR", "TEMP", "TMP"):
        tempfile.tempdir = None  # or the folder that was found before stays


def _lower_priority(nice: int) -> None:
    """Give this process a script's lower priority once: only root could raise it again."""
    global _lowered  # noqa: PLW0603 - a process has one priority
    if nice > _lowered:
        os.nice(nice - _lowered)
        _lowered = nice


def _of_process(handover: Handover, undo: contextlib.ExitStack, problems: list[str]) -> None:
    """Give this process umask, limits, priority, start method, threads of libraries, and the script's module."""
    if handover.umask is not None:
        undo.callback(os.umask, os.umask(handover.umask))
    for kind, values in handover.limits.items():
        number = getattr(resource, f"RLIMIT_{kind}")
        undo.callback(_set_limit, number, resource.getrlimit(number))
        if problem := _set_limit(number, values):
            problems.append(f"the limit RLIMIT_{kind}: {problem}")
    _lower_priority(handover.nice)
    if handover.start_method or handover.authkey:
        import multiprocessing

        if handover.start_method:
            multiprocessing.set_start_method(handover.start_method, force=True)
        if handover.authkey:
            multiprocessing.current_process().authkey = handover.authkey
    limits = {_THREADS[name]: int(value) for name, value in handover.environment.items() if name in _THREADS
              and value and value.isdigit()}  # fmt: skip
    if limits and _has_threadpoolctl():  # an optional package, which scikit-learn brings
        undo.enter_context(importlib.import_module("threadpoolctl").threadpool_limits(limits))
    if handover.module and (problem := main_in_workers.load_whole(now=handover.module == "now")):
        problems.append(problem)


def _set_limit(number: int, values: tuple[int, int]) -> str:
    """Set a limit, the soft one alone where the hard one may not rise; return the reason if neither could be set."""
    try:
        resource.setrlimit(number, values)
    except (OSError, ValueError):
        hard = resource.getrlimit(number)[1]
        try:
            resource.setrlimit(number, (values[0], hard))
        except (OSError, ValueError) as error:
            return str(error)
    return ""


def _of_memory(settings: Mapping[str, Any], undo: contextlib.ExitStack, worker: Any) -> None:
    """Have the worker spill and pause by the script's fractions: Dask read them when the worker started."""
    manager = worker.memory_manager
    for name in ("target", "spill", "pause"):
        if (value := settings.get(f"{_MEMORY}.{name}")) is not None:
            undo.callback(setattr, manager, f"memory_{name}_fraction", getattr(manager, f"memory_{name}_fraction"))
            setattr(manager, f"memory_{name}_fraction", value)
            fast = getattr(manager.data, "fast", None)
            if name == "target" and manager.memory_limit and fast is not None and hasattr(fast, "n"):
                undo.callback(setattr, fast, "n", fast.n)
                fast.n = value * manager.memory_limit if value else sys.maxsize


def problems(dask_worker: Any) -> list[tuple[str, str]]:
    """On a worker: return the problems of the last handover, with the node's name."""
    plugin = dask_worker.plugins.get(NAME)
    return [(problem, node_name()) for problem in plugin.problems] if plugin else []


async def give(scheduler: Any, handover: Handover, *, shared: bool = False) -> list[str]:
    """Have the scheduler and its workers take a handover up; return the problems, by node.

    Parameters
    ----------
    scheduler
        A connection to it (Dask's rpc).
    shared
        Whether other scripts use the scheduler's process too.
    """
    arguments = {"args": dumps((handover,)), "kwargs": dumps({"shared": shared})}
    plugin = {"plugin": dumps(HandoverPlugin(handover)), "name": NAME, "idempotent": False}
    ask = {"op": "run", "function": dumps(problems), "args": dumps(()), "kwargs": dumps({}), "wait": True}
    answers = [await scheduler.run_function(function=dumps(on_scheduler), **arguments)]
    answers += (await scheduler.register_worker_plugin(**plugin)).values()
    replies = (await scheduler.broadcast(msg=ask, on_error="ignore")).values()
    for answer in answers:
        if answer["status"] == "error":
            _, error, trace = clean_exception(answer["exception"], answer["traceback"])
            raise error.with_traceback(trace)
    nodes: dict[str, set[str]] = {}
    for problem, node in (pair for answer in replies for pair in answer.get("result", ())):
        nodes.setdefault(problem, set()).add(node)
    return [f"{problem} (on {min(on)}{f' and {len(on) - 1} more' if len(on) > 1 else ''})"
            for problem, on in sorted(nodes.items())]  # fmt: skip


_undo_here = contextlib.ExitStack()  # in the scheduler
_lowered = 0  # by how much the priority of this process was lowered


def on_scheduler(handover: Handover | None, *, shared: bool = False) -> None:
    """On the scheduler: take up what it needs to unpickle graphs and to call functions; undo what was before.

    ``shared``: other scripts use this process at the same time, so that it takes only more places of modules.
    """
    if shared:
        sys.path += [entry for entry in ((handover and handover.path) or ((), ()))[1] if entry not in sys.path]
        return
    _undo_here.close()
    if handover:
        apply(handover, _undo_here, first=[entry for entry in sys.path[:1] if "/hpcml_" in entry])
