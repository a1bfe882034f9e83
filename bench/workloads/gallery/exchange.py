"""A join by hash in few tasks: each worker divides what it holds once, and each piece goes once to where it is joined.

Dask's shuffle by tasks has a task and a message for each pair of partitions, and sends a column of partition numbers
with them; on GPUs such tasks are shorter than what lies between them. Here there are as few partitions as a worker's
memory allows: one for each GPU, mostly.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pandas as pd

from gallery import backend


def divided(frame: Any, on: str, count: int) -> list[Any]:
    """Return a frame's rows in ``count`` frames, by a hash of the column ``on`` that is the same for every frame."""
    if backend.library(frame) == "cudf":
        return list(frame.partition_by_hash([on], count, keep_index=False))
    place = (pd.util.hash_array(frame[on].to_numpy()) % np.uint64(count)).astype(np.intp)
    ordered = frame.take(np.argsort(place, kind="stable"))
    sizes = np.bincount(place, minlength=count)
    return [ordered.iloc[end - size : end] for end, size in zip(np.cumsum(sizes), sizes, strict=True)]


def joined(client: Any, left: Any, right: Any, on: str, count: int, then: Callable[[Any], Any]) -> list[Any]:
    """Return ``then`` of each of ``count`` parts of the inner join of two Dask frames, as delayed values.

    Part ``i`` is joined by worker ``i`` modulo their number, so that all have as many; by another if that one is gone.
    """
    pieces = [
        [
            dask.delayed(divided, pure=False, nout=count)(part, on, count)
            for part in side.to_delayed(optimize_graph=False)
        ]
        for side in (left, right)
    ]
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    found = []
    for number in range(count):
        with dask.annotate(workers=[workers[number % len(workers)]], allow_other_workers=True):
            work = dask.delayed(functools.partial(_meet, on=on, then=then), pure=False)
            found.append(work(*([piece[number] for piece in side] for side in pieces)))
    return found


def _meet(lefts: list[Any], rights: list[Any], *, on: str, then: Callable[[Any], Any]) -> Any:
    concat = importlib.import_module(backend.library(lefts[0])).concat
    left, right = (one[0] if len(one) == 1 else concat(one, ignore_index=True) for one in (lefts, rights))
    return then(left.merge(right, on=on, how="inner"))
