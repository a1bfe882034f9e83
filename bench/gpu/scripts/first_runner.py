"""As first_line.py, on a cluster of dask-jobqueue's SLURMRunner: ``first_runner.py WORKERS THREADS``, started by srun."""

import os
import sys

from dask_jobqueue.slurm import SLURMRunner
from distributed import Client
from first_line import measure

if __name__ == "__main__":
    eth0 = {"interface": "eth0"}
    workers, threads = int(sys.argv[1]), int(sys.argv[2])
    file = os.environ["GPU_TIER_FOLDER"] + "/scheduler-{job_id}.json"
    each = {**eth0, "nthreads": threads}
    with (
        SLURMRunner(scheduler_file=file, scheduler_options=eth0, worker_options=each) as runner,
        Client(runner) as client,
    ):
        measure(client, workers)
