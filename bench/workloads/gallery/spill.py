"""Count what a run had to spill: from GPUs to their hosts' memory, and from workers' memory to their nodes' disks.

CPU workers keep results in distributed's SpillBuffer, which counts what it writes. GPU workers keep them in dask-cuda's
DeviceHostFile, whose two buffers (device → host, host → disk) take callbacks; with ``gpu.cudf_spill`` data frames are
moved by cuDF's own spill manager, which counts them itself.
"""

from __future__ import annotations

import sys
from typing import Any

from hpcml.units import format_bytes

Counts = dict[str, dict[str, int]]  # worker → where to → bytes so far
COUNTED = "gallery_spilled"  # the attribute of a DeviceHostFile that its callbacks count in
WORDS = {"host": "from the GPUs to host memory", "disk": "to disk"}


def counts(client: Any) -> Counts:
    """Return what each worker has spilled so far, in bytes; where the library does not count, it does from now on."""
    told = client.run(of_worker, on_error="return")  # a worker that was lost just now tells nothing
    return {worker: found for worker, found in told.items() if isinstance(found, dict)}


def of_worker(dask_worker: Any) -> dict[str, int]:
    """Return what this worker has spilled so far, in bytes; runs on the worker."""
    data, found = dask_worker.data, {"host": 0, "disk": 0}
    if hasattr(data, "cumulative_metrics"):  # distributed's SpillBuffer
        found["disk"] = int(data.cumulative_metrics.get(("disk-write", "bytes"), 0))
    elif hasattr(data, "device_buffer"):  # dask-cuda's DeviceHostFile
        if not hasattr(data, COUNTED):
            setattr(data, COUNTED, {"host": 0, "disk": 0})
            _count(data.device_buffer, getattr(data, COUNTED), "host")
            _count(data.host_buffer, getattr(data, COUNTED), "disk")
        found |= getattr(data, COUNTED)
    if "cudf" in sys.modules:
        found["host"] += _by_cudf()
    return found


def _count(buffer: Any, counted: dict[str, int], place: str) -> None:
    def add(key: Any, value: Any) -> None:
        counted[place] += int(buffer.weight(key, value))

    if hasattr(buffer, "fast_to_slow_callbacks"):  # a plain dict, where nothing is spilled, has none
        buffer.fast_to_slow_callbacks.append(add)


def _by_cudf() -> int:
    from cudf.core.buffer.spill_manager import get_global_manager

    manager = get_global_manager()  # None unless gpu.cudf_spill
    if manager is None:
        return 0
    manager.statistics.level = max(manager.statistics.level, 1)  # 0 counts nothing, 1 bytes, more is slow
    return int(manager.statistics.spill_totals.get(("gpu", "cpu"), (0, 0))[0])


def since(before: Counts, after: Counts) -> dict[str, int]:
    """Return the bytes that were spilled between two counts, by place; of workers that are still there."""
    zero = {"host": 0, "disk": 0}
    return {place: sum(max(now[place] - before.get(worker, zero)[place], 0) for worker, now in after.items())
            for place in zero}  # fmt: skip


def sentence(spilled: dict[str, int]) -> str:
    """Return what was spilled and where to, in words; nothing if nothing was."""
    parts = [f"{format_bytes(number)} {WORDS[place]}" for place, number in spilled.items() if number]
    return f"Memory was short: {' and '.join(parts)} were spilled. More nodes would be faster." if parts else ""
