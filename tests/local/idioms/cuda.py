"""dask-cuda's class is derived from LocalCluster, and its package is imported after Dask."""

from dask.distributed import Client
from dask_cuda import LocalCUDACluster

with LocalCUDACluster(rmm_pool_size="4GiB") as cluster, Client(cluster) as client:
    print("result", client.submit(sum, [1, 2]).result() == 3)
