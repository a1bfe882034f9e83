"""A site's own kinds of cluster, derived from Dask's general ones."""

from dask.distributed import Client, SpecCluster
from dask_jobqueue.core import JobQueueCluster


class SiteCluster(JobQueueCluster):
    config_name = "slurm"

    def __init__(self, minutes, **options):
        super().__init__(walltime=f"00:{minutes}:00", **options)


cluster = SiteCluster(30, cores=2, memory="4GB")
cluster.scale_up(2)
client = cluster.get_client()
client.wait_for_workers(2)
total = client.submit(sum, [1, 2]).result()
cluster.close()
with (
    SpecCluster(workers={}, scheduler={"cls": "distributed.Scheduler", "options": {}}) as cluster,
    Client(cluster) as client,
):
    print("result", client.submit(sum, [total, 4]).result() == 7)
