"""Find out what a user's data set is before any of it is read: its files, their format and the columns to use."""

from __future__ import annotations

import glob
import pathlib

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from dask.utils import natural_sort_key


class RefusedError(Exception):
    """The input cannot be used; the message is a sentence with the place and a next step."""


def find_files(data: str) -> tuple[str, list[str]]:
    """Return the format and the files, in natural order, that a file, a folder or a glob stands for."""
    path = pathlib.Path(data).expanduser()
    roots = [path] if path.exists() else [pathlib.Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
    if not roots:
        raise RefusedError(f"Nothing is at {data}, seen from {pathlib.Path.cwd()}. Give --data a file, folder or glob.")
    found: dict[str, set[str]] = {"parquet": set(), "csv": set()}
    for root in roots:
        for file in root.rglob("*") if root.is_dir() else [root]:
            hidden = any(part[0] in "._" for part in file.relative_to(root).parts)
            if not hidden and file.is_file() and file.suffix[1:] in found:
                found[file.suffix[1:]].add(str(file.absolute()))
    kinds = [kind for kind, files in found.items() if files]
    if len(kinds) != 1:
        what = "both .parquet and .csv files" if kinds else "no .parquet and no .csv file"
        raise RefusedError(f"{data} holds {what}. Give --data a file, folder or glob of one of the two.")
    return kinds[0], sorted(found[kinds[0]], key=natural_sort_key)


def find_features(kind: str, files: list[str], columns: list[str]) -> tuple[list[str], str]:
    """Return the feature columns, all numeric, and the one float type that holds them."""
    largest = max(files, key=lambda file: pathlib.Path(file).stat().st_size)  # the first may hold no row
    if kind == "parquet":
        schema = pyarrow.parquet.read_schema(largest)
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        types = {field.name: field.type for field in schema if field.name not in index}
    else:
        head = pd.read_csv(largest, nrows=10_000)
        types = {
            str(name): pa.from_numpy_dtype(kind) if kind.kind in "iuf" else pa.string()
            for name, kind in head.dtypes.items()
        }
    numeric = [name for name, kind in types.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)]
    if unknown := [name for name in columns if name not in types]:
        raise RefusedError(f"{largest} has no column {', '.join(unknown)}. Give --columns some of: {', '.join(types)}.")
    if len(set(columns)) < len(columns):
        raise RefusedError(f"--columns {','.join(columns)} names a column twice. Name each once.")
    if refused := [name for name in columns or types if name not in numeric]:
        advice = f"Give --columns {','.join(numeric)}." if numeric else "Give --data with numeric columns."
        raise RefusedError(f"{largest} holds columns that are not numeric: {', '.join(refused)}. {advice}")
    chosen = columns or numeric
    if not chosen:
        raise RefusedError(f"{largest} has no columns. Give --data a data set with numeric columns.")
    if "cluster" in chosen:
        raise RefusedError(f"{largest}: a feature 'cluster' would collide with the result. Rename it or use --columns.")
    exact = [np.float64 if kind == "csv" else types[name].to_pandas_dtype() for name in chosen]
    return chosen, str(np.result_type(np.float32, *exact))
