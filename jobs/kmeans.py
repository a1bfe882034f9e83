"""K-means on a Dask cluster: an example, an acceptance test and a benchmark in one file.

Reads Parquet or CSV (or makes blobs), finds k clusters with dask-ml on CPUs or cuML on GPUs, and writes into --out:
metrics.json, centres.csv, kmeans.png and assignments/ (Parquet: the features and `cluster`, rows in the input's order).

    python jobs/kmeans.py --k 8                                             a laptop: made data, a few seconds
    python jobs/kmeans.py --data 'measured/*.parquet' --columns x,y --k 5   a laptop: your data
    hpcml submit --nodes 4 jobs/kmeans.py --k 8                             a cluster: the same script

The same data, k and seed give the same centres whatever the number of workers or partitions: the start comes from a
sample chosen by global row number, and clusters are numbered by their coordinates. Rows with a missing or infinite
value are left out and counted.
Exit status: 0 done; 2 the input or an option is wrong; 3 told to stop soon, metrics.json then says "complete": false.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import numpy.typing as npt
import pandas as pd
import sklearn.cluster
import sklearn.metrics
from distributed.comm.core import CommClosedError

import hpcml
import make_blobs
import picture
from inputs import RefusedError, find_features, find_files

SAMPLE = 50_000  # rows brought to the driver, to start from
SCORED, DRAWN = 4_000, 20_000  # of these, how many the silhouette looks at, and how many the picture shows
SHOWN = 8  # clusters and features in the printed table; centres.csv has them all
Floats = npt.NDArray[np.floating[Any]]


class StopSoonError(Exception):
    """The run was told to stop; the phase that is named has ended."""


def load(client: Any, kind: str, files: list[str], features: list[str], dtype: str) -> tuple[Any, int, int]:
    """Return the rows as a persisted dask array without empty chunks, and how many rows were read and dropped."""
    if kind == "parquet":
        frame: Any = dd.read_parquet(files, columns=features, index=False)
    else:
        frame = dd.read_csv(files, usecols=features, dtype=dict.fromkeys(features, dtype))[features]
    x: Any = frame.astype(dtype).fillna(np.nan).to_dask_array().persist()  # fillna: cuDF's nulls become NaN
    x.compute_chunk_sizes()
    read, usable = len(x), da.isfinite(x).all(axis=1)
    if dropped := read - int(usable.sum().compute()):
        x = x[usable].persist()
        x.compute_chunk_sizes()
    blocks = [x.blocks[number] for number, size in enumerate(x.chunks[0]) if size]
    if not blocks:
        raise RefusedError(f"{files[0]} … has no usable row, {read:,} read. Give --data a data set with numbers in it.")
    x = da.concatenate(blocks)
    threads = sum(client.nthreads().values())
    if x.numblocks[0] < threads and len(x) >= 1_000 * threads:  # fewer partitions than threads leave workers idle
        x = x.rechunk({0: -(-len(x) // threads)})
    return x.persist(), read, dropped


def take_sample(x: Any, seed: int) -> Floats:
    """Return rows chosen by their global number, so that the choice doesn't depend on chunks or workers."""
    chosen = np.random.default_rng(seed).choice(len(x), min(len(x), SAMPLE), replace=False, shuffle=False)
    sample: Floats = x[np.sort(chosen)].to_backend("numpy").compute()
    return sample


def starting_centres(sample: Floats, k: int, seed: int) -> Floats:
    """Return the best of five k-means on the sample; dask-ml's k-means‖ draws per chunk, so partitions would matter."""
    start: Floats = sklearn.cluster.KMeans(k, n_init=5, random_state=seed).fit(sample).cluster_centers_
    return start


def estimator(start: Floats, variance: float, max_iter: int, tol: float, seed: int) -> Any:
    """Choose the library by what arrays are made of; --tol is relative as in scikit-learn, theirs is absolute."""
    common = {"n_clusters": len(start), "init": start, "max_iter": max_iter, "n_init": 1, "random_state": seed}
    if dask.config.get("array.backend") == "cupy":
        from cuml.dask.cluster import KMeans

        # cuML also stops when inertia falls by less than tol of itself, so tol stays below 1; it refuses 0.
        return KMeans(**common, tol=max(tol * min(variance, 1.0), 1e-300))
    from dask_ml.cluster import KMeans

    return KMeans(**common, tol=max(tol * variance, 1e-300))


def load_module(name: str) -> None:
    importlib.import_module(name)


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


def write_assignments(x: Any, labels: Any, features: list[str], folder: pathlib.Path) -> None:
    """Write features and cluster, a file per chunk, by the workers; the folder appears when it is whole."""
    meta = importlib.import_module(dask.config.get("dataframe.backend")).DataFrame()  # pandas or cuDF
    frame: Any = dd.from_dask_array(x, columns=features, meta=meta)
    frame["cluster"] = dd.from_dask_array(labels, meta=meta)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    frame.to_parquet(str(unfinished), write_index=False, name_function=lambda part: f"part-{part:05d}.parquet")
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def write_text(path: pathlib.Path, text: str) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)


@contextlib.contextmanager
def phase(name: str, seconds: dict[str, float]) -> Iterator[None]:
    """Time a phase; after any but the last, stop if the run is about to be stopped."""
    start = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - start, 4)
    if name != "write" and hpcml.run.should_stop():
        raise StopSoonError(name)


def work(  # noqa: PLR0915 - the phases in order, each of a few lines
    client: Any, options: argparse.Namespace, source: tuple[str, list[str]] | None, known: dict[str, Any]
) -> None:
    """Run the phases; `known` holds what is found out, however far this gets."""
    out, k, seconds = options.out, options.k, known["seconds"]
    if source is None:
        with phase("generate", seconds):
            rows, features = options.rows or 200_000, options.features or 2
            shape = {"rows": rows, "features": features, "centres": k}
            parts = min(rows, max(4, len(client.nthreads()), rows * features // 8_000_000))
            make_blobs.write_blobs(out / "blobs", **shape, partitions=parts, seed=options.seed, client=client)
        source = find_files(str(out / "blobs"))
    kind, files = source
    where = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
    known |= {"files": len(files), "input_bytes": sum(pathlib.Path(file).stat().st_size for file in files)}
    with phase("read", seconds):
        try:
            names, dtype = find_features(kind, files, options.columns)
            x, read, dropped = load(client, kind, files, names, dtype)
        except (CommClosedError, TimeoutError):  # OSErrors too, but of the cluster, not of the data
            raise
        except (ValueError, OSError) as error:  # what pandas, cuDF and Arrow raise for damaged or mismatched files
            cause = str(error).strip().splitlines()[0].rstrip(".:")
            raise RefusedError(f"{where} could not be read: {cause}. Repair the files or give other ones.") from error
        known |= {"features": names, "dtype": dtype, "rows_read": read, "rows_dropped": dropped, "rows": len(x)}
        known |= {"bytes": x.nbytes, "partitions": x.numblocks[0]}
        if dropped:
            print(f"{dropped:,} of {read:,} rows have a missing or infinite value and are left out.")
        if len(x) < k:
            raise RefusedError(f"{where}: {k} clusters need {k} rows, {len(x)} are usable. Lower --k.")
    with phase("start", seconds):
        sample = take_sample(x, options.seed)
        if (distinct := len(np.unique(sample, axis=0))) < k:
            raise RefusedError(f"{where}: {len(sample):,} sampled rows are {distinct} points. Lower --k to {distinct}.")
        start = starting_centres(sample, k, options.seed)
        variance = float(sample.var(axis=0, dtype="float64").mean())
        model = estimator(start, variance, options.max_iter, options.tol, options.seed)
        client.run(load_module, type(model).__module__)  # seconds of imports that are no part of the fit
    with phase("fit", seconds):
        model.fit(x)
        found = model.cluster_centers_
        found = np.asarray(found.get() if hasattr(found, "get") else found)  # cuML's lie on the GPU
        order = canonical_order(found)
        centres = found[order]
        known |= {"iterations": int(model.n_iter_), "converged": int(model.n_iter_) < options.max_iter}
        known["centres"] = centres.tolist()
        write_text(out / "centres.csv", pd.DataFrame(centres, columns=names).rename_axis("cluster").to_csv())
    with phase("predict", seconds):
        labels = model.predict(x)
        labels._chunks = x.chunks[:1]  # noqa: SLF001 - cuML doesn't tell the lengths
        blank = np.empty_like(x._meta, shape=(1, 0), dtype="float64")  # noqa: SLF001 - NumPy's or CuPy's
        rank = np.argsort(order).astype("int32")
        labels = labels.map_blocks(renumber, rank, meta=blank[0].astype("int32")).persist()
        parts = da.map_blocks(summarise, x, labels[:, None], centres, chunks=(1, k + 1), meta=blank)
        inertia, *sizes = parts.to_backend("numpy").compute().sum(axis=0).tolist()
        known |= {"inertia": inertia, "sizes": [int(size) for size in sizes]}
        if empty := known["sizes"].count(0):
            print(f"{empty} of {k} clusters are empty. Lower --k or try another --seed.")
    with phase("score", seconds):
        nearest = sklearn.metrics.pairwise_distances_argmin(sample, centres)
        few = slice(None, None, -(-len(sample) // SCORED))
        possible = 2 <= len(np.unique(nearest[few])) < len(nearest[few])
        known["silhouette"] = float(sklearn.metrics.silhouette_score(sample[few], nearest[few])) if possible else None
        truth = pathlib.Path(files[0]).with_name("truth.json")  # make_blobs leaves it beside its files
        true = np.array(json.loads(truth.read_text())["centres"]) if truth.exists() else np.empty((0, 0))
        if true.shape == centres.shape:
            known["truth_distance"] = float(sklearn.metrics.pairwise_distances(true, centres).min(axis=1).max())
    with phase("write", seconds):
        write_assignments(x, labels, names, out / "assignments")
        few = slice(None, None, -(-len(sample) // DRAWN))
        title = f"k-means: {k} cluster{'s' * (k > 1)}, {len(x):,} rows, inertia {inertia:,.6g}"
        picture.draw(out / "kmeans.png", sample[few], nearest[few], centres, names, title)
    passes = {"read": read, "fit": len(x) * known["iterations"], "predict": len(x)}
    known["rows_per_second"] = {name: round(rows / max(seconds[name], 1e-9)) for name, rows in passes.items()}


def show(known: dict[str, Any], out: pathlib.Path) -> None:
    """Print what is worth reading: the figures, then the clusters with their sizes and centres."""
    for name, value in {**known, "results": str(out)}.items():
        if isinstance(value, bool):
            text = "yes" if value else "no"
        elif isinstance(value, int | float):
            text = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
        elif name in ("seconds", "rows_per_second"):
            text = "  ".join(f"{part} {round(figure, 2):,}" for part, figure in value.items())
        elif isinstance(value, str):
            text = value
        else:
            continue
        print(f"  {name.replace('_', ' '):<16} {text}")
    if "sizes" in known:
        names = known["features"][:SHOWN]
        print("".join([f"\n  {'cluster':>7} {'rows':>12}", *(f" {name[:12]:>12}" for name in names)]))
        for number, (size, centre) in enumerate(zip(known["sizes"], known["centres"], strict=True)):
            if number < SHOWN:
                print("".join([f"  {number:>7} {size:>12,}", *(f" {value:>12.5g}" for value in centre[:SHOWN])]))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("kmeans", description=__doc__, formatter_class=layout)
    add, count = parser.add_argument, make_blobs.count
    add("--data", help="Parquet or CSV: a file, a folder or a quoted glob (default: make blobs)")
    add("--columns", type=lambda text: text.split(","), default=[], help="features: a,b,c (default: all, if numeric)")
    add("--rows", type=count, help="rows to make without --data (default 200,000)")
    add("--features", type=count, help="features to make without --data (default 2)")
    add("--k", type=count, default=8, help="clusters (default 8)")
    add("--max-iter", type=count, default=300, help="most iterations (default 300)")
    add("--tol", type=float, default=1e-8, help="least squared move, relative to the variance (default 1e-8)")
    add("--seed", type=int, default=0, help="for made data and the start (default 0)")
    add("--out", type=pathlib.Path, help="folder for the results (default: the run's output directory)")
    options = parser.parse_args(arguments)
    if options.data and (options.rows or options.features):
        parser.error("--rows and --features describe made data. Leave them out, or leave out --data.")
    if not 0 <= options.seed < 2**32 or not 0 <= options.tol < 1:
        parser.error("--seed must be from 0 to 4294967295 and --tol from 0 to below 1.")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    options.out = (options.out or hpcml.run.out).absolute()
    known: dict[str, Any] = {"job": "kmeans", "complete": False, "data": options.data or "made"}
    known |= {"k": options.k, "seed": options.seed, "max_iter": options.max_iter, "tol": options.tol, "seconds": {}}
    known["versions"] = {name: importlib.metadata.version(name) for name in ("dask", "numpy", "scikit-learn")}
    try:
        source = find_files(options.data) if options.data else None
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "metrics.json").unlink(missing_ok=True)  # an earlier run must not speak for this one
        with hpcml.connect() as client:
            threads = client.nthreads()
            known |= {"workers": len(threads), "threads": sum(threads.values())}
            known["backend"] = dask.config.get("array.backend")
            work(client, options, source, known)
        known["complete"] = True
    except (RefusedError, FileExistsError, NotADirectoryError, PermissionError) as error:
        print(f"kmeans: {error}", file=sys.stderr)
        return 2
    except StopSoonError as stop:
        print(f"kmeans: told to stop soon; ended after phase '{stop}'. Submit again for the rest.", file=sys.stderr)
    write_text(options.out / "metrics.json", json.dumps(known, indent=1, allow_nan=False) + "\n")
    show(known, options.out)
    return 0 if known["complete"] else 3


if __name__ == "__main__":
    raise SystemExit(main())
