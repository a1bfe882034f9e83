"""K-means on a Dask cluster: an example, an acceptance test and a benchmark in one file.

Reads Parquet, CSV, JSON lines or ORC (or makes blobs), finds k clusters with dask-ml on CPUs or cuML on GPUs, and
writes into --out: result.json, centres.csv, kmeans.png, model/ and assignments/ (Parquet: the features and `cluster`,
rows in the input's order).

    python jobs/kmeans.py --k 8                                             a laptop: made data, a few seconds
    python jobs/kmeans.py --data 'measured/*.parquet' --columns x,y --k 5   a laptop: your data
    hpcml submit --nodes 4 jobs/kmeans.py --k 8                             a cluster: the same script

The same data, k and seed give the same centres whatever the number of workers or partitions: the start comes from a
sample chosen by global row number, and clusters are numbered by their coordinates. Rows with a missing or infinite
value are left out and counted.
"""

from __future__ import annotations

import argparse
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import sklearn.cluster
import sklearn.metrics

from gallery import backend, datasets, inputs, job, memory, models, picture, tables
from gallery.job import Job, RefusedError

SAMPLE = 50_000  # rows brought to the driver, to start from
SCORED, DRAWN = 4_000, 20_000  # of these, how many the silhouette looks at, and how many the picture shows
SHOWN = 8  # clusters and features in the printed table; centres.csv has them all
COPIES = 3  # of the features that live at once: as read, as fitted, and a distance's working space
Floats = npt.NDArray[np.floating[Any]]


def starting_centres(sample: Floats, k: int, seed: int) -> Floats:
    """Return the best of five k-means on the sample; dask-ml's k-means‖ draws per chunk, so partitions would matter."""
    start: Floats = sklearn.cluster.KMeans(k, n_init=5, random_state=seed).fit(sample).cluster_centers_
    return start


def estimator(start: Floats, variance: float, options: argparse.Namespace) -> Any:
    """Choose the library by what arrays are made of; --tol is relative as in scikit-learn, theirs is absolute."""
    model = backend.pick("dask_ml.cluster.KMeans", "cuml.dask.cluster.KMeans")
    # cuML also stops when inertia falls by less than tol of itself, so tol stays below 1; both refuse 0.
    tol = max(options.tol * (min(variance, 1.0) if backend.on_gpu() else variance), 1e-300)
    return model(
        n_clusters=len(start), init=start, n_init=1, max_iter=options.max_iter, tol=tol, random_state=options.seed
    )


def canonical_order(centres: Floats) -> npt.NDArray[np.intp]:
    """Sort by the first coordinate, then the second …, blind to rounding in the last digits."""
    scale = np.abs(centres).max(axis=0)
    return np.lexsort(np.round(centres / np.where(scale > 0, scale, 1), 9).T[::-1])


def renumber(labels: Any, rank: npt.NDArray[np.int32]) -> Any:
    return np.asarray(rank, like=labels)[labels]


def summarise(block: Any, labels: Any, centres: Floats) -> Any:
    """Return a row of the block's inertia and cluster sizes; dask-ml's inertia_ may sum distances without squaring."""
    squares = (block - np.asarray(centres, like=block)[labels[:, 0]]) ** 2
    sizes = np.bincount(labels[:, 0], minlength=len(centres))
    return np.concatenate([squares.sum(dtype="float64").reshape(1), sizes])[None, :]


def portable(centres: Floats, dtype: str) -> sklearn.cluster.KMeans:
    """Return scikit-learn's estimator with these centres, so that it predicts what the run found."""
    found = centres.astype(dtype)
    model = sklearn.cluster.KMeans(len(found), init=found, n_init=1, max_iter=1)
    model.fit(found)  # at its own centres every cluster keeps its number and place
    model.cluster_centers_ = found
    return model


def work(job: Job) -> None:
    options, known, k = job.options, job.result, job.options.k
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, "blobs", features=options.features or 2, centres=k)
    with job.phase("read"):
        source = inputs.survey(job.client, options.data, options.columns)
        names, dtype = inputs.numeric(source, options.columns)
        if "cluster" in names:
            raise RefusedError(f"{source.where}: a feature 'cluster' would collide with the result. Use --columns.")
        if source.rows is not None:
            memory.admit(job, COPIES * source.rows * len(names) * np.dtype(dtype).itemsize, source.where)
        x, _ = tables.arrays(job, source, names, dtype)
        if len(x) < k:
            raise RefusedError(f"{source.where}: {k} clusters need {k} rows, {len(x)} are usable. Lower --k.")
    with job.phase("start"):
        sample: Floats = x[tables.sample_rows(len(x), SAMPLE, options.seed)].to_backend("numpy").compute()
        if (distinct := len(np.unique(sample, axis=0))) < k:
            raise RefusedError(
                f"{source.where}: {len(sample):,} sampled rows are {distinct} points. Lower --k to {distinct}."
            )
        start = starting_centres(sample, k, options.seed)
        model = estimator(start, float(sample.var(axis=0, dtype="float64").mean()), options)
        backend.import_everywhere(job.client, type(model).__module__)
    with job.phase("fit"):
        model.fit(x)
        found = backend.to_numpy(model.cluster_centers_)
        order = canonical_order(found)
        centres = found[order]
        known |= {"iterations": int(model.n_iter_), "converged": int(model.n_iter_) < options.max_iter}
        known["centres"] = centres.tolist()
        job.write_text("centres.csv", pd.DataFrame(centres, columns=names).rename_axis("cluster").to_csv())
    with job.phase("predict"):
        labels = model.predict(x)
        labels._chunks = x.chunks[:1]  # noqa: SLF001 - cuML doesn't tell the lengths
        blank = np.empty_like(x._meta, shape=(1, 0), dtype="float64")  # noqa: SLF001 - NumPy's or CuPy's
        rank = np.argsort(order).astype("int32")
        labels = labels.map_blocks(renumber, rank, meta=blank[0].astype("int32")).persist()
        parts = da.map_blocks(summarise, x, labels[:, None], centres, chunks=(1, k + 1), meta=blank)
        inertia, *sizes = parts.to_backend("numpy").compute().sum(axis=0).tolist()
        known |= {"inertia": inertia, "sizes": [int(size) for size in sizes]}
        if empty := known["sizes"].count(0):
            job.note(f"{empty} of {k} clusters are empty. Lower --k or try another --seed.")
    with job.phase("score"):
        nearest = sklearn.metrics.pairwise_distances_argmin(sample, centres)
        few = slice(None, None, -(-len(sample) // SCORED))
        possible = 2 <= len(np.unique(nearest[few])) < len(nearest[few])
        known["silhouette"] = float(sklearn.metrics.silhouette_score(sample[few], nearest[few])) if possible else None
        true = np.array(datasets.truth(source.files[0]).get("centres", []))
        if true.shape == centres.shape:
            known["truth_distance"] = float(sklearn.metrics.pairwise_distances(true, centres).min(axis=1).max())
    with job.phase("write", last=True):
        columns = {name: x[:, number] for number, name in enumerate(names)}
        tables.write_parquet(job, tables.frame_of({**columns, "cluster": labels}), "assignments")
        few = slice(None, None, -(-len(sample) // DRAWN))
        title = f"k-means: {k} cluster{'s' * (k > 1)}, {len(x):,} rows, inertia {inertia:,.6g}"
        picture.clusters(job, "kmeans.png", sample[few], nearest[few], centres, names, title)
        scores = {"inertia": inertia, "silhouette": known["silhouette"]}
        models.export(job, portable(centres, dtype), features=dict.fromkeys(names, dtype), target=None, metrics=scores)
    passes = {"read": known["rows_read"], "fit": len(x) * known["iterations"], "predict": len(x)}
    known["rows_per_second"] = {name: round(rows / max(known["seconds"][name], 1e-9)) for name, rows in passes.items()}
    show(known)


def show(known: dict[str, Any]) -> None:
    """Print the clusters with their sizes and centres, as far as they fit a terminal."""
    names = known["features"][:SHOWN]
    print("".join([f"  {'cluster':>7} {'rows':>12}", *(f" {name[:12]:>12}" for name in names)]))
    for number, (size, centre) in enumerate(zip(known["sizes"], known["centres"], strict=True)):
        if number < SHOWN:
            print("".join([f"  {number:>7} {size:>12,}", *(f" {value:>12.5g}" for value in centre[:SHOWN])]))
    print()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.parser("kmeans", __doc__, rows=200_000)
    add = parser.add_argument
    add("--columns", type=job.names, default=[], help="features: a,b,c (default: all, if numeric)")
    add("--features", type=job.count, help="features of made data (default 2)")
    add("--k", type=job.count, default=8, help="clusters (default 8)")
    add("--max-iter", type=job.count, default=300, help="most iterations (default 300)")
    add("--tol", type=float, default=1e-8, help="least squared move, relative to the variance (default 1e-8)")
    options = parser.parse_args(arguments)
    if options.data and options.features:
        parser.error("--features describes made data. Leave it out, or leave out --data.")
    if not 0 <= options.tol < 1:
        parser.error("--tol must be from 0 to below 1.")
    return options


def main(arguments: list[str] | None = None) -> int:
    return job.run("kmeans", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
