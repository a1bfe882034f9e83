"""A cluster that is encrypted with the script's own certificate, as in Dask's documentation."""

from dask.distributed import Client, LocalCluster
from distributed.security import Security

if __name__ == "__main__":
    security = Security.temporary()
    with LocalCluster(n_workers=1, security=security) as cluster, Client(cluster, security=security) as client:
        assert client.submit(sum, [1, 2]).result() == 3
        with Client(cluster.scheduler_address, security=security) as other:
            assert other.submit(sum, [1, 3]).result() == 4
    with Client(n_workers=1, security=security) as client:
        print("result", client.submit(sum, [1, 4]).result() == 5)
