"""K-means on a Dask cluster: an example, an acceptance test and a benchmark in one file.

Reads Parquet, CSV, JSON lines or ORC (or makes blobs), finds k clusters with dask-ml on CPUs or cuML on GPUs, and
writes into --out: result.json, centres.csv, kmeans.png, model/, assignments/ (Parquet: the features and `cluster`,
rows in the input's order) and, with --elbow, elbow.png and elbow.csv.

    python tests/bench/workloads/kmeans.py --k 8                                   a laptop: made data, a few seconds
    python tests/bench/workloads/kmeans.py --data 'measured/*.parquet' --columns x,y --k 5   a laptop: your data
    hpcml submit --nodes 4 tests/bench/workloads/kmeans.py --k 8 --elbow 2-16      a cluster: the same script, and which k

--init sample (the default) starts from the best of five k-means++ runs on a sample that is chosen by global row number:
so the same data, k and seed give the same centres whatever the number of workers or partitions. --init 'k-means||' is
the library's own start on all rows (Bahmani et al. 2012), better where a sample of 50,000 rows misses small clusters;
it draws partition by partition, so another partitioning can find other centres. Clusters are numbered by their
coordinates. Rows with a missing or infinite value are left out and counted. --elbow fits the sample, not all rows.
In a run the centres are saved between shares of the iterations, and an attempt that follows goes on from them.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import pandas as pd
import sklearn.cluster
import sklearn.metrics

import hpcml
from gallery import backend, datasets, inputs, job, knee, memory, models, picture, tables
from gallery.job import Job, RefusedError

SAMPLE = 50_000  # rows brought to the driver, to start from
SCORED, DRAWN = 4_000, 20_000  # of these, how many the silhouette looks at, and how many picture and elbow do
SCALABLE = "k-means||"  # both libraries' name for it
FIRST, SHARE = 10, 60.0  # iterations of the first share of a fit, in a run; seconds of those after it
COPIES = 2  # of the features that live at once: 1.84 were measured (docs/gallery/memory.md)
Floats = npt.NDArray[np.floating[Any]]


def starting_centres(sample: Floats, k: int, seed: int) -> Floats:
    """Return the best of five k-means on the sample; dask-ml's k-means‖ draws per chunk, so partitions would matter."""
    start: Floats = sklearn.cluster.KMeans(k, n_init=5, random_state=seed).fit(sample).cluster_centers_
    return start


def inertia_of(k: int, sample: Floats, seed: int) -> float:
    """Return the inertia of the sample's best k-means of five; this runs on a worker."""
    return float(sklearn.cluster.KMeans(k, n_init=5, random_state=seed).fit(sample).inertia_)


def elbow(job: Job, sample: Floats) -> None:
    """Find the sample's inertia for each k, a task each, and the k at the knee; write elbow.csv and elbow.png."""
    ks = job.options.elbow
    rows = job.client.scatter(sample, broadcast=True)
    inertias = job.client.gather(job.client.map(inertia_of, ks, sample=rows, seed=job.options.seed, pure=False))
    best = knee.farthest(ks, inertias)
    job.result["elbow"] = {"rows": len(sample), "k": ks, "inertia": inertias, "suggested_k": best, "rule": knee.RULE}
    job.note(f"The elbow of {len(sample):,} sampled rows is at k = {best} (the {knee.RULE}).")
    job.write_text("elbow.csv", pd.DataFrame({"k": ks, "inertia": inertias}).to_csv(index=False))
    drawn, (axes,) = picture.figure(f"k-means: the elbow is at k = {best} ({len(sample):,} sampled rows)", height=4.8)
    axes.plot([ks[0], ks[-1]], [inertias[0], inertias[-1]], color="#999999", linewidth=1, linestyle="--")
    axes.plot(ks, inertias, marker="o")
    axes.scatter([best], [inertias[ks.index(best)]], s=230, facecolors="none", edgecolors="black", zorder=3)
    axes.set(xlabel="k, clusters", ylabel="inertia of the sample", ylim=(0, None), xticks=ks)
    picture.save(job, "elbow.png", drawn)


def estimator(start: Floats | str, variance: float, options: argparse.Namespace, iterations: int) -> Any:
    """Choose the library by what arrays are made of; --tol is relative as in scikit-learn, theirs is absolute."""
    model = backend.pick("dask_ml.cluster.KMeans", "cuml.dask.cluster.KMeans")
    # cuML also stops when inertia falls by less than tol of itself, so tol stays below 1; both refuse 0.
    tol = max(options.tol * (min(variance, 1.0) if backend.on_gpu() else variance), 1e-300)
    return model(n_clusters=options.k, init=start, n_init=1, max_iter=iterations, tol=tol, random_state=options.seed)


def fit(job: Job, x: Any, start: Floats | str, variance: float) -> tuple[Any, int, bool]:
    """Fit; return the model, how many iterations it took, and whether it converged.

    In a run it is fitted in shares of iterations, each from the last one's centres, which are saved: an attempt that
    follows goes on from them. A fit that converges with a share's last iteration does that one again.
    """
    options, done = job.options, 0
    if path := job.saved("centres.json"):
        saved = json.loads(path.read_text())
        start, done = np.array(saved["centres"], x.dtype), saved["iterations"]
        job.note(f"{done} iterations were done by an earlier attempt of this run.")
    job.on_stop(lambda: None)  # what a share has cost is lost, and no more
    share = options.max_iter if hpcml.run.directory is None else FIRST
    while True:
        asked, began = min(share, options.max_iter - done), time.perf_counter()
        model = estimator(start, variance, options, asked)
        model.fit(x)
        took, done = (time.perf_counter() - began) / int(model.n_iter_), done + int(model.n_iter_)
        if (converged := int(model.n_iter_) < asked) or done >= options.max_iter:
            return model, done, converged
        start = centres = backend.to_numpy(model.cluster_centers_)
        share = max(FIRST, int(SHARE / max(took, 1e-9)))
        job.save("centres.json", {"centres": centres.tolist(), "iterations": done})


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
        whole = memory.table(source, names, dtype)
        memory.admit(job, COPIES * whole, source.where, at_once=whole)
        x, _ = tables.arrays(job, source, names, dtype)
        if len(x) < k:
            raise RefusedError(f"{source.where}: {k} clusters need {k} rows, {len(x)} are usable. Lower --k.")
    with job.phase("start"):
        sample: Floats = x[tables.sample_rows(len(x), SAMPLE, options.seed)].to_backend("numpy").compute()
        if (distinct := len(np.unique(sample, axis=0))) < k:
            raise RefusedError(
                f"{source.where}: {len(sample):,} sampled rows are {distinct} points. Lower --k to {distinct}."
            )
        if options.elbow and options.elbow[-1] >= distinct:
            raise RefusedError(
                f"--elbow {options.elbow[-1]} needs more than the sample's {distinct:,} points. Lower it."
            )
        start = options.init if options.init == SCALABLE else starting_centres(sample, k, options.seed)
        variance = float(sample.var(axis=0, dtype="float64").mean())
        backend.import_everywhere(job.client, type(estimator(start, variance, options, 1)).__module__)
    if options.elbow:
        with job.phase("elbow"):
            elbow(job, sample[:: -(-len(sample) // DRAWN)])
    with job.phase("fit"):
        model, iterations, converged = fit(job, x, start, variance)
        found = backend.to_numpy(model.cluster_centers_)
        order = canonical_order(found)
        centres = found[order]
        known |= {"iterations": iterations, "converged": converged}
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
    with job.phase("write", last=True):
        tables.write_parquet(job, tables.frame_of({tuple(names): x, "cluster": labels}), "assignments")
        few = slice(None, None, -(-len(sample) // DRAWN))
        size = f"{inertia:,.0f}" if inertia >= 1e4 else f"{inertia:.5g}"
        title = f"k-means: {k} cluster{'s' * (k > 1)}, {len(x):,} rows, inertia {size}"
        picture.clusters(job, "kmeans.png", sample[few], nearest[few], centres, names, title)
        scores = {"inertia": inertia, "silhouette": known["silhouette"]}
        models.export(job, portable(centres, dtype), features=dict.fromkeys(names, dtype), target=None, metrics=scores)
    passes = {"read": known["rows_read"], "fit": len(x) * known["iterations"], "predict": len(x)}
    known["rows_per_second"] = {name: round(rows / max(known["seconds"][name], 1e-9)) for name, rows in passes.items()}


def several(text: str) -> list[int]:
    """Read values of k, as 2-12 or 2,4,8: three at least, for a knee needs both sides.

    Raises
    ------
    argparse.ArgumentTypeError
        For anything else.
    """
    first, dash, last = text.partition("-")
    ks = list(range(job.count(first), job.count(last) + 1)) if dash else sorted({*map(job.count, text.split(","))})
    if len(ks) < 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not three or more values of k, as 2-12 or 2,4,8")
    return ks


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("kmeans", __doc__, rows=200_000)
    add = parser.add_argument
    add("--columns", type=job.names, default=[], help="features: a,b,c (default: all, if numeric)")
    parser.add_made("--features", type=job.count, help="features of made data (default 2)")
    add("--k", type=job.count, default=8, help="clusters (default 8)")
    add("--elbow", type=several, help="also find the inertia for these k, on the sample: 2-12 or 2,4,8")
    add("--init", choices=("sample", SCALABLE), default="sample", help="how to start, see above (default sample)")
    add("--max-iter", type=job.count, default=300, help="most iterations (default 300)")
    add("--tol", type=job.share, default=1e-8, help="least squared move, relative to the variance (default 1e-8)")
    return parser.options(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("kmeans", parse(arguments), work, resumes=True)


if __name__ == "__main__":
    raise SystemExit(main())
