"""A cluster that is threads of the script elsewhere."""

from dask.distributed import Client

seen = []
client = Client(processes=False, n_workers=1, threads_per_worker=4)
total = sum(client.gather(client.map(lambda x: x * x, range(4))))
client.gather(client.map(seen.append, range(4)))
print("result", total == 14 and seen == [])
