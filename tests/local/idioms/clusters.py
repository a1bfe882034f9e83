"""A LocalCluster by what its object offers, and the addresses that lead to it."""

from distributed import Client, LocalCluster

if __name__ == "__main__":
    found = {}
    for count in (1, 2):
        with LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=":0") as cluster:
            cluster.scale(count)
            cluster.wait_for_workers(count, timeout=120)
            with Client(cluster) as client:
                assert client.scheduler_info()["address"] == cluster.scheduler_address
            with Client(cluster.scheduler_address, security=cluster.security) as client:
                found["address"] = client.submit(sum, [1, 2]).result()
    cluster = LocalCluster(n_workers=1, resources={"GPU": 1})
    adaptive = cluster.adapt(minimum=1, maximum=4, interval="1s")
    client = cluster.get_client()
    found["resources"] = client.submit(sum, [3, 4], resources={"GPU": 1}).result()
    found["link"] = bool(cluster.dashboard_link)
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
