"""A script of a tutorial: the cluster is opened by Client's options, without a main guard."""

import dask.array as da
from dask.distributed import Client

client = Client(n_workers=4, threads_per_worker=2, memory_limit="1GiB")
print(client.dashboard_link)
x = da.random.default_rng(1).random((400, 400), chunks=(100, 100))
print("result", (x + x.T).sum().compute().round(6) == (2 * x.sum()).compute().round(6))
client.close()
