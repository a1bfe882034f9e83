"""What eight GPUs are to show, as two calls of run.py (``--eight 1``, ``--eight 2``) that fit ten minutes each, by worth.

The seconds of a step are the most that it may take; its cases begin only if the seconds that they say they take are left,
and what is left out is written as skipped. Beside the steps: what they took on four GPUs, where they ran there.
"""

from __future__ import annotations

from typing import NamedTuple

GPUS = 8


class Step(NamedTuple):
    """A section, which of its cases (``section.py``'s TEXT), how many rounds of what is compared, and its most seconds."""

    section: str
    case: str
    rounds: int
    seconds: float


CALLS = {
    1: [Step("smoke", "", 1, 60),  # 10 s
        Step("headlines", "svd,array,join,kmeans,csv", 1, 525)],  # 61 + 56 + 44 + 70 (over TCP) + 119 + 41 s, data of half the size
    2: [Step("bringup", "", 2, 260),  # 90 s for a shape
        Step("verdict", "default,two nodes", 1, 90),  # 37 s
        Step("killed", "", 1, 130),  # 52 s for a shape, of two GPUs
        Step("merge", "by hand", 1, 110),  # as many starts as there is time for
        Step("headlines", "search", 1, 60)],  # 51 s
}  # fmt: skip
