"""GPU workers: which GPU each has, how much of it, and dask-cuda's parts put together as ``dask cuda worker`` does.

dask-cuda's command would put a Nanny, a second process with a port of its own, before every worker. Here the node's
agent has that place (:mod:`hpcml.kinds.dask.node.workers`), and the worker gets the same plugins and the same
device-to-host memory from dask-cuda (``dask_cuda.worker_common``); cuDF only where the script may use it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from hpcml import repairs
from hpcml.gpu_vendor import VENDOR
from hpcml.node.context import Context
from hpcml.node.hardware.gpu_interface import vendor
from hpcml.node.job import cpus
from hpcml.settings import Gpu

GIB = 1024**3
RESERVE = 3 * GIB  # least left beside the pool: a CUDA context (0.5 GiB), NCCL's buffers, cuBLAS's work space
RESERVE_SHARE = 0.08
HEAD_RESERVE = 4 * GIB  # more on the GPU that scheduler and script share with a worker: their contexts and arrays
HEAD_RESERVE_SHARE = 0.05
PINNED_SHARE = 0.6  # of a worker's memory
PINNING_THREADS = 2  # a worker's, at most: more pin hardly faster, and keep its kernels from being launched
LEAST = 1 * GIB  # a smaller pool is of no use
FREED = 5.0  # seconds that a worker waits for the memory of the one before it to become free
ALIGNMENT = 256  # bytes; RMM's pool wants its sizes so
# Hopper's largest page. On H200s a neighbour opened pools of 70 GiB at once and those of 129.2 GiB in two seconds; that
# pages explain it is a guess, and whole pages cost nothing.
HUGE_PAGE = 512 * 1024**2


class NoGpuError(Exception):
    """The node lacks a GPU, or what it needs to use one."""


def load(gpu: Gpu, *, cudf: bool) -> None:
    """Import what all GPU workers of a node need, once, before they are forked; no CUDA context is made by it.

    Without ``cudf`` a worker imports cuDF when a task first needs it. NoGpuError if dask-cuda is not installed.
    """
    os.environ["RAPIDS_NO_INITIALIZE"] = "1"
    if not _installed("dask_cuda"):
        raise NoGpuError("dask-cuda is not installed in the run's environment (install hpcml[cuda12] or hpcml[cuda13])")
    for name in (
        "dask_cuda.worker_common",
        *_installed("rmm", *gpu.rmm_allocator_libs, *["cudf"] * cudf),
        *gpu.pre_import,
    ):
        importlib.import_module(name)


def take(gpu: Gpu, index: int) -> str:
    """Make the GPU with this index the first of this process, its neighbours behind it (for cuda_ipc); return it.

    The GPUs are those that Slurm gave this task, by index or UUID, the first ``count``; NoGpuError without them.
    """
    from dask_cuda.utils import cuda_visible_devices

    try:
        devices = [name for name in cuda_visible_devices(0).split(",") if name]
    except Exception as error:
        raise NoGpuError(f"the node's {VENDOR.name} driver does not respond: {error}") from error
    if len(devices) < gpu.count:
        raise NoGpuError(f"the job sees {len(devices)} GPUs, but the run requests {gpu.count} ({VENDOR.visible})")
    os.environ[VENDOR.visible] = ",".join([*devices[index : gpu.count], *devices[:index]])
    return str(devices[index])


class Pool(NamedTuple):
    """The memory pool of a GPU worker: its size, and what it would have been had enough been free; 0 is no pool."""

    size: int = 0
    wanted: int = 0
    total: int = 0
    free: int = 0


def pool_size(total: int, *, head: bool) -> int:
    """Return the size of the memory pool of one worker on a GPU that is free, in bytes.

    A pool of nearly the whole GPU is what keeps cuda_ipc fast: UCX opens each pool once. What is left is for the CUDA
    context, NCCL and libraries that allocate by themselves, more on the ``head`` GPU, which scheduler and script use
    too.
    """
    reserve = max(RESERVE, int(RESERVE_SHARE * total))
    if head:
        reserve += max(HEAD_RESERVE, int(HEAD_RESERVE_SHARE * total))
    return _whole_pages(max(total - reserve, total // 4), total)


def fitting(wanted: int, total: int, free: int) -> int:
    """Return the size of a pool for ``wanted`` bytes: no more than is free; NoGpuError if that is too little."""
    size = _whole_pages(min(wanted, free - RESERVE // 3), total)
    if size < min(wanted, LEAST):
        raise NoGpuError(
            f"{in_gib(free)} of the GPU's {in_gib(total)} are free, but a worker needs {LEAST / GIB:g} GiB: "
            "another process uses the rest ({VENDOR.tool} shows this process)"
        )
    return size


def in_gib(size: int) -> str:
    """Return an amount of memory in words."""
    return f"{size / GIB:.1f} GiB"


def _whole_pages(size: int, total: int) -> int:
    page = HUGE_PAGE if total > 64 * HUGE_PAGE else ALIGNMENT
    return max(0, size) // page * page


def pool(context: Context, device: str, *, head: bool, wait: bool) -> Pool:
    """Return the memory pool that a worker takes on its GPU, which is given by index or UUID, as the driver knows it.

    With ``wait`` memory is expected to become free: a dead worker's, of which its neighbours let go.
    """
    from dask_cuda.utils import nvml_device_index

    gpu = context.settings.workers.gpu
    assert gpu is not None
    number = nvml_device_index(0, device)
    total, free = vendor().memory(number)
    if gpu.rmm_pool_size is None or gpu.rmm_async or gpu.rmm_managed_memory:
        return Pool(_bytes(gpu.rmm_pool_size, total) or 0, 0, total, free)  # what grows, or moves out, by itself
    wanted = pool_size(total, head=head) if gpu.rmm_pool_size == -1 else _bytes(gpu.rmm_pool_size, total) or 0
    deadline = time.monotonic() + (FREED if wait else 0.0)
    while free - RESERVE // 3 < wanted and time.monotonic() < deadline:
        time.sleep(0.05)
        _, free = vendor().memory(number)
    return Pool(fitting(wanted, total, free), wanted, total, free)


def worker_options(context: Context, device: str, pool: Pool, *, memory_limit: int) -> dict[str, Any]:
    """Return dask-cuda's share of ``distributed.Worker``'s options: plugins and data.

    From ``memory_limit`` bytes of host memory on data is spilled to disk.
    """
    from dask_cuda.utils import nvml_device_index
    from dask_cuda.worker_common import worker_data_function, worker_plugins

    from hpcml.repairs import spilling

    gpu = context.settings.workers.gpu
    assert gpu is not None
    number = nvml_device_index(0, device)
    total = pool.total
    most = _bytes(gpu.rmm_maximum_pool_size, total)
    plugins = worker_plugins(
        device_index=number,
        rmm_initial_pool_size=pool.size or None,
        rmm_maximum_pool_size=max(most, pool.size) if most else None,
        rmm_managed_memory=gpu.rmm_managed_memory,
        rmm_async_alloc=gpu.rmm_async,
        rmm_release_threshold=_bytes(gpu.rmm_release_threshold, total),
        rmm_log_directory=os.path.expandvars(gpu.rmm_log_directory) or None,
        rmm_track_allocations=gpu.rmm_track_allocations,
        rmm_allocator_external_lib_list=_installed(*gpu.rmm_allocator_libs),
        pre_import=list(gpu.pre_import),
        enable_cudf_spill=gpu.cudf_spill,
        cudf_spill_stats=gpu.cudf_spill_stats,
    )
    data = worker_data_function(
        device_memory_limit=_bytes(gpu.device_memory_limit, total),
        memory_limit=memory_limit or None,
        enable_cudf_spill=gpu.cudf_spill,
    )
    store_arguments = data(number)
    if isinstance(store_arguments, tuple) and repairs.is_on("spilling"):
        pinned = pinned_memory(gpu, memory_limit)
        cyclic = gpu.spill_order == "keep"
        store_arguments = (
            spilling.store,
            {**store_arguments[1], "pinned": pinned, "threads": pinning_threads(gpu), "cyclic": cyclic},
        )
    print(
        f"hpcml: GPU {device}: {in_gib(total)}, {in_gib(pool.free)} free,"
        f" RMM pool {in_gib(pool.size) if pool.size else 'none'}.",
        flush=True,
    )
    return {"plugins": needed(plugins), "data": store_arguments}


def needed(plugins: Iterable[Any]) -> tuple[Any, ...]:
    """Return dask-cuda's plugins without the one that imports cuDF, if :func:`load` did not; variables do its work."""
    if "cudf" in sys.modules:
        return tuple(plugins)
    os.environ |= {"CUDF_SPILL": "off", "CUDF_SPILL_STATS": "0"}
    return tuple(plugin for plugin in plugins if type(plugin).__name__ != "CUDFSetup")


def pinned_memory(gpu: Gpu, memory_limit: int) -> int:
    """Return the bytes of host memory that a worker may pin for what leaves its GPU; 0 for none.

    Six tenths of the worker's memory, unless the profile says how much: at seven tenths Dask sends the host's data to
    the disk.
    """
    if gpu.spill_pinned != -1:
        return int(gpu.spill_pinned or 0)
    if not importlib.util.find_spec("cupy"):
        return 0
    return int(PINNED_SHARE * memory_limit)


def pinning_threads(gpu: Gpu) -> int:
    """Return the number of a worker's threads that pin host memory: of its processors, no more than are of use."""
    return max(1, min(PINNING_THREADS, cpus() // gpu.count))


def _bytes(amount: float | None, total: int) -> int | None:
    """Return an amount in bytes: fractions of ``total`` up to 1, bytes above."""
    if amount is None:
        return None
    return int(amount * total if amount <= 1 else amount) // ALIGNMENT * ALIGNMENT


def _installed(*names: str) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is not None]


def ucx_settings(gpu: Gpu | None, *, worker: bool) -> dict[str, Any]:
    """Return Dask's settings for UCX in a role.

    With GPUs each process makes its CUDA context before UCX looks for devices, so that UCX picks the adapter nearest
    to that GPU (docs.rapids.ai, dask-cuda, UCX integration); scheduler and script get a small RMM pool as well, into
    which they receive what passes through them. Without the GPUs' driver there is no context to make, which is for the
    preflight of the workers to say in words, not for a traceback of the scheduler.
    """
    if gpu is None:
        return {}
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    settings: dict[str, Any] = {"distributed-ucxx.create-cuda-context": True}
    if not worker:
        settings["distributed-ucxx.rmm.pool-size"] = "1GiB"
    return settings
