"""A package's own kind of LocalCluster, as dask-cuda has one, imported after Dask."""

from distributed import Client, LocalCluster


class QuietCluster(LocalCluster):
    def __init__(self, n_workers=None, **options):
        super().__init__(n_workers=n_workers, silence_logs=50, **options)


if __name__ == "__main__":
    with QuietCluster(n_workers=1, dashboard_address=None) as cluster, Client(cluster) as client:
        print("result", client.submit(sum, [1, 2]).result() == 3)
