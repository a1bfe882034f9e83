"""Find out what a user's data set is before any of it is read: its files, their format, rows, bytes and columns."""

from __future__ import annotations

import glob
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
from dask.utils import natural_sort_key

from gallery.job import RefusedError

HEAD = 10_000  # rows of a text file that its columns' types are told from


@dataclass(frozen=True)
class Source:
    """A data set on disk.

    Attributes
    ----------
    kind
        "parquet" or "csv".
    files
        In natural order: part-2 before part-10.
    types
        The Arrow type of each column, of the largest file; text files' are told from their first 10,000 rows.
    bytes
        On disk.
    rows
        Of all files; None for text, where only reading tells.
    group_bytes
        The largest row group of a Parquet file, uncompressed: no partition can be smaller. 0 where there are none.
    columns_bytes
        Uncompressed bytes by column, Parquet only.
    """

    kind: str
    files: tuple[str, ...]
    types: dict[str, pa.DataType]
    bytes: int
    rows: int | None
    group_bytes: int
    columns_bytes: dict[str, int]

    @property
    def where(self) -> str:
        """What a message calls the data set."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0]}{more}"


def find_files(data: str) -> list[str]:
    """Return the files, in natural order, of a file, a folder or a glob."""
    path = pathlib.Path(data)
    roots = [path] if path.exists() else [pathlib.Path(name) for name in glob.glob(data, recursive=True)]  # noqa: PTH207
    found = [file for root in roots for file in (root.glob("part-*") if root.is_dir() else [root])]
    return sorted((str(file.absolute()) for file in found), key=natural_sort_key)


@dataclass(frozen=True)
class Footer:
    """What one file says of itself."""

    bytes: int
    rows: int | None
    types: dict[str, pa.DataType]
    group_bytes: int = 0
    columns_bytes: dict[str, int] = field(default_factory=dict)


def read_footers(paths: list[str]) -> list[Footer]:
    """Return what some files say of themselves; this runs on a worker."""
    return [_parquet(path) if path.endswith(".parquet") else _csv(path) for path in paths]


def _parquet(path: str) -> Footer:
    footer = pyarrow.parquet.read_metadata(path)
    types = {field.name: field.type for field in footer.schema.to_arrow_schema()}
    columns: dict[str, int] = {}
    largest = 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        largest = max(largest, group.total_byte_size)
        for column in range(group.num_columns):
            part = group.column(column)
            name = part.path_in_schema.partition(".")[0]
            columns[name] = columns.get(name, 0) + part.total_uncompressed_size
    return Footer(pathlib.Path(path).stat().st_size, footer.num_rows, types, largest, columns)


def _csv(path: str) -> Footer:
    head = pd.read_csv(path, nrows=HEAD)
    simple = {"i": pa.int64(), "u": pa.uint64(), "f": pa.float64(), "b": pa.bool_(), "M": pa.timestamp("us")}
    types = {str(name): simple.get(getattr(dtype, "kind", "O"), pa.string()) for name, dtype in head.dtypes.items()}
    return Footer(pathlib.Path(path).stat().st_size, None, types)


def survey(client: Any, data: str) -> Source:
    """Look at every file's footer or head, on the workers, and return the data set they make.

    A thread opens one file at a time, so that a parallel file system's metadata server is asked by few at once.

    Raises
    ------
    RefusedError
        There are no files.
    """
    files = find_files(data)
    if not files:
        raise RefusedError(f"Nothing is at {data}, seen from {pathlib.Path.cwd()}. Give --data a file, folder or glob.")
    share = -(-len(files) // (4 * max(sum(client.nthreads().values()), 1)))
    parts = [files[start : start + share] for start in range(0, len(files), share)]
    footers = [footer for part in client.gather(client.map(read_footers, parts, pure=False)) for footer in part]
    largest = max(footers, key=lambda footer: footer.bytes)  # the first may hold no row
    kind = files[0].rpartition(".")[2]
    rows = None if kind == "csv" else sum(footer.rows or 0 for footer in footers)
    totals: dict[str, int] = {}
    for footer in footers:
        for name, size in footer.columns_bytes.items():
            totals[name] = totals.get(name, 0) + size
    size = sum(footer.bytes for footer in footers)
    return Source(kind, tuple(files), largest.types, size, rows, max(footer.group_bytes for footer in footers), totals)


def numeric(source: Source, *, leave: tuple[str, ...] = ()) -> tuple[list[str], str]:
    """Return the feature columns, all but ``leave``, and the one float type that holds them all."""
    wanted = [name for name in source.types if name not in leave]
    return wanted, float_type(source, wanted)


def is_numeric(kind: pa.DataType) -> bool:
    """Whether an Arrow type is a whole or a floating-point number."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def float_type(source: Source, columns: list[str]) -> str:
    """Return "float32" if that holds the columns' types exactly enough for NumPy's rules, else "float64"."""
    text = source.kind == "csv"
    exact = [np.float64 if text else source.types[name].to_pandas_dtype() for name in columns]
    return str(np.result_type(np.float32, *exact))


def chunks_of(total: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield the starts and ends that divide a number of rows into so many parts, as equal as can be."""
    for part in range(parts):
        yield total * part // parts, total * (part + 1) // parts
