"""One Dask worker in a process of its own: its share of the node, its closed doors and what its end means."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.config
from distributed import Worker
from distributed.system import MEMORY_LIMIT

from hpcml import repairs
from hpcml.kinds.dask.node import cuda_errors, gpus, interconnect, main_in_workers, script_imports, state_samples
from hpcml.kinds.dask.node.clock import measure_clock
from hpcml.kinds.dask.node.messages import (
    CLOCK_QUESTION,
    IMPORT,
    NO_GPU,
    TASK_OUTPUT,
    TOPIC,
)
from hpcml.kinds.dask.node.security import tcp_auth, tls, ucx_auth
from hpcml.kinds.dask.node.security.connection_limits import Guarded
from hpcml.kinds.dask.own_settings import Own
from hpcml.node import job, process_helpers, profilers, script_environment, shared_files
from hpcml.node.agent import Slot
from hpcml.node.context import Context
from hpcml.node.hardware.dask_protocol import NoProtocolError, choose_address, choose_protocol, ucx_environment
from hpcml.node.process_helpers import EndNote
from hpcml.repairs import dead_worker_memory, file_names, switching
from hpcml.settings import Settings
from hpcml.units import in_mib

ADDRESS = "scheduler-address"  # the file by which a node's worker task tells its workers where the scheduler is
UCX_AT_ONCE = 32  # workers that may connect in one moment over UCX
UCX_CONNECT_EVERY = 0.01  # seconds between the starts of more than that
PARENT_LOOK = 1.0  # seconds between looks at the worker task
PARENT_STOPPED = 5  # looks that must find it stopped: a whole job that is suspended stops in no order
_NOTES = {"scheduler-close": EndNote.RETIRED, "scheduler-close-worker": EndNote.RETIRED, NO_GPU: EndNote.NO_GPU}
_NOT_OF_TASKS = re.compile(r"\s*(?:$|hpcml: |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - (?:distributed|hpcml)\b)")


@dataclass(frozen=True, slots=True)
class Share:
    """What each worker of a node gets; ``memory_limit`` in bytes."""

    threads: int
    memory_limit: int

    @classmethod
    def of_node(cls, context: Context, workers: int) -> Share:
        """Divide what this task may use of the node (its CPU set, its memory limit) among its workers."""
        cpus = job.cpus()
        threads = context.settings.workers.threads or max(1, cpus // workers)
        return cls(threads, context.settings.workers.memory_limit or _usable_memory(context.settings, cpus) // workers)


def too_little_memory(context: Context, share: Share, workers: int, resident: int) -> str:
    """Return the reason why the workers' share of memory is too small to start with, empty if it is not.

    ``resident`` are the bytes of the process that has imported all that a worker needs: the least that a worker has.
    """
    pause = dask.config.get("distributed.worker.memory.pause", 0.8) or 1.0
    need = int(resident / float(pause))
    if not share.memory_limit or share.memory_limit >= need:
        return ""
    configured = context.settings.workers.memory_limit
    whose = "workers.memory_limit is" if configured else f"each of this node's {workers} workers can use"
    remedy = "" if configured else " (increase --memory-per-node, or reduce workers.per_node)"
    return f"{whose} {in_mib(share.memory_limit)}, but a worker needs {in_mib(need)} to start{remedy}"


def _usable_memory(settings: Settings, cpus: int) -> int:
    """Return the bytes that this task may use: what the job asked for, and never more than the node or cgroup has.

    Where the scheduler says nothing, a job that asked for some of a node's GPUs has their share of its memory.
    """
    unsaid = int(MEMORY_LIMIT)
    if settings.job.node_gpus:
        unsaid = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * settings.gpus // settings.job.node_gpus
    return min(job.requested_memory(cpus) or unsaid, int(MEMORY_LIMIT))


class PrivateWorker(Guarded, cuda_errors.EndsWithoutGpu, Worker):  # type: ignore[misc]
    """Dask's worker without an HTTP port; it remembers why it was closed and takes part in the interconnect check."""

    closed_because = ""
    note: EndNote  # tells the agent why this process ends
    of_script: Sequence[tuple[ContextVar[Any], Any]] = ()  # what the script's module sets for each task: np.seterr
    node = ""
    _beat: asyncio.Task[None] | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        file_names.keep()  # of what tasks submit
        switching.install()
        super().__init__(*arguments, **options)

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Open no port: nothing but Dask's TLS comms listens on a node."""

    async def execute(self, *arguments: Any, **options: Any) -> Any:
        """Execute a task as Dask does, in a context with what the script's module has set in its own."""
        for variable, value in self.of_script:
            variable.set(value)
        return await super().execute(*arguments, **options)

    def ends_without_gpu(self) -> None:
        """Tell the supervisor and the agent why this process ends now."""
        self.log_event(TOPIC, {"event": NO_GPU, "node": self.node, "error": self.without_gpu})
        self.note.write(EndNote.NO_GPU)

    async def heartbeat(self) -> None:
        """Beat as Dask does; :meth:`close` breaks it off, where Dask would log a traceback about its own end."""
        self._beat = asyncio.ensure_future(super().heartbeat())
        with contextlib.suppress(asyncio.CancelledError):
            await self._beat

    async def close(self, *arguments: Any, reason: str = "worker-close", **options: Any) -> Any:
        """Close as Dask does, keeping the first reason; a heartbeat that closes already is not broken off."""
        first = not self.closed_because
        self.closed_because = self.closed_because or reason
        if first and self._beat is not None and self._beat is not asyncio.current_task():
            self._beat.cancel()
        return await super().close(*arguments, reason=reason, **options)


def run(context: Context, place: Slot, scratch: Path, share: Share) -> int:
    """Run the worker of a place on this node until it is closed, and note whether another is to take the place.

    What takes long (CUDA's context, UCX) is made while the scheduler still starts; then its address is waited for. The
    file :data:`ADDRESS` will appear in ``scratch``, the node-local folder of all its workers. If another worker was in
    the place before, its GPU memory may just be becoming free.
    """
    logging.getLogger("distributed.batched").setLevel(logging.WARNING)  # it logs a traceback at every normal end
    settings = context.settings
    name, slot = place.name, context.worker_names(context.node).index(place.name)
    folder = scratch / name
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ.update(interconnect.log_environment(folder))
    device = gpus.take(settings.workers.gpu, slot) if settings.workers.gpu else ""
    dask.config.set({"temporary-directory": str(folder)})  # for what tasks have Dask start: nothing of others' is there
    expected = _expected_protocol(context)
    if expected == "ucx":
        importlib.import_module("distributed_ucxx")  # before the user's own modules can be found
        importlib.import_module("ucxx")
    script_environment.take_up(context, say=slot == 0)  # functions of the script's own modules travel by name
    main_in_workers.install(settings)
    os.umask(settings.code.umask)  # for tasks; what Dask spills lies in folders of mode 0700
    host, _ = choose_address(settings.network.interface, single_node=settings.single_node)
    options: dict[str, Any] = {
        "name": name,
        "host": host,
        "nthreads": share.threads,
        "memory_limit": share.memory_limit,
        "resources": dict(settings.own(Own).resources) or None,
        "local_directory": str(folder),
        "death_timeout": settings.deadlines.workers,
    }
    pool: gpus.Pool | None = None
    if device:
        head = slot == 0 and context.node == context.node_names[0]
        pool = gpus.pool(context, device, head=head, wait=place.replaces)
        options |= gpus.worker_options(context, device, pool, memory_limit=share.memory_limit)
    if expected == "ucx" and settings.ucx != "rdma":  # otherwise it depends on the other nodes
        prepare_ucx(context)
    address, protocol = _address(context, scratch / ADDRESS, context.share_of(context.node, slot))
    if device and protocol != "ucx":
        os.environ.update(ucx_environment(single_node=settings.single_node))  # for cuDF-Polars' own connections
    dask.config.set(tls.dask_settings(context.attempt, address, protocol))
    options |= {"security": tls.security(context.attempt), "protocol": protocol}
    if protocol == "tcp":
        tcp_auth.install(_data_key(context))
        options["protocol"] = tcp_auth.SCHEME
    if protocol == "ucx":
        prepare_ucx(context)
        time.sleep(stagger(context, slot))
    record = (
        context.run.profiles / f"memray-worker-{name}.{os.getpid()}.bin"
        if "memray" in settings.report.profilers
        else ""
    )
    with profilers.allocations(record):
        reason = asyncio.run(_serve(context, place.note, address, folder, device, pool, options))
    place.note.write(_NOTES.get(reason, EndNote.AGAIN))
    return 0


def _expected_protocol(context: Context) -> str:
    """Return the protocol that the scheduler will most likely choose; the address tells what it did."""
    try:
        protocol, _ = choose_protocol(context.settings)
    except NoProtocolError:  # the scheduler ends the run with these words
        return ""
    return protocol


def _address(context: Context, path: Path, share: int) -> tuple[str, str]:
    """Wait for the address of a share's scheduler and the protocol of data, which this node's worker task passes on."""
    patience = context.settings.deadlines.scheduler + context.settings.deadlines.workers
    if not shared_files.wait_for(path, time.monotonic() + patience, 0.01):
        raise TimeoutError("the Dask scheduler did not write its address in time")
    address, protocol = path.read_text().splitlines()[share].split()
    return address, protocol


def stagger(context: Context, slot: int) -> float:
    """Return the seconds that a worker waits before it connects over UCX, so that many don't knock at one door at once.

    UCXX gives a new endpoint 5 s for its exchange of names, whatever is configured (ucxx 0.52, create_endpoint).
    """
    each = context.settings.workers.per_node
    place = context.node_names.index(context.node) * each + slot if context.node in context.node_names else slot
    return place * UCX_CONNECT_EVERY if len(context.node_names) * each > UCX_AT_ONCE else 0.0


def prepare_ucx(context: Context) -> None:
    """Start UCX behind the run's key; UCX chooses the adapters nearest to this worker's GPU itself."""
    settings = context.settings
    ucx_auth.install(_data_key(context))
    dask.config.set(gpus.ucx_settings(settings.workers.gpu, worker=True))
    os.environ.update(ucx_environment(single_node=settings.single_node, tcp=settings.ucx != "rdma"))
    ucx_auth.start_ucx()


def _data_key(context: Context) -> Path:
    """Wait for the file with the key of the data connections, and return its path."""
    settings = context.settings
    deadline = time.monotonic() + settings.deadlines.scheduler
    if not shared_files.wait_for(context.attempt.data_key, deadline, shared_files.interval(settings.worker_count)):
        raise TimeoutError("hpcml's supervisor process did not write the key of the data connections in time")
    return context.attempt.data_key


async def _serve(
    context: Context,
    note: EndNote,
    address: str,
    folder: Path,
    device: str,
    pool: gpus.Pool | None,
    options: dict[str, Any],
) -> str:
    worker = PrivateWorker(address, **options)
    worker.note = note
    worker.node, worker.restart_on_cuda_error = context.node, context.settings.own(Own).restart_on_cuda_error
    interconnect.Transfers(worker, folder, device)
    state_samples.add_metrics(worker)
    worker.stream_handlers[IMPORT] = functools.partial(_import_early, worker)
    repaired = bool(pool) and repairs.is_on("dead_worker_memory", dead_worker_memory.ucx_version())
    holder = dead_worker_memory.Holder(worker) if repaired else None
    await worker
    if pool:
        event = {"event": "gpu-memory", "worker": worker.name, "pool": pool.size, "wanted": pool.wanted}
        event |= {"node": context.node, "pid": os.getpid()}
        marked = holder.mark(pool=pool.wanted > 0) if holder else {}
        worker.log_event(TOPIC, event | marked | {"address": worker.address})
    _watch_output(lambda: worker.loop.add_callback(worker.log_event, TOPIC, {"event": TASK_OUTPUT}))
    beside = [asyncio.create_task(_keep_parent_going(worker, context.node))]
    if context.node != context.node_names[0] and worker.name == context.worker_names(context.node)[0]:
        beside.append(asyncio.create_task(_tell_clock(worker, context.node)))
    await worker.finished()
    for task in beside:
        task.cancel()
    return worker.closed_because


def _import_early(worker: Worker, modules: Sequence[str]) -> None:
    """Import what the script's tasks need, in the thread of tasks: the first task would import it otherwise."""
    worker.executors["default"].submit(script_imports.import_all, modules, "while the script started")


async def _tell_clock(worker: Worker, node: str) -> None:
    """Tell the supervisor how far this node's clock is from that of its own node."""
    with contextlib.suppress(OSError):  # the scheduler has gone: the run ends
        ahead, within = await measure_clock(getattr(worker.scheduler, CLOCK_QUESTION))
        worker.log_event(TOPIC, {"event": "clock", "node": node, "ahead": round(ahead, 4), "within": round(within, 4)})


async def _keep_parent_going(worker: Worker, node: str) -> None:
    """Have the worker task go on if somebody stopped it alone: meanwhile it replaces, watches and ends no worker.

    If it dies, this process is killed with it (:func:`hpcml.node.process_helpers.end_with`).
    """
    parent = process_helpers.Process.named(os.getppid())
    stopped = 0
    while True:
        await asyncio.sleep(PARENT_LOOK)
        stopped = stopped + 1 if parent.state == "T" else 0
        if stopped == PARENT_STOPPED:
            os.kill(parent.pid, signal.SIGCONT)
            print(
                f"hpcml: the workers' parent process on {node} was stopped (SIGSTOP); it now continues.",
                file=sys.stderr,
                flush=True,
            )
            worker.log_event(TOPIC, {"event": "worker-task-stopped", "node": node})
            stopped = 0


def _watch_output(report: Callable[[], object]) -> None:
    """Call ``report`` once, in the thread that writes, when this process writes what is not Dask's or hpcml's own."""
    streams, process = (sys.stdout, sys.stderr), os.getpid()
    waiting = [True]

    def watched(write: Callable[[str], int]) -> Callable[[str], int]:
        def new(text: str) -> int:
            if waiting and not _NOT_OF_TASKS.match(text) and os.getpid() == process:
                waiting.clear()
                report()
            return write(text)

        return new

    for stream in streams:
        setattr(stream, "write", watched(stream.write))  # noqa: B010 - a method of an instance
