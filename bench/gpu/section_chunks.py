"""Array, SVD and join of the headlines, in chunks as published and larger ones: what the GPUs wait for, and how little they could.

All ways of one work take turns in one run, so that what differs is the chunks (and, for the array, CuPy's generator; for the
join, how rows are exchanged).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from harness import ROOT, SCRIPTS, Case, HarnessError, World, read_json
from results import Result, result

ROUNDS = 5
PUBLISHED = "as published"
SATURATIONS = (
    "1.1",
    "4",
    "inf",
)  # distributed.scheduler.worker-saturation, whose default is the first: tasks for each thread
DEADLINE = 200
ARRAY = (500_000, 62_500)  # a GPU's share of the headline: 250 GB
SVD = (1_250_000, 20_000)  # 25 GB
JOIN = (1_000_000_000, 5_000_000)  # rows and keys, whatever the GPUs: 15 GiB
PART = 0.18  # of a GPU's memory for each of the four matrices, at most
SIGMAS = 5.0
LIMIT = "64GiB"  # of a worker: Dask compares what a task takes in with it, also where that lies on a GPU
RIGHTS, FEW = 2, 0.01  # rows on the right for each key, and what chance may add
SAME = 1e-3  # relative, of the singular values of one matrix in other chunks


def cases(world: World) -> list[Case]:
    """Return all works, and the array with more tasks at a worker."""
    about = 30 if world.cpu_only else 80
    found = [Case(name, about, partial(_measure, world, name)) for name in ("svd", "array", "join")]
    return [*found, Case("saturation", about, partial(_saturation, world))]


def sizes(world: World, name: str) -> tuple[int, int]:
    """Return rows and columns for the GPUs that are here."""
    if name == "join":
        return (400_000, 2_000) if world.cpu_only else JOIN
    if world.cpu_only:
        return (2_000, 4_000) if name == "array" else (4_000, 400)
    if name == "array":
        return ARRAY[0], ARRAY[1] * world.gpus
    return min(SVD[0], int(PART * world.memory_mib * 2**20 / SVD[1])) * world.gpus, SVD[1]


def _measure(world: World, name: str) -> list[Result]:
    rows, columns = sizes(world, name)
    size = 16 * rows if name == "join" else (8 if name == "array" else 1) * rows * columns
    return summary(name, _ways(world, name, ROUNDS), size / 2**30)


def _saturation(world: World) -> list[Result]:
    """Run the published array with more and more tasks at a worker at once: a run for each, since the scheduler reads it as it starts."""
    name = "array"
    ways: dict[str, dict[str, Any]] = {}
    for value in SATURATIONS:
        setting = f"environment.DASK_DISTRIBUTED__SCHEDULER__WORKER_SATURATION={value}"
        title = PUBLISHED if value == SATURATIONS[0] else f"{PUBLISHED}, saturation {value}"
        ways[title] = _ways(world, name, ROUNDS, ["--way", PUBLISHED], [setting])[PUBLISHED]
    rows, columns = sizes(world, name)
    found = summary(name, ways, rows * columns * 8 / 2**30)
    found[0]["name"] += f", saturation {SATURATIONS[0]}"
    return found


def _ways(
    world: World, name: str, rounds: int, more: Sequence[str] = (), settings: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    world.shape(1, world.gpus)
    folder = world.folder("chunks")
    rows, columns = sizes(world, name)
    path = f"{ROOT}/bench/workloads:{SCRIPTS}:{world.environment['PYTHONPATH']}"
    words = [name, "--rows", str(rows), "--columns", str(columns), "--result", str(folder / "result.json"), *more]
    words += ["--rounds", str(1 if world.cpu_only else rounds)]
    workers = ["workers.per_node=2"] if world.cpu_only else ["gpu.device_memory_limit=none"]
    run = world.submit(SCRIPTS / "chunks.py", words, nodes=1, gpus=world.gpus, settings=[*workers, "interconnect.require=none", *settings],
                       timeout=DEADLINE, environment={"PYTHONPATH": path},
                       options=[] if world.cpu_only else ["--set", f"workers.memory_limit={LIMIT}"])  # fmt: skip
    if not (folder / "result.json").exists():
        raise HarnessError(run.why())
    found: dict[str, dict[str, Any]] = read_json(folder / "result.json")["ways"]
    return found


def summary(name: str, ways: dict[str, dict[str, Any]], gib: float) -> list[Result]:
    """Return a result for each way; its ratio is the published chunks' seconds over its own."""
    old = statistics.median(ways[PUBLISHED]["each"])
    of_one: dict[str, list[float]] = {}
    found = []
    for way, one in ways.items():
        median = statistics.median(one["each"])
        wrong = [] if one["answers_same"] else ["its answers differ from round to round"]
        if name == "array" and abs(one["answer"][1]) > SIGMAS:
            wrong.append(f"the sum is {one['answer'][1]:.1f} sigma from theory")
        if name == "join" and abs(one["answer"][0] - RIGHTS) > FEW:
            wrong.append(f"{one['answer'][0]:.4f} rows for each on the left, {RIGHTS} are expected")
        if name == "svd" and way != PUBLISHED:
            first = of_one.setdefault("values", one["answer"])
            apart = max(abs(a - b) / b for a, b in zip(one["answer"], first, strict=True))
            if apart > SAME:
                wrong.append(f"the singular values are {apart:.1e} from those of other chunks")
        figures = {"size": f"{gib:,.3g} GiB", "first_s": one["first"], "kept_s": median, "least_s": min(one["each"]),
                   "most_s": max(one["each"]), "rounds": len(one["each"]), "busy": one["busy"], "gib_s": gib / median,
                   "profile": one["profile"], "answer": one["answer"], "each": one["each"]}  # fmt: skip
        found.append(
            result(
                f"{name}: {way}", ok=not wrong, figures=figures, ratio=round(old / median, 3), error="; ".join(wrong)
            )
        )
    return found
