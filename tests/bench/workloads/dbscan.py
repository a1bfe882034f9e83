"""DBSCAN: clusters of any shape and the noise between them, with the radius read from the data.

Reads Parquet, CSV, JSON lines or ORC (or makes half-moons in noise) and writes into --out: result.json, dbscan.png,
kdistance.png (where eps was not given) and assignments/ (Parquet: the features and `cluster`, -1 for noise, rows in the
input's order). There is no model: DBSCAN says nothing about rows that it has not seen.

    python tests/bench/workloads/dbscan.py                                           a laptop: made data, a few seconds
    python tests/bench/workloads/dbscan.py --data 'measured/*.parquet' --columns x,y --eps 0.3 a laptop: your data
    hpcml submit --nodes 2 tests/bench/workloads/dbscan.py --rows 2_000_000          a cluster: the same script

Workers do not add memory here. scikit-learn's DBSCAN runs on one worker (no library has one that spreads over Dask's
CPU workers); cuML's copies all data to each GPU and divides the work. The job says so before it starts, and refuses
what one worker cannot hold: the data, and on CPUs all lists of neighbours.

Where --eps is not given it is the knee of the k-distance curve (Ester, Kriegel, Sander and Xu 1996, section 4.2; k as
min_samples counts it, the row itself included): the distance of sampled rows to their k-th neighbour among all rows,
sorted; the knee is the point farthest from the line between the curve's ends. Clusters are numbered by their first row.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.metrics

from gallery import backend, datasets, inputs, job, knee, memory, picture, tables
from gallery.job import Job, RefusedError

SAMPLE = 2_000  # rows whose k-distance is looked at
DRAWN = 20_000  # rows that the picture shows
COPIES = 3  # of the features on one worker: its blocks, the whole, and a library's own
NEIGHBOUR = 2 * 8  # bytes of a neighbour in scikit-learn's lists, which are joined once: two copies of an int64
MIB_A_BATCH = 4_096  # of pairwise distances on a GPU; cuML's default takes what is free at that moment
Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]


def near(block: Any, chosen: Ints, k: int) -> Any:
    """Return the distance of the chosen rows to their k-th neighbour, themselves counted; this runs on one worker."""
    model = backend.pick("sklearn.neighbors.NearestNeighbors", "cuml.neighbors.NearestNeighbors")(n_neighbors=k)
    distances, _ = model.fit(block).kneighbors(block[chosen])
    return backend.to_numpy(distances)[:, -1]


def within(block: Any, chosen: Ints, eps: float) -> float:
    """Return how many rows lie within eps of a chosen row, on average; scikit-learn only, on one worker."""
    import sklearn.neighbors

    model = sklearn.neighbors.NearestNeighbors(radius=eps).fit(block)
    return float(np.mean([len(found) for found in model.radius_neighbors(block[chosen], return_distance=False)]))


def fit_on_worker(block: Any, eps: float, min_samples: int) -> tuple[Ints, int]:
    """Return labels and the number of core rows by scikit-learn; this runs on one worker."""
    import sklearn.cluster

    model = sklearn.cluster.DBSCAN(eps=eps, min_samples=min_samples).fit(block)
    return model.labels_, len(model.core_sample_indices_)


def fit_on_gpus(x: Any, eps: float, min_samples: int) -> tuple[Ints, int]:
    """Return labels and the number of core rows by cuML, which sends the driver's copy of all rows to every GPU."""
    from cuml.dask.cluster import DBSCAN

    model = DBSCAN(eps=eps, min_samples=min_samples, max_mbytes_per_batch=MIB_A_BATCH)
    labels = model.fit_predict(x.to_backend("numpy").compute())
    core = model.get_combined_model().core_sample_indices_
    return np.asarray(backend.to_numpy(labels)), len(core)


def number(labels: Ints) -> npt.NDArray[np.int32]:
    """Number clusters 0, 1 … in the order of their first rows; noise stays -1."""
    found, first = np.unique(labels, return_index=True)
    rank = np.full(len(found), -1, dtype="int32")
    clusters = np.flatnonzero(found >= 0)
    rank[clusters[np.argsort(first[clusters])]] = np.arange(len(clusters))
    numbered: npt.NDArray[np.int32] = rank[np.searchsorted(found, labels)]
    return numbered


def k_distances(job: Job, block: Any, rows: int) -> Floats:
    """Return the k-distances of a sample, sorted."""
    chosen = tables.sample_rows(rows, SAMPLE, job.options.seed)
    curve: Floats = np.sort(job.client.submit(near, block, chosen, job.options.min_samples).result())
    return curve


def choose_eps(job: Job, curve: Floats, where: str) -> float:
    """Return the distance at the knee of the sorted k-distances.

    Raises
    ------
    RefusedError
        The knee is at 0, or there is none.
    """
    place = int(knee.farthest(range(len(curve)), curve.tolist())) if len(curve) > 2 else 0
    if curve[place] <= 0:
        raise RefusedError(f"{where}: most rows are equal, so no radius can be read from them. Give --eps.")
    job.result["eps_rule"] = f"k-distance (k = {job.options.min_samples}) of {len(curve):,} rows: {knee.RULE}"
    return float(curve[place])


def draw_curve(job: Job, curve: Floats) -> None:
    eps, share = job.result["eps"], np.arange(1, len(curve) + 1) / len(curve)
    drawn, (axes,) = picture.figure(f"DBSCAN: eps = {eps:.4g} at the knee of the k-distances", height=4.8)
    axes.plot(share, curve)
    axes.axhline(eps, color="black", linewidth=1, linestyle="--")
    axes.scatter([share[np.searchsorted(curve, eps)]], [eps], s=160, facecolors="none", edgecolors="black", zorder=3)
    axes.set(
        xlabel="share of the sampled rows", ylabel=f"distance to neighbour {job.options.min_samples}", ylim=(0, None)
    )
    picture.save(job, "kdistance.png", drawn)


def admit_neighbours(job: Job, block: Any, x: Any, what: str) -> None:
    """Refuse what scikit-learn would run out of memory for: it keeps all rows' neighbours at once."""
    eps, chosen = job.result["eps"], tables.sample_rows(len(x), SAMPLE, job.options.seed)
    job.result["neighbours_per_row"] = each = job.client.submit(within, block, chosen, eps).result()
    memory.admit_one(job, COPIES * x.nbytes + int(NEIGHBOUR * each * len(x)), what, "Lower --eps or give fewer rows")


def read(job: Job) -> tuple[inputs.Source, list[str], Any, Any | None]:
    """Return the data set, its features' names, and features and true clusters as arrays.

    Raises
    ------
    RefusedError
        It cannot be used, or one worker cannot hold it.
    """
    least = job.options.min_samples
    source = inputs.survey(job.client, job.options.data, job.options.columns)
    label = job.options.label or str(datasets.truth(source.files[0]).get("label", ""))
    if label and label not in source.types:
        raise RefusedError(f"{source.where} has no column {label} of true clusters. Give --label another.")
    names, dtype = inputs.numeric(source, job.options.columns, leave=(label,) if label else ())
    if "cluster" in names:
        raise RefusedError(f"{source.where}: a feature 'cluster' would collide with the result. Use --columns.")
    say_where(job)
    memory.admit_one(job, COPIES * memory.table(source, names, dtype), source.where, "Give fewer rows or --columns")
    x, true = tables.arrays(job, source, names, dtype, label or None)
    if len(x) < least:
        raise RefusedError(f"{source.where}: {len(x)} usable rows are fewer than --min-samples {least}. Lower it.")
    return source, names, x, true


def work(job: Job) -> None:
    options, known, least = job.options, job.result, job.options.min_samples
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, "moons")
    with job.phase("read"):
        source, names, x, true = read(job)
        whole = x.rechunk(-1).persist()
        (block,) = job.client.compute(whole.to_delayed().ravel().tolist())
    with job.phase("eps"):
        curve = None if options.eps else k_distances(job, block, len(x))
        eps = known["eps"] = options.eps if curve is None else choose_eps(job, curve, source.where)
        if not backend.on_gpu():
            admit_neighbours(job, block, x, f"{source.where} with eps {eps:.4g}")
    with job.phase("fit"):
        if backend.on_gpu():
            labels, core = fit_on_gpus(x, eps, least)
        else:
            labels, core = job.client.submit(fit_on_worker, block, eps, least).result()
        numbered = number(labels)
        known["clusters"] = int(numbered.max(initial=-1)) + 1
        known |= {"noise": int((numbered < 0).sum()), "core_rows": core}
        known["sizes"] = np.bincount(numbered[numbered >= 0], minlength=known["clusters"]).tolist()
        if not known["clusters"]:
            job.note("No cluster was found: all rows are noise. Raise --eps or lower --min-samples.")
    with job.phase("score"):
        if true is not None:
            truth = true.to_backend("numpy").compute().astype("int64")
            known["adjusted_rand_index"] = float(sklearn.metrics.adjusted_rand_score(truth, numbered))
    with job.phase("write", last=True):
        write(job, x, names, numbered)
        if curve is not None:
            draw_curve(job, curve)
    known["rows_per_second"] = {"fit": round(len(x) / max(known["seconds"]["fit"], 1e-9))}


def say_where(job: Job) -> None:
    """Tell before anything is read that more workers hold no more data."""
    workers = job.result["workers"]
    if backend.on_gpu():
        job.note(f"cuML's DBSCAN copies all rows to each of {workers} GPUs; only the work is divided.")
    else:
        job.note(f"scikit-learn's DBSCAN runs on one worker of {workers}; the others only read and write.")


def write(job: Job, x: Any, names: list[str], numbered: npt.NDArray[np.int32]) -> None:
    """Write the assignments, by the workers, and the picture."""
    import dask.array as da

    clusters = da.from_array(numbered, chunks=x.chunks[:1]).to_backend()
    tables.write_parquet(job, tables.frame_of({tuple(names): x, "cluster": clusters}), "assignments")
    few = tables.sample_rows(len(x), DRAWN, job.options.seed)
    rows = x[few].to_backend("numpy").compute()
    known = job.result
    title = f"DBSCAN: {known['clusters']} clusters in {len(x):,} rows, {known['noise']:,} of them noise"
    picture.clusters(job, "dbscan.png", rows, numbered[few], np.empty((0, len(names))), names, title)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("dbscan", __doc__, rows=20_000)
    add = parser.add_argument
    add("--columns", type=job.names, default=[], help="features: a,b,c (default: all, if numeric)")
    add("--label", help="a column of true clusters, to compare with (default: what truth.json says)")
    add("--eps", type=job.positive, help="radius of a neighbourhood (default: the knee of the k-distances)")
    add("--min-samples", type=job.count, default=10, help="rows in a core row's neighbourhood, itself too (default 10)")
    return parser.options(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("dbscan", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
