"""K-means: fit, predict and score, with centres that do not depend on the number of workers or partitions.

The fit starts from the best of five k-means on a sample that is chosen by global row number. Clusters are numbered by
their coordinates. --elbow also finds the inertia of the sample for several k.
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

from gallery import backend, datasets, inputs, job, knee, tables
from gallery.job import Job

SAMPLE = 50_000  # rows brought to the driver, to start from
SCORED, DRAWN = 4_000, 20_000  # of these, how many the silhouette looks at, and how many the elbow does
Floats = npt.NDArray[np.floating[Any]]


def starting_centres(sample: Floats, k: int, seed: int) -> Floats:
    """Return the best of five k-means on the sample; dask-ml's k-means‖ draws per chunk, so partitions would matter."""
    start: Floats = sklearn.cluster.KMeans(k, n_init=5, random_state=seed).fit(sample).cluster_centers_
    return start


def inertia_of(k: int, sample: Floats, seed: int) -> float:
    """Return the inertia of the sample's best k-means of five; this runs on a worker."""
    return float(sklearn.cluster.KMeans(k, n_init=5, random_state=seed).fit(sample).inertia_)


def elbow(job: Job, sample: Floats) -> None:
    """Find the sample's inertia for each k, a task each, and the k at the knee."""
    ks = job.options.elbow
    rows = job.client.scatter(sample, broadcast=True)
    inertias = job.client.gather(job.client.map(inertia_of, ks, sample=rows, seed=job.options.seed, pure=False))
    best = knee.farthest(ks, inertias)
    job.result["elbow"] = {"rows": len(sample), "k": ks, "inertia": inertias, "suggested_k": best, "rule": knee.RULE}
    job.note(f"The elbow of {len(sample):,} sampled rows is at k = {best} (the {knee.RULE}).")


def estimator(start: Floats, variance: float, options: argparse.Namespace) -> Any:
    """Choose the library by what arrays are made of; --tol is relative as in scikit-learn, theirs is absolute."""
    model = backend.pick("dask_ml.cluster.KMeans", "cuml.dask.cluster.KMeans")
    # cuML also stops when inertia falls by less than tol of itself, so tol stays below 1; both refuse 0.
    tol = max(options.tol * (min(variance, 1.0) if backend.on_gpu() else variance), 1e-300)
    return model(
        n_clusters=options.k, init=start, n_init=1, max_iter=options.max_iter, tol=tol, random_state=options.seed
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


def work(job: Job) -> None:
    options, known, k = job.options, job.result, job.options.k
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, "blobs", features=options.features or 2, centres=k)
    with job.phase("read"):
        source = inputs.survey(job.client, options.data)
        names, dtype = inputs.numeric(source)
        x, _ = tables.arrays(job, source, names, dtype)
    with job.phase("start"):
        sample: Floats = x[tables.sample_rows(len(x), SAMPLE, options.seed)].to_backend("numpy").compute()
        start = starting_centres(sample, k, options.seed)
        variance = float(sample.var(axis=0, dtype="float64").mean())
        backend.import_everywhere(job.client, type(estimator(start, variance, options)).__module__)
    if options.elbow:
        with job.phase("elbow"):
            elbow(job, sample[:: -(-len(sample) // DRAWN)])
    with job.phase("fit"):
        model = estimator(start, variance, options)
        model.fit(x)
        found = backend.to_numpy(model.cluster_centers_)
        order = canonical_order(found)
        centres = found[order]
        known |= {"iterations": int(model.n_iter_), "converged": int(model.n_iter_) < options.max_iter}
        known["centres"] = centres.tolist()
        job.write_text("centres.csv", pd.DataFrame(centres, columns=names).rename_axis("cluster").to_csv())
    with job.phase("predict"):
        labels = model.predict(x)
        labels._chunks = x.chunks[:1]
        blank = np.empty_like(x._meta, shape=(1, 0), dtype="float64")
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
    with job.phase("write"):
        tables.write_parquet(job, tables.frame_of({tuple(names): x, "cluster": labels}), "assignments")
    passes = {"read": known["rows_read"], "fit": len(x) * known["iterations"], "predict": len(x)}
    known["rows_per_second"] = {name: round(rows / max(known["seconds"][name], 1e-9)) for name, rows in passes.items()}


def several(text: str) -> list[int]:
    """Read values of k, as 2-12."""
    first, _, last = text.partition("-")
    return list(range(int(first), int(last) + 1))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("kmeans", __doc__, rows=200_000)
    add = parser.add_argument
    add("--features", type=int, help="features of made data (default 2)")
    add("--k", type=int, default=8, help="clusters (default 8)")
    add("--elbow", type=several, help="also find the inertia for these k, on the sample: 2-12 or 2,4,8")
    add("--max-iter", type=int, default=300, help="most iterations (default 300)")
    add("--tol", type=float, default=1e-8, help="least squared move, relative to the variance (default 1e-8)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("kmeans", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
