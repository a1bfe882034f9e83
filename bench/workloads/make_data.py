"""Write a data set as Parquet or CSV, with the truth it was made from beside it.

The same kind, --seed, --rows and shape give the same rows in the same order, whatever --partitions is and however many
workers write. In a run each partition is a task of the cluster; elsewhere they are written one after the other.
"""

from __future__ import annotations

import argparse
import inspect
import os
import pathlib
import sys
from typing import Any

from gallery import datasets
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
        one.add_argument("--rows", type=int, default=1_000_000, help="default 1,000,000")
        for option, default in shape_of(kind).items():
            special: dict[str, Any] = {"dtype": {"choices": ("float32", "float64")}, "noise": {"type": float}}
            known = special.get(option, {"type": int})
            one.add_argument(f"--{option}", default=default, help=f"default {default}", **known)
        one.add_argument("--partitions", type=int, help="files (default: about 1 GB in memory each)")
        one.add_argument("--format", choices=datasets.FORMATS, default="parquet")
        one.add_argument("--seed", type=int, default=0)
        one.add_argument("--out", type=pathlib.Path, help="default: the kind's name in the run's output directory")
    options = parser.parse_args(arguments)
    if options.partitions and options.partitions > options.rows:
        parser.error(f"{options.partitions} partitions need as many rows, not {options.rows}. Lower --partitions.")
    return options


def shape_of(kind: type) -> dict[str, int | float | str]:
    """Return the options of a kind with their defaults: the parameters of its class."""
    parameters = inspect.signature(kind).parameters
    return {name: known.default for name, known in parameters.items() if name != "seed"}


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    import hpcml

    kind = KINDS[options.kind]
    drawn = kind(seed=options.seed, **{name: getattr(options, name) for name in shape_of(kind)})
    folder: pathlib.Path = options.out or hpcml.run.out / options.kind
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
