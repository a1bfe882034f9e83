"""Large dense matrices, chunked by rows: made on the workers, and made ready for an SVD.

What is made does not depend on the chunks: rows come in tiles of 1,024, each by its own generator (seed, tile). NumPy's
and CuPy's generators differ, so a matrix made on GPUs has other numbers than one made on CPUs.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np

from gallery import backend, genotypes
from gallery.job import RefusedError

TILE = 1_024  # part of the format: another number gives other data for the same seed
CHUNK = 100_000_000  # bytes of a chunk: 400 MB as float32
FEWEST = 8  # chunks for each thread, where they are larger than that
RANK = 5  # of what a made matrix of floats holds besides noise


@dataclass(frozen=True)
class Matrix:
    """A matrix as it is stored.

    Attributes
    ----------
    stored
        Dask array, one chunk of columns.
    missing
        The code of a missing element; None where there is none.
    """

    stored: Any
    missing: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.stored.shape
        return rows, columns

    @property
    def dtype(self) -> str:
        """The type that is calculated with: 32 bits for what they hold exactly."""
        return floats_of(self.stored.dtype)


def floats_of(kind: np.dtype[Any]) -> str:
    """Return the type that stored numbers are calculated with."""
    return "float32" if kind.itemsize <= 2 or kind == "float32" else "float64"


def rows_per_chunk(shape: tuple[int, int], kind: np.dtype[Any], threads: int, floats: int = 0) -> int:
    """Return the rows of a chunk: 100 MB, fewer if threads would idle, whole tiles where there are several.

    Parameters
    ----------
    shape
        Rows and columns, of this ``kind``.
    floats
        The bytes that the floats of a chunk may take, on GPUs: chunks are as large as that, where there are enough for
        all. One scheduler serves all GPUs, and takes as long for a small task as for a large one.
    """
    rows, width = shape
    largest = floats // (width * np.dtype(floats_of(kind)).itemsize) * width * kind.itemsize
    size = max(CHUNK, min(largest, rows * width * kind.itemsize // (FEWEST * threads)))
    wanted = max(1, min(size // (width * kind.itemsize), -(-rows // threads)))
    return wanted if wanted < TILE else wanted // TILE * TILE


def _tiles(
    block_info: Any, *, library: str, columns: int, seed: int, element: str, missing: float
) -> Any:  # runs on a worker
    (start, stop), _ = block_info[None]["array-location"]
    xp = importlib.import_module(library)
    kind = np.dtype(element)
    whole = xp.empty((stop - start, columns), dtype=kind)
    for tile in range(start // TILE, -(-stop // TILE)):
        rng, first = xp.random.default_rng((seed << 32) + tile), tile * TILE
        if element == "uint8":
            block = genotypes.draw(xp, rng, first, TILE, columns, seed=seed, missing=missing)
        else:
            weights = np.random.default_rng(seed).standard_normal((RANK, columns)) * np.arange(RANK, 0, -1)[:, None]
            block = rng.standard_normal((TILE, RANK), dtype=kind) @ xp.asarray(weights, dtype=kind)
            block += rng.standard_normal((TILE, columns), dtype=kind)
        block = block[max(start - first, 0) : stop - first]
        there = max(first, start) - start
        whole[there : there + len(block)] = block
    return whole


def made(rows: int, columns: int, *, seed: int, dtype: str, missing: float, threads: int, floats: int = 0) -> Matrix:
    """Return a lazy matrix: genotypes of five populations for uint8, else floats of rank 5 with noise.

    Parameters
    ----------
    floats
        As for :func:`rows_per_chunk`.
    """
    step = rows_per_chunk((rows, columns), np.dtype(dtype), threads, floats)
    chunks = (tuple(min(step, rows - start) for start in range(0, rows, step)), (columns,))
    library = backend.arrays().__name__
    meta = importlib.import_module(library).empty((0, 0), dtype=dtype)
    shape = {"columns": columns, "seed": seed, "element": dtype, "missing": missing}
    stored = da.map_blocks(_tiles, chunks=chunks, dtype=dtype, meta=meta, library=library, **shape)
    return Matrix(stored, genotypes.MISSING if dtype == "uint8" else None)


def _sums(block: Any, matrix: Matrix) -> Any:
    """Return a row: per column how many are not missing, their sum and their sum of squares.

    They are taken tile by tile: the floats of a whole chunk, and their squares, are ten times as large as it is.
    """
    found: Any = 0.0
    for at in range(0, len(block), TILE):
        counts = block[at : at + TILE]
        there = np.ones_like(counts, dtype=bool) if matrix.missing is None else counts != matrix.missing
        values = np.where(there, counts, counts.dtype.type(0)).astype(matrix.dtype)
        sums = [there.sum(axis=0, dtype="float64"), values.sum(axis=0, dtype="float64")]
        found = found + np.concatenate([*sums, (values * values).sum(axis=0, dtype="float64")])
    return found[None, :]


def load(matrix: Matrix) -> tuple[Matrix, Any]:
    """Load or make a matrix, kept by the workers, and return it with its columns' sums, when both are there.

    The sums are taken of each chunk while it is at hand: where memory is short, their own pass would bring it back.
    """
    width = 3 * matrix.shape[1]
    empty = matrix.stored._meta
    meta, plain = np.empty_like(empty, shape=(0, 0), dtype="float64"), replace(matrix, stored=empty)
    sums = da.map_blocks(_sums, matrix.stored, plain, chunks=(1, width), meta=meta).sum(axis=0)
    stored, sums = dask.persist(matrix.stored, sums)
    distributed.wait([stored, sums])
    return replace(matrix, stored=stored), sums


def statistics(matrix: Matrix, sums: Any) -> tuple[Any, float, int]:
    """Return the columns' means (NumPy), the variance of all columns together, and how many elements are missing.

    A missing element counts as its column's mean.

    Raises
    ------
    RefusedError
        An element is NaN or infinite, or a column is missing altogether.
    """
    rows, columns = matrix.shape
    there, total, squares = sums.to_backend("numpy").compute().reshape(3, columns)
    if not np.isfinite(squares).all():
        place = int(np.flatnonzero(~np.isfinite(squares))[0])
        raise RefusedError(f"Column {place} has a NaN or infinite value. Repair the matrix, or give --data another.")
    if not there.all():
        raise RefusedError(f"Column {int(np.flatnonzero(there == 0)[0])} has no value. Leave it out of --data.")
    means = total / there
    variance = float((squares - there * means**2).sum()) / max(rows - 1, 1)
    return means, variance, int(rows * columns - there.sum())


def _ready(block: Any, matrix: Matrix, means: Any, *, centre: bool) -> Any:
    counts = block
    middle = np.asarray(means, like=counts, dtype=matrix.dtype)
    given = matrix.missing is None
    values = counts.astype(matrix.dtype) if given else np.where(counts == matrix.missing, middle, counts)
    if centre:
        values -= middle
    return values


def ready(matrix: Matrix, means: Any, *, centre: bool) -> Any:
    """Return floats for what is stored, lazily and chunk by chunk: missing ones as means, centred if wished.

    It stays lazy through all passes, so that memory holds the stored bytes, and floats of a chunk a thread only.
    """
    meta = np.empty_like(matrix.stored._meta, shape=(0, 0), dtype=matrix.dtype)
    plain = replace(matrix, stored=matrix.stored._meta)
    chunks = matrix.stored.chunks
    return da.map_blocks(_ready, matrix.stored, plain, means, centre=centre, chunks=chunks, meta=meta)
