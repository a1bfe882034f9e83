"""Submit a run from Python and use its GPU workers by its cluster(): python_api.py RESULT NODES GPUS KEY=VALUE … ."""

import json
import sys
import time
from pathlib import Path

from dask.distributed import Event

import hpcml

WITHIN = 100.0  # seconds for the run's cluster, and for its end


def on_gpu(seed: int) -> float:
    """Return a sum that is made on the worker's GPU."""
    import cupy

    return float(cupy.arange(1000 * (seed + 1)).sum())


result, nodes, gpus, *settings = sys.argv[1:]
workers = int(nodes) * int(gpus)
pairs = dict(pair.split("=", 1) for pair in settings)
script = Path(__file__).with_name("open_cluster.py")
run = hpcml.submit(script, workers, WITHIN, nodes=int(nodes), gpus_per_node=int(gpus), time="10", set=pairs)
began = time.monotonic()
while True:
    try:
        client = run.cluster()
        break
    except hpcml.HpcmlError:
        if run.exit_status is not None or time.monotonic() - began > WITHIN:
            run.cancel()
            raise
        time.sleep(0.2)
with client:
    client.wait_for_workers(workers, timeout=WITHIN)
    protocol = client.scheduler.address.partition(":")[0]
    figure = sum(client.gather(client.map(on_gpu, range(8))))
    Event("done", client=client).set()
status = run.wait(timeout=WITHIN)
left = (run.out / "done.txt").exists()
facts = {"figure": figure, "workers": workers, "protocol": protocol, "status": status, "out": left}
Path(result).write_text(json.dumps(facts))
