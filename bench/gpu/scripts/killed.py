"""Kill GPU workers of the run (``killed.py FOLDER``), at rest and in a shuffle, and say what comes back, and how right.

The workers' processes are on the machine of this script, also where Slurm divides it into several nodes.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hpcml

SLOW = 12.0  # seconds after which an answer is late
DEADLINE = 60.0  # seconds for a worker to come back
GIB = 1024**3
CPU = "--cpu" in sys.argv
ELEMENTS = 100_000 if CPU else 64 * 1024**2
ROWS = 20_000 if CPU else 3_000_000  # of a partition


def wait(future: Any, seconds: float) -> bool:
    """Wait for a future; return whether it is there."""
    try:
        future.result(timeout=seconds)
    except TimeoutError:
        return False
    return True


async def waiting() -> str:
    """Return what a worker's coroutines wait for, which says why an answer is late."""
    import asyncio
    import io

    text = io.StringIO()
    for task in asyncio.all_tasks():
        task.print_stack(limit=4, file=text)
    return text.getvalue()


def array_module() -> Any:
    return importlib.import_module("numpy" if CPU else "cupy")


def make(seed: int) -> Any:
    return array_module().full(ELEMENTS, seed, dtype="int64")


def total(numbers: Any) -> int:
    return int(numbers.sum())


def memory() -> dict[str, float]:
    """Return a worker's memory pool and what its GPU has free, in GiB."""
    if CPU:
        return {"pool_gib": 1.0, "free_gib": 1.0}
    import cupy
    import rmm

    resource: Any = rmm.mr.get_current_device_resource()
    while not hasattr(resource, "pool_size") and hasattr(resource, "upstream_mr"):
        resource = resource.upstream_mr
    free, _ = cupy.cuda.runtime.memGetInfo()
    pool = resource.pool_size() if hasattr(resource, "pool_size") else 0
    return {"pool_gib": round(pool / GIB, 1), "free_gib": round(free / GIB, 1)}


def left(part: int) -> Any:
    module = array_module()
    frame: Any = importlib.import_module("pandas" if CPU else "cudf")
    keys = module.arange(part * ROWS, (part + 1) * ROWS, dtype="int64")
    return frame.DataFrame({"key": keys * 7919 % 1_000_003, "value": keys % 10})


def right(part: int) -> Any:
    module = array_module()
    frame: Any = importlib.import_module("pandas" if CPU else "cudf")
    keys = module.arange(part * 1000, (part + 1) * 1000, dtype="int64")
    return frame.DataFrame({"key": keys, "other": keys % 7})


def merged(client: Any, parts: int) -> Any:
    """Return a future of the figures of a join whose every row is moved."""
    import dask.dataframe as dd

    one = dd.from_map(left, range(parts))
    other = dd.from_map(right, range(parts * 4)).repartition(npartitions=parts)
    joined = one.shuffle("key").merge(other, on="key")
    return client.compute(joined.assign(product=joined.value * joined.other)[["value", "other", "product"]].sum())


def figures(answer: Any) -> list[int]:
    values = answer if CPU else answer.to_pandas()
    return [int(values[name]) for name in ("value", "other", "product")]


class Killer:
    def __init__(self, client: Any) -> None:
        self.client = client
        self.count = len(self.workers())
        self.events: list[dict[str, Any]] = []

    def workers(self) -> dict[str, str]:
        """Return the workers' addresses by name."""
        return {
            str(info["name"]): address for address, info in self.client.scheduler_info(n_workers=-1)["workers"].items()
        }

    def exchange(self) -> None:
        """Move an array between each pair of workers, and compare what has come with what was sent."""
        workers = self.workers()
        sent = {
            name: self.client.submit(make, seed, workers=[at], pure=False)
            for seed, (name, at) in enumerate(workers.items())
        }
        for seed, name in enumerate(workers):
            sums = [self.client.submit(total, sent[name], workers=[at], pure=False) for at in workers.values()]
            assert self.client.gather(sums) == [seed * ELEMENTS] * len(workers)

    def kill(self, name: str, when: str, meanwhile: Callable[[], Any] | None, expected: list[int]) -> None:
        """Kill a worker, wait until it is back, and look whether all is right."""
        before = self.workers()
        pid = next(iter(self.client.run(os.getpid, workers=[before[name]]).values()))
        future = meanwhile() if meanwhile else None
        if future is not None:
            limit = time.monotonic() + DEADLINE
            while not any(self.client.processing().values()) and time.monotonic() < limit:
                time.sleep(0.01)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while time.monotonic() - began < DEADLINE:
            now = self.workers()
            if len(now) == self.count and now.get(name) not in (None, before[name]):
                break
            time.sleep(0.05)
        back = time.monotonic() - began
        event: dict[str, Any] = {"when": when, "worker": name, "workers": len(self.workers()), "back_s": round(back, 2)}
        try:
            if future is not None:
                if not wait(future, SLOW):
                    stacks = self.client.run(waiting, on_error="return")
                    print("\n".join(f"{at}: {text}" for at, text in stacks.items()), flush=True)
                event["right"] = figures(future.result(timeout=120)) == expected
                event["answer_s"] = round(time.monotonic() - began, 2)
            self.exchange()
            event["exchange"] = True
        except Exception as error:  # noqa: BLE001 - it is the finding
            event |= {"right": False, "error": f"{type(error).__name__}: {error}"[:300]}
        by_address = {address: name for name, address in self.workers().items()}
        event["memory"] = {by_address.get(at, at): facts for at, facts in self.client.run(memory).items()}
        self.events.append(event)
        print(json.dumps(event), flush=True)


def main() -> None:
    client = hpcml.connect(backend="auto")
    killer = Killer(client)
    folder = Path(sys.argv[1])
    names = sorted(killer.workers())
    parts = 4 * len(names)
    killer.exchange()
    expected = figures(merged(client, parts).result(timeout=120))
    start = client.run(memory)
    victim = names[-1]
    for when in ("at rest", "at rest, again"):
        killer.kill(victim, when, None, expected)
    for when, name in (("in a shuffle", victim), ("in a shuffle, again", names[0])):
        killer.kill(name, when, lambda: merged(client, parts), expected)
    new = folder / "result.new"
    new.write_text(json.dumps({"workers": len(names), "events": killer.events, "start": list(start.values())}))
    new.rename(folder / "result.json")


if __name__ == "__main__":
    main()
