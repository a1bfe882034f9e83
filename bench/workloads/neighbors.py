"""Exact k nearest neighbours: the search itself, a classifier and a regressor, on rows that were held out.

On CPUs scikit-learn searches each block of the index and the answers are merged, which is exact; on GPUs cuML does both.
The search is checked against brute force for a few rows over the whole index: ``recall`` must be 1.
"""

from __future__ import annotations

import argparse
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import sklearn.metrics
import sklearn.neighbors

from gallery import backend, datasets, inputs, job, tables
from gallery.job import Job

MADE = {"search": "blobs", "classify": "classification", "regress": "regression"}
CLASSES = {"search": "NearestNeighbors", "classify": "KNeighborsClassifier", "regress": "KNeighborsRegressor"}
HELD_OUT = 10_000  # rows at most, unless --queries says otherwise
BLOCK = 2_500  # held-out rows a task searches for
CHECKED = 20  # held-out rows that brute force is done for
SCORED = 2_000  # held-out rows that other k are tried on
CURVE = (1, 2, 3, 5, 8, 13, 21, 34, 55)
Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]


def split(x: Any, y: Any | None, held: Ints, threads: int) -> tuple[Any, Any | None]:
    """Return the rows that are not held out, in their order, in blocks of about the old sizes, persisted."""
    mask = np.ones(len(x), dtype=bool)
    mask[held] = False
    rows = np.flatnonzero(mask)
    size = -(-len(rows) // max(x.numblocks[0], min(threads, len(rows))))
    index = x[rows].rechunk({0: size}).persist()
    return index, None if y is None else y[rows].rechunk({0: size}).persist()


def brute_force(block: Any, queries: Floats, k: int) -> Any:
    """Return the squared distances of the block's k nearest rows to each query, (k, queries)."""
    columns = [((block - np.asarray(row, like=block)) ** 2).sum(axis=1, dtype="float64") for row in queries]
    squares = np.sort(np.stack(columns, axis=1), axis=0)[:k]
    missing = np.full_like(squares, np.inf, shape=(k - len(squares), len(queries)))
    return np.concatenate([squares, missing])


def recall(index: Any, queries: Floats, rows: Ints, dtype: str) -> float:
    """Return the share of found neighbours that are no farther than the k-th nearest by brute force."""
    k = rows.shape[1]
    meta = np.empty_like(index._meta, shape=(0, 0), dtype="float64")
    chunks = ((k,) * index.numblocks[0], (len(queries),))
    nearest = index.map_blocks(brute_force, queries, k, chunks=chunks, meta=meta)
    limit = np.sort(nearest.to_backend("numpy").compute(), axis=0)[k - 1]
    found = index[rows.ravel()].to_backend("numpy").compute().reshape(*rows.shape, -1)
    squares = ((found - queries[:, None, :]) ** 2).sum(axis=2, dtype="float64")
    exact = dtype == "float64" and not backend.on_gpu()  # cuML searches in 32 bits whatever the rows are
    slack = 1e-9 if exact else 1e-4  # two ways to sum up the same distance
    return float((squares <= limit[:, None] * (1 + slack) + 1e-300).mean())


def fitted(what: str, k: int, index: Any, target: Any) -> Any:
    """Return the library's model; the index stays where it is."""
    name = CLASSES[what]
    model = backend.pick(f"gallery.blocks.{name}", f"cuml.dask.neighbors.{name}")(n_neighbors=k)
    if what == "regress" and backend.on_gpu():
        target = target.astype("float32")  # as cuML takes them
    return model.fit(index) if what == "search" else model.fit(index, target)


def score(what: str, true: Any, predicted: Any) -> float:
    """Return the accuracy or r2."""
    measure = sklearn.metrics.accuracy_score if what == "classify" else sklearn.metrics.r2_score
    return float(measure(true, predicted))


def curve(job: Job, targets: Floats, true: Floats) -> tuple[list[int], list[float]]:
    """Return what other k would have scored, from the targets of the nearest rows, (queries, k), nearest first."""
    ks, what = [k for k in CURVE if k <= targets.shape[1]], job.options.what
    if what == "classify":
        classes, codes = np.unique(targets, return_inverse=True)
        counts = np.cumsum(codes.reshape(targets.shape)[:, :, None] == np.arange(len(classes)), axis=1)
        return ks, [score(what, true, classes[counts[:, k - 1].argmax(axis=1)]) for k in ks]
    return ks, [score(what, true, targets[:, :k].mean(axis=1)) for k in ks]


def work(job: Job) -> None:
    options, known, what, k = job.options, job.result, job.options.what, job.options.k
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, MADE[what], features=options.features or 2)
    with job.phase("read"):
        target, x, y = read(job)
        queries = min(len(x) // 5, HELD_OUT)
        held = tables.sample_rows(len(x), queries, options.seed)
        if y is not None and what == "classify":
            y = y.astype("int32")
        index, targets = split(x, y, held, job.threads)
        asked = x[held].rechunk({0: BLOCK}).persist()
        known |= {"index_rows": len(index), "held_out": len(held), "target": target}
    with job.phase("search"):
        most = min(max(k, CURVE[-1]) if target else k, len(index))
        few = slice(None, None, -(-len(held) // SCORED)) if target else slice(None)
        found = fitted("search", most, index, None).kneighbors(asked[few].rechunk({0: BLOCK}))
        rows = [backend.to_numpy(part.compute()) for part in found][1]
        known["searched"] = len(rows)
    with job.phase("check"):
        some = asked[few][:CHECKED].to_backend("numpy").compute()
        known["recall"] = recall(index, some, rows[:CHECKED, :k], known["dtype"])
    if target is None or y is None or targets is None:
        known["queries_per_second"] = len(rows) / max(known["seconds"]["search"], 1e-9)
        return
    with job.phase("predict"):
        predicted = backend.to_numpy(fitted(what, k, index, targets).predict(asked).compute()).ravel()
        true = y[held].to_backend("numpy").compute()
        known["accuracy" if what == "classify" else "r2"] = score(what, true, predicted)
    with job.phase("curve"):
        near = targets[rows.ravel()].to_backend("numpy").compute().reshape(rows.shape)
        ks, scores = curve(job, near, true[few])
        known["by_k"] = {"rows": len(rows), "k": ks, "score": scores, "best_k": ks[int(np.argmax(scores))]}
    known["queries_per_second"] = len(held) / max(known["seconds"]["predict"], 1e-9)


def read(job: Job) -> tuple[str | None, Any, Any | None]:
    """Return the target's name, and features and target as arrays."""
    options, search = job.options, job.options.what == "search"
    source = inputs.survey(job.client, options.data)
    truth = datasets.truth(source.files[0])
    target = str(truth.get("target", ""))
    names, dtype = inputs.numeric(source, leave=(target,) if target else ())
    x, y = tables.arrays(job, source, names, dtype, None if search else target)
    if options.what == "classify":
        classes = da.unique(y).to_backend("numpy").compute()
        job.result["classes"] = len(classes)
    return None if search else target, x, y


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("neighbors", __doc__, rows=50_000)
    add = parser.add_argument
    add("--what", choices=tuple(CLASSES), default="classify", help="what to do (default classify)")
    add("--k", type=int, default=5, help="neighbours (default 5)")
    add("--features", type=int, help="features of made data (default 2)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("neighbors", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
