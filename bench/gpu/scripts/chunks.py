"""Array, SVD and join of the headlines in chunks of several sizes, in one run: what their time goes to.

Each way is done once, then in turns with the others ``--rounds`` times, then once more under Dask's task stream. ``busy`` is NVML's
use of the GPUs while it was done again and again: the share of the time in which a kernel ran. Writes seconds, tasks, what the workers' threads computed, and the
answers, as JSON. Wants by_hand.py and bench/workloads on PYTHONPATH, for the workers too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import pathlib
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import dask
import dask.array as da
from distributed import Client, get_task_stream, wait

import arrays
import hpcml
from gallery import exchange, matrices, partitions

by_hand: Any = importlib.import_module("by_hand")  # it lies beside this file
POLL = 0.02  # seconds between looks at the GPUs' use
K = 10
PARTS = 16  # of the join as published


class Watch:
    """The use of all GPUs while a block lasts, in per cent: the mean of many looks."""

    def __init__(self) -> None:
        self.looks: list[float] = []

    def __enter__(self) -> Self:
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _look(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            devices = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
        except Exception as error:  # noqa: BLE001 - without GPUs there is nothing to look at
            print(f"no use of GPUs: {error}", flush=True)
            return
        while not self.over.wait(POLL):
            uses = [pynvml.nvmlDeviceGetUtilizationRates(device).gpu for device in devices]
            self.looks.append(sum(uses) / len(uses))


def drawn(shape: tuple[int, int], chunks: tuple[int, int], kind: str) -> Any:
    """Return normal numbers by a generator of CuPy's with as many streams as the GPU has threads: its own default has fewer."""
    return da.map_blocks(draw, kind, chunks=da.core.normalize_chunks(chunks, shape), dtype="float64",
                         meta=by_hand.xp().empty((0, 0)))  # fmt: skip


def draw(kind: str, block_info: Any) -> Any:
    """Return a chunk; runs on a worker."""
    import cupy as cp
    import numpy as np

    place = block_info[None]
    streams = 2048 * cp.cuda.Device().attributes["MultiProcessorCount"]
    seed = np.random.SeedSequence(1, spawn_key=place["chunk-location"])
    return cp.random.Generator(getattr(cp.random, kind)(seed, size=streams)).standard_normal(place["chunk-shape"])


def array_ways(client: Client, rows: int, columns: int) -> dict[str, Callable[[], list[float]]]:
    """Return ways of the sum: chunks as published and as large as bench/workloads/arrays.py takes them, by other generators."""
    shape = (rows, columns)
    published = (min(rows, 10_000), min(columns, 10_000))
    large = arrays.chunks_of(shape, partitions.share_of_gpu(client))
    library = by_hand.xp()

    def way(chunks: tuple[int, int], rng: Callable[[], Any]) -> Callable[[], list[float]]:
        return summed(shape, lambda: rng().standard_normal(shape, chunks=chunks))

    found = {"as published": way(published, lambda: da.random.default_rng(1)),
             "large chunks": way(large, lambda: da.random.default_rng(1)),
             "large chunks, the legacy generator": way(large, lambda: da.random.RandomState(1))}  # fmt: skip
    if library.__name__ == "cupy":
        philox = library.random.Philox4x3210
        found["published chunks, Philox"] = way(published, lambda: da.random.Generator(philox(1)))
        found["large chunks, Philox"] = way(large, lambda: da.random.Generator(philox(1)))
        for kind in ("XORWOW", "Philox4x3210"):
            found[f"large chunks, {kind}, all threads"] = summed(shape, partial(drawn, shape, large, kind))
    return found


def summed(shape: tuple[int, int], make: Callable[[], Any]) -> Callable[[], list[float]]:
    """Return the work of summing what is made, whose answer is the mean and how many sigmas the sum is from theory."""

    def work() -> list[float]:
        total, n = float((make() + 1)[::2, ::2].sum().compute()), math.prod(-(-side // 2) for side in shape)
        return [total / n, (total - n) / math.sqrt(n)]

    return work


def svd_ways(client: Client, rows: int, columns: int) -> dict[str, Callable[[], list[float]]]:
    """Return ways of the SVD, their data made: as published, and pca_svd.py's with chunks of several sizes."""
    ways: dict[str, Callable[[], list[float]]] = {}
    shape, step = (rows, columns), (min(rows, 20_000), max(columns // 4, 1))
    library = by_hand.xp()
    x = da.map_blocks(by_hand.genotypes, library, chunks=da.core.normalize_chunks(step, shape), dtype="uint8",
                      meta=library.empty((0, 0), dtype="uint8")).persist()  # fmt: skip
    wait(x)

    def published() -> list[float]:
        u, s, v = da.linalg.svd_compressed(x, k=K, seed=1)
        u, s, v = dask.persist(u, s, v)
        wait([u, s, v])
        return [float(value) for value in s.compute()]

    ways["as published"] = published
    threads = sum(client.nthreads().values())
    share = partitions.share_of_gpu(client)
    for title, floats in (
        ("chunks of 100 MB", 0),
        ("floats of a 64th of the GPU", share // 2),
        ("floats of a 32nd of the GPU", share),
    ):
        matrix = matrices.made(rows, columns, seed=0, dtype="uint8", missing=0.01, threads=threads, floats=floats)
        matrix, sums = matrices.load(matrix)
        means, _, _ = matrices.statistics(matrix, sums)

        def job(matrix: Any = matrix, means: Any = means) -> list[float]:
            u, s, v = da.linalg.svd_compressed(matrices.ready(matrix, means, centre=False), K, n_power_iter=0,
                                               seed=0, compute=True, coerce_signs=False)  # fmt: skip
            u, s, v = dask.persist(u, s, v)
            wait([u, s, v])
            return [float(value) for value in s.compute()]

        ways[title] = job
    return ways


def join_ways(client: Client, rows: int, keys: int) -> dict[str, Callable[[], list[float]]]:
    """Return ways of the join of the headlines, both tables made: 16 partitions by tasks as published, and fewer."""
    ways: dict[str, Callable[[], list[float]]] = {}
    workers = len(client.nthreads())

    def tables(parts: int) -> list[Any]:
        made = [by_hand.keyed_frame(count, parts, keys, name, first).persist()
                for count, name, first in ((rows, "a", 0), (2 * keys, "b", 1_000_000))]  # fmt: skip
        wait(made)
        return made

    def by_tasks(left: Any, right: Any, broadcast: bool = False) -> list[float]:
        met = left.merge(right, on="key", how="inner", broadcast=broadcast, shuffle_method="tasks")
        return [int(met.map_partitions(len, meta=(None, "int64")).sum().compute()) / rows]

    def direct(left: Any, right: Any) -> list[float]:
        return [sum(dask.compute(*exchange.joined(client, left, right, "key", left.npartitions, len))) / rows]

    ways["as published"] = partial(by_tasks, *tables(PARTS))
    for each in (2, 1):
        left, right = tables(each * workers)
        ways[f"by tasks, {each} to a worker"] = partial(by_tasks, left, right)
        ways[f"direct, {each} to a worker"] = partial(direct, left, right)
    whole = right.repartition(npartitions=1).persist()
    wait(whole)
    ways["the right table to all"] = partial(by_tasks, left, whole, broadcast=True)
    return ways


def measure(client: Client, ways: dict[str, Callable[[], list[float]]], rounds: int) -> dict[str, Any]:
    """Do each way once, then in turns, then watched; return what each took and answered."""
    found: dict[str, Any] = {}
    for name, work in ways.items():
        seconds, answer = by_hand.timed(work)
        found[name] = {"first": seconds, "answer": answer, "each": [], "answers_same": True}
    watches = {name: Watch() for name in ways}
    for number in range(rounds):
        names = list(ways)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            with watches[name]:
                seconds, answer = by_hand.timed(ways[name])
            one = found[name]
            one["each"].append(seconds)
            one["answers_same"] &= (
                max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(answer, one["answer"], strict=True)) < 1e-4
            )
    for name, work in ways.items():
        with get_task_stream(client) as stream:
            seconds, _ = by_hand.timed(work)
        looks = watches[name].looks
        found[name] |= {"profile": by_hand.profile(stream.data, seconds, client),
                        "busy": round(sum(looks) / len(looks), 1) if looks else None}  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("array", "svd", "join"))
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--columns", type=int, required=True, help="of the join the distinct keys")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--way", default="", help="only this one")
    parser.add_argument("--result", type=pathlib.Path, required=True)
    options = parser.parse_args()
    began = time.perf_counter()
    client = hpcml.connect(backend="auto")
    print("worker saturation:", client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.WORKER_SATURATION))
    ways = {"array": array_ways, "svd": svd_ways, "join": join_ways}[options.what](
        client, options.rows, options.columns
    )
    ways = {name: work for name, work in ways.items() if options.way in ("", name)}
    found = {"ways": measure(client, ways, options.rounds), "all_s": round(time.perf_counter() - began, 1)}
    new = options.result.with_suffix(".new")
    new.write_text(json.dumps(found))
    new.rename(options.result)


if __name__ == "__main__":
    main()
