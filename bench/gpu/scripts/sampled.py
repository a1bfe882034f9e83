"""Use the run's GPUs in a way that its samples must show: ``sampled.py WAY --seconds S``; writes what it did.

``busy`` uses all GPUs, ``idle`` all but the last worker's (of one GPU none), ``spill`` passes again and again over data that is larger than
the workers' memory, and ``move`` sends a known number of bytes from one worker to another, counted by the fabric's
own counters too. On CPU workers it does the same with NumPy.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import hpcml

MIB = 1 << 20
SIDE = 4096  # of the matrices that are multiplied
CHUNK = 256 * MIB
AFTER = 5.0  # seconds after the last byte, in which each node is sampled once more


def arrays(*, cpu: bool) -> Any:
    """Return NumPy, or CuPy."""
    import importlib

    return importlib.import_module("numpy" if cpu else "cupy")


def multiply(seconds: float, *, cpu: bool) -> int:
    """Keep a GPU busy; return how many products it made."""
    xp = arrays(cpu=cpu)
    one = xp.ones((SIDE // 8, SIDE // 8) if cpu else (SIDE, SIDE), dtype="float32")
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        for _ in range(8):
            two = one @ one
        float(two[0, 0])  # waits for all of them
        count += 8
    return count


def chunk(number: int, size: int, *, cpu: bool) -> Any:
    """Return an array of so many bytes."""
    return arrays(cpu=cpu).full(size, number % 251, dtype="uint8")


def last(array: Any) -> int:
    """Return an array's last value."""
    return int(array[-1])


def moved_here() -> dict[str, Any]:
    """Return the byte counters of this worker's node, as the interconnect's check reads them."""
    from hpcml.node.interconnect.measurement import read_counters

    return read_counters()


def busy(client: Any, workers: list[str], seconds: float, *, cpu: bool) -> dict[str, Any]:
    """Keep the GPUs of some workers busy."""
    tasks = [client.submit(multiply, seconds, cpu=cpu, workers=[one], pure=False) for one in workers]
    return {"products": client.gather(tasks), "workers": len(workers)}


def spill(client: Any, size: int, seconds: float, *, cpu: bool) -> dict[str, Any]:
    """Pass again and again over so many bytes."""
    piece = CHUNK // 16 if cpu else CHUNK
    held = client.map(chunk, range(size // piece), size=piece, cpu=cpu)
    end, passes = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        client.gather(client.map(last, held, pure=False))
        passes += 1
    return {"bytes": len(held) * piece, "passes": passes}


def move(client: Any, workers: list[str], size: int, *, cpu: bool) -> dict[str, Any]:
    """Send so many bytes from the first worker to the last."""
    from hpcml.node.interconnect.measurement import counter_difference

    piece, one, other = CHUNK // 16 if cpu else CHUNK, workers[0], workers[-1]
    client.submit(last, client.submit(chunk, 0, piece, cpu=cpu, workers=[one]), workers=[other]).result()  # connects
    time.sleep(AFTER)
    before, began = client.run(moved_here, workers=[one])[one], time.time()
    for number in range(1, size // piece + 1):
        held = client.submit(chunk, number, piece, cpu=cpu, workers=[one])
        if client.submit(last, held, workers=[other]).result() != number % 251:
            raise SystemExit("another array came")
    after = client.run(moved_here, workers=[one])[one]
    time.sleep(AFTER)
    links = counter_difference(before, after)["nvlink"]
    received = None if links is None else sum(facts["rx"] or 0 for facts in links.values())
    return {"bytes": size // piece * piece, "fabric_bytes": received, "began": began}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("busy", "idle", "spill", "move"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--bytes", type=int, default=0)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    client = hpcml.connect()
    facts = client.scheduler_info(n_workers=-1)["workers"]
    workers = sorted(facts, key=lambda address: str(facts[address]["name"]))
    if options.way == "spill":
        found = spill(client, options.bytes, options.seconds, cpu=options.cpu)
    elif options.way == "move":
        found = move(client, workers, options.bytes, cpu=options.cpu)
    else:
        used = workers[:-1] if options.way == "idle" else workers
        found = busy(client, used, options.seconds, cpu=options.cpu)
        if not used:
            time.sleep(options.seconds)
    (hpcml.run.out / "result.json").write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
