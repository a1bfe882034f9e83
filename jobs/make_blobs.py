"""Write Gaussian blobs of any size as a Parquet or CSV data set, with the true centres beside it.

Rows are drawn in blocks of 65,536, each by its own generator (seed, block); the centres come from the seed alone. So
the same --seed, --rows, --features, --centres and --dtype give the same rows in the same order, whatever --partitions
is and however many workers write. A block is written before the next is drawn: memory holds a block, not a partition.

    python jobs/make_blobs.py --rows 1_000_000 --features 8 --centres 8 --partitions 16 --out blobs
    hpcml submit --nodes 4 jobs/make_blobs.py --rows 4_000_000_000 --features 32 --partitions 512 --dtype float32

Writes --out (default: `blobs` in the run's output directory) whole or not at all: part-00000.parquet … and truth.json
(centres, spreads, how the set was made). In a run each partition is a task of the cluster; elsewhere they are written
one after the other.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import shutil
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

BLOCK = 65_536  # part of the format: another number gives other data for the same seed
Floats = npt.NDArray[np.floating[Any]]


def true_centres(seed: int, centres: int, features: int) -> tuple[Floats, Floats]:
    """Return centres that keep their distance (best of 32 candidates each) and one spread per centre."""
    rng = np.random.default_rng(seed)
    chosen = rng.uniform(-10, 10, (1, features))
    while len(chosen) < centres:
        candidates = rng.uniform(-10, 10, (32, features))
        distances = ((candidates[:, None, :] - chosen[None, :, :]) ** 2).sum(axis=2).min(axis=1)
        chosen = np.vstack([chosen, candidates[distances.argmax()]])
    return chosen, rng.uniform(0.6, 1.4, centres)


def draw_block(seed: int, block: int, centres: Floats, spreads: Floats) -> Floats:
    """Return block number `block` of the endless data set that belongs to a seed."""
    rng = np.random.default_rng([seed, block])
    label = rng.integers(len(centres), size=BLOCK)
    return centres[label] + rng.standard_normal((BLOCK, centres.shape[1])) * spreads[label, None]


def write_part(path: str, start: int, stop: int, seed: int, centres: Floats, spreads: Floats, dtype: str) -> int:
    """Write rows start … stop-1 as one file; return its size in bytes."""
    names = [f"x{column}" for column in range(centres.shape[1])]
    schema = pa.schema([(name, pa.from_numpy_dtype(np.dtype(dtype))) for name in names])
    open_writer = pyarrow.csv.CSVWriter if path.endswith(".csv") else pyarrow.parquet.ParquetWriter
    with open_writer(path, schema) as writer:
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            first = block * BLOCK
            rows = draw_block(seed, block, centres, spreads)[max(start - first, 0) : stop - first].astype(dtype)
            writer.write_table(pa.table([rows[:, column] for column in range(rows.shape[1])], schema=schema))
    return pathlib.Path(path).stat().st_size


def write_blobs(
    folder: pathlib.Path,
    *,
    rows: int,
    features: int,
    centres: int,
    partitions: int,
    form: str = "parquet",
    dtype: str = "float64",
    seed: int = 0,
    client: Any = None,
) -> int:
    """Write the data set, on the cluster of `client` if one is given; return its size in bytes."""
    where, spreads = true_centres(seed, centres, features)
    edges = [rows * part // partitions for part in range(partitions + 1)]
    unfinished = folder.absolute().with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    paths = [str(unfinished / f"part-{part:05d}.{form}") for part in range(partitions)]
    if client is None:
        spans = zip(paths, itertools.pairwise(edges), strict=True)
        sizes = [write_part(path, *span, seed, where, spreads, dtype) for path, span in spans]
    else:
        client.upload_file(__file__)  # workers unpickle write_part by its module's name
        common = {"seed": seed, "centres": where, "spreads": spreads, "dtype": dtype}
        sizes = client.gather(client.map(write_part, paths, edges, edges[1:], **common, pure=False))
    made_by = {"rows": rows, "features": features, "format": form, "dtype": dtype, "seed": seed, "block": BLOCK}
    truth = {**made_by, "centres": where.tolist(), "spreads": spreads.tolist()}
    (unfinished / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
    return sum(sizes)


def count(text: str) -> int:
    """Read a whole number of at least 1, as 1000000 or 1_000_000."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "make_blobs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=count, default=1_000_000)
    parser.add_argument("--features", type=count, default=8)
    parser.add_argument("--centres", type=count, default=8)
    parser.add_argument("--partitions", type=count, default=16)
    parser.add_argument("--format", choices=("parquet", "csv"), default="parquet")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, help="default: blobs in the run's output directory")
    options = parser.parse_args(arguments)
    if options.seed < 0:
        parser.error(f"argument --seed: {options.seed} is negative. Give 0 or more.")
    if options.partitions > options.rows:
        parser.error(f"{options.partitions} partitions need as many rows, not {options.rows}. Lower --partitions.")

    import hpcml

    folder: pathlib.Path = options.out or hpcml.run.out / "blobs"
    if folder.exists() and not (folder / "truth.json").exists():
        print(f"make_blobs: {folder} exists and was not made by this program. Give --out another.", file=sys.stderr)
        return 2
    client = hpcml.connect() if "DASK_SCHEDULER_ADDRESS" in os.environ else None
    size = write_blobs(
        folder, rows=options.rows, features=options.features, centres=options.centres, partitions=options.partitions,
        form=options.format, dtype=options.dtype, seed=options.seed, client=client,
    )  # fmt: skip
    if client is not None:
        client.close()
    files = f"{size / 1e6:,.1f} MB in {options.partitions} files"
    print(f"{options.rows:,} rows × {options.features} features, {files}: {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
