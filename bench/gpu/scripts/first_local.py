"""As first_line.py or first_frame.py, with a LocalCUDACluster that the script opens: ``first_local.py WORKERS POOL [cudf]``."""

import sys

from dask_cuda import LocalCUDACluster
from distributed import Client

if sys.argv[3:]:
    import first_frame
from first_line import measure

if __name__ == "__main__":
    workers, pool = int(sys.argv[1]), int(sys.argv[2])
    cluster = LocalCUDACluster(n_workers=workers, protocol="ucx", rmm_pool_size=pool, dashboard_address=None)
    with cluster, Client(cluster) as client:
        measure(client, workers, first_frame.summed if sys.argv[3:] else None)
