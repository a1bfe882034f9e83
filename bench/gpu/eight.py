"""What eight GPUs are to show, as two calls of run.py (``--eight 1``, ``--eight 2``) that fit ten minutes each, by worth.

The seconds of a step are the most that it may take; its cases begin only if the seconds that they say they take are left,
and what is left out is written as skipped. ``about`` is what each case took on four GPUs (with data of half the size) or on two, by
the files of docs/benchmarks; a test adds them up. Of a headline first comes the workload, whose seconds are judged, then the
published way beside the cluster by hand. Left out is that way over TCP (70 s): it is known to be slow, and no figure of it is asked for.
"""

from __future__ import annotations

from typing import NamedTuple

GPUS = 8
START = 40.0  # seconds until the first section begins: the pack is unpacked, Slurm starts


class Step(NamedTuple):
    """A section, which of its cases (``section.py``'s TEXT), how many rounds of what is compared, its most seconds, and each case's."""

    section: str
    case: str
    rounds: int
    seconds: float
    about: tuple[float, ...] = ()


CALLS = {
    1: [Step("smoke", "", 1, 60, (10,)),
        # The jobs of SVD, array, join, join over TCP and CSV (the last two were not measured), then k-means.
        Step("headlines", "by the job,kmeans", 1, 400, (27, 23, 21, 35, 40, 119)),
        Step("headlines", "svd in turns,array in turns,join in turns,csv in turns", 1, 260, (61, 56, 44, 41))],
    2: [Step("bringup", "", 2, 240, (90, 90)),
        Step("verdict", "default,two nodes", 1, 90, (17, 20)),
        Step("killed", "", 1, 130, (52, 52)),  # of two GPUs
        Step("headlines", "search", 1, 60, (51,)),
        Step("merge", "by hand", 1, 100, (100,))],  # as many starts as there is time for
}  # fmt: skip
