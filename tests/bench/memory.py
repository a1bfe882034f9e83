#!/usr/bin/env python3
"""Run a job of the gallery on workers of little memory and tell what it took: estimated, at its peak, and spilled.

    .venv/bin/python tests/bench/memory.py --workers 2 --limit 1GiB kmeans --rows 20_000_000 --features 8

Files, and what is spilled, go to TMPDIR. The workers are processes of this machine with distributed's usual thresholds (spill at 60 % of the limit, restart at
95 %). Peaks are those of distributed's MemorySampler, all workers together: `process` is what the system sees,
libraries included; `managed` is Dask's own results. docs/gallery/memory.md shows what came out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[2] / "jobs/workloads")]

from distributed import Client, LocalCluster  # noqa: E402
from distributed.diagnostics import MemorySampler  # noqa: E402

import hpcml  # noqa: E402
from hpcml.units import format_bytes  # noqa: E402

MEASURES = ("process", "managed", "spilled")


def process_memory(dask_worker: Any) -> int:
    return int(dask_worker.monitor.get_process_memory())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", default="1GiB", help="memory of each worker (default 1GiB)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("job")
    options, arguments = parser.parse_known_args()
    sampler = MemorySampler()
    with contextlib.ExitStack() as open_things:
        out = Path(open_things.enter_context(tempfile.TemporaryDirectory()))
        cluster = open_things.enter_context(
            LocalCluster(n_workers=options.workers, threads_per_worker=1, memory_limit=options.limit,
                         local_directory=out / "scratch", dashboard_address="127.0.0.1:0")
        )  # fmt: skip
        client = open_things.enter_context(Client(cluster))
        hpcml.connect = lambda **_: contextlib.nullcontext(client)
        idle = sum(client.run(process_memory).values())
        began = time.perf_counter()
        with contextlib.ExitStack() as sampling:
            for measure in MEASURES:
                sampling.enter_context(sampler.sample(measure, client=client, measure=measure, interval=0.1))
            status: int = importlib.import_module(options.job).main([*arguments, "--out", str(out / "out")])
        seconds = time.perf_counter() - began
        result = json.loads((out / "out/result.json").read_text()) if status == 0 else {}
    peaks = {measure: max(value for _, value in sampler.samples[measure]) for measure in MEASURES}
    found = {"job": options.job, "status": status, "seconds": round(seconds, 1), "idle": idle, **peaks,
             "needed": result.get("memory_needed"), "memory": result.get("memory"), **result.get("spilled", {})}  # fmt: skip
    if options.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:>10}  {format_bytes(value) if isinstance(value, int) and value > 99 else value}"
                        for name, value in found.items()))  # fmt: skip
    return status


if __name__ == "__main__":
    sys.exit(main())
