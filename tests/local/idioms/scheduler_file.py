"""The script of a batch job by hand, whose scheduler wrote its address into a file."""

import sys

from dask.distributed import Client

client = Client(scheduler_file=sys.argv[1] if len(sys.argv) > 1 else "scheduler.json", timeout="30s")
print("result", client.submit(max, [3, 9, 4]).result() == 9)
