"""The run's cluster in the place of one that a script opens: its workers are there, and are what the plan says.

What was asked for and what the run gives is said once for each line of the script, on stderr.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import inspect
import json
import math
import os
import re
import socket
import sys
import time
import types
from collections.abc import Callable, Generator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask.config
from dask.utils import parse_timedelta
from distributed import Client, LocalCluster, Scheduler, Security, WorkerPlugin
from distributed.core import ConnectionPool, Status
from distributed.deploy.cluster import Cluster
from distributed.exceptions import WorkerStartTimeoutError
from distributed.http.routing import RoutingApplication
from distributed.protocol.pickle import loads

from hpcml import listeners
from hpcml.kinds.dask.node import late_cluster
from hpcml.kinds.dask.node.script.cluster_options_to_workers import Opening, Place, module_for_workers, move_to_main
from hpcml.kinds.dask.own_settings import Own
from hpcml.node.context import load
from hpcml.settings import Settings
from hpcml.units import counted

_OPENING = {
    "hpcml",
    "distributed",
    "dask",
    "dask_cuda",
    "dask_jobqueue",
    "dask_mpi",
    "tornado",
    "asyncio",
    "contextlib",
}
_ANSWER_WITHIN = 3.0  # seconds for an address of the script's own to accept a connection
_LONGEST = 60  # characters of the arguments in a note

_SHUFFLE = "dataframe.shuffle.method"
_LOOP = 10  # questions for the workers in one line that are a loop

_backend: dict[str, Any] = {}  # Dask's settings of the last hpcml.connect() with a backend
_connecting: dict[str, Any] = {}  # the options of a hpcml.connect() that makes its client
_polls: collections.Counter[tuple[str, str, int]] = collections.Counter()
_noted: set[tuple[str, str, str, int]] = set()


def replacement(kind: str, original: Any) -> Any:
    """Return the replacement of a class or function that opens a cluster; itself, if it is one already."""
    if "of_hpcml" in vars(original):  # its own, not that of a replaced class which it is derived from
        return original
    if kind == "client":
        return adopt(original)
    if kind == "server":
        original.start_http_server = _open_no_port
        return original
    if own_clusters():
        return subclass_of(original) if isinstance(original, type) and issubclass(original, LocalCluster) else original
    if kind == "cluster":
        return type(original.__name__, (RunCluster,), _members(original))
    return {"initialize": _initialize, "execute": _execute, "nothing": _nothing}[kind]


def own_clusters() -> bool:
    """Whether the script opens clusters of its own, as ``--own-clusters`` asks."""
    return load().settings.own(Own).own_clusters


def address() -> str:
    """Return the address of the run's scheduler: the supervisor's word to the script, or a worker's own setting."""
    return os.environ.get("DASK_SCHEDULER_ADDRESS") or str(dask.config.get("scheduler-address"))


def _have_started(asked: str) -> None:
    """Have the run's cluster started where it waits for the script's first client, and say so."""
    if late_cluster.is_late():
        _note(asked, "the run's Dask cluster starts now (to start it before the script: workers.start=early)")
        late_cluster.have_started()


class RunCluster(Cluster):  # type: ignore[misc]
    """Dask's interface of a cluster onto the run's own.

    It takes what any cluster's constructor takes. Its size is the plan's: ``scale`` and ``adapt`` change nothing, and
    ``wait_for_workers`` waits for those that the run has. ``close`` ends this object and not the run.
    """

    _supports_scaling = False
    spawns = False  # whether its workers would be children of the script

    def __init__(
        self, *arguments: Any, asynchronous: bool = False, loop: Any = None, of_client: Any = None, **options: Any
    ) -> None:
        """Open a connection to the run's scheduler; or, for ``client.cluster``, use that of a client."""
        _have_started(_call(type(self).__name__, arguments, options))
        super().__init__(asynchronous=asynchronous, loop=loop, quiet=True, name="hpcml")
        self.asked = options.get("n_workers") or 0
        self._options = options
        self.security = Security()
        self._info: Mapping[str, Any] = {"workers": {}}
        self._pool: ConnectionPool | None = None
        if of_client is None:
            self._pool = ConnectionPool(limit=4, connection_args=self.security.get_connection_args("client"))
            self._loop_runner.start()
        self.scheduler_comm = (self._pool or of_client.rpc)(address())
        self.status = Status.running
        if self._pool:
            asked = _call(type(self).__name__, arguments, options)
            self._opening = _opening(self, asked, options, spawns=self.spawns)
            if not self.asynchronous:
                self.sync(self._open)
            _note_run(asked, options)

    def __del__(self) -> None:
        """Close the connection of an object that nobody closed (Dask's own warning would ask the scheduler)."""
        if pool := getattr(self, "_pool", None):
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self.loop.add_callback(pool.close)

    def __await__(self) -> Generator[Any, None, RunCluster]:
        return self._open().__await__()

    async def _open(self) -> RunCluster:
        if self._pool and self._pool.status == Status.init:
            await self._pool.start()
            self._info = await self.scheduler_comm.identity(n_workers=-1)
            await _hand_over(self._opening, self.scheduler_comm)
        return self

    @property
    def scheduler_info(self) -> Mapping[str, Any]:
        """What the scheduler says of itself and its workers: now, or in asynchronous code when it was last asked."""
        if self.status == Status.running and not self.asynchronous:
            _note_polling("scheduler_info")
            self._info = self.sync(self.scheduler_comm.identity, n_workers=-1)
        return self._info

    @scheduler_info.setter
    def scheduler_info(self, value: Mapping[str, Any]) -> None:
        self._info = value

    @property
    def workers(self) -> Mapping[Any, Any]:
        """The run's workers by number, as SpecCluster has them; by address too."""
        return _Workers(self.scheduler_info["workers"])

    @property
    def worker_spec(self) -> Mapping[Any, Any]:
        """The run's workers, as SpecCluster has them."""
        return self.workers

    def __getattr__(self, name: str) -> Any:
        """Return an option that the script gave, as dask-jobqueue's clusters have them; or say what there is."""
        options = {"job_name": "dask-worker", **vars(self).get("_options", {})}
        if name.startswith("_") or name not in options:
            raise AttributeError(
                f"{type(self).__name__}.{name}: the run's cluster has no {name}. Use scheduler_info, "
                "workers or job_script()."
            )
        return options[name]

    @property
    def n_workers(self) -> int:
        """How many workers the run was planned with (dask-jobqueue's SLURMRunner has this)."""
        return _worker_count(load().settings)

    @property
    def scheduler(self) -> _Elsewhere:
        """What there is of LocalCluster's scheduler object: the run's scheduler is in another process."""
        return _Elsewhere(self)

    def scale(self, n: int | None = None, jobs: int = 0, **options: Any) -> None:
        """Change nothing: a run has the workers that it was submitted with."""
        self.asked = max(self.asked, n or 0, jobs)
        self._hand_over_again()
        asked = _call("scale", () if n is None else (n,), options | ({"jobs": jobs} if jobs else {}))
        _note_run(asked, {"n_workers": n})

    scale_up = scale  # as SpecCluster has it

    def scale_down(self, workers: Any = ()) -> None:  # noqa: ARG002 - as SpecCluster has it
        """Change nothing: a run keeps its workers."""
        _note_run("scale_down()")

    def _hand_over_again(self) -> None:
        """Give the workers what the script has now: those that ``scale`` starts elsewhere have it."""
        if self._pool and not self.asynchronous:
            self.sync(_hand_over, _opening(self, "scale()", self._options, spawns=self.spawns), self.scheduler_comm)

    def adapt(self, *_: Any, **options: Any) -> Any:
        """Change nothing, and return an object that can be stopped."""
        wanted = [options.get(name) or 0 for name in ("minimum", "minimum_jobs")]
        self.asked = max(self.asked, *wanted)
        self._hand_over_again()
        _note_run(_call("adapt", (), options))
        return types.SimpleNamespace(stop=_nothing, periodic_callback=None, **_bounds(options))

    def job_script(self) -> str:
        """Return the batch script of the run, as dask-jobqueue's clusters return theirs."""
        return Path(os.environ["HPCML_RUN_DIR"], "job.sh").read_text()

    async def _wait_for_workers(self, n_workers: int = 0, timeout: float | None = None) -> None:  # noqa: ASYNC109
        wanted = min(n_workers, self.n_workers) if n_workers <= self.asked else n_workers
        deadline = time.monotonic() + (parse_timedelta(timeout) if timeout else math.inf)
        while (count := await self._count()) < wanted:
            if time.monotonic() > deadline:
                raise WorkerStartTimeoutError(count, wanted, timeout)
            await asyncio.sleep(0.1)  # as Dask does: so often, it tells the scheduler that the script waits

    async def _count(self) -> int:
        self._info = await self.scheduler_comm.identity(n_workers=-1)
        return sum(worker["status"] == Status.running.name for worker in self._info["workers"].values())

    async def _close(self) -> None:
        if self.status != Status.closed:
            self.status = Status.closed
            if self._pool:
                await self._pool.close()

    def close(self, timeout: float | None = None) -> Any:
        """Let go of the run's cluster, which continues until the script ends."""
        closing = super().close(timeout=timeout)
        if self._pool and not self.asynchronous:
            self._loop_runner.stop()
        return closing


class _Workers(dict[Any, Any]):
    """Workers by number; one is found by its address too."""

    def __init__(self, workers: Mapping[str, Any]) -> None:
        self.by_address = {address: _Worker(worker, worker_address=address, address=address)
                           for address, worker in workers.items()}  # fmt: skip
        super().__init__(enumerate(sorted(self.by_address.values(), key=_number)))

    def __missing__(self, address: Any) -> Any:
        return self.by_address[address]


class _Worker(dict[str, Any]):
    """What the scheduler knows of a worker, as attributes too: LocalCluster has Nannies in this place."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(
            f"cluster.workers[…].{name}: the worker is a process on another node. "
            f"This object has only the attributes {', '.join(self)}. client.run() calls a function in the worker."
        )


def _number(worker: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return the key that sorts workers by node and number."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", str(worker["name"]))]


class _Elsewhere:
    """Address and workers of the run's scheduler, for scripts that look into the scheduler object of their cluster."""

    def __init__(self, cluster: RunCluster) -> None:
        self.address: str = cluster.scheduler_address
        self.workers = cluster.scheduler_info["workers"]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"cluster.scheduler.{name}: the scheduler is a separate process. "
            "client.scheduler_info() describes the scheduler; "
            "client.run_on_scheduler() calls a function in the scheduler"
        )


def _cluster_of(client: Any, asked: int) -> RunCluster:
    return RunCluster(asynchronous=client.asynchronous, loop=client.loop, of_client=client, n_workers=asked)


def _bounds(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options.get(name, value) for name, value in (("minimum", 0), ("maximum", float("inf")))}


@functools.cache
def subclass_of(original: type) -> type:
    """Return a LocalCluster class that opens its own cluster beside the run's, with no port for others, and says so."""
    from hpcml.kinds.dask.node.dask_worker import PrivateWorker
    from hpcml.kinds.dask.node.script.cluster_outside_runs import ClosedCluster, NoHttpPort

    of_cpus = original is LocalCluster
    base: tuple[type, ...] = (ClosedCluster,) if of_cpus else (NoHttpPort, original)
    closed = {} if of_cpus else {"host": "127.0.0.1", "worker_class": PrivateWorker}

    class Own(*base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            asked = _call(original.__name__, arguments, options)
            _note(
                asked, f"a separate cluster on this node (--own-clusters), in addition to {_size().rpartition(' ')[0]}"
            )
            if arguments and of_cpus:
                raise TypeError("in an hpcml run, LocalCluster accepts only keyword arguments")
            super().__init__(*arguments, **closed | options)

    return type(original.__name__, (Own,), _members(original))


def _members(original: type) -> dict[str, Any]:
    # Dask closes what is in _instances at exit.
    kept = {name: vars(original)[name] for name in ("_instances",) if name in vars(original)}
    derived = isinstance(original, type) and issubclass(original, LocalCluster)
    kept["spawns"] = derived or getattr(original, "spawns", False)
    return {"__doc__": original.__doc__, "__module__": original.__module__, "of_hpcml": True, **kept}


def adopt(client: type) -> type:
    """Have a Client class connect to the run's cluster, unless it is given one that answers; return the class."""
    original = client.__init__  # type: ignore[misc]
    signature = inspect.signature(original)
    named = {name for name, one in signature.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD}

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
        move_to_main()
        bound = signature.bind(self, *arguments, **options)
        given = bound.arguments
        asked = _call("Client", arguments, options)
        target = given.get("address")
        if isinstance(target, RunCluster):
            given.pop("security", None)  # that of the cluster which the run's replaces
            original(*bound.args, **bound.kwargs)
            return
        if target is None and given.get("scheduler_file") is None:
            target = dask.config.get("scheduler-address", None)
        if not isinstance(target, str | None) or _answers(target, given):
            original(self, *arguments, **options)
            if isinstance(target, str | None) and "inproc:" not in str(target) and given.get("security") is None:
                _note(asked, f"the script uses the scheduler at this address, not {_size().rpartition(' ')[0]}")
            return
        _have_started(asked)
        target = address() if target == late_cluster.ADDRESS else target
        kept = {name: value for name, value in given.items() if name in named - {"self", "address", "scheduler_file"}}
        of_a_cluster = given.get("kwargs", {})
        if of_a_cluster and own_clusters():
            closed = subclass_of(LocalCluster)(
                **of_a_cluster, **{name: kept[name] for name in ("asynchronous", "loop") if name in kept}
            )
            original(self, closed, **kept)
            return
        kept.pop("security", None)  # made for another cluster; the run's is in Dask's settings
        if of_a_cluster or not {"address", "scheduler_file"} & {name for name, value in given.items() if value}:
            self._opening = _opening(self, asked, {**_connecting, **of_a_cluster}, spawns=True)
        original(self, address(), **kept)
        self.cluster = _cluster_of(self, of_a_cluster.get("n_workers") or 0)
        if target != address() or of_a_cluster:
            _note_run(asked, of_a_cluster)

    _take_errors_without_traceback(sys.modules[client.__module__])
    client.__init__ = __init__  # type: ignore[misc]
    client._start = _with_handover(client._start)  # type: ignore[attr-defined]  # noqa: SLF001
    client.scheduler_info = _counted(client.scheduler_info)  # type: ignore[attr-defined]
    client.of_hpcml = True  # type: ignore[attr-defined]
    return client


def _with_handover(start: Callable[..., Any]) -> Callable[..., Any]:
    """Return Client._start, which ``await Client(…)`` waits for, with what workers get before the first task."""

    @functools.wraps(start)
    async def _start(self: Any, *arguments: Any, **options: Any) -> Any:
        started = await start(self, *arguments, **options)
        if opening := vars(self).pop("_opening", None):
            await _hand_over(opening, self.scheduler)
        return started

    return _start


def _take_errors_without_traceback(module: Any) -> None:
    """Have Dask's client take an error of a task whose traceback comes as text, as that of an endless recursion.

    Dask's own asserts that it is a traceback, so that the future stays pending for ever (distributed 2026.7.1).
    """
    original = getattr(module, "clean_exception", None)
    if original is None or hasattr(original, "of_hpcml"):
        return

    @functools.wraps(original)
    def clean_exception(exception: Any, traceback: Any = None, **options: Any) -> Any:
        if isinstance(traceback, bytes):
            try:
                traceback = loads(traceback)
            except Exception:  # noqa: BLE001 - the error itself counts
                traceback = None
        return original(exception, traceback if isinstance(traceback, types.TracebackType) else None, **options)

    clean_exception.of_hpcml = True  # type: ignore[attr-defined]
    module.clean_exception = clean_exception


def _counted(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Return Client.scheduler_info, which notices a loop of a client that computes nothing meanwhile."""

    @functools.wraps(ask)
    def scheduler_info(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.status == "running" and self.scheduler.address == address() and not self.futures:
            _note_polling("scheduler_info()")
        return ask(self, *arguments, **options)

    return scheduler_info


def _answers(target: str | None, given: Mapping[str, Any]) -> bool:
    """Whether another scheduler can be meant: one that answers, by TLS, as Dask talks in a run, or by own security."""
    if (file := given.get("scheduler_file")) is not None:
        try:
            target = json.loads(Path(file).read_bytes())["address"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
    if not target or target == address():
        return False
    if any(each.status == Status.running and each.address == target for each in Scheduler._instances):  # noqa: SLF001
        return True  # in this process too, and a connection without TLS would be a warning in its log
    protocol, _, place = target.rpartition("://")
    if protocol not in ("", "tcp", "tls", "ucx", "ucxx", "ws", "wss"):
        return True  # in this process: inproc://
    if protocol != "tls" and not isinstance(given.get("security"), Security):
        return False
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_WITHIN).close()
    except (OSError, ValueError):
        return False
    return True


def connect(of_client: Mapping[str, Any], of_cluster: Mapping[str, Any], backend: str) -> Any:
    """Return a client of the run for ``hpcml.connect()``; options for a cluster are noted."""
    chosen = _backends(backend)
    dask.config.set(chosen)
    _backend.update(chosen)
    _connecting.update(of_cluster)
    try:
        client = Client(**of_client)
    finally:
        _connecting.clear()
    if "HPCML_RUN_DIR" in os.environ:
        if chosen and not client.asynchronous:
            client.register_plugin(BackendPlugin(chosen))
        if client.cluster is None:  # in a process that the script started
            client.cluster = _cluster_of(client, 0)
        client.cluster.asked = of_cluster.get("n_workers") or 0
        if of_cluster:
            _note_run(_call("hpcml.connect", (), of_cluster))
    return client


def _opening(owner: Any, asked: str, options: Mapping[str, Any], *, spawns: bool) -> Opening:
    """Return the opening that a cluster gives the workers; ``spawns``: elsewhere they are children of the script."""
    module = module_for_workers(_scripts_frame()) if spawns else ""
    return Opening(owner, asked, _place(), options, module=module, resources=_resources(options))


async def _hand_over(opening: Opening, scheduler: Any) -> None:
    """Give the workers what they get, and say what they do not."""
    for note in await opening.hand_over(scheduler):
        _note(opening.asked, note, opening.place)


def _resources(options: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the resources of each worker in the options of a cluster, among those for `dask worker` too."""
    if given := options.get("resources"):
        return dict(given)
    arguments = " ".join(map(str, options.get("worker_extra_args") or options.get("extra") or ()))
    resources = re.search(r"--resources[= ]['\"]?((?:\w+=[\d.e]+[ ,]*)+)", arguments)
    pairs = (pair.partition("=") for pair in re.split("[ ,]+", resources[1].strip(" ,"))) if resources else ()
    return {name: float(amount) for name, _, amount in pairs}


class BackendPlugin(WorkerPlugin):  # type: ignore[misc]
    """Has tasks create the same kind of arrays and frames as the script, on workers that come later too."""

    name = "hpcml-backend"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings

    def setup(self, worker: Any) -> None:  # noqa: ARG002 - Dask calls it so
        """Set Dask's settings in the worker."""
        dask.config.set(self.settings)


def _backends(backend: str) -> dict[str, Any]:
    """Return Dask's settings for a backend by name, as :func:`hpcml.connect` describes it."""
    if backend not in ("", "auto", "cpu", "gpu"):
        raise ValueError(f"hpcml.connect(backend={backend!r}): unknown backend; use auto, cpu or gpu")
    has_gpus = bool(backend) and "HPCML_RUN_DIR" in os.environ and load().settings.workers.gpu is not None
    if backend == "gpu" and not has_gpus:
        raise ValueError("hpcml.connect(backend='gpu'): this run has no GPU workers; submit with --gpus-per-node")
    if not backend or (backend == "auto" and not has_gpus):
        return {}
    libraries = ("numpy", "pandas") if backend == "cpu" else ("cupy", "cudf")
    chosen: dict[str, Any] = dict(zip(("array.backend", "dataframe.backend"), libraries, strict=True))
    if backend == "auto":
        overridden = {key for key in chosen if "DASK_" + key.upper().replace(".", "__") in os.environ}
        chosen = {key: library for key, library in chosen.items() if key not in overridden and find_spec(library)}
    tables = chosen.get("dataframe.backend", os.environ.get("DASK_DATAFRAME__BACKEND"))
    method = dask.config.get(_SHUFFLE, None)
    if method and method == _backend.get(_SHUFFLE):  # of an earlier connect(), and not the script's
        chosen[_SHUFFLE] = method = None
    if tables == "cudf" and not method:
        chosen[_SHUFFLE] = "tasks"  # P2P, Dask's default, moves tables of a GPU through host memory and files
    return chosen


def _initialize(*arguments: Any, **options: Any) -> bool:
    """Stand for dask_mpi's: this process is the client, and scheduler and workers run elsewhere."""
    _note_run(_call("dask_mpi.initialize", arguments, options))
    return True


def _execute(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Stand for dask_mpi's: the function is the client's part."""
    _note_run(_call("dask_mpi.execute", (), {}))
    return function(*arguments, **options.get("func_kwargs", {}))


def _open_no_port(self: Any, routes: Any, *_: Any, **__: Any) -> None:
    """Stand for the HTTP port of a scheduler or worker that the script opens by hand: it asks nobody who they are."""
    self.http_application = RoutingApplication(routes)
    self.http_server = listeners.http_server(self.http_application)


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: what this ends is the run's."""


def _call(name: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """Return a call as it is in the script, without the values that may hold a secret, cut where it is long."""
    shown_arguments = [*map(_shown, arguments), *(f"{key}={_shown(value)}" for key, value in options.items())]
    text = ", ".join(shown_arguments)
    return f"{name}({text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'})"


def _shown(value: Any) -> str:
    """Return a value for a note: numbers, and words as an address, a size or a file name, which are no secrets."""
    if value is None or isinstance(value, int | float):
        return repr(value)
    return repr(value) if isinstance(value, str) and re.fullmatch(r"[\w./:*-]{1,40}", value) else "…"


def _note_run(asked: str, options: Mapping[str, Any] | None = None) -> None:
    """Say that the run's workers stand for what was asked."""
    apart = options is not None and options.get("processes") is False
    aside = ", in separate processes: tasks cannot change the script's variables" if apart else ""
    size = _size((options or {}).get("n_workers")).rpartition(" ")[0]
    _note(asked, f"{size}{aside}", form="{place}: instead of {asked}, hpcml uses {given}")


def _size(asked: object = None) -> str:
    """Return the run's workers with their threads, and the option for as many workers as the script asked for."""
    settings = load().settings
    workers, nodes = _worker_count(settings), settings.job.nodes
    kind = "GPU worker" if settings.workers.gpu else "worker"
    size = f"this run's {workers} {kind}{'s' if workers > 1 else ''} on {nodes} node{'s' if nodes > 1 else ''}"
    threads = settings.workers.threads
    aside = f"{counted(threads, 'thread')} each" if threads else "one thread per CPU"
    if isinstance(asked, int) and asked > workers and not settings.workers.gpu and "HPCML_POINT" not in os.environ:
        each = -(-asked // nodes)
        aside += f"; for {each * nodes} workers: --set workers.per_node={each}"
    size += f" ({aside})"
    if workers < settings.worker_count:
        size = f"this sweep point's {workers} {kind}{'s' if workers > 1 else ''}"
        size += f" (of {settings.worker_count} in the run)"
    return f"{size} {'are' if workers > 1 else 'is'}"


def _worker_count(settings: Settings) -> int:
    """Return the number of workers that the script has: all of the run, or its point's share of them."""
    share = json.loads(os.environ.get("HPCML_POINT", "{}")).get("workers")
    return int(share or settings.worker_count)


def _note_polling(asked: str) -> None:
    """Say to a script that asks for the workers in a loop that there come no more: it may wait for them."""
    frame = _scripts_frame()
    place = (asked, frame.f_code.co_filename, frame.f_lineno)
    _polls[place] += 1
    if _polls[place] == _LOOP:
        _note(f"{asked}, asked {_LOOP} times", f"{_size()} the maximum")


def _scripts_frame() -> types.FrameType:
    """Return the innermost frame that is not of a library which opens clusters."""
    frame = sys._getframe(1)  # noqa: SLF001 - inspect's reads the source of each frame
    while frame.f_back and str(frame.f_globals.get("__name__")).partition(".")[0] in _OPENING:
        frame = frame.f_back
    return frame


def _place() -> Place:
    """Return the file and line of the script that runs, and whether it is the script's own file."""
    frame = _scripts_frame()
    path = frame.f_code.co_filename
    of_script = path == load().settings.code.script or not Path(path).is_file()  # a cell of a notebook has no file
    return path, frame.f_lineno, of_script


def _note(asked: str, given: str, at: Place | None = None, form: str = "{asked} in {place}: {given}") -> None:
    """Say on stderr, once for each line of the script, what replaces a cluster that it asked for."""
    path, line, is_script = at or _place()
    if (asked, given, path, line) not in _noted:
        _noted.add((asked, given, path, line))
        place = f"line {line}" if is_script else f"{Path(path).name}, line {line}"
        print(f"hpcml: {form.format(asked=asked, place=place, given=given)}.", file=sys.stderr)
