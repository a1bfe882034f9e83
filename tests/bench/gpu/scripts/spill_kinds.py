"""Send values of every kind from the GPU to pinned memory, through a file's bytes too, and back: all must be as before.

Prints one line of JSON: how many kinds, those that were not as before, and how fast host memory is pinned: in blocks as
hpcml takes them, in one piece, and by registering memory of large pages.
"""

from __future__ import annotations

import json
import sys
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


def pinning() -> dict[str, float]:
    """Return GiB/s of three ways to have pinned memory."""
    import mmap

    import cupy as cp
    import numpy as np

    def large_pages(size: int) -> Any:
        memory = mmap.mmap(-1, size)
        memory.madvise(mmap.MADV_HUGEPAGE)
        array = np.frombuffer(memory, dtype="u1")
        array[:: 1 << 12] = 0
        cp.cuda.runtime.hostRegister(array.ctypes.data, size, 0)
        return array

    def pinned(size: int) -> Any:
        return cp.cuda.PinnedMemory(size)

    found = {}
    for name, take, size in (("blocks", pinned, 64 << 20), ("one_piece", pinned, 2 * GIB), ("pages", large_pages, 64 << 20),
                             ("large_pages", large_pages, GIB), ("blocks_again", pinned, 64 << 20)):  # fmt: skip
        try:
            began = time.perf_counter()
            kept = [take(size) for _ in range(2 * GIB // size)]
            found[f"pin_{name}_gib_s"] = 2 / (time.perf_counter() - began)
            if "pages" in name:
                for one in kept:
                    cp.cuda.runtime.hostUnregister(one.ctypes.data)
            del kept
        except Exception as error:  # noqa: BLE001 - another way may do
            print(f"{name}: {error}", file=sys.stderr)
    return found


def main() -> None:
    import resource

    import cupy as cp
    import rmm
    from dask_cuda.device_host_file import DeviceSerialized
    from rmm.allocators.cupy import rmm_cupy_allocator

    from hpcml.node.hardware.spilling import CudaBus, Mover, PinnedPool

    rmm.reinitialize(pool_allocator=True, initial_pool_size=8 * GIB)
    cp.cuda.set_allocator(rmm_cupy_allocator)
    bus = CudaBus()
    pool = PinnedPool(4 * GIB, bus.allocate)
    wrong = moved(Mover(pool, bus, DeviceSerialized))
    found: dict[str, Any] = {"kinds": len(values()), "not_as_before": wrong, "pinned_gib": pool.held / GIB}
    pool.trim()
    found |= pinning()
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))  # as on nodes that set no other
    found["beyond_memlock"] = PinnedPool(GIB, bus.allocate).take(64 << 20) is not None
    print(json.dumps(found))


if __name__ == "__main__":
    main()
