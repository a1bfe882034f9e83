"""Workers with resources, which tasks ask for: in a LocalCluster, in Client's options, and among those of dask worker."""

from dask.distributed import Client, LocalCluster
from dask_jobqueue import SLURMCluster

with LocalCluster(n_workers=2, resources={"disk": 2}) as cluster, Client(cluster) as client:
    total = client.submit(sum, [1, 2], resources={"disk": 2}).result()
with Client(resources={"licence": 1}) as client:
    total += client.submit(sum, [3, 4], resources={"licence": 1}).result()
with SLURMCluster(cores=1, memory="1GB", worker_extra_args=["--resources GPU=1,MEM=4e9"]) as cluster:
    total += cluster.get_client().submit(sum, [5, 6], resources={"GPU": 1, "MEM": 3e9}).result()
print("result", total == 21)
