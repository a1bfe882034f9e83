"""hpcml.map and hpcml.ElasticCluster with a GPU for each job: jobs_from_python.py map|elastic RESULT GPUS SITE KEY=VALUE … .

GPUS is how many there are in all, 0 to try it on CPUs.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dask.distributed import Client

import hpcml

WITHIN = 150.0  # seconds for each answer
POINTS = range(4)
Task = Callable[[int], tuple[float, int]]


def on_gpu(point: int) -> tuple[float, int]:
    """Return a sum that is made on the job's GPU, and how many GPUs the job sees."""
    import cupy

    return float(cupy.arange(1000 * (point + 1)).sum()), cupy.cuda.runtime.getDeviceCount()


def on_cpu(point: int) -> tuple[float, int]:
    """Return the same without a GPU."""
    return float(sum(range(1000 * (point + 1)))), 1


def fails(point: int) -> None:
    """Raise an error, whose line is looked for."""
    raise ValueError(f"point {point}")


def map_points(function: Task, asked: dict[str, Any]) -> dict[str, Any]:
    """Return what points found that are jobs, and where the error of one is said to be."""
    began = time.monotonic()
    answers = [job.result() for job in hpcml.map(function, POINTS, **asked)]
    took = time.monotonic() - began
    (failed,) = hpcml.map(fails, [7], **asked)
    told = str(failed.exception())
    return {
        "answers": answers,
        "took_s": took,
        "line": f'{Path(__file__).name}", line {fails.__code__.co_firstlineno + 2}' in told,
    }


def elastic(function: Task, asked: dict[str, Any], workers: int) -> dict[str, Any]:
    """Return what tasks found on workers that came for them, and whether all jobs are gone at the end."""
    began = time.monotonic()
    with hpcml.ElasticCluster(maximum=workers, **asked) as cluster, Client(cluster) as client:
        first = client.submit(function, 0).result(WITHIN)
        took = time.monotonic() - began
        answers = client.gather(client.map(function, POINTS, pure=False))
        came = len(client.scheduler_info(n_workers=-1)["workers"])
    deadline = time.monotonic() + WITHIN
    while subprocess.run(["squeue", "-h", "--me"], capture_output=True, text=True, check=True).stdout.strip():
        if time.monotonic() > deadline:
            raise SystemExit("jobs are left")
        time.sleep(0.5)
    return {"answers": answers, "first_s": took, "first": first, "workers": came}


what, result, gpus, site, *settings = sys.argv[1:]
asked: dict[str, Any] = {"site": site, "time": "10m", "set": dict(pair.split("=", 1) for pair in settings)}
if int(gpus):
    asked["gpus_per_node"] = 1
function = on_gpu if int(gpus) else on_cpu
facts = map_points(function, asked) if what == "map" else elastic(function, asked, int(gpus) or 1)
Path(result).write_text(json.dumps(facts))
