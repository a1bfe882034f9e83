"""Read a data set as a Dask frame or as arrays, and write one; on GPUs the same calls give cuDF and CuPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd

from gallery import backend, partitions
from gallery.inputs import Source, chunks_of, is_numeric
from gallery.job import Job, whole_folder

FOOTERS = 64  # files whose Parquet footers a task reads


def read(source: Source, columns: list[str], dtype: str | None = None, *, job: Job | None = None) -> Any:
    """Return some columns of a data set as a lazy Dask frame, all of one type if ``dtype`` is given.

    With a ``job``, partitions are of the size that suits its workers (:mod:`gallery.partitions`), and what stands
    against that is noted in the result; without one they are of Dask's own sizes. Parquet is read with Arrow's
    pre-buffering: the columns that lie side by side in a row group arrive by one read of up to 32 MiB.
    """
    files = list(source.files)
    size = partitions.block(job, source, columns) if job else None
    if source.kind == "parquet":
        sized: dict[str, Any] = {"blocksize": size, "aggregate_files": True} if size else {}
        if len(files) > FOOTERS:
            sized["metadata_task_size"] = FOOTERS  # else the driver alone reads all footers
        frame: Any = dd.read_parquet(files, columns=columns, index=False, **sized)
        return frame.astype(dtype) if dtype else frame
    blocks = {"blocksize": size} if size else {}
    known = {name: _numeric_type(source.types[name]) for name in columns}
    types = dict.fromkeys(columns, dtype) if dtype else {name: kind for name, kind in known.items() if kind}
    frame = dd.read_csv(files, usecols=columns, dtype=types or None, **blocks)[columns]
    if size and frame.npartitions > 2 * (fitting := max(source.bytes // size, job.threads if job else 1)):
        frame = frame.repartition(npartitions=fitting)
    return frame.astype(dtype) if dtype else frame


def _numeric_type(kind: Any) -> str | None:
    """Return the type that a text file's column of numbers is read as, None for what is no number."""
    return str(np.dtype(kind.to_pandas_dtype())) if is_numeric(kind) else None


def arrays(
    job: Job, source: Source, features: list[str], dtype: str, target: str | None = None
) -> tuple[Any, Any | None]:
    """Return features, and the target if one is named, as persisted Dask arrays of known, non-empty chunks.

    Rows with a missing or infinite value are left out; ``job.result`` tells how many rows were read and dropped.

    Returns
    -------
    x, y
        (rows, features) of ``dtype``, and (rows,) of ``dtype`` or None; both chunked alike, by rows only.

    Raises
    ------
    RefusedError
        No row is left, or a file is damaged.
    """
    columns = [*features, *([target] if target else [])]
    frame = read(source, columns, dtype, job=job)
    both: Any = frame.fillna(np.nan).to_dask_array()  # fillna: cuDF's nulls become NaN
    both = both.map_blocks(by_rows, meta=both._meta).persist()
    both.compute_chunk_sizes()
    rows, usable = len(both), da.isfinite(both).all(axis=1)
    if dropped := rows - int(usable.sum().compute()):
        both = both[usable].persist()
        both.compute_chunk_sizes()
        job.note(f"{dropped:,} of {rows:,} rows have a missing or infinite value and are left out.")
    blocks = [both.blocks[number] for number, size in enumerate(both.chunks[0]) if size]
    found = both
    if len(blocks) < both.numblocks[0]:
        both = da.concatenate(blocks)
    if both.numblocks[0] < job.threads and len(both) >= 1_000 * job.threads:  # fewer would leave threads idle
        both = both.rechunk({0: -(-len(both) // job.threads)})
    both = both.rechunk({0: _divided(both, partitions.wanted(job.client))})
    if both is not found:  # another name for each chunk would spill it twice
        both = both.persist()
    del found
    job.result |= {"files": len(source.files), "input_bytes": source.bytes, "rows_read": rows, "rows_dropped": dropped}
    job.result |= {"rows": len(both), "features": features, "dtype": dtype, "partitions": both.numblocks[0]}
    return (both[:, : len(features)], both[:, len(features)]) if target else (both, None)


def _divided(x: Any, most: int) -> tuple[int, ...]:
    """Return the chunks' rows with those halved, in thirds … that are more than twice as large as they should be."""
    row = max(x.nbytes // max(len(x), 1), 1)
    parts = [(rows, -(-rows * row // most) if rows * row > 2 * most else 1) for rows in x.chunks[0]]
    return tuple(stop - start for rows, count in parts for start, stop in chunks_of(rows, count))


def by_rows(block: Any) -> Any:
    """Return a block whose rows lie together, as scikit-learn's fast and frugal paths want it; frames give columns."""
    return block if block.flags.c_contiguous else block.copy(order="C")


def sample_rows(total: int, most: int, seed: int) -> Any:
    """Return the sorted global row numbers of a sample, which depend on nothing but these three numbers."""
    return np.sort(np.random.default_rng(seed).choice(total, min(total, most), replace=False, shuffle=False))


def write_parquet(job: Job, frame: Any, name: str) -> None:
    """Write a Dask frame as a folder of the results, a file per partition, by the workers; it appears when whole."""
    on_host = isinstance(frame._meta, pd.DataFrame)
    with whole_folder(job.out / name) as unfinished:
        frame.to_parquet(str(unfinished), write_index=False, name_function=_part, engine="pyarrow" if on_host else None)


def _part(number: int) -> str:
    return f"part-{number:05d}.parquet"


def gathered(job: Job, x: Any) -> Any:
    """Return an array's rows, in order, in chunks at least as large as partitions are (:mod:`gallery.partitions`).

    What is left of many chunks can be little for each: a file would be written for every one.
    """
    count = -(-x.nbytes // partitions.size_of(job, partitions.wanted(job.client), x.nbytes))
    return x if count >= x.numblocks[0] else x.rechunk({0: -(-len(x) // count)})


def frame_of(columns: Mapping[Any, Any]) -> Any:
    """Return Dask arrays that are chunked alike by rows as the columns of a Dask frame, a task for each chunk.

    Parameters
    ----------
    columns
        By name arrays of (rows,); by a tuple of names arrays of (rows, names), each in one chunk of columns.
    """
    named = {key: (key,) if isinstance(key, str) else key for key in columns}
    kinds = {name: array.dtype for key, array in columns.items() for name in named[key]}
    frame = backend.tables().DataFrame
    meta = frame({name: np.empty(0, dtype=kind) for name, kind in kinds.items()})
    chunks = zip(*(array.to_delayed().ravel() for array in columns.values()), strict=True)
    parts = [dask.delayed(_frame)(frame, list(named.values()), *blocks) for blocks in chunks]
    return dd.from_delayed(parts, meta=meta, verify_meta=False)


def _frame(frame: Any, names: list[tuple[str, ...]], *blocks: Any) -> Any:
    """Return blocks as the columns of one frame; this runs on the worker."""
    pairs = zip(names, blocks, strict=True)
    found = {name: block.reshape(len(block), -1)[:, place] for some, block in pairs for place, name in enumerate(some)}
    return frame(found)
