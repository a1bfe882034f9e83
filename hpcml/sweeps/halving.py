"""What ``--halving`` says, and what the points of a sweep's earlier runs had at the steps where points are compared."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from hpcml import files
from hpcml.errors import UsageError
from hpcml.paths import RunPaths
from hpcml.runs import directories
from hpcml.sweeps.store import Sweep

_STEPS = 64  # folders of a run that are read: a factor of 2 each


class Halving(NamedTuple):
    """The metric, which share of points goes on (1/eta), and the first step at which they are compared."""

    metric: str
    eta: int = 3
    min_steps: int = 1

    def checked(self) -> Halving:
        """Return it; UsageError if no point could be stopped so."""
        if not self.metric:
            raise UsageError("The metric is empty", place="--halving", hint="Write --halving loss.")
        if self.eta < 2:
            raise UsageError(f"{self.eta} is too few", place="--eta", hint="Of so many points one goes on: 3 or 4.")
        if self.min_steps < 1:
            raise UsageError(f"{self.min_steps} is too few", place="--halving-min-steps", hint="Write at least 1.")
        return self


def for_the_nodes(
    found: Halving, runs: Path, sweep: Sweep, keys: Collection[str], *, maximize: bool
) -> dict[str, object]:
    """Return it as the first node reads it, with what earlier runs' points had: by step, and by key (None: no number).

    Only points with these keys count: what another script made is no measure.
    """
    before: dict[str, dict[str, float | None]] = {}
    for run_id in sweep.runs:
        if files.is_own_folder(runs / run_id):
            _read(RunPaths(runs / run_id).rungs_of(found.metric), keys, before)
    return {**found._asdict(), "maximize": maximize, "before": before}


def _read(folder: Path, keys: Collection[str], found: dict[str, dict[str, float | None]]) -> None:
    with directories.storage(folder):
        try:
            steps = sorted(name for name in os.listdir(folder) if name.isdecimal())[:_STEPS]
        except FileNotFoundError:
            return
        for step in steps:
            for name in os.listdir(folder / step):
                key, _, text = name.partition("=")
                try:
                    value = float(text)
                except ValueError:
                    continue  # it is none of hpcml's
                if key in keys:
                    found.setdefault(step, {})[key] = value if math.isfinite(value) else None
