"""Blocks, scale and adapt of a LocalCluster, opened for several sizes one after another."""

from distributed import Client, LocalCluster, as_completed


def square(number):
    return number * number


if __name__ == "__main__":
    for count in (1, 2):
        with LocalCluster(n_workers=count, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
            cluster.scale(count + 1)
            with Client(cluster) as client:
                client.wait_for_workers(count + 1)
                total = sum(future.result() for future in as_completed(client.map(square, range(20))))
                assert len(cluster.workers) == len(client.scheduler_info()["workers"]) > 0
    cluster = LocalCluster()
    client = cluster.get_client()
    cluster.adapt(minimum=1, maximum=3).stop()
    client.cluster.scale(2)
    print("result", client.submit(sum, [total, 1]).result() == 2471)
    client.shutdown()
