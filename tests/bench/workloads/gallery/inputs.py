"""Find out what a user's data set is before any of it is read: its files, their format, rows, bytes and columns."""

from __future__ import annotations

import glob
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet
from dask.utils import natural_sort_key

from gallery.job import RefusedError

KINDS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".orc": "orc"}
HEAD = 10_000  # rows of a text file that its columns' types are told from
SHOWN = 20  # column names in a message
DAMAGED = (
    OSError,
    ValueError,
    KeyError,
    RecursionError,
    pa.ArrowException,
)  # what pyarrow and pandas raise at data that is not theirs


@dataclass(frozen=True)
class Source:
    """A data set on disk.

    Attributes
    ----------
    kind
        "parquet", "csv", "json" (an object a line) or "orc".
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


def find_files(data: str) -> tuple[str, list[str]]:
    """Return the format and the files, in natural order, that a file, a folder or a glob stands for.

    Raises
    ------
    RefusedError
        Nothing is there, nothing readable, or files of several formats.
    """
    path = pathlib.Path(data).expanduser()
    roots = [path] if path.exists() else [pathlib.Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
    if not roots:
        raise RefusedError(f"Nothing is at {data}, seen from {pathlib.Path.cwd()}. Give --data a file, folder or glob.")
    found: dict[str, set[str]] = {}
    for root in roots:
        for file in root.rglob("*") if root.is_dir() else [root]:
            hidden = any(part[0] in "._" for part in file.relative_to(root).parts)
            if hidden or file.suffix not in KINDS or file.name == "truth.json" or file.is_dir():
                continue
            if not file.is_file():
                raise RefusedError(f"{file} is no file: a link to nothing, or a device. Repair it, or leave it out.")
            found.setdefault(KINDS[file.suffix], set()).add(str(file.absolute()))
    if len(found) != 1:
        what = f"files of several formats ({', '.join(sorted(found))})" if found else f"no file of {', '.join(KINDS)}"
        raise RefusedError(f"{data} holds {what}. Give --data a file, folder or glob of one format.")
    ((kind, files),) = found.items()
    return kind, sorted(files, key=natural_sort_key)


@dataclass(frozen=True)
class Footer:
    """What one file says of itself; ``problem`` is a sentence without the file's name, if it cannot be used."""

    path: str
    bytes: int = 0
    rows: int | None = None
    types: dict[str, pa.DataType] | None = None
    group_bytes: int = 0
    columns_bytes: dict[str, int] | None = None
    problem: str = ""


def read_footers(kind: str, paths: list[str]) -> list[Footer]:
    """Return what some files say of themselves, one after the other; this runs on a worker."""
    return [_footer(kind, path) for path in paths]


def _footer(kind: str, path: str) -> Footer:
    try:
        size = pathlib.Path(path).stat().st_size
        if not size:
            return Footer(path, problem="is empty (0 bytes)")
        if kind == "parquet":
            return _parquet(path, size)
        if kind == "orc":
            orc = pyarrow.orc.ORCFile(path)
            return Footer(path, size, orc.nrows, {field.name: field.type for field in orc.schema})
        return Footer(path, size, None, _text_types(kind, path))
    except (*DAMAGED, TypeError, IndexError, AttributeError) as error:
        return Footer(path, problem=f"cannot be read: {first_line(error)}")


def _parquet(path: str, size: int) -> Footer:
    footer = pyarrow.parquet.read_metadata(path)
    schema = footer.schema.to_arrow_schema()
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    types = {field.name: field.type for field in schema if field.name not in index}
    columns: dict[str, int] = {}
    largest = 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        largest = max(largest, group.total_byte_size)
        for column in range(group.num_columns):
            part = group.column(column)
            name = part.path_in_schema.partition(".")[0]
            columns[name] = columns.get(name, 0) + part.total_uncompressed_size
    return Footer(path, size, footer.num_rows, types, largest, columns)


def _text_types(kind: str, path: str) -> dict[str, pa.DataType]:
    if kind == "csv":
        head = pd.read_csv(path, nrows=HEAD)
    else:
        with pd.read_json(path, lines=True, chunksize=HEAD) as chunks:
            head = next(iter(chunks))
    simple = {"i": pa.int64(), "u": pa.uint64(), "f": pa.float64(), "b": pa.bool_(), "M": pa.timestamp("us")}
    return {str(name): simple.get(getattr(dtype, "kind", "O"), pa.string()) for name, dtype in head.dtypes.items()}


def survey(client: Any, data: str, columns: list[str]) -> Source:
    """Look at every file's footer or head, on the workers, and return the data set they make.

    A thread opens one file at a time, so that a parallel file system's metadata server is asked by few at once.

    Raises
    ------
    RefusedError
        Names the first file that is empty, damaged, or lacks one of ``columns``, and how many more are so.
    """
    kind, files = find_files(data)
    threads = max(sum(client.nthreads().values()), 1)
    share = -(-len(files) // (4 * threads))
    parts = [files[start : start + share] for start in range(0, len(files), share)]
    footers = [footer for part in client.gather(client.map(read_footers, [kind] * len(parts), parts, pure=False))
               for footer in part]  # fmt: skip
    problems = [footer for footer in footers if footer.problem]
    if problems:
        more = f" (so are {len(problems) - 1} more of {len(files)} files)" if len(problems) > 1 else ""
        raise RefusedError(f"{problems[0].path} {problems[0].problem}{more}. Repair it, or leave it out of --data.")
    largest = max(footers, key=lambda footer: footer.bytes)  # the first may hold no row
    types = largest.types or {}
    if unknown := [name for name in columns if name not in types]:
        raise RefusedError(f"{largest.path} has no column {', '.join(unknown)}. It has: {_few(types)}.")
    if len(set(columns)) < len(columns):
        raise RefusedError(f"A column is named twice: {', '.join(columns)}. Name each once.")
    for footer in footers:
        if lacking := [name for name in columns or types if name not in (footer.types or {})]:
            other = largest.path
            raise RefusedError(
                f"{footer.path} has no column {_few(lacking)}, which {other} has. Leave it out of --data."
            )
    rows = None if kind in ("csv", "json") else sum(footer.rows or 0 for footer in footers)
    totals: dict[str, int] = {}
    for footer in footers:
        for name, size in (footer.columns_bytes or {}).items():
            totals[name] = totals.get(name, 0) + size
    size = sum(footer.bytes for footer in footers)
    return Source(kind, tuple(files), types, size, rows, max(footer.group_bytes for footer in footers), totals)


def numeric(source: Source, columns: list[str], *, leave: tuple[str, ...] = ()) -> tuple[list[str], str]:
    """Return the feature columns, all numeric, and the one float type that holds them all.

    Parameters
    ----------
    columns
        The user's choice; empty for all but ``leave``.
    leave
        Columns that are no features: the target, for example.

    Raises
    ------
    RefusedError
        A column is not numeric, or none is left.
    """
    able = [name for name, kind in source.types.items() if is_numeric(kind) and name not in leave]
    wanted = [name for name in columns or source.types if name not in leave]
    if refused := [name for name in wanted if name not in able]:
        advice = f"Give --columns {','.join(able)}." if able else "Give --data with numeric columns."
        raise RefusedError(f"{source.where} holds columns that are not numeric: {_few(refused)}. {advice}")
    if not wanted:
        raise RefusedError(f"{source.where} has no columns to work on. Give --data with numeric columns.")
    return wanted, float_type(source, wanted)


def is_numeric(kind: pa.DataType) -> bool:
    """Whether an Arrow type is a whole or a floating-point number."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type is text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def float_type(source: Source, columns: list[str]) -> str:
    """Return "float32" if that holds the columns' types exactly enough for NumPy's rules, else "float64"."""
    text = source.kind in ("csv", "json")
    exact = [np.float64 if text else source.types[name].to_pandas_dtype() for name in columns]
    return str(np.result_type(np.float32, *exact))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's words, without the stop at its end."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")


def _few(words: Any) -> str:
    shown = [str(word) for word in words]
    return ", ".join(shown[:SHOWN]) + (f", … ({len(shown)} in all)" if len(shown) > SHOWN else "")


def chunks_of(total: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield the starts and ends that divide a number of rows into so many parts, as equal as can be."""
    for part in range(parts):
        yield total * part // parts, total * (part + 1) // parts
