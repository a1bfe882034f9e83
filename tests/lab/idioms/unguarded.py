"""Top to bottom without a main guard, as a notebook turned into a script."""

from dask import delayed
from dask.distributed import Client, LocalCluster, as_completed

cluster = LocalCluster()
client = Client(cluster)


def work(x):
    return x + 1


client.wait_for_workers(1)
first = delayed(sum)([delayed(work)(x) for x in range(5)]).compute()
second = sum(future.result() for future in as_completed([client.submit(work, x, pure=False) for x in range(5)]))
print("result", first == second == 15)
