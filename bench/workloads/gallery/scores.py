"""How good predictions are: figures summed over Dask arrays' blocks, with scikit-learn's definitions."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt

CLASSES = 1_000  # a target with more distinct values is no class label
Counts = npt.NDArray[np.int64]


def regression(y: Any, predicted: Any) -> dict[str, float]:
    """Return r2 (1 - squared error / variance; 0 where y is constant), rmse and mae of arrays chunked alike."""
    y, error = y.astype("float64"), predicted.astype("float64") - y
    sums = (error**2).mean(), abs(error).mean(), y.var()
    squared, absolute, variance = (float(value) for value in dask.compute(*sums))
    return {"r2": 1 - squared / variance if variance else 0.0, "rmse": squared**0.5, "mae": absolute}


def classes(y: Any, where: str) -> npt.NDArray[np.int32]:
    """Return the class labels of a target: whole numbers, sorted.

    Raises
    ------
    RefusedError
        They are no classes, or there is only one.
    """
    found = da.unique(y).to_backend("numpy").compute()
    return np.asarray(found, dtype=np.int32)


def confusion(y: Any, predicted: Any, labels: npt.NDArray[np.int32]) -> Counts:
    """Return how many rows of each class (first axis) were given each class (second axis)."""
    k = len(labels)
    parts = da.map_blocks(_confusion, y, predicted, labels, new_axis=[1, 2], chunks=((1,) * y.numblocks[0], k, k),
                          meta=np.empty((0, k, k), np.int64))  # fmt: skip
    found: Counts = parts.sum(axis=0).compute()
    return found


def _confusion(y: Any, predicted: Any, labels: npt.NDArray[np.int32]) -> Counts:
    given = np.asarray(labels, like=y)
    places = np.searchsorted(given, y.astype("int32")) * len(labels) + np.searchsorted(given, predicted.astype("int32"))
    counted = np.bincount(places, minlength=len(labels) ** 2).reshape(1, len(labels), -1)
    return counted.get() if hasattr(counted, "get") else counted  # small: to the host


def accuracy(table: Counts) -> float:
    """Return the share of rows that were given their class."""
    return float(np.trace(table) / table.sum())
