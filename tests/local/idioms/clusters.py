"""A LocalCluster by what its object offers, and the addresses that lead to it."""

import time

import dask.array as da
from distributed import Client, LocalCluster

if __name__ == "__main__":
    found = {}
    with LocalCluster(n_workers=2, threads_per_worker=1, memory_limit="1GiB", dashboard_address=":0") as cluster:
        cluster.scale(2)
        cluster.wait_for_workers(2, timeout=120)  # Dask's own object knows of them a moment later
        deadline = time.monotonic() + 60
        while len(cluster.workers) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        found["workers"] = len(cluster.workers) >= 2
        found["link"] = bool(cluster.dashboard_link)
        with Client(cluster) as client:
            x = da.random.default_rng(7).integers(0, 1000, (2000, 200), chunks=(250, 200))
            trace = (x @ x.T).trace()
            found["array"] = trace.compute() == trace.compute(scheduler="sync")
            found["same"] = client.scheduler_info()["address"] == cluster.scheduler_address
        with Client(cluster.scheduler_address, security=cluster.security) as client:
            found["address"] = client.submit(sum, [1, 2]).result()
    cluster = LocalCluster(n_workers=1, resources={"GPU": 1})
    adaptive = cluster.adapt(minimum=1, maximum=4, interval="1s")
    client = cluster.get_client()
    found["resources"] = client.submit(sum, [3, 4], resources={"GPU": 1}).result()
    found["logs"] = bool(cluster.get_logs())
    found["restart"] = client.restart() is None and client.submit(sum, [5, 6], pure=False).result()
    adaptive.stop()
    client.close()
    cluster.close()
    client = Client(n_workers=2)
    client.shutdown()
    with Client(n_workers=3) as client:
        found["again"] = client.submit(sum, [7, 8]).result()
    sums = {"address": 3, "resources": 7, "restart": 11, "again": 15}
    print("result", all(found[name] == sums.get(name, True) for name in found) or found)
