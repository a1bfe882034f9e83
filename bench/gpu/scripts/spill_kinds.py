"""Send values of every kind from the GPU to pinned memory, through a file's bytes too, and back: all must be as before.

Prints one line of JSON: how many kinds, those that were not as before, and how fast host memory is pinned: in blocks by
CUDA, in one thread; in blocks of large pages by one thread, and by as many as a worker has.
"""

from __future__ import annotations

import json
import time
from typing import Any

GIB = 1024**3


def values() -> dict[str, Any]:
    """Return a value of each kind."""
    import cudf
    import cupy as cp
    import cupyx.scipy.sparse
    import numpy as np
    import rmm

    rng = cp.random.default_rng(1)
    matrix = rng.random((3000, 700), dtype="float32")
    table = cudf.DataFrame({"number": cp.arange(100_000), "text": cudf.Series([f"row {n}" for n in range(100_000)])})
    table["kind"] = (table["number"] % 7).astype("str").astype("category")
    table["missing"] = table["number"].where(table["number"] % 3 == 0)
    table["when"] = cudf.to_datetime(table["number"] * 10**12)
    large = cudf.DataFrame({"one": rng.random(40_000_000), "two": cp.arange(40_000_000)})
    return {
        "array": matrix, "fortran": cp.asfortranarray(matrix), "strided": matrix[::3, 5:200:2], "transposed": matrix.T,
        "scalar": cp.asarray(3.5), "empty": cp.empty((0, 4)), "bits": rng.random(999) > 0.5, "complex": matrix[:9] * 1j,
        "large": rng.random(50_000_000), "table": table, "sliced": table[1000:2000], "large table": large,
        "indexed": table.set_index("text"), "grouped": table.groupby("kind")["number"].sum(), "series": table["text"],
        "index": cudf.Index(table["text"][:500]), "list": [matrix, "beside it", np.arange(5), matrix[:3]],
        "tuple": (table, matrix), "dict": {"a": matrix, 3: table}, "mixed": {"first": "text", "then": matrix},
        "sparse": cupyx.scipy.sparse.csr_matrix(matrix * (matrix > 0.9)), "buffer": rmm.DeviceBuffer.to_device(b"0123456789" * 99_999),
    }  # fmt: skip


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same, in all that counts."""
    import cudf
    import numpy as np

    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, str):
        return bool(one == other)
    if isinstance(one, cudf.DataFrame | cudf.Series | cudf.Index):
        return bool(one.to_arrow().equals(other.to_arrow())) if isinstance(one, cudf.Index) else bool(
            one.to_pandas().equals(other.to_pandas()))  # fmt: skip
    if hasattr(one, "tobytes") and not hasattr(one, "shape"):
        return bool(one.tobytes() == other.tobytes())
    one, other = (each.todense() if hasattr(each, "todense") else each for each in (one, other))
    one, other = (each.get() if hasattr(each, "get") else each for each in (one, other))
    return bool(one.shape == other.shape and one.dtype == other.dtype and np.array_equal(one, other))


def moved(mover: Any) -> list[str]:
    """Return the kinds that were not as before."""
    from dask_cuda.device_host_file import _serialize_bytelist
    from distributed.protocol import deserialize_bytes

    wrong = []
    for name, value in values().items():
        try:
            packed = mover.out(value)
            if not equal(value, mover.back(packed)):
                wrong.append(name)
            from_file = deserialize_bytes(b"".join(map(bytes, _serialize_bytelist(packed))))
            if not equal(value, mover.back(from_file)):
                wrong.append(f"{name}, by a file")
        except Exception as error:  # noqa: BLE001 - the next kind is tried
            import traceback

            traceback.print_exc()
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    return wrong


def pinning(bus: Any, threads: int) -> dict[str, float]:
    """Return GiB/s of ways to have pinned memory, each 4 GiB that were not had before."""
    import cupy as cp

    from hpcml.repairs.spilling import BLOCK, PinnedPool

    kept: list[Any] = []
    found: dict[str, float] = {"pinning_threads": threads}
    for name, allocate in (("blocks", cp.cuda.PinnedMemory), ("large_pages", bus.allocate)):
        began = time.perf_counter()
        kept.append([allocate(BLOCK) for _ in range(4 * GIB // BLOCK)])
        found[f"pin_{name}_gib_s"] = 4 / (time.perf_counter() - began)
    pool = PinnedPool(4 * GIB, bus.allocate, threads)
    began = time.perf_counter()
    pool.expect(4 * GIB)
    with pool.changed:
        pool.changed.wait_for(lambda: not pool.coming.total(), 60)
    found["pin_threads_gib_s"] = 4 / (time.perf_counter() - began)
    return found


def main() -> None:
    import os
    import resource

    import cupy as cp
    import rmm
    from dask_cuda.device_host_file import DeviceSerialized
    from rmm.allocators.cupy import rmm_cupy_allocator

    from hpcml.kinds.dask.node.gpus import PINNING_THREADS
    from hpcml.repairs.spilling import CudaBus, Mover, PinnedPool

    rmm.reinitialize(pool_allocator=True, initial_pool_size=8 * GIB)
    cp.cuda.set_allocator(rmm_cupy_allocator)
    bus = CudaBus()
    pool = PinnedPool(4 * GIB, bus.allocate)
    wrong = moved(Mover(pool, bus, DeviceSerialized))
    found: dict[str, Any] = {"kinds": len(values()), "not_as_before": wrong, "pinned_gib": pool.held / GIB}
    pool.trim()
    found |= pinning(bus, max(1, min(PINNING_THREADS, len(os.sched_getaffinity(0)))))
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))  # as on nodes that set no other
    found["beyond_memlock"] = PinnedPool(GIB, bus.allocate).take(64 << 20) is not None
    print(json.dumps(found))


if __name__ == "__main__":
    main()
