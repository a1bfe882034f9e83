"""Time how fast a worker's data goes to the host's memory and back, as dask-cuda moves it, and by pinned memory.

Prints one line of JSON: GiB/s of ``spill`` (DeviceHostFile's device_to_host: fresh host memory each time) and
``unspill``, of the same copies between memory that was touched before, and of pinned memory.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

GIB = 1024**3
SIZE, TIMES = 100_000_000, 20  # bytes of a chunk of bench/workloads/pca_svd.py


def rate(copy: Callable[[], object], wait: Callable[[], object]) -> float:
    """Return the median GiB/s of a copy of SIZE bytes; the first does not count."""
    seconds = []
    for _ in range(TIMES + 1):
        began = time.perf_counter()
        copy()
        wait()
        seconds.append(time.perf_counter() - began)
    return SIZE / statistics.median(seconds[1:]) / GIB


def main(*, cpu_only: bool) -> dict[str, float]:
    import numpy as np

    touched = np.ones(SIZE, dtype="uint8")
    if cpu_only:
        other = touched.copy()
        return {
            "fresh_gib_s": rate(touched.copy, lambda: None),
            "touched_to_gib_s": rate(lambda: np.copyto(other, touched), lambda: None),
        }
    import cupy as cp
    import cupyx
    import rmm
    from dask_cuda.device_host_file import device_to_host, host_to_device
    from rmm.allocators.cupy import rmm_cupy_allocator

    rmm.reinitialize(pool_allocator=True, initial_pool_size=4 * GIB)
    cp.cuda.set_allocator(rmm_cupy_allocator)
    wait = cp.cuda.get_current_stream().synchronize
    device = cp.ones(SIZE, dtype="uint8")
    kept: list[Any] = []  # spilled data stays: the next finds no memory of the last to use again
    found = {"spill_gib_s": rate(lambda: kept.append(device_to_host(device)), wait)}
    found["unspill_gib_s"] = rate(lambda: host_to_device(kept[0]), wait)
    pinned = cupyx.empty_pinned((SIZE,), dtype="uint8")
    for name, host in (("touched", touched), ("pinned", pinned)):
        found[f"{name}_to_gib_s"] = rate(lambda host=host: device.get(out=host), wait)  # type: ignore[misc]
        found[f"{name}_from_gib_s"] = rate(lambda host=host: device.set(host), wait)  # type: ignore[misc]
    return found


if __name__ == "__main__":
    print(json.dumps(main(cpu_only="--cpu" in sys.argv)), flush=True)
