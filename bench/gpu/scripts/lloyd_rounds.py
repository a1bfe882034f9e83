"""K-means by jobs/lloyd, by cuML through Dask, and by cuML alone on the worker, in turns: ``lloyd_rounds.py ROUNDS ROWS:FEATURES:CLUSTERS:ITERATIONS``.

Without the last word: jobs/lloyd beside scikit-learn, once. The folder lloyd is beside this script, so each worker imports it. All start from
the same rows and do the same number of iterations. The figures are in out/rounds.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import dask.array as da
import lloyd
import numpy as np
from distributed import futures_of, wait

import hpcml

KEPT = 1e-30  # cuML needs a tol above 0
SEEN = 2_000_000  # rows that scikit-learn clusters too
MANY = 10**13  # from so many products on Dask's share is too small to measure
TIMES = 5  # copies that the memory's rate is the median of


def blobs(block: Any, d: int, k: int, block_id: tuple[int, ...] = (0,)) -> Any:
    """Return float32 rows around k centres, as many as the block has."""
    import cupy

    centres = cupy.asarray(np.random.default_rng(7).uniform(-10, 10, (k, d)), dtype="float32")
    rng, n = cupy.random.default_rng(block_id[0]), len(block)
    rows = cupy.empty((n, d), dtype="float32")
    step = max((1 << 28) // d, 1)
    for at in range(0, n, step):
        part = rows[at : at + step]
        part[:] = rng.standard_normal(part.shape, dtype="float32")
        part *= 3
        part += centres[rng.integers(0, k, len(part))]
    return rows


def machine(_: Any) -> dict[str, float]:
    """Return the memory's rate by a copy (bytes read and written), and the float32 peak by the GPU's own figures."""
    import cupy
    import pynvml

    one = cupy.ones(1 << 30, dtype="float32")
    other, seconds = cupy.empty_like(one), []
    for _ in range(TIMES + 1):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        cupy.copyto(other, one)
        cupy.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - start)
    pynvml.nvmlInit()
    clock = pynvml.nvmlDeviceGetMaxClockInfo(pynvml.nvmlDeviceGetHandleByIndex(0), pynvml.NVML_CLOCK_SM) * 1e6
    peak = cupy.cuda.Device().attributes["MultiProcessorCount"] * 128 * 2 * clock
    return {"memory_tb_s": 2 * one.nbytes / statistics.median(seconds[1:]) / 1e12, "peak_tflops": peak / 1e12}


def alone(rows: Any, start: Any, most: int) -> tuple[float, Any, int, float]:
    """Return seconds, centres, iterations and inertia of cuML's k-means of one GPU."""
    import cuml

    began = time.perf_counter()
    model = cuml.cluster.KMeans(
        n_clusters=len(start), init=start, n_init=1, max_iter=most, tol=KEPT, output_type="numpy"
    ).fit(rows)
    return time.perf_counter() - began, np.asarray(model.cluster_centers_), int(model.n_iter_), float(model.inertia_)


def kernels_alone(rows: Any, start: Any, most: int) -> float:
    """Return the seconds of jobs/lloyd on this worker, without Dask."""
    began = time.perf_counter()
    lloyd.iterate([rows], np.zeros(rows.shape[1]), start, most, 0)
    return time.perf_counter() - began


def sizes_of(rows: Any, centres: Any) -> Any:
    """Return how many rows are nearest to each centre."""
    state = lloyd.OnGpu(centres)
    state.add(rows)
    return state.total[-len(centres) :].get()


class Rounds:
    """The ways to cluster the same rows, in turns."""

    def __init__(self, client: Any, rows: Any, start: Any, most: int) -> None:
        from cuml.dask.cluster import KMeans

        self.client, self.rows, self.start, self.most = client, rows, start, most
        (self.future,) = futures_of(rows)
        self.cuml = KMeans
        self.ways: dict[str, Callable[[], tuple[float, Any, int, float]]] = {
            "lloyd": self._lloyd, "cuml_dask": self._cuml_dask, "cuml_alone": self._cuml_alone}  # fmt: skip

    def _fitted(self, model: Any) -> tuple[float, Any, int, float]:
        began = time.perf_counter()
        model.fit(self.rows)
        took = time.perf_counter() - began
        self.library = getattr(model, "library", "cuML")
        return took, lloyd.to_numpy(model.cluster_centers_), int(model.n_iter_), float(model.inertia_)

    def _lloyd(self) -> tuple[float, Any, int, float]:
        found = self._fitted(lloyd.KMeans(len(self.start), init=self.start, max_iter=self.most, tol=0))
        self.by = self.library
        return found

    def _cuml_dask(self) -> tuple[float, Any, int, float]:
        model = self.cuml(n_clusters=len(self.start), init=self.start, n_init=1, max_iter=self.most, tol=KEPT)
        return self._fitted(model)

    def _cuml_alone(self) -> tuple[float, Any, int, float]:
        result: tuple[float, Any, int, float] = self.client.submit(
            alone, self.future, self.start, self.most, pure=False
        ).result()
        return result

    def one_step_apart(self) -> tuple[float, float]:
        """Return how far the centres are from those of cuML after one iteration: relative to a row's distance, and the most.

        The first is a root mean square, of a row's centre over a row's distance from it. Later iterations add up what rounding decides, and a
        row that is as near to two centres moves a centre of few rows far.
        """
        mine = lloyd.KMeans(len(self.start), init=self.start, max_iter=1, tol=0).fit(self.rows)
        other = self.client.submit(alone, self.future, self.start, 1, pure=False).result()[1]
        sizes = self.client.submit(sizes_of, self.future, mine.cluster_centers_, pure=False).result()
        squares = ((other - mine.cluster_centers_) ** 2).sum(axis=1)
        return float(np.sqrt((sizes * squares).sum() / mine.inertia_)), float(np.sqrt(squares.max()))

    def kernels(self) -> float:
        """Return the seconds of the kernels without Dask."""
        return float(self.client.submit(kernels_alone, self.future, self.start, self.most, pure=False).result())


def measured(client: Any, n: int, d: int, k: int, most: int, rounds: int) -> dict[str, Any]:
    rates = client.submit(machine, 0).result()
    rows = da.zeros((n, 1), chunks=(n, 1)).map_blocks(blobs, d, k, chunks=((n,), (d,)), meta=empty(d)).persist()
    wait(rows)
    start = rows[:: n // k][:k].compute()
    start = lloyd.to_numpy(start)
    work = Rounds(client, rows, start, most)
    seconds, answers, errors = in_turns(work, rounds, kernels=n * d * k < MANY)
    memory_s, arithmetic_s = n * d * 4 / rates["memory_tb_s"] / 1e12, 2 * n * d * k / rates["peak_tflops"] / 1e12
    bound = max(memory_s, arithmetic_s)
    centres, iterations, inertia = answers["lloyd"]
    figures: dict[str, Any] = {
        "rows": n, "features": d, "clusters": k, "iterations": iterations, "rounds": rounds, "library": work.by, "precision": "float32",
        **{key: round(value, 3) for key, value in rates.items()}, "memory_s": memory_s, "arithmetic_s": arithmetic_s,
        "bound": "memory" if memory_s >= arithmetic_s else "arithmetic", "bound_s": bound * iterations, "each": seconds, "errors": errors}  # fmt: skip
    for way, all_of_it in seconds.items():
        if all_of_it:
            figures[f"{way}_s"] = statistics.median(all_of_it)
            figures[f"{way}_spread"] = f"{min(all_of_it):.3f} to {max(all_of_it):.3f}"
    if "cuml_alone" not in errors:
        figures["relative_apart"], figures["centres_apart"] = work.one_step_apart()
    for way, (other, others_iterations, others_inertia) in answers.items():
        if way != "lloyd":
            figures[f"{way}_iterations"] = others_iterations
            figures[f"{way}_inertia_apart"] = abs(others_inertia / inertia - 1)
            figures[f"{way}_end_centres_apart"] = float(np.sqrt(((other - centres) ** 2).sum(axis=1)).max())
    return figures


def in_turns(
    work: Rounds, rounds: int, *, kernels: bool
) -> tuple[dict[str, list[float]], dict[str, tuple[Any, int, float]], dict[str, str]]:
    """Return by way the seconds of each round, the last answer, and the error; the first round compiles and loads."""
    seconds: dict[str, list[float]] = {way: [] for way in (*work.ways, "kernels")}
    answers: dict[str, tuple[Any, int, float]] = {}
    errors: dict[str, str] = {}
    for turn in range(rounds + 1):
        for way in [way for way in work.ways if way not in errors]:
            try:
                took, *answer = work.ways[way]()
            except Exception as error:  # noqa: BLE001 - the other ways are measured
                errors[way] = f"{type(error).__name__}: {error}"[:300]
                continue
            answers[way] = (answer[0], answer[1], answer[2])
            seconds[way] += [round(took, 5)] if turn else []
            print(f"{way}: {took:.4f} s, {answer[1]} iterations, inertia {answer[2]:.9g}", flush=True)
        if turn and kernels:
            seconds["kernels"].append(round(work.kernels(), 5))
    return seconds, answers, errors


def empty(d: int) -> Any:
    """Return a block without rows."""
    import cupy

    return cupy.empty((0, d), dtype="float32")


def beside_sklearn() -> dict[str, Any]:
    """Return how far the centres and the inertia are from scikit-learn's, on rows that fit both."""
    import sklearn.cluster

    n, d, k, most = SEEN, 32, 16, 20
    rows = (
        da.zeros((n, 1), chunks=(n // 4, 1))
        .map_blocks(blobs, d, k, chunks=((n // 4,) * 4, (d,)), meta=empty(d))
        .persist()
    )
    start = lloyd.to_numpy(rows[:: n // k][:k].compute())
    mine = lloyd.KMeans(k, init=start, max_iter=most, tol=0).fit(rows)
    whole = lloyd.to_numpy(rows.compute())
    other = sklearn.cluster.KMeans(k, init=start, n_init=1, max_iter=most, tol=0, algorithm="lloyd").fit(whole)
    labels = lloyd.to_numpy(mine.predict(rows).compute())
    return {
        "rows": n, "features": d, "clusters": k, "iterations": mine.n_iter_, "sklearn_iterations": int(other.n_iter_), "library": mine.library,
        "sklearn_inertia_apart": abs(mine.inertia_ / float(other.inertia_) - 1),
        "centres_apart": float(np.sqrt(((other.cluster_centers_ - mine.cluster_centers_) ** 2).sum(axis=1)).max()),
        "relative_apart": float(np.sqrt(((other.cluster_centers_[labels] - mine.cluster_centers_[labels]) ** 2).sum() / mine.inertia_)),
        "labels_apart": int((labels != other.labels_).sum())}  # fmt: skip


def main(rounds: int, shape: str = "") -> None:
    client = hpcml.connect(backend="auto")
    if shape:
        n, d, k, most = map(int, shape.split(":"))
        figures = measured(client, n, d, k, most, rounds)
    else:
        figures = beside_sklearn()
    (hpcml.run.out / "rounds.json").write_text(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
