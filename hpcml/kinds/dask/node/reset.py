"""Reset a Dask cluster between two points of a sweep: it keeps, computes and holds nothing of the last point."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from hpcml.gpu_vendor import VENDOR
from hpcml.node import shared_files
from hpcml.node.hardware.gpu_interface import vendor
from hpcml.node.process_helpers import EndNote

if TYPE_CHECKING:
    from hpcml.node.context import Context

GONE = 0.5  # seconds in which the scheduler notices that the point's client is gone
RELEASED = 2.0  # seconds for tasks to be forgotten, and to leave their threads
BACK = 60.0  # seconds for restarted workers to register again
SHARE = 0.25  # of a worker's memory limit: what a point may leave before its workers are restarted
LEAST = 128 << 20  # bytes that it may leave in any case: modules that its tasks have imported
GPU_LEAST = 1 << 30  # bytes of GPU memory that it may leave: contexts, kernels and buffers of libraries, loaded once
_STORES = {"publish": "datasets", "variables": "variables", "queues": "queues"}  # of the scheduler, by extension


def preload() -> None:
    """Import what every point needs, before the first is forked."""
    import distributed  # noqa: F401 - for the points


def worker_groups(context: Context) -> list[str]:
    """Return the scheduler's address of each worker group, empty for that of the run itself."""
    return ["", *(shared_files.read_json(context.attempt.scheduler) or {}).get("shares", [])]


def use(address: str) -> None:
    """Have this process take the scheduler of a worker group for the run's."""
    import dask.config

    os.environ["DASK_SCHEDULER_ADDRESS"] = address
    dask.config.set({"scheduler-address": address})


class State(TypedDict):
    """How a worker is; see :func:`state`."""

    busy: int
    memory: int
    limit: int
    gpu: int
    gpu_free: int
    pool_kept: int


class WorkerGroup:
    """The scheduler and the workers of one group; ``before`` is the state of each worker when it was fresh."""

    def __init__(self, context: Context) -> None:
        from distributed import Client

        self.client, self.gpus = Client(set_as_default=False), context.settings.workers.gpu is not None
        self.before: dict[str, State] = {}

    def _states(self, *, trim: bool = False) -> dict[str, State]:
        states: dict[str, State] = self.client.run(state, trim=trim, gpu=self.gpus)
        return states

    def reset(self) -> str:
        """Reset the group, and return the reason why its workers were restarted, empty if they were not."""
        left = self.client.run_on_scheduler(release, keep=self.client.id)
        if left is None:
            return ""
        for plugin in self.client.run_on_scheduler(plugins):
            self.client.unregister_worker_plugin(plugin)  # what the point gave the workers is undone
        states = self._states()
        deadline = time.monotonic() + RELEASED
        while any(state["busy"] for state in states.values()) and time.monotonic() < deadline:
            time.sleep(0.02)
            states = self._states()
        grown, on_gpus = self._grown(states), grown_gpus(states, self.before)
        if grown or on_gpus:  # not all of it may be in use
            states = self._states(trim=True)
            grown, on_gpus = self._grown(states), grown_gpus(states, self.before)
        why = reason(left, sum(bool(state["busy"]) for state in states.values()), grown, on_gpus)
        if why:
            old = self.client.run_on_scheduler(workers)
            self.client.run(end, wait=False)
            self.client.run_on_scheduler(replaced, old=old)
            states, self.before = self._states(), {}
        for worker, one in states.items():
            self.before.setdefault(worker, one)
        return why

    def _grown(self, states: dict[str, State]) -> list[int]:
        """Return by how many bytes workers have grown that kept more of their memory than they may."""
        grown = [
            (one["memory"] - self.before[worker]["memory"], one["limit"])
            for worker, one in states.items()
            if worker in self.before
        ]
        return [more for more, limit in grown if kept_too_much(more, limit)]


def kept_too_much(more: int, limit: int) -> bool:
    """Whether a worker that has ``more`` bytes than when it was fresh is to be restarted; ``limit`` 0 is none."""
    return more > LEAST and more > SHARE * limit


def grown_gpus(states: Mapping[str, State], before: Mapping[str, State]) -> list[int]:
    """Return the bytes of GPU memory that workers have kept which kept more than they may.

    That is a quarter of what was free on the GPU when they were fresh, which is what lies beside their pool if they
    have one, or of the pool itself.
    """
    problems = []
    for worker, one in states.items():
        if worker not in before:
            continue
        more = one["gpu"] - before[worker]["gpu"]
        if one["gpu"] and more > max(GPU_LEAST, SHARE * before[worker]["gpu_free"]):
            problems.append(more)
        elif one["pool_kept"]:
            problems.append(one["pool_kept"])
    return problems


def reason(left: int, busy: int, grown: list[int], on_gpus: Sequence[int] = ()) -> str:
    """Return the reason why workers are restarted, in words; empty if they need not be."""
    if on_gpus:
        return f"{len(on_gpus)} of the workers kept up to {max(on_gpus) >> 20} MiB of GPU memory"
    if grown:
        return f"{len(grown)} of the workers kept up to {max(grown) >> 20} MiB of memory"
    if busy:
        return f"Dask tasks of the sweep point still ran on {busy} of the workers"
    return f"{left} Dask tasks of the sweep point could not be released" if left else ""


async def release(dask_scheduler: Any, keep: str) -> int | None:
    """On the scheduler: release what nobody who is connected holds; return the number of tasks that are left.

    None means that no client has come since the last time, so that there is nothing to look at on the workers either.
    """
    if dask_scheduler.joined == dask_scheduler.cleaned and not dask_scheduler.worker_plugins:
        return None
    dask_scheduler.cleaned = dask_scheduler.joined
    deadline = time.monotonic() + GONE
    while set(dask_scheduler.client_comms) - {keep} and time.monotonic() < deadline:  # noqa: ASYNC110 - Dask tells nobody
        await asyncio.sleep(0.005)
    for extension, store in _STORES.items():
        if plugin := dask_scheduler.extensions.get(extension):
            getattr(plugin, store).clear()
    for name, client in list(dask_scheduler.clients.items()):
        if name not in dask_scheduler.client_comms:
            dask_scheduler.client_releases_keys(keys=[task.key for task in client.wants_what], client=name)
    deadline = time.monotonic() + RELEASED
    while dask_scheduler.tasks and time.monotonic() < deadline:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.005)
    return len(dask_scheduler.tasks)


def plugins(dask_scheduler: Any) -> list[str]:
    """On the scheduler: undo what the point has given it; return the plugins of workers that came with the point."""
    if handover := sys.modules.get("hpcml.kinds.dask.node.script.state_to_workers"):
        handover.on_scheduler(None)
    return list(dask_scheduler.worker_plugins)


def workers(dask_scheduler: Any) -> list[str]:
    """On the scheduler: return the names that tell its workers from later ones."""
    return [worker.server_id for worker in dask_scheduler.workers.values()]


async def replaced(dask_scheduler: Any, old: list[str]) -> None:
    """On the scheduler: wait until as many workers as before are there, and none is an old one; else TimeoutError."""
    deadline = time.monotonic() + BACK
    while set(present := workers(dask_scheduler)) & set(old) or len(present) < len(old):
        if time.monotonic() > deadline:
            came = f"only {len(set(present) - set(old))} of {len(old)} workers"
            raise TimeoutError(f"{came} had restarted after {BACK:g} s")
        await asyncio.sleep(0.02)


async def end(dask_worker: Any) -> None:  # only of such does Dask not wait for the answer
    """On a worker: end its process at once, whatever its tasks do; another takes its place."""
    dask_worker.note.write(EndNote.AGAIN)
    os._exit(0)


def state(dask_worker: Any, *, trim: bool = False, gpu: bool = False) -> State:
    """On a worker: return the number of tasks that its threads run, its memory and its limit in bytes (0: none).

    On a GPU also what it uses of its memory and what is free, by the driver, and what is kept of a pool at least.
    """
    import psutil

    if trim:
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        _trim_gpu()
    memory = psutil.Process().memory_info().rss
    busy = dask_worker.state.executing_count + len(dask_worker.state.long_running)
    worker_state = State(busy=busy, memory=memory, limit=int(dask_worker.memory_manager.memory_limit or 0),
                  gpu=0, gpu_free=0, pool_kept=0)  # fmt: skip
    device = os.environ.get(VENDOR.visible, "").partition(",")[0].strip()
    if gpu and device:
        worker_state["gpu"], worker_state["gpu_free"] = vendor().memory_of(device, os.getpid()) or (0, 0)
        worker_state["pool_kept"] = 0 if busy else pool_kept()
    return worker_state


def _trim_gpu() -> None:
    """Give back what libraries keep of GPU memory without using it."""
    if cupy := sys.modules.get("cupy"):
        cupy.get_default_memory_pool().free_all_blocks()
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def pool_kept() -> int:
    """Return the bytes of this process's RMM pool that are kept at least, if that is more than a quarter; else 0.

    The driver sees a pool as used, whatever is in it, and the pool itself tells nothing but its size: so three quarters
    of it are asked for, and given back at once. A pool that had to grow for that is too full as well.
    """
    rmm = sys.modules.get("rmm")
    if rmm is None or not isinstance(pool := rmm.mr.get_current_device_resource(), rmm.mr.PoolMemoryResource):
        return 0
    size = int(pool.pool_size())
    try:
        rmm.DeviceBuffer(size=int((1 - SHARE) * size))
    except MemoryError:
        return int(SHARE * size)
    return int(SHARE * size) if pool.pool_size() > size else 0
