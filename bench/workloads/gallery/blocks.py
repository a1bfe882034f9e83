"""Exact nearest neighbours over Dask's CPU workers, with the interface of cuml.dask.neighbors.

scikit-learn searches each block of the index by itself; a row's k nearest of all are among the k nearest of every
block, so the merge is exact. Of equally near rows the first ones are taken, whatever the blocks.
"""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import scipy.stats

Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]
AT_ONCE = 8  # answers that one task merges


def _search(block: Any, queries: Any, first: int, k: int) -> Pair:
    """Return distances and row numbers of a block's nearest rows, which begin at row ``first``; runs on a worker."""
    import sklearn.neighbors

    model = sklearn.neighbors.NearestNeighbors(n_neighbors=min(k, len(block))).fit(block)
    distances, places = model.kneighbors(queries)
    return distances, places + first


def _merge(answers: list[Pair], k: int) -> Pair:
    distances = np.concatenate([near for near, _ in answers], axis=1)
    rows = np.concatenate([places for _, places in answers], axis=1)
    order = np.lexsort((rows, distances), axis=1)[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(rows, order, axis=1)


class NearestNeighbors:
    """The k nearest rows of an index that lies in blocks on the workers.

    Parameters
    ----------
    n_neighbors
        k, at most as many as the index has rows.
    """

    def __init__(self, n_neighbors: int = 5) -> None:
        self.n_neighbors = n_neighbors
        self.index: Any = None
        self.targets: Any = None

    def fit(self, x: Any, y: Any = None) -> NearestNeighbors:
        """Keep the index, (rows, features) chunked by rows, and the targets, (rows,) chunked alike."""
        self.index, self.targets = x, y
        return self

    def kneighbors(self, queries: Any, n_neighbors: int | None = None) -> tuple[Any, Any]:
        """Return distances and row numbers of the index, (queries, k) each, nearest first, as lazy Dask arrays."""
        k = n_neighbors or self.n_neighbors
        starts = np.concatenate([[0], np.cumsum(self.index.chunks[0])])
        blocks = self.index.to_delayed().ravel()
        search, merge = dask.delayed(_search, nout=2), dask.delayed(_merge, nout=2)
        distances, rows = [], []
        for part, size in zip(queries.to_delayed().ravel(), queries.chunks[0], strict=True):
            found = [search(block, part, int(first), k) for block, first in zip(blocks, starts, strict=False)]
            while len(found) > 1:
                found = [merge(found[at : at + AT_ONCE], k) for at in range(0, len(found), AT_ONCE)]
            near, places = merge(found, k)
            distances.append(da.from_delayed(near, (size, k), dtype="float64"))
            rows.append(da.from_delayed(places, (size, k), dtype="int64"))
        return da.concatenate(distances), da.concatenate(rows)

    def neighbours_targets(self, queries: Any) -> npt.NDArray[Any]:
        """Return the targets of each query's neighbours, (queries, k), in this process."""
        rows = self.kneighbors(queries)[1].compute()
        found: npt.NDArray[Any] = self.targets[rows.ravel()].compute().reshape(rows.shape)
        return found


class KNeighborsClassifier(NearestNeighbors):
    """The most frequent class of the k nearest rows, the smallest of several, as in scikit-learn."""

    def predict(self, queries: Any) -> Any:
        """Return the classes, (queries,), as a Dask array."""
        votes = scipy.stats.mode(self.neighbours_targets(queries), axis=1).mode
        return da.from_array(votes, chunks=queries.chunks[:1])


class KNeighborsRegressor(NearestNeighbors):
    """The mean target of the k nearest rows."""

    def predict(self, queries: Any) -> Any:
        """Return the means, (queries,), as a Dask array."""
        return da.from_array(self.neighbours_targets(queries).mean(axis=1), chunks=queries.chunks[:1])
