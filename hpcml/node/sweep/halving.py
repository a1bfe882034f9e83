"""Asynchronous successive halving: a point whose metric is not among the best so far is stopped.

The rule is that of ASHA (L. Li, K. Jamieson, A. Rostamizadeh, E. Gonina, J. Ben-tzur, M. Hardt, B. Recht, A. Talwalkar:
"A System for Massively Parallel Hyperparameter Tuning", MLSys 2020), in the form that stops: at the steps MIN, MIN·ETA,
MIN·ETA², … a point goes on if its metric is among the best 1/ETA of those that all points have had there so far. It is
decided at once and never taken back; the paper pauses instead, and goes on with the best later.

What a point had at a step is an empty file ``rungs/METRIC/STEP/KEY=VALUE`` of its run: a listing is all that has to be
read, nothing is locked, and a run that begins again, or another one of the sweep, finds it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcml.paths import RunPaths

Values = Mapping[str, float]  # by the point's key; not a number is the worst


class Settings(NamedTuple):
    """What ``--halving METRIC``, ``--eta``, ``--halving-min-steps`` and ``--maximize`` say.

    ``shared`` is a folder in which several runs tell each other what their points had, empty without one.
    """

    metric: str
    eta: int
    min_steps: int
    maximize: bool
    shared: str = ""


class Stop(NamedTuple):
    """That a point is to stop: at which step, and why in words."""

    step: int
    why: str


def rung_of(step: int, settings: Settings) -> int:
    """Return the last step up to this one at which points are compared, 0 before the first."""
    rung = 0
    following = settings.min_steps
    while following <= step:
        rung, following = following, following * settings.eta
    return rung


def is_among_the_best(value: float, others: Values, settings: Settings) -> bool:
    """Whether a value is among the best 1/ETA of all; the best of all always is, also if it is the only one."""
    sign = -1 if settings.maximize else 1
    if math.isnan(value):
        return False
    better = sum(not math.isnan(other) and sign * other < sign * value for other in others.values())
    return better < max(1, (len(others) + 1) // settings.eta)


def values_in(folder: Path) -> dict[str, float]:
    """Return what the files of one step tell, empty if there are none."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    found = {}
    for name in names:
        key, _, text = name.partition("=")
        try:
            found[key] = float(text)
        except ValueError:
            continue  # it is none of ours
    return found


class Judge:
    """Judges the reports of the point that this process is."""

    def __init__(self, run: RunPaths, key: str, settings: Settings) -> None:
        self.run, self.key, self.settings = run, key, settings
        self.reports = self.rung = 0
        self.stop: Stop | None = None

    def look(self, step: int | None, metrics: Mapping[str, float]) -> Stop | None:
        """Take note of a report; return whether the point is to stop, and go on saying so once it is."""
        if self.settings.metric not in metrics:
            return self.stop
        self.reports += 1
        rung = rung_of(self.reports if step is None else step, self.settings)
        if rung <= self.rung or self.stop:
            return self.stop
        self.rung = rung
        value = metrics[self.settings.metric]
        others = self._before(rung)
        for run in self._runs():
            folder = run.rungs_of(self.settings.metric) / str(rung)
            others |= values_in(folder)
            self._note(folder, value)
        others.pop(self.key, None)  # of a try that was interrupted
        if not is_among_the_best(value, others, self.settings):
            told = f"{self.settings.metric}={value:.6g} is not among the best 1/{self.settings.eta}"
            self.stop = Stop(rung, f"{told} of {len(others) + 1} points at step {rung}")
        return self.stop

    def _runs(self) -> list[RunPaths]:
        """Return this run, which later ones read, and what stands for all that go on beside it."""
        shared = Path(self.settings.shared) if self.settings.shared else None
        return [self.run, *([RunPaths(shared)] if shared and shared.is_dir() else [])]

    def _before(self, rung: int) -> dict[str, float]:
        """Return what points of earlier runs had, as it was submitted with this one."""
        plan = json.loads(self.run.points.read_text())
        found = plan["halving"]["before"].get(str(rung), {})
        return {key: math.nan if value is None else value for key, value in found.items()}

    def _note(self, folder: Path, value: float) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in os.listdir(folder):
            if name.startswith(f"{self.key}="):
                (folder / name).unlink(missing_ok=True)
        (folder / f"{self.key}={value!r}").touch(mode=0o600)


_judges: list[Judge] = []  # of this process


def look(run: RunPaths, point: Mapping[str, Any], step: int | None, metrics: Mapping[str, float]) -> Stop | None:
    """Return whether the point that this process is has to stop after a report."""
    if not _judges:
        _judges.append(Judge(run, point["key"], Settings(**point["halving"])))
    return _judges[0].look(step, metrics)
