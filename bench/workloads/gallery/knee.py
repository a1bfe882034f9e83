"""Find the knee of a curve: the elbow of k-means' inertia, or of DBSCAN's sorted distances."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RULE = "point farthest from the line between the curve's ends, both axes scaled to 0 … 1"


def farthest(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the x of the knee: where a curve that bends one way is farthest from the line between its ends.

    The two axes are scaled to 0 … 1 first. That is Kneedle's rule without its smoothing (Satopää, Albrecht, Irwin and
    Raghavan 2011, "Finding a 'Kneedle' in a Haystack"). A curve without a bend has no knee: its first x is returned.

    Raises
    ------
    ValueError
        Fewer than three points, or x that is not in ascending order.
    """
    across, up = np.asarray(x, dtype="float64"), np.asarray(y, dtype="float64")
    if len(across) < 3 or len(across) != len(up) or (np.diff(across) < 0).any():
        raise ValueError("a knee needs three points or more, in ascending order")
    across = (across - across[0]) / max(across[-1] - across[0], 1e-300)
    height = max(float(np.ptp(up)), 1e-300)
    chord = up[0] + across * (up[-1] - up[0])
    return x[int(np.argmax(np.round(np.abs(up - chord) / height, 12)))]
