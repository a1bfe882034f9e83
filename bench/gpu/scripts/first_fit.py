"""A short script on one GPU, k-means by cuML three times: ``first_fit.py run`` in a run, ``first_fit.py local`` with a LocalCUDACluster.

The times of its steps, in seconds since 1970, are in out/first.json, or in ./first.json of ``local``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def seen() -> dict[str, Any]:
    """Return when this worker's process began, and which large modules it has imported."""
    import psutil

    known = ("cudf", "cuml", "cupy", "dask_cudf", "numba", "pylibraft", "raft_dask", "rmm", "sklearn", "pandas")
    return {"began": psutil.Process().create_time(), "modules": [name for name in known if name in sys.modules]}


def blobs(block: Any, block_id: tuple[int, ...] = (0,)) -> Any:
    """Return rows on the GPU, as many as the block has."""
    import cupy

    return cupy.random.default_rng(block_id[0]).standard_normal((len(block), 32), dtype="float32")


def main() -> None:
    """Run the steps."""
    import psutil

    times: dict[str, Any] = {"python": psutil.Process().create_time(), "first_line": time.time()}
    mode, pool = sys.argv[1], int(sys.argv[2])
    import dask.array as da
    import numpy as np
    from distributed import Client, wait

    times["imported"] = time.time()
    if mode == "local":
        from dask_cuda import LocalCUDACluster

        client = Client(LocalCUDACluster(rmm_pool_size=pool, n_workers=1))
    else:
        client = Client()
    client.wait_for_workers(1)
    times["usable"] = time.time()
    times["before"] = list(client.run(seen).values())
    times["looked"] = time.time()
    rows = da.zeros((8_000_000, 1), chunks=(2_000_000, 1)).map_blocks(
        blobs, chunks=(2_000_000, 32), dtype="float32", meta=np.empty((0, 32), dtype="float32")
    )
    rows = rows.persist()
    wait(rows)
    times["data"] = time.time()
    from cuml.dask.cluster import KMeans

    times["cuml"] = time.time()
    for number in range(3):
        KMeans(n_clusters=16, init="random", n_init=1, max_iter=20, random_state=0, client=client).fit(rows)
        times[f"fit{number + 1}"] = time.time()
    times["after"] = list(client.run(seen).values())
    if mode == "local":
        place = Path("first.json")
    else:
        import hpcml

        place = Path(hpcml.run.out) / "first.json"
    times["end"] = time.time()
    place.write_text(json.dumps(times))
    client.close()


if __name__ == "__main__":
    main()
