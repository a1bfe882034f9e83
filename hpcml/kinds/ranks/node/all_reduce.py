"""One process of the interconnect's check: an all-reduce by torch, in the ranks' own Python.

    python all_reduce.py nccl|gloo RESULT SECONDS

RESULT is the JSON file for what was measured, SECONDS the deadline of torch's own waits. This file imports nothing of
hpcml, as that Python may be another. The process stays until its standard input ends: other ranks may still need it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

MIB = 1024**2
LARGEST = {"nccl": 256 * MIB, "gloo": 32 * MIB}  # bytes of the timed all-reduce
FIRST = MIB  # bytes of the one that tells how large the timed ones shall be
AIMED = 0.1  # seconds that one may last
REPEATS = 5


def measure(backend: str, seconds: float) -> dict[str, Any]:
    """Return ``bytes`` and ``seconds`` of one all-reduce, ``start`` (seconds to the first one's end), ``right``."""
    began = time.time()
    if importlib.util.find_spec("torch") is None:
        return {"missing": sys.executable + " has no torch"}
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    cuda = backend == "nccl"
    if cuda and not (torch.cuda.is_available() and dist.is_nccl_available()):
        return {"missing": "PyTorch in " + sys.executable + " does not support CUDA or NCCL"}
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, rank=rank, world_size=size, timeout=timedelta(seconds=seconds))

    def timed(count: int) -> tuple[bool, float]:
        values = torch.full((count // 4,), float(rank + 1), device=device)
        seconds = torch.zeros(1, device=device)
        right = False
        for is_first in (True, False):  # the first one connects
            if cuda:
                torch.cuda.synchronize()
            begin = time.perf_counter()
            dist.all_reduce(values)
            if cuda:
                torch.cuda.synchronize()
            seconds.fill_(time.perf_counter() - begin)
            if is_first:
                right = bool((values == size * (size + 1) / 2).all())
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)  # all ranks go on with the same figure
        return right, float(seconds)

    first_right, first = timed(FIRST)
    start = time.time() - began
    count = max(FIRST, min(LARGEST[backend], int(FIRST / first * AIMED) // MIB * MIB))
    rounds = [timed(count) for _ in range(REPEATS if first < AIMED else 1)]
    right = first_right and all(one for one, _ in rounds)
    return {"bytes": count, "seconds": sum(one for _, one in rounds) / len(rounds), "start": start, "right": right}


def main() -> None:
    """Measure, write the result, and wait for the end of standard input."""
    backend, path, seconds = sys.argv[1:4]
    try:
        answer = measure(backend, float(seconds))
    except Exception as error:  # noqa: BLE001 - it is the result
        traceback.print_exc()
        answer = {"error": "{}: {}".format(type(error).__name__, (str(error).strip() or "-").splitlines()[0][:300])}
    new = Path(path + ".new")
    new.write_text(json.dumps(answer))
    new.replace(path)
    sys.stdin.read()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # torch's own end would wait for the others


if __name__ == "__main__":
    main()
