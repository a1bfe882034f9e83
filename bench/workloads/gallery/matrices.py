"""Large dense matrices, chunked by rows: made on the workers, written to Zarr, read from it, made ready for an SVD.

What is made does not depend on the chunks: rows come in tiles of 1,024, each by its own generator (seed, tile). NumPy's
and CuPy's generators differ, so a matrix made on GPUs has other numbers than one made on CPUs.
"""

from __future__ import annotations

import importlib
import pathlib
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np

from gallery import backend, genotypes
from gallery.job import RefusedError, whole_folder

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
        Dask array, one chunk of columns: the elements, or bytes that hold four genotypes each.
    missing
        The code of a missing element; None where there is none.
    made
        Whether rows belong to the generator's populations in turn.
    """

    stored: Any
    columns: int
    packed: bool = False
    missing: int | None = None
    made: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.stored.shape[0], self.columns

    @property
    def dtype(self) -> str:
        """The type that is calculated with: 32 bits for what they hold exactly."""
        return floats_of(self.stored.dtype)


def floats_of(kind: np.dtype[Any]) -> str:
    """Return the type that stored numbers are calculated with."""
    return "float32" if kind.itemsize <= 2 or kind == "float32" else "float64"


def rows_per_chunk(shape: tuple[int, int], kind: np.dtype[Any], columns: int, threads: int, floats: int = 0) -> int:
    """Return the rows of a chunk: 100 MB, fewer if threads would idle, whole tiles where there are several.

    Parameters
    ----------
    shape
        Rows, and elements of a row as they are stored, of this ``kind``; ``columns`` is how many numbers they hold.
    floats
        The bytes that the floats of a chunk may take, on GPUs: chunks are as large as that, where there are enough for
        all. One scheduler serves all GPUs, and takes as long for a small task as for a large one.
    """
    rows, width = shape
    largest = floats // (columns * np.dtype(floats_of(kind)).itemsize) * width * kind.itemsize
    size = max(CHUNK, min(largest, rows * width * kind.itemsize // (FEWEST * threads)))
    wanted = max(1, min(size // (width * kind.itemsize), -(-rows // threads)))
    return wanted if wanted < TILE else wanted // TILE * TILE


def _tiles(
    block_info: Any, *, library: str, columns: int, seed: int, element: str, missing: float, packed: bool
) -> Any:  # runs on a worker
    (start, stop), _ = block_info[None]["array-location"]
    xp = importlib.import_module(library)
    kind = np.dtype(element)
    whole = xp.empty((stop - start, genotypes.packed_width(columns) if packed else columns), dtype=kind)
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
        whole[there : there + len(block)] = genotypes.pack(block) if packed else block
    return whole


def made(
    rows: int, columns: int, *, seed: int, dtype: str, missing: float, packed: bool, threads: int, floats: int = 0,
    library: str = "",
) -> Matrix:  # fmt: skip
    """Return a lazy matrix: genotypes of five populations for uint8, else floats of rank 5 with noise.

    Parameters
    ----------
    floats
        As for :func:`rows_per_chunk`.
    library
        "numpy" or "cupy"; by default what the run's arrays are made of.
    """
    width = genotypes.packed_width(columns) if packed else columns
    step = rows_per_chunk((rows, width), np.dtype(dtype), columns, threads, floats)
    chunks = (tuple(min(step, rows - start) for start in range(0, rows, step)), (width,))
    library = library or backend.arrays().__name__
    meta = importlib.import_module(library).empty((0, 0), dtype=dtype)
    shape = {"columns": columns, "seed": seed, "element": dtype, "missing": missing, "packed": packed}
    stored = da.map_blocks(_tiles, chunks=chunks, dtype=dtype, meta=meta, library=library, **shape)
    return Matrix(stored, columns, packed, genotypes.MISSING if dtype == "uint8" else None, made=True)


def write(folder: pathlib.Path, matrix: Matrix, seed: int) -> None:
    """Write a matrix of NumPy's as a Zarr array, a file per chunk, whole or not at all; packed ones uncompressed."""
    import zarr

    about = {"columns": matrix.columns, "packed": matrix.packed, "missing": matrix.missing, "made": matrix.made}
    with whole_folder(folder) as unfinished:
        array = zarr.create_array(
            unfinished, shape=matrix.stored.shape, chunks=matrix.stored.chunksize, dtype=matrix.stored.dtype,
            compressors=None if matrix.packed else "auto", attributes={**about, "seed": seed},
        )  # fmt: skip
        da.store(matrix.stored, array, lock=False)


def is_zarr(data: str) -> bool:
    """Whether a path is a Zarr array, of format 2 or 3."""
    return any((pathlib.Path(data).expanduser() / name).exists() for name in ("zarr.json", ".zarray"))


def read(data: str, threads: int, floats: int = 0) -> Matrix:
    """Return a lazy matrix from a Zarr array on disk, in whole files; ``floats`` as for :func:`rows_per_chunk`.

    Raises
    ------
    RefusedError
        It cannot be read, is no matrix of numbers, or has no element.
    """
    import zarr

    try:
        array = zarr.open_array(pathlib.Path(data).expanduser(), mode="r")
        about: dict[str, Any] = dict(array.attrs)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RefusedError(f"{data} is no Zarr array that can be read ({error}). Give --data another.") from error
    if array.ndim != 2 or array.dtype.kind not in "uif" or not array.size:
        what = f"shape {array.shape} and type {array.dtype}"
        raise RefusedError(f"{data} has {what}; a matrix of numbers is needed. Give --data another.")
    rows, width = array.shape
    packed = bool(about.get("packed", False))
    columns = int(about.get("columns", width)) if packed else width
    step = rows_per_chunk((rows, width), array.dtype, columns, threads, floats)
    step = max(step // array.chunks[0], 1) * array.chunks[0]  # no file is read twice
    stored = da.from_zarr(array, chunks=(step, width)).to_backend()
    return Matrix(stored, columns, packed, about.get("missing"), bool(about.get("made", False)))


def _elements(block: Any, matrix: Matrix) -> Any:
    return genotypes.unpack(block, matrix.columns) if matrix.packed else block


def _sums(block: Any, matrix: Matrix) -> Any:
    """Return a row: per column how many are not missing, their sum and their sum of squares.

    They are taken tile by tile: the floats of a whole chunk, and their squares, are ten times as large as it is.
    """
    found: Any = 0.0
    for at in range(0, len(block), TILE):
        counts = _elements(block[at : at + TILE], matrix)
        there = np.ones_like(counts, dtype=bool) if matrix.missing is None else counts != matrix.missing
        values = np.where(there, counts, counts.dtype.type(0)).astype(matrix.dtype)
        sums = [there.sum(axis=0, dtype="float64"), values.sum(axis=0, dtype="float64")]
        found = found + np.concatenate([*sums, (values * values).sum(axis=0, dtype="float64")])
    return found[None, :]


def load(matrix: Matrix) -> tuple[Matrix, Any]:
    """Load or make a matrix, kept by the workers, and return it with its columns' sums, when both are there.

    The sums are taken of each chunk while it is at hand: where memory is short, their own pass would bring it back.
    """
    width = 3 * matrix.columns
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
    counts = _elements(block, matrix)
    middle = np.asarray(means, like=counts, dtype=matrix.dtype)
    given = matrix.missing is None
    values = counts.astype(matrix.dtype) if given else np.where(counts == matrix.missing, middle, counts)
    if centre:
        values -= middle
    return values


def ready(matrix: Matrix, means: Any, *, centre: bool) -> Any:
    """Return floats for what is stored, lazily and chunk by chunk: unpacked, missing ones as means, centred if wished.

    It stays lazy through all passes, so that memory holds the stored bytes, and floats of a chunk a thread only.
    """
    meta = np.empty_like(matrix.stored._meta, shape=(0, 0), dtype=matrix.dtype)
    plain = replace(matrix, stored=matrix.stored._meta)
    chunks = (matrix.stored.chunks[0], (matrix.columns,))
    return da.map_blocks(_ready, matrix.stored, plain, means, centre=centre, chunks=chunks, meta=meta)
