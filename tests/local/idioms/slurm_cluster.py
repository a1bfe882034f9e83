"""dask-jobqueue in a notebook turned into a script."""

from dask_jobqueue import SLURMCluster
from distributed import Client

cluster = SLURMCluster(
    queue="boost_usr_prod",
    account="PROJ_x",
    cores=8,
    memory="64GB",
    walltime="01:00:00",
    job_script_prologue=["module load cuda"],
)
cluster.scale(jobs=2)
print(cluster.job_script().splitlines()[0])
client = Client(cluster)
client.wait_for_workers(2)
print("result", client.gather(client.map(lambda x: 2 * x, range(5))) == [0, 2, 4, 6, 8])
client.close()
cluster.close()
