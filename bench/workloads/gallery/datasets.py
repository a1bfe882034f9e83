"""Write data sets of any size whose truth is known: the frame of the generators; what they draw is in gallery/kinds.py.

Rows are drawn in blocks of 65,536, each by its own generator (seed, block). So the same kind, seed and shape give the
same rows in the same order, however many partitions there are and however many workers write. Blocks are written by
row groups of 128 MB: memory holds a row group, not a partition, and a reader's requests are large.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import gallery.kinds_trips  # noqa: F401 - enters its kind in KINDS
from gallery import partitions as parts
from gallery.inputs import chunks_of
from gallery.job import Job, whole_folder
from gallery.kinds import KINDS, Kind

BLOCK = 65_536  # part of the format: another number gives other data for the same seed
FORMATS = ("parquet", "csv")
PARTITION = 1_000_000_000  # bytes in memory: the size that RAPIDS advises for a GPU
GROUP = 128_000_000  # bytes in memory of a Parquet row group: large reads, and small enough to be a worker's share
FILE = 64_000_000  # most bytes in memory of a file of data that a job makes for itself
ENOUGH = 4  # partitions at least, so that four threads have work


def write_part(path: str, start: int, stop: int, seed: int, kind: Kind) -> int:
    """Write rows start … stop-1 as one file; return its size in bytes."""
    schema, form = kind.schema(), path.rpartition(".")[2]
    writers = {"csv": pyarrow.csv.CSVWriter, "parquet": pyarrow.parquet.ParquetWriter}
    with writers[form](path, schema) as writer:
        for table in _groups(_blocks(kind, schema, start, stop, seed)):
            writer.write_table(table, len(table))
    return pathlib.Path(path).stat().st_size


def _blocks(kind: Kind, schema: pa.Schema, start: int, stop: int, seed: int) -> Any:
    for block in range(start // BLOCK, -(-stop // BLOCK)):
        columns = kind.draw(np.random.default_rng([seed, block]), BLOCK)
        first = block * BLOCK
        table = pa.table([pa.array(columns[field.name], field.type, from_pandas=True) for field in schema], schema)
        yield table.slice(max(start - first, 0), min(stop - first, BLOCK) - max(start - first, 0))


def _groups(blocks: Any) -> Any:
    """Yield tables of about GROUP bytes each, put together of blocks."""
    group: list[pa.Table] = []
    for block in blocks:
        group.append(block)
        if sum(table.nbytes for table in group) >= GROUP:
            yield pa.concat_tables(group)
            group = []
    if group:
        yield pa.concat_tables(group)


def write(
    folder: pathlib.Path,
    kind: Kind,
    *,
    rows: int,
    partitions: int | None = None,
    form: str = "parquet",
    seed: int = 0,
    client: Any = None,
) -> int:
    """Write a data set and truth.json, whole or not at all; return its size in bytes.

    Parameters
    ----------
    partitions
        Files; by default about 1 GB of rows in memory each, and at least four where there are as many rows.
    client
        Its workers write, a task per file; without one, this process writes one after the other.
    """
    row_bytes = max(sum(kind.row_bytes().values()), 1)
    partitions = min(rows, partitions or max(ENOUGH, -(-rows * row_bytes // PARTITION)))
    edges = [0, *(stop for _, stop in chunks_of(rows, partitions))]
    with whole_folder(folder) as unfinished:
        paths = [str(unfinished / f"part-{part:05d}.{form}") for part in range(partitions)]
        if client is None:
            spans = zip(paths, itertools.pairwise(edges), strict=True)
            sizes = [write_part(path, *span, seed, kind) for path, span in spans]
        else:
            sizes = client.gather(client.map(write_part, paths, edges, edges[1:], seed=seed, kind=kind, pure=False))
        made_by = {"kind": kind.name, "rows": rows, "format": form, "seed": seed, "block": BLOCK}
        (unfinished / "truth.json").write_text(json.dumps({**made_by, **kind.truth()}, indent=1) + "\n")
    return sum(sizes)


def made(job: Job, kind: str, *, form: str = "parquet", **shape: Any) -> str:
    """Write a data set for a job that was given none, until the job ends; return its path for ``inputs``.

    Parameters
    ----------
    shape
        What the kind takes, for example ``features=8``.
    """
    drawn = KINDS[kind](seed=job.options.seed, **shape)
    total = job.rows
    row_bytes = max(sum(drawn.row_bytes().values()), 1)
    most = min(FILE, parts.wanted(job.client))
    files = min(total, max(ENOUGH, job.threads, -(-total * row_bytes // most)))
    folder = job.folder_for_data() / kind
    write(folder, drawn, rows=total, partitions=files, form=form, seed=job.options.seed, client=job.client)
    return str(folder)


def truth(source_file: str) -> dict[str, Any]:
    """Return what truth.json beside a data set says; nothing where there is none."""
    path = pathlib.Path(source_file).with_name("truth.json")
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
