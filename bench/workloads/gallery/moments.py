"""Means, deviations and Pearson's correlations of columns with gaps, as pandas defines them, on CPUs and GPUs alike.

cuDF's frames have no correlation of columns with missing values and no deviation under Dask. The sums behind both are
plain array arithmetic here, which NumPy and CuPy share: a first pass finds the means, a second one sums squares and
products about them, so that large values with small differences keep their digits. A pair of columns is compared by the
rows that have both (pandas' pairwise-complete rows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import numpy.typing as npt
import pandas as pd

from gallery import backend

Numbers = npt.NDArray[np.float64]
QUANTILES = (0.25, 0.5, 0.75)
NOISE = 1e-10  # of a sum of squares: what is left of it by subtraction is rounding, not spread


@dataclass(frozen=True)
class Moments:
    """Sums over all rows.

    Attributes
    ----------
    count, total, low, high
        Of each column: rows that have a value, their sum and extremes.
    pairs
        [i, j]: rows in which columns i and j both have a finite value; the next three are over these rows.
    sums, squares
        [i, j]: of column i, less its mean.
    products
        [i, j]: of columns i and j, each less its mean.
    """

    names: list[str]
    count: Numbers
    total: Numbers
    low: Numbers
    high: Numbers
    pairs: Numbers
    sums: Numbers
    squares: Numbers
    products: Numbers

    def spread(self) -> Numbers:
        """Return the sum of squares of column i about its mean over the pair's rows, NaN where all are equal."""
        with np.errstate(divide="ignore", invalid="ignore"):
            left = self.squares - self.sums**2 / self.pairs
        return np.where(left > NOISE * self.squares, left, np.nan)

    def table(self) -> pd.DataFrame:
        """Return a row per column: count, mean, std (of a sample: by count - 1), min and max."""
        rows = np.where(self.count > 0, self.count, np.nan)
        mean, degrees = self.total / rows, np.where(self.count > 1, self.count - 1, np.nan)
        std = np.sqrt(np.nan_to_num(np.diag(self.spread())) / degrees)
        columns = {"count": self.count.astype("int64"), "mean": mean, "std": np.where(np.isfinite(mean), std, np.nan)}
        low, high = (np.where(self.count > 0, end, np.nan) for end in (self.low, self.high))
        return pd.DataFrame({**columns, "min": low, "max": high}, index=self.names)

    def correlation(self) -> pd.DataFrame:
        """Return Pearson's correlations; NaN with a column that is constant in the pair's rows."""
        with np.errstate(divide="ignore", invalid="ignore"):
            together = self.products - self.sums * self.sums.T / self.pairs
        spread = np.sqrt(self.spread())
        return pd.DataFrame(np.clip(together / (spread * spread.T), -1, 1), self.names, self.names)


def of(frame: Any, names: list[str]) -> Moments:
    """Return the moments of a Dask frame's columns of numbers or truths, in two passes over its partitions."""
    parts = frame[names].to_delayed()
    found = dask.compute(*(dask.delayed(_first)(part, names) for part in parts))
    count, total = (sum(part[place] for part in found) for place in (0, 1))
    low, high = np.min([part[2] for part in found], axis=0), np.max([part[3] for part in found], axis=0)
    mean = total / np.maximum(count, 1)
    shift = np.where(np.isfinite(mean), mean, 0.0)
    shift = np.where(low < high, shift, np.where(np.isfinite(low), low, 0.0))  # constant: exactly zero about itself
    crossed = sum(dask.compute(*(dask.delayed(_second)(part, names, shift) for part in parts)))
    return Moments(names, count, total, low, high, *crossed)


def quantiles(frame: Any, names: list[str], shares: tuple[float, ...]) -> pd.DataFrame:
    """Return quantiles of a Dask frame's columns, a row per share; Dask's, approximate over several partitions."""
    found = dask.compute([frame[name].astype("float64").quantile(list(shares)) for name in names])[0]
    return pd.DataFrame({name: backend.to_numpy(one) for name, one in zip(names, found, strict=True)})


def described(frame: Any, found: Moments) -> pd.DataFrame:
    """Return the table of a frame's moments with quantiles before the maximum."""
    table = found.table()
    for share, values in quantiles(frame, found.names, QUANTILES).iterrows():
        table.insert(len(table.columns) - 1, f"{share:.0%}", values)
    return table


def columns(part: Any, names: list[str]) -> Any:
    """Return a partition's columns side by side, gaps as NaN, as an array of the library that it lies in."""
    return np.stack([part[name].astype("float64").values for name in names], axis=1)


def _first(part: Any, names: list[str]) -> Numbers:
    """Return count, total, low and high of each column, on the host; this runs on a worker."""
    if not len(part):
        nothing, infinite = np.zeros(len(names)), np.full(len(names), np.inf)
        return np.stack([nothing, nothing, infinite, -infinite])
    x = columns(part, names)
    gap = np.isnan(x)
    found = [(~gap).sum(axis=0).astype("float64"), np.where(gap, 0.0, x).sum(axis=0)]
    found += [np.where(gap, np.inf, x).min(axis=0), np.where(gap, -np.inf, x).max(axis=0)]
    host: Numbers = np.stack([backend.to_numpy(one) for one in found])
    return host


def _second(part: Any, names: list[str], shift: Numbers) -> Numbers:
    """Return pairs, sums, squares and products about the shifts, on the host; this runs on a worker."""
    if not len(part):
        return np.zeros((4, len(names), len(names)))
    x = columns(part, names)
    usable = np.isfinite(x)
    z, have = np.where(usable, x - np.asarray(shift, like=x), 0.0), usable.astype("float64")
    found = (have.T @ have, z.T @ have, (z * z).T @ have, z.T @ z)
    host: Numbers = np.stack([backend.to_numpy(one) for one in found])
    return host
