"""One point of a sweep: cuML's k-means on rows made on the GPUs, and how full each GPU is before, meanwhile and after.

RMM's pool is the GPU's own for NVML, whatever is in it. So the largest block that it can still give is told too.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import hpcml

COLUMNS, PARTS = 32, 8
STEP = 64 << 20  # bytes: how near the largest block is told


def make(seed: int, rows: int, *, cpu: bool) -> Any:
    """Return rows of random numbers."""
    import importlib

    rng = importlib.import_module("numpy" if cpu else "cupy").random.default_rng(seed)
    return rng.random((rows, COLUMNS), dtype="float32")


def memory() -> dict[str, float]:
    """Return what NVML says that this worker has of its GPU, and the largest block free in its pool, in GiB."""
    import gc

    from hpcml.node.hardware import nvidia

    gc.collect()
    used, _ = nvidia.memory_of(os.environ["CUDA_VISIBLE_DEVICES"].partition(",")[0], os.getpid()) or (0, 0)
    return {"nvml_gib": used / 2**30, "free_gib": largest() / 2**30}


def largest() -> int:
    """Return the largest block that RMM's pool gives, in steps."""
    import rmm

    pool = rmm.mr.get_current_device_resource()
    least, most = 0, int(pool.pool_size()) // STEP + 1 if hasattr(pool, "pool_size") else 0
    while most - least > 1:
        middle = (least + most) // 2
        try:
            rmm.DeviceBuffer(size=middle * STEP)
            least = middle
        except MemoryError:
            most = middle
    return least * STEP


def everywhere(client: Any) -> dict[str, float]:
    """Return the sums over all workers."""
    told = list(client.run(memory).values())
    return {name: round(sum(one[name] for one in told), 3) for name in told[0]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=16_000_000)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    client = hpcml.connect()
    before = {} if options.cpu else everywhere(client)
    began = time.perf_counter()
    import dask
    import dask.array as da

    if options.cpu:
        from dask_ml.cluster import KMeans
    else:
        from cuml.dask.cluster import KMeans
    each = options.rows // PARTS
    meta = make(0, 0, cpu=options.cpu)
    blocks = [dask.delayed(make)(options.seed * PARTS + part, each, cpu=options.cpu) for part in range(PARTS)]
    parts = [da.from_delayed(block, (each, COLUMNS), meta=meta) for block in blocks]
    rows = da.concatenate(parts).persist()
    model = KMeans(n_clusters=options.k, init="k-means||", max_iter=20, random_state=options.seed).fit(rows)
    inertia = float(model.inertia_)
    seconds = time.perf_counter() - began
    full = {} if options.cpu else everywhere(client)
    del rows, model, parts, blocks
    after = {} if options.cpu else everywhere(client)
    told: dict[str, Any] = {f"{when}_{name}": value for when, one in (("before", before), ("full", full), ("after", after))
            for name, value in one.items()}  # fmt: skip
    hpcml.run.report(inertia=inertia, seconds=seconds, **told)


if __name__ == "__main__":
    main()
