"""What the first use of an operation costs in a new process: with CuPy's cache of compiled kernels empty, and filled.

A first run begins with an empty one. CuPy sums by CUB's headers, which are long to compile, unless
``CUPY_ACCELERATORS`` is empty. And what the first ``read_csv`` of a run pays for, step by step.
"""

from __future__ import annotations

import json
import shutil
import statistics
from typing import Any

from harness import SCRIPTS, Case, HarnessError, World, read_json
from results import Result, result
from section_headlines import write_csv

DEADLINE = 120
CSV_BYTES, CSV_BLOCK = 1_250_000_000, 256_000_000  # a GPU's share of the headline
LIBRARIES = ("dask_cudf", "dask.dataframe")


def cases(world: World) -> list[Case]:
    """Return two cases: an empty cache, the same filled, and an empty one without CUB; and a run's first CSV files."""
    return [Case("first use", 60 if not world.cpu_only else 10, lambda: _all(world)),
            Case("first csv", 100 if not world.cpu_only else 30, lambda: _csv(world))]  # fmt: skip


def _all(world: World) -> list[Result]:
    kept, other = world.folder("kernels-kept"), world.folder("kernels-other")
    settings = {
        "empty cache": {"CUPY_CACHE_DIR": str(kept)},
        "filled cache": {"CUPY_CACHE_DIR": str(kept)},
        "empty cache, no CUB": {"CUPY_CACHE_DIR": str(other), "CUPY_ACCELERATORS": ""},
    }
    return [world.measured(name, "first_use.py", timeout=DEADLINE, environment=variables)
            for name, variables in settings.items()]  # fmt: skip


def _csv(world: World) -> list[Result]:
    """Read CSV files first in runs of their own: the work pays all; step by step; with libraries imported before the fork."""
    data = world.folder("csv") / "data"
    write_csv(data, (4_000_000 if world.cpu_only else CSV_BYTES) * world.gpus, CSV_BYTES)
    early = [] if world.cpu_only else [f"gpu.pre_import={json.dumps(LIBRARIES)}"]
    ways: dict[str, tuple[list[str], list[str]]] = {
        "at once": ([], []), "step by step": (["--steps"], []), "libraries at the top": (["--top"], []),
        "imported before the fork": ([], early)}  # fmt: skip
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    world.shape(1, world.gpus)
    try:
        for number in range(world.rounds):
            for name in list(ways)[:: -1 if number % 2 else 1]:
                if number == 0 or world.left() > DEADLINE // 2:
                    found[name].append(_read(world, data, *ways[name]))
    finally:
        shutil.rmtree(data)
    return [_summary(name, runs) for name, runs in found.items()]


def _read(world: World, data: Any, words: list[str], settings: list[str]) -> dict[str, Any]:
    file = world.folder("first-csv") / "result.json"
    words = [
        str(data),
        "--blocksize",
        str(CSV_BLOCK if not world.cpu_only else 1_000_000),
        "--result",
        str(file),
        *words,
    ]
    words += ["--cpu"] if world.cpu_only else []
    workers = [f"workers.per_node={world.gpus}"] if world.cpu_only else []
    run = world.submit(SCRIPTS / "first_csv.py", words, nodes=1, gpus=world.gpus, timeout=DEADLINE,
                       settings=[*workers, *settings])  # fmt: skip
    if not file.exists():
        raise HarnessError(run.why())
    found: dict[str, Any] = read_json(file)
    status = run.table("status.json")
    return {**found, "times": status.get("times")}


def _summary(name: str, runs: list[dict[str, Any]]) -> Result:
    first = statistics.median(run["each"][0]["all"] for run in runs)
    second = statistics.median(run["each"][1]["all"] for run in runs)
    return result(f"csv, {name}", ok=True, figures={"first_calls_s": first, "calls": 1, "again_s": second,
                  "ready_s": statistics.median(run["ready"] for run in runs), "rounds": len(runs), "each": runs})  # fmt: skip
