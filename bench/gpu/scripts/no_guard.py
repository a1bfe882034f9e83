"""A script without a main guard, with the scheduler file of a batch job by hand: no_guard.py RESULT.json."""

import json
import sys
from pathlib import Path

import cupy
from dask.distributed import Client

client = Client(scheduler_file="scheduler.json")
parts = client.map(lambda seed: float(cupy.arange(1000 * (seed + 1)).sum()), range(8))
found = {"figure": sum(client.gather(parts)), "workers": len(client.scheduler_info()["workers"])}
Path(sys.argv[1]).write_text(json.dumps(found))
