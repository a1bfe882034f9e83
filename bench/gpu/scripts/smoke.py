"""Import what the GPU tier needs, compute on the GPU, and print the seconds of each as one line of JSON."""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any


def main(*, cpu_only: bool) -> dict[str, Any]:
    seconds: dict[str, Any] = {}
    common = ("numpy", "pandas", "distributed", "cryptography", "distributed_ucxx", "sklearn.cluster")
    on_gpu = ("cupy", "rmm", "cudf", "dask_cudf", "dask_cuda", "raft_dask", "cuml", "cuml.dask.cluster")
    for name in common if cpu_only else (*common, *on_gpu):
        began = time.perf_counter()
        importlib.import_module(name)
        seconds[name] = round(time.perf_counter() - began, 3)
    if not cpu_only:
        began = time.perf_counter()
        import cudf
        import cuml.cluster
        import cupy

        assert int(cudf.Series([1, 2, 3]).sum()) == 6
        points = cupy.asarray([[0.0, 0.0], [0.1, 0.0], [9.0, 9.0], [9.1, 9.0]])
        labels = cuml.cluster.KMeans(n_clusters=2, n_init=1, random_state=0).fit(points).labels_
        assert labels[0] == labels[1] != labels[2]
        seconds["computation"] = round(time.perf_counter() - began, 3)
    import ucxx

    seconds["ucx"] = ".".join(str(part) for part in ucxx.get_ucx_version())
    seconds["transports"] = ", ".join(sorted(ucxx.get_active_transports()))
    return {"slowest_import_s": max(value for value in seconds.values() if isinstance(value, float)), **seconds}


if __name__ == "__main__":
    print(json.dumps(main(cpu_only="--cpu" in sys.argv)), flush=True)
