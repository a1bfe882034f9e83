"""PCA, TruncatedSVD and svd_compressed of tables and of made matrices in memory; of Zarr see jobs/zarr_svd.py.

--rows 10_000_000 --columns 20_000 --raw --power-iterations 0 is the 200 GB of Dask's post "Very Large SVDs" (2020):
bytes stay bytes in memory and become floats chunk by chunk in each pass. Columns are centred (but for truncated and
--raw), not scaled. A missing genotype (3) counts as its column's mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt

from gallery import backend, datasets, inputs, job, matrices, memory, partitions, tables
from gallery.job import Job, RefusedError
from gallery.matrices import Matrix

OVERSAMPLES = 10  # svd_compressed's own default
Floats = npt.NDArray[np.floating[Any]]


def floats_at_once(job: Job) -> int:
    """Return the bytes that the floats of a chunk may take on the job's GPUs; 0 on CPUs."""
    return partitions.share_of_gpu(job.client) if backend.on_gpu() else 0


def laid_out(job: Job, make: Callable[[int], Matrix]) -> Matrix:
    """Return a matrix in chunks as large as the job's GPUs bear, or half of that where it will spill: copies want room.

    Parameters
    ----------
    make
        Makes the matrix, lazily, for so many bytes of a chunk's floats.
    """
    floats = floats_at_once(job)
    matrix = make(floats)
    spills = floats and matrix.stored.nbytes > memory.capacity(job.client).usable
    return make(floats // 2) if spills else matrix


def find(job: Job) -> Matrix:
    """Return the matrix, lazily."""
    options = job.options
    shape = {"seed": options.seed, "dtype": options.dtype, "missing": options.missing, "threads": job.threads}
    if options.data:
        source = inputs.survey(job.client, options.data)
        target = str(datasets.truth(source.files[0]).get("target", ""))
        names, dtype = inputs.numeric(source, leave=(target,) if target else ())
        return Matrix(tables.arrays(job, source, names, dtype)[0])
    return laid_out(job, lambda floats: matrices.made(job.rows, options.columns, floats=floats, **shape))


def admit(job: Job, matrix: Matrix) -> None:
    """Refuse what is too large, and shapes that the methods are not made for."""
    (rows, columns), what, k = matrix.shape, job.options.what, job.options.k
    name = job.options.data or f"The made matrix of {rows:,} × {columns:,}"
    if k > min(rows, columns) - (what == "truncated"):
        raise RefusedError(f"{name}: {k} components are more than {rows:,} rows × {columns:,} columns give. Lower --k.")
    if what != "compressed" and rows < columns:
        raise RefusedError(
            f"{name} has fewer rows ({rows:,}) than columns ({columns:,}); --what {what} needs a tall one. "
            "Use --what compressed."
        )
    floats = np.dtype(matrix.dtype).itemsize
    chunk = max(matrix.stored.chunks[0]) * columns
    need = matrix.stored.nbytes + job.threads * chunk * (2 * floats + 1)
    need += rows * columns * floats * 2 if what != "compressed" else 3 * rows * (k + OVERSAMPLES) * floats
    memory.admit(job, need, name, at_once=0 if what == "compressed" else rows * columns * floats)


def decompose(job: Job, matrix: Matrix, means: Floats) -> tuple[Any, Floats, Floats]:
    """Return the scores (lazy or persisted), singular values and explained variances."""
    options, rows = job.options, matrix.shape[0]
    if options.what == "compressed":
        x = matrices.ready(matrix, means, centre=not options.raw)
        u, s, v = da.linalg.svd_compressed(
            x,
            options.k,
            n_power_iter=options.power_iterations,
            seed=options.seed,
            compute=True,
            coerce_signs=False,
        )  # fmt: skip - compute=True: floats are made anew in each pass, and not kept between passes
        u, s, v = dask.persist(u, s, v)
        singular, components = (backend.to_numpy(part) for part in dask.compute(s, v))
        signs = signs_of(components)
        scores = u.map_blocks(scale, singular * signs, meta=u._meta)
        return scores, singular, singular**2 / max(rows - 1, 1)
    x = matrices.ready(matrix, means, centre=False).persist()
    name = "PCA" if options.what == "pca" else "TruncatedSVD"
    exact = {"svd_solver": "full"} if options.what == "pca" else {}
    model = backend.pick(f"dask_ml.decomposition.{name}", f"cuml.dask.decomposition.{name}")
    model = model(n_components=options.k, **exact)
    model.fit(x)
    found = (model.components_, model.singular_values_, model.explained_variance_)
    components, singular, explained = (np.asarray(backend.to_numpy(part)) for part in found)
    components = components * signs_of(components)[:, None]
    middle = means if options.what == "pca" else np.zeros_like(means)
    chunks = (x.chunks[0], (options.k,))
    scores = x.map_blocks(project, middle, components, chunks=chunks, meta=x._meta)
    return scores.persist(), singular, explained


def scale(block: Any, weights: Floats) -> Any:
    return block * np.asarray(weights, like=block, dtype=block.dtype)


def project(block: Any, middle: Floats, components: Floats) -> Any:
    centred = block - np.asarray(middle, like=block, dtype=block.dtype)
    return centred @ np.asarray(components.T, like=block, dtype=block.dtype)


def signs_of(components: Floats) -> Floats:
    """Return -1 or 1 for each component, such that its largest weight becomes positive."""
    largest = np.abs(components).argmax(axis=1)
    signs: Floats = np.where(components[np.arange(len(components)), largest] < 0, -1, 1).astype(components.dtype)
    return signs


def work(job: Job) -> None:
    options, known = job.options, job.result
    if options.what != "compressed":
        job.leave_out("power_iterations", "raw")
    if options.data:
        job.leave_out("missing")
    matrix = find(job)
    admit(job, matrix)
    (rows, columns), size = matrix.shape, int(matrix.stored.nbytes)
    with job.phase("load"):
        matrix, sums = matrices.load(matrix)
        known |= {"rows": rows, "columns": columns, "stored_bytes": size, "chunks": matrix.stored.numblocks[0]}
    with job.phase("means"):
        means, known["total_variance"], known["missing_elements"] = matrices.statistics(matrix, sums)
    with job.phase("svd"):
        scores, singular, explained = decompose(job, matrix, means)
        known["centred"] = options.what == "pca" or (options.what == "compressed" and not options.raw)
        known["singular_values"] = singular.tolist()
        known["explained_variance"] = explained.tolist()
        of_all = known["total_variance"] * ((rows - 1) / rows if options.what == "truncated" else 1)  # its divisor is n
        known["explained_variance_ratio"] = (explained / max(of_all, 1e-300)).tolist()
        known["explained_by_all"] = float(sum(known["explained_variance_ratio"]))
    with job.phase("write"):
        scores = tables.gathered(job, scores).persist()
        parts = tuple(f"pc{number + 1}" for number in range(options.k))
        tables.write_parquet(job, tables.frame_of({parts: scores}), "scores")
    rates(known, options)


def rates(known: dict[str, Any], options: argparse.Namespace) -> None:
    """Tell how fast the stored bytes were loaded and passed over."""
    seconds, gigabytes = known["seconds"], known["stored_bytes"] / 1e9
    known["load_gb_per_second"] = gigabytes / max(seconds["load"], 1e-9)
    if options.what == "compressed":
        known["svd_passes"] = 2 + 2 * options.power_iterations
        known["svd_gb_per_second"] = gigabytes * known["svd_passes"] / max(seconds["svd"], 1e-9)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = job.Parser("pca_svd", __doc__, rows=20_000)
    add = parser.add_argument
    add("--what", choices=("pca", "truncated", "compressed"), default="compressed", help="method (default compressed)")
    add("--k", type=int, default=10, help="components (default 10)")
    add("--columns", type=int, default=1_000, help="of a made matrix (default 1,000)")
    add("--dtype", choices=("uint8", "float32", "float64"), default="uint8",
        help="of a made matrix: genotypes, or floats of rank 5 with noise (default uint8)")  # fmt: skip
    add("--missing", type=float, default=0.01, help="share of made genotypes that are missing (default 0.01)")
    add("--power-iterations", type=int, choices=range(9), default=2, help="of compressed, 0 … 8 (default 2)")
    add("--raw", action="store_true", help="compressed: decompose the matrix as it is, not centred")
    options = parser.parse_args(arguments)
    if options.raw and options.what != "compressed":
        parser.error("--raw belongs to --what compressed.")
    return options


def main(arguments: list[str] | None = None) -> int:
    return job.run("pca_svd", parse(arguments), work)


if __name__ == "__main__":
    raise SystemExit(main())
