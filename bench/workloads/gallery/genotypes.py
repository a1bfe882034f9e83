"""Genotypes as counts of an allele, 0, 1 or 2, and 3 for missing, in a byte each or packed four to a byte.

Four genotypes fill a byte from its lowest two bits up, as in PLINK's .bed; the codes are plain counts, not PLINK's.
A row takes ceil(columns / 4) bytes; what is left of its last byte says missing. All works on NumPy's and CuPy's arrays.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

MISSING = 3
PER_BYTE = 4
POPULATIONS = 5
APART = 0.1  # Wright's F_ST of the populations


def packed_width(columns: int) -> int:
    """Return the bytes of a packed row."""
    return -(-columns // PER_BYTE)


def pack(counts: Any) -> Any:
    """Return (rows, ceil(columns / 4)) bytes for (rows, columns) genotypes, uint8 of 0 … 3."""
    rows, columns = counts.shape
    width = packed_width(columns)
    whole = np.full_like(counts, MISSING, shape=(rows, width * PER_BYTE))
    whole[:, :columns] = counts
    four = whole.reshape(rows, width, PER_BYTE)
    packed = four[:, :, 0].copy()
    for place in range(1, PER_BYTE):
        packed |= four[:, :, place] << (2 * place)
    return packed


def unpack(packed: Any, columns: int) -> Any:
    """Return the (rows, columns) genotypes that :func:`pack` packed."""
    rows, width = packed.shape
    four = np.empty_like(packed, shape=(rows, width, PER_BYTE))
    for place in range(PER_BYTE):
        four[:, :, place] = (packed >> (2 * place)) & 3
    return four.reshape(rows, width * PER_BYTE)[:, :columns]


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
