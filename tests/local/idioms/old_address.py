"""The address of last week's scheduler."""

import dask.bag as db
from dask.distributed import Client

client = Client("tcp://lrdn3434-ib0:8786")
print("result", db.range(100, npartitions=4).map(lambda x: x % 7).sum().compute() == 295)
