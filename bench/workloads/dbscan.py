"""DBSCAN, with the radius at the knee of the k-distance curve (Ester, Kriegel, Sander and Xu 1996, section 4.2).

scikit-learn's runs on one worker; cuML's copies all data to each GPU and divides the work. Clusters are numbered by
their first row.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn.metrics

from gallery import backend, datasets, inputs, job, knee, tables
from gallery.job import Job

SAMPLE = 2_000  # rows whose k-distance is looked at
MIB_A_BATCH = 4_096  # of pairwise distances on a GPU; cuML's default takes what is free at that moment
Ints = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]


def near(block: Any, chosen: Ints, k: int) -> Any:
    """Return the distance of the chosen rows to their k-th neighbour, themselves counted; this runs on one worker."""
    model = backend.pick("sklearn.neighbors.NearestNeighbors", "cuml.neighbors.NearestNeighbors")(n_neighbors=k)
    distances, _ = model.fit(block).kneighbors(block[chosen])
    return backend.to_numpy(distances)[:, -1]


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


def choose_eps(job: Job, curve: Floats) -> float:
    """Return the distance at the knee of the sorted k-distances."""
    place = int(knee.farthest(range(len(curve)), curve.tolist())) if len(curve) > 2 else 0
    job.result["eps_rule"] = f"k-distance (k = {job.options.min_samples}) of {len(curve):,} rows: {knee.RULE}"
    return float(curve[place])


def read(job: Job) -> tuple[list[str], Any, Any | None]:
    """Return the features' names, and features and true clusters as arrays."""
    source = inputs.survey(job.client, job.options.data)
    label = str(datasets.truth(source.files[0]).get("label", ""))
    names, dtype = inputs.numeric(source, leave=(label,) if label else ())
    x, true = tables.arrays(job, source, names, dtype, label or None)
    return names, x, true


def work(job: Job) -> None:
    options, known, least = job.options, job.result, job.options.min_samples
    if options.data is None:
        with job.phase("generate"):
            options.data = datasets.made(job, "moons")
    with job.phase("read"):
        names, x, true = read(job)
        whole = x.rechunk(-1).persist()
        (block,) = job.client.compute(whole.to_delayed().ravel().tolist())
    with job.phase("eps"):
        eps = known["eps"] = choose_eps(job, k_distances(job, block, len(x)))
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
    with job.phase("write"):
        write(job, x, names, numbered)
    known["rows_per_second"] = {"fit": round(len(x) / max(known["seconds"]["fit"], 1e-9))}


def write(job: Job, x: Any, names: list[str], numbered: npt.NDArray[np.int32]) -> None:
    import dask.array as da

    clusters = da.from_array(numbered, chunks=x.chunks[:1]).to_backend()
    tables.write_parquet(job, tables.frame_of({tuple(names): x, "cluster": clusters}), "assignments")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("dbscan", __doc__, rows=20_000)
    add = parser.add_argument
    add("--min-samples", type=int, default=10, help="rows in a core row's neighbourhood, itself too (default 10)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    return job.run("dbscan", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
