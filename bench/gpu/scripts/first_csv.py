"""What the first ``read_csv`` of a run pays: the script's imports, the workers' imports, the script's GPU, the work.

With ``--steps`` each is done, and timed, by itself before the work; without, the work pays for all of them, but with ``--top``
for none of the script's imports, which then come before the client, as in most scripts. Writes seconds
as JSON; ``tasks`` are the workers' computing seconds by the task's name, of the first time and of the second.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

BEGAN = time.perf_counter()


def imports(names: list[str]) -> dict[str, float]:
    """Import modules one after the other; return the seconds of each. Runs in the script and on workers."""
    took = {}
    for name in names:
        began = time.perf_counter()
        importlib.import_module(name)
        took[name] = round(time.perf_counter() - began, 3)
    return took


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    value = work()
    return round(time.perf_counter() - began, 3), value


def first_kernel(module: str) -> float:
    """Sum three numbers in this process; return the seconds. Runs in the script and on workers."""
    library = importlib.import_module(module)
    return timed(lambda: int(library.Series([1, 2, 3]).sum()))[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--blocksize", type=int, required=True)
    parser.add_argument("--result", type=pathlib.Path, required=True)
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--top", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {"loaded": [name for name in ("cudf", "dask", "pandas") if name in sys.modules]}
    names = ["distributed", "dask.dataframe"]
    found["imports"] = imports(names)
    library, frames = ("pandas", "dask.dataframe") if options.cpu else ("cudf", "dask_cudf")
    if options.top:
        found["imports"] |= imports([library, frames])
    import dask
    import dask.dataframe as dd
    from distributed import Client, get_task_stream

    if not options.cpu:
        dask.config.set({"array.backend": "cupy", "dataframe.backend": "cudf"})
    paths = sorted(str(path) for path in options.folder.glob("*.csv"))
    found["client"], client = timed(Client)
    with client:
        found["ready"] = round(time.perf_counter() - BEGAN, 3)
        if options.steps:
            found["script_imports"] = imports([library, frames])
            found["script_kernel"] = first_kernel(library)
            found["workers_imports"] = list(client.run(imports, [library, "dask.dataframe", frames]).values())
            found["workers_kernel"] = list(client.run(first_kernel, library).values())
        found["each"], found["tasks"] = [], []
        for _ in range(3):
            with get_task_stream(client) as stream:
                began = time.perf_counter()
                frame = dd.read_csv(paths, blocksize=options.blocksize)
                work = frame.groupby("passenger_count").trip_distance.mean(split_out=1)
                built = time.perf_counter() - began
                work.compute()
                found["each"].append({"built": round(built, 3), "all": round(time.perf_counter() - began, 3)})
            found["tasks"].append(computing(stream.data))
    options.result.write_text(json.dumps(found))


def computing(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the longest tasks: when each began after the first and how long its worker computed."""
    if not tasks:
        return []
    spans = [(task["key"][:40] if isinstance(task["key"], str) else str(task["key"])[:40], task["worker"][-5:], *(
        (span["start"], span["stop"]) for span in task["startstops"] if span["action"] == "compute")) for task in tasks]  # fmt: skip
    least = min(span[2][0] for span in spans if len(span) > 2)
    rows = [{"task": span[0], "worker": span[1], "at": round(span[2][0] - least, 3), "took": round(span[2][1] - span[2][0], 3)}
            for span in spans if len(span) > 2]  # fmt: skip
    return sorted(rows, key=lambda one: -one["took"])[:6]


if __name__ == "__main__":
    main()
