"""Exact k nearest neighbours: the search itself, a classifier and a regressor, on rows that were held out.

Reads Parquet, CSV, JSON lines or ORC (or makes data) and writes into --out: result.json, neighbors.png and neighbors/
(Parquet: `row`, the global number of the held-out row, and the rows and distances of its neighbours, nearest first) or
predictions/ (`row`, the target and `predicted`); for a classifier or regressor of at most 100,000 rows also model/.

    python tests/bench/workloads/neighbors.py                                          a laptop: classes of made data
    python tests/bench/workloads/neighbors.py --what regress --data 'flats/*.parquet' --target price  a laptop: your data
    hpcml submit --nodes 4 tests/bench/workloads/neighbors.py --what search --rows 100_000_000   a cluster: the same script

The index is spread over the workers. On CPUs scikit-learn searches each block of it and the answers are merged, which
is exact; on GPUs cuML does both. Held-out rows are drawn by global row number, so partitions do not matter. The search
is checked against brute force, for a few rows over the whole index: "recall" must be 1.
"""

from __future__ import annotations

import argparse
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import sklearn.metrics
import sklearn.neighbors

from gallery import backend, datasets, inputs, job, memory, models, picture, tables
from gallery.job import Job, RefusedError

MADE = {"search": "blobs", "classify": "classification", "regress": "regression"}
CLASSES = {"search": "NearestNeighbors", "classify": "KNeighborsClassifier", "regress": "KNeighborsRegressor"}
HELD_OUT = 10_000  # rows at most, unless --queries says otherwise
BLOCK = 2_500  # held-out rows a task searches for
CHECKED = 20  # held-out rows that brute force is done for
SCORED = 2_000  # held-out rows that other k are tried on
CURVE = (1, 2, 3, 5, 8, 13, 21, 34, 55)
EXPORTED = 100_000  # rows of the index up to which it is a model to carry away
COPIES = 4  # of the features that live at once: as read, both parts of the split, and a search's own
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
        source, names, target, x, y = read(job)
        queries = min(options.queries or min(len(x) // 5, HELD_OUT), len(x) - 1)
        if len(x) - queries < k:
            raise RefusedError(
                f"{source.where}: {len(x)} usable rows less {queries} held out are not {k} neighbours. Lower --k."
            )
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
        distances, rows = (backend.to_numpy(part.compute()) for part in found)
        known["searched"] = len(rows)
    with job.phase("check"):
        some = asked[few][:CHECKED].to_backend("numpy").compute()
        known["recall"] = recall(index, some, rows[:CHECKED, :k], known["dtype"])
    if target is None or y is None or targets is None:
        with job.phase("write", last=True):
            write_neighbours(job, held, distances, rows)
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
    with job.phase("write", last=True):
        frame = pd.DataFrame({"row": held, target: true, "predicted": predicted})
        with job.folder("predictions") as folder:
            frame.to_parquet(folder / "part-00000.parquet", index=False)
        draw_curve(job, ks, scores)
        export(job, index, targets, names, target)
    known["queries_per_second"] = len(held) / max(known["seconds"]["predict"], 1e-9)


def read(job: Job) -> tuple[inputs.Source, list[str], str | None, Any, Any | None]:
    """Return the data set, its features' names, the target's, and both as arrays.

    Raises
    ------
    RefusedError
        It cannot be used, does not fit, or the target is no class.
    """
    options, search = job.options, job.options.what == "search"
    source = inputs.survey(job.client, options.data, options.columns)
    truth = datasets.truth(source.files[0])
    target = options.target or str(truth.get("target", ""))
    if target and target not in source.types:
        raise RefusedError(f"{source.where} has no column {target}. Give --target another.")
    if not target and not search:
        raise RefusedError(f"{source.where} does not say what to predict. Give --target a column.")
    names, dtype = inputs.numeric(source, options.columns, leave=(target,) if target else ())
    if source.rows is not None:
        whole = memory.table(source, names, dtype)
        memory.admit(job, COPIES * whole, source.where, at_once=whole)
    x, y = tables.arrays(job, source, names, dtype, None if search else target)
    if options.what == "classify":
        classes = da.unique(y).to_backend("numpy").compute()
        if (classes != np.round(classes)).any() or (np.abs(classes) > 2**24).any():
            raise RefusedError(f"{source.where}: {target} holds fractions, no classes. Use --what regress.")
        if len(classes) < 2:
            raise RefusedError(f"{source.where}: {target} holds one class. Give --target another.")
        job.result["classes"] = len(classes)
    return source, names, None if search else target, x, y


def write_neighbours(job: Job, held: Ints, distances: Floats, rows: Ints) -> None:
    """Write the neighbours with the numbers that rows have in the input, and a picture of the distances."""
    total = job.result["rows"]
    original = np.setdiff1d(np.arange(total), held, assume_unique=True)
    columns = {"row": held, **{f"neighbor_{place + 1}": original[rows[:, place]] for place in range(rows.shape[1])}}
    columns |= {f"distance_{place + 1}": distances[:, place] for place in range(rows.shape[1])}
    with job.folder("neighbors") as folder:
        pd.DataFrame(columns).to_parquet(folder / "part-00000.parquet", index=False)
    k = rows.shape[1]
    job.result["median_distance"] = {
        "first": float(np.median(distances[:, 0])),
        "last": float(np.median(distances[:, -1])),
    }
    title = f"Distances of {len(held):,} rows to their neighbours among {total - len(held):,}"
    drawn, (axes,) = picture.figure(title, height=4.8)
    edges = np.linspace(0, float(np.quantile(distances[:, -1], 0.995)), 81)
    for place in sorted({0, k - 1}):
        axes.hist(distances[:, place], bins=edges.tolist(), alpha=0.65, label=f"neighbour {place + 1}")
    axes.set(xlabel="distance", ylabel="held-out rows")
    axes.legend(frameon=False)
    picture.save(job, "neighbors.png", drawn)


def draw_curve(job: Job, ks: list[int], scores: list[float]) -> None:
    what, k = ("accuracy", job.options.k) if job.options.what == "classify" else ("r2", job.options.k)
    reached = job.result[what]
    title = f"{what} {reached:.4g} with {k} neighbours, {job.result['held_out']:,} rows held out"
    drawn, (axes,) = picture.figure(title, height=4.8)
    axes.plot(ks, scores, marker="o", label=f"{job.result['by_k']['rows']:,} of the held-out rows")
    axes.scatter([k], [reached], s=90, color="black", marker="D", zorder=3, label=f"k = {k}, all held-out rows")
    axes.legend(frameon=False)
    axes.set_xscale("log")
    axes.set_xticks(ks, [str(one) for one in ks])
    axes.minorticks_off()
    axes.set(xlabel="k, neighbours", ylabel=what)
    picture.save(job, "neighbors.png", drawn)


def export(job: Job, index: Any, targets: Any, names: list[str], target: str) -> None:
    """Write scikit-learn's model with the index in it, or say why not."""
    if len(index) > EXPORTED:
        job.note(f"No model is exported: it would be the index itself, {len(index):,} rows (most {EXPORTED:,}).")
        return
    x, y = (part.to_backend("numpy").compute() for part in (index, targets))
    model = getattr(sklearn.neighbors, CLASSES[job.options.what])(job.options.k, algorithm="brute").fit(x, y)
    reached: dict[str, float] = {name: job.result[name] for name in ("accuracy", "r2") if name in job.result}
    models.export(job, model, features=dict.fromkeys(names, str(x.dtype)), target=target, metrics=reached)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("neighbors", __doc__, rows=50_000)
    add = parser.add_argument
    add("--what", choices=tuple(CLASSES), default="classify", help="what to do (default classify)")
    add("--k", type=job.count, default=5, help="neighbours (default 5)")
    add("--columns", type=job.names, default=[], help="features: a,b,c (default: all but the target, if numeric)")
    add("--target", help="the column to predict (default: what truth.json says)")
    add("--queries", type=job.count, help="rows to hold out (default: a fifth, at most 10,000)")
    parser.add_made("--features", type=job.count, help="features of made data (default 2)")
    return parser.options(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("neighbors", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
