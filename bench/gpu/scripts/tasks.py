"""Time tiny tasks and one task after another, on the run's cluster (``run``) or one of this script's own (``local``)."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

TASKS = 300
ROUNDS = 25
ONE_BY_ONE = 100
GIB = 1024**3


def increase(number: int) -> int:
    return number + 1


def cluster(devices: str, protocol: str, pool: int) -> Any:
    if not pool:
        from distributed import LocalCluster

        return LocalCluster(
            n_workers=len(devices.split(",")), threads_per_worker=1, protocol=protocol, dashboard_address=None
        )
    from dask_cuda import LocalCUDACluster

    return LocalCUDACluster(CUDA_VISIBLE_DEVICES=devices, protocol=protocol, rmm_pool_size=pool)


def measure(client: Any) -> dict[str, Any]:
    client.gather(client.map(increase, range(TASKS), pure=False))
    many = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        assert client.gather(client.map(increase, range(TASKS), pure=False)) == list(range(1, TASKS + 1))
        many.append((time.perf_counter() - began) * 1000)
    one = []
    for number in range(ONE_BY_ONE):
        began = time.perf_counter()
        assert client.submit(increase, number, pure=False).result() == number + 1
        one.append((time.perf_counter() - began) * 1000)
    used = time.process_time()
    time.sleep(1.0)  # the time over which idleness is measured
    idle = time.process_time() - used
    return {"many_ms": statistics.median(many), "one_ms": statistics.median(one), "idle_cpu": round(idle, 2),
            "many_each_ms": [round(value, 1) for value in many]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("where", choices=("local", "run"))
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--devices", default="0")
    parser.add_argument("--protocol", default="ucx")
    parser.add_argument("--pool", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    from distributed import Client

    if options.where == "local":
        with cluster(options.devices, options.protocol, options.pool) as own, Client(own) as client:
            found = measure(client)
    else:
        imported = time.perf_counter()
        with Client() as client:
            up = time.perf_counter()
            found = measure(client) | {"import_s": round(imported - began, 3), "connect_s": round(up - imported, 3)}
    options.result.write_text(json.dumps(found))
    print(json.dumps({key: value for key, value in found.items() if key != "many_each_ms"}),
          os.environ.get("UCXPY_PROGRESS_MODE", ""), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
