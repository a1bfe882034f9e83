"""Write a data set of any size as Parquet, CSV, JSON lines or ORC, with the truth it was made from beside it.

    python tests/bench/workloads/make_data.py blobs --rows 1_000_000 --features 8 --centres 8 --partitions 16 --out blobs
    python tests/bench/workloads/make_data.py genotypes --rows 100_000 --columns 5_000 --packed --out genotypes.zarr
    hpcml submit --nodes 4 tests/bench/workloads/make_data.py blobs --rows 4_000_000_000 --features 32 --dtype float32

The same kind, --seed, --rows and shape give the same rows in the same order, whatever --partitions is and however many
workers write. A partition is about 1 GB in memory unless --partitions says otherwise. --out (default: the kind's name
in the run's output directory) is written whole or not at all: part-00000.parquet … and truth.json (how the set was
made, and what an estimator should find). In a run each partition is a task of the cluster; elsewhere they are written
one after the other. The kind genotypes is a matrix, written as one Zarr array.
Exit status: 0 written; 2 an option is wrong or the folder is somebody's own.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import pathlib
import sys
from typing import Any

from gallery import datasets, matrices
from gallery.job import count, seed, share
from gallery.kinds import KINDS
from hpcml.terminal import say
from hpcml.units import format_bytes


def parse(arguments: list[str] | None) -> argparse.Namespace:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("make_data", description=__doc__, formatter_class=layout)
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, kind in KINDS.items():
        about = inspect.cleandoc(kind.__doc__)
        one = kinds.add_parser(name, help=about.splitlines()[0], description=about)
        one.add_argument("--rows", type=count, default=1_000_000, help="default 1,000,000")
        for option, default in shape_of(kind).items():
            special: dict[str, Any] = {"dtype": {"choices": ("float32", "float64")}, "noise": {"type": float}}
            known = special.get(option, {"type": count})
            one.add_argument(f"--{option}", default=default, help=f"default {default}", **known)
        one.add_argument("--partitions", type=count, help="files (default: about 1 GB in memory each)")
        one.add_argument("--format", choices=datasets.FORMATS, default="parquet")
        one.add_argument("--seed", type=seed, default=0)
        one.add_argument("--out", type=pathlib.Path, help="default: the kind's name in the run's output directory")
    add_genotypes(kinds)
    options = parser.parse_args(arguments)
    if options.kind == "genotypes":
        return options
    if options.partitions and options.partitions > options.rows:
        parser.error(f"{options.partitions} partitions need as many rows, not {options.rows}. Lower --partitions.")
    return options


def add_genotypes(kinds: Any) -> None:
    """Add the one kind that is a Zarr array and no table, which has options of its own."""
    one = kinds.add_parser("genotypes", help="Genotypes of five populations, a Zarr array (uint8: 0, 1, 2; 3 missing).")
    one.add_argument("--rows", type=count, default=20_000, help="default 20,000")
    one.add_argument("--columns", type=count, default=1_000, help="variants (default 1,000)")
    one.add_argument("--missing", type=share, default=0.01, help="share that is missing (default 0.01)")
    one.add_argument("--packed", action="store_true", help="four genotypes a byte")
    one.add_argument("--seed", type=seed, default=0)
    one.add_argument("--out", type=pathlib.Path, help="default: genotypes.zarr in the run's output directory")


def write_genotypes(options: argparse.Namespace, folder: pathlib.Path) -> None:
    threads = os.cpu_count() or 1
    matrix = matrices.made(
        options.rows, options.columns, seed=options.seed, dtype="uint8", missing=options.missing,
        packed=options.packed, threads=threads, library="numpy",
    )  # fmt: skip
    matrices.write(folder, matrix, options.seed)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    say(f"{options.rows:,} × {options.columns:,} genotypes, {format_bytes(size)} on disk: {folder}")


def shape_of(kind: type) -> dict[str, int | float | str]:
    """Return the options of a kind with their defaults: the parameters of its class."""
    parameters = inspect.signature(kind).parameters
    return {name: known.default for name, known in parameters.items() if name != "seed"}


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    import hpcml

    folder: pathlib.Path
    if options.kind == "genotypes":
        folder = options.out or hpcml.run.out / "genotypes.zarr"
        if folder.exists() and not matrices.is_made(str(folder)):
            say(f"make_data: {folder} exists and was not made by this program. Give --out another.", sys.stderr)
            return 2
        with (
            contextlib.closing(hpcml.connect(backend="auto"))
            if "DASK_SCHEDULER_ADDRESS" in os.environ
            else contextlib.nullcontext()
        ):
            write_genotypes(options, folder)
        return 0
    kind = KINDS[options.kind]
    drawn = kind(seed=options.seed, **{name: getattr(options, name) for name in shape_of(kind)})
    folder = options.out or hpcml.run.out / options.kind
    if folder.exists() and not (folder / "truth.json").exists():
        say(f"make_data: {folder} exists and was not made by this program. Give --out another.", sys.stderr)
        return 2
    client = hpcml.connect(backend="auto") if "DASK_SCHEDULER_ADDRESS" in os.environ else None
    size = datasets.write(
        folder, drawn, rows=options.rows, partitions=options.partitions, form=options.format, seed=options.seed,
        client=client,
    )  # fmt: skip
    if client is not None:
        client.close()
    say(f"{options.rows:,} rows of {options.kind}, {format_bytes(size)} on disk: {folder}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
