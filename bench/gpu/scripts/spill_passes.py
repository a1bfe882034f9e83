"""Passes of k-means over data that is larger than what the workers keep on their GPUs: how long each takes, what moves.

Writes seconds of the loading and of each pass, the centres, whether every byte is as it was made, and what hpcml's
counters say of the copies: bytes and seconds each way, of all workers.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from typing import Any

import hpcml

COLUMNS, K = 32, 8
CHUNK = 256 << 20


def arrays(*, cpu: bool) -> Any:
    """Return NumPy, or CuPy."""
    import importlib

    return importlib.import_module("numpy" if cpu else "cupy")


def make(number: int, size: int, *, cpu: bool) -> Any:
    """Return rows of random numbers, so many bytes of them."""
    rng = arrays(cpu=cpu).random.default_rng(number)
    return rng.random((size // COLUMNS // 4, COLUMNS), dtype="float32")


def step(points: Any, centres: Any, *, cpu: bool) -> Any:
    """Return the sums and counts of the rows nearest to each centre."""
    xp = arrays(cpu=cpu)
    there = xp.asarray(centres)
    nearest = ((there**2).sum(axis=1) - 2 * points @ there.T).argmin(axis=1)
    members = (nearest[:, None] == xp.arange(len(there))).astype("float32")
    sums, counts = members.T @ points, members.sum(axis=0, dtype="float64")
    return (sums, counts) if cpu else (sums.get(), counts.get())


def total(points: Any, *, cpu: bool) -> int:
    """Return the sum of all bits, as whole numbers."""
    return int(points.view("uint32").sum(dtype="uint64"))


def made_total(number: int, size: int, *, cpu: bool) -> int:
    """Return the same of rows that are made anew."""
    return total(make(number, size, cpu=cpu), cpu=cpu)


def moved(dask_worker: Any) -> dict[str, Any]:
    """Return the bytes and seconds of this worker's copies, and the pinned memory that it holds."""
    timed = getattr(dask_worker.data, "device_host_func", None)
    mover = getattr(getattr(timed, "dump", None), "__self__", None)
    return {**getattr(timed, "moved", {}), "pinned": [getattr(getattr(mover, "pool", None), "held", 0), 0]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    size = CHUNK // 64 if options.cpu else CHUNK
    count = options.bytes // size
    import numpy as np
    from distributed import wait

    client = hpcml.connect()
    centres = client.submit(make, 0, size, cpu=options.cpu).result()[:K]
    centres = np.asarray(centres if options.cpu else centres.get())
    began = time.perf_counter()
    held = client.map(make, range(count), size=size, cpu=options.cpu, pure=False)
    wait(held)
    seconds, marks = [time.perf_counter() - began], [client.run(moved)]
    for _ in range(options.passes):
        began = time.perf_counter()
        parts = client.gather(client.map(step, held, centres=centres, cpu=options.cpu, pure=False))
        centres = (sum(one for one, _ in parts) / sum(one for _, one in parts)[:, None]).astype("float32")
        seconds.append(time.perf_counter() - began)
        marks.append(client.run(moved))
    there = client.gather(client.map(total, held, cpu=options.cpu, pure=False))
    made = client.gather(client.map(made_total, range(count), size=size, cpu=options.cpu, pure=False))
    told = [{name: [sum(one.get(name, [0, 0])[place] for one in mark.values()) for place in (0, 1)]
             for name in ("device-to-host", "host-to-device", "pinned")} for mark in marks]  # fmt: skip
    found = {"bytes": count * size, "load_s": seconds[0], "passes_s": seconds[1:], "same": there == made, "moved": told,
             "centres": hashlib.sha256(np.round(centres, 4).tobytes()).hexdigest()[:16],
             "centres_sum": float(centres.sum())}  # fmt: skip
    (hpcml.run.out / "result.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
