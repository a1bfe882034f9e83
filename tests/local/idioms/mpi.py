"""dask-mpi: rank 0 is the scheduler, rank 1 runs on, the others are workers."""

from dask_mpi import initialize
from distributed import Client

initialize(interface="ib0", nthreads=4, local_directory="/tmp", memory_limit="4GB")
client = Client()
print("result", sum(client.gather(client.map(abs, range(-3, 3)))) == 9)
