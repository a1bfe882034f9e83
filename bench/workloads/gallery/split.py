"""Divide rows into training and test by their global number and the seed: partitions and workers make no difference."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

BLOCK = 65_536  # rows that one generator draws for; another number gives another division for the same seed
Mask = npt.NDArray[np.bool_]


def is_test(start: int, stop: int, total: int, seed: int, share: float) -> Mask:
    """Return which of the rows start … stop-1, of so many in all, are for the test.

    Each block of 65,536 rows gives its share exactly, drawn without replacement by a generator (seed, block).
    """
    chosen = np.zeros(stop - start, dtype=bool)
    for block in range(start // BLOCK, -(-stop // BLOCK)):
        first, last = block * BLOCK, min((block + 1) * BLOCK, total)
        wanted = round(last * share) - round(first * share)
        drawn = np.random.default_rng([seed, block]).permutation(last - first) < wanted
        low, high = max(start, first), min(stop, last)
        chosen[low - start : high - start] = drawn[low - first : high - first]
    return chosen


def split(x: Any, y: Any, seed: int, share: float) -> tuple[Any, Any, Any, Any]:
    """Return x_train, x_test, y_train, y_test: persisted Dask arrays of known, non-empty chunks, in the rows' order.

    Parameters
    ----------
    x, y
        Dask arrays of NumPy's or CuPy's, of as many rows, chunked alike, their chunks known.
    share
        Of the rows, for the test: above 0, below 1.

    """
    total = len(x)
    chosen = da.map_blocks(_draw, chunks=(x.chunks[0],), dtype=bool, total=total, seed=seed, share=share).persist()
    tested = [int(number) for number in chosen.map_blocks(_count, chunks=(1,), dtype="int64").compute()]
    trained = [size - number for size, number in zip(x.chunks[0], tested, strict=True)]
    parts = [_take(data, chosen, test=test, sizes=sizes)
             for data in (x, y) for test, sizes in ((False, trained), (True, tested))]  # fmt: skip
    x_train, x_test, y_train, y_test = parts
    return x_train, x_test, y_train, y_test


def _draw(block_info: Any, **how: Any) -> Mask:
    ((start, stop),) = block_info[None]["array-location"]
    return is_test(start, stop, **how)


def _count(chosen: Mask) -> npt.NDArray[np.int64]:
    return np.array([chosen.sum()])


def _take(data: Any, chosen: Any, *, test: bool, sizes: list[int]) -> Any:
    """Return the rows of one side, without the blocks that none is left of."""
    mask = chosen.reshape((-1, *[1] * (data.ndim - 1)))
    taken = da.map_blocks(_rows, data, mask, test, chunks=(tuple(sizes), *data.chunks[1:]), meta=data._meta)
    return da.concatenate([taken.blocks[number] for number, size in enumerate(sizes) if size]).persist()


def _rows(block: Any, mask: Any, test: bool) -> Any:
    return block[np.asarray(mask.reshape(-1) == test, like=block)]
