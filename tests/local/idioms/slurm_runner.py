"""dask-jobqueue's runner, which starts scheduler and workers by the ranks of srun."""

from dask.distributed import Client
from dask_jobqueue.slurm import SLURMRunner

with SLURMRunner(scheduler_file="scheduler-{job_id}.json") as runner, Client(runner) as client:
    client.wait_for_workers(runner.n_workers)
    print("result", client.submit(lambda x: x + 1, 10).result() == 11)
