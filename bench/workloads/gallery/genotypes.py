"""Genotypes as counts of an allele, 0, 1 or 2, and 3 for missing, on NumPy's and CuPy's arrays."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

MISSING = 3
POPULATIONS = 5
APART = 0.1  # Wright's F_ST of the populations


@functools.lru_cache(maxsize=4)
def frequencies(columns: int, seed: int) -> npt.NDArray[np.float32]:
    """Return allele frequencies, (populations, columns), that drifted from common ones (Balding and Nichols 1995)."""
    rng = np.random.default_rng(seed)
    common, spread = rng.uniform(0.05, 0.5, columns), (1 - APART) / APART
    return rng.beta(common * spread, (1 - common) * spread, (POPULATIONS, columns)).astype("float32")


def draw(library: Any, rng: Any, first: int, rows: int, columns: int, *, seed: int, missing: float) -> Any:
    """Return genotypes of rows that belong to the populations in turn, by NumPy or CuPy and its generator."""
    table = library.asarray(frequencies(columns, seed))
    chance = table[(library.arange(rows) + first) % POPULATIONS]
    counts = (rng.random(chance.shape, dtype=np.float32) < chance).astype("uint8")
    counts += rng.random(chance.shape, dtype=np.float32) < chance
    if missing:
        counts[rng.random(chance.shape, dtype=np.float32) < missing] = MISSING
    return counts
