"""The study of a sweep that is searched or pruned: Optuna's, in a journal file that all jobs of the sweep append to.

Optuna (T. Akiba, S. Sano, T. Yanase, T. Ohta, M. Koyama: "Optuna: A Next-generation Hyperparameter Optimization
Framework", KDD 2019) is asked for a point's values when the point begins, gets what the point reports, and says
whether to stop it. The process that starts the points does that for all of them.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
import zlib
from collections.abc import Mapping
from typing import Any

from hpcml.failures import point as point_end
from hpcml.node.sweep.points import Point, Settings


class Study:
    """Optuna's study, and this run's trials in it by the key of their point.

    It has no space where the points were given and are only pruned.
    """

    def __init__(self, settings: Settings, job: int) -> None:
        """Open the study, or begin it; ``job`` is the position of this run among those that share it."""
        import optuna
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        mend(settings.journal)
        self.settings, self.states = settings, optuna.trial.TrialState
        pruner, options = settings.pruner
        self.study = optuna.create_study(
            study_name=settings.name,
            storage=optuna.storages.JournalStorage(JournalFileBackend(settings.journal)),
            direction="maximize" if settings.maximize else "minimize",
            pruner=getattr(optuna.pruners, pruner)(**options) if pruner else optuna.pruners.NopPruner(),
            load_if_exists=True,
        )
        sampler, options = settings.sampler
        if sampler == "CmaEsSampler":
            importlib.import_module("cmaes")  # Optuna itself asks for it with the first point
        if sampler:  # no two jobs, and no two commands, begin with the same random numbers
            seed = zlib.crc32(f"{settings.seed} {job} {len(self.study.trials)}".encode())
            self.study.sampler = getattr(optuna.samplers, sampler)(**{"seed": seed, **options})
        self.space = {name: _distribution(*one) for name, one in settings.space.items()}
        self.trials: dict[str, Any] = {}
        self.reports: dict[str, int] = {}
        self.pruned: dict[str, int] = {}  # the step of the last report, by key

    def begin(self, point: Point) -> Point:
        """Begin a trial for a point, and return the point with its values."""
        key = point.key
        for old in self.study.get_trials(deepcopy=False, states=(self.states.RUNNING,)):
            if old.user_attrs.get("point") == key:  # an earlier try, which a killed job left
                self.study.tell(old.number, state=self.states.FAIL)
        values = {name: value for name, value in point.values.items() if name != "draw"}
        if self.space and values:  # it failed with them
            self.study.enqueue_trial({name: self._chosen(name, value) for name, value in values.items()})
        numbers = {name: value for name, value in values.items() if type(value) in (int, float)}
        given = {name: _distribution("uniform", [value, value]) for name, value in numbers.items()}
        trial = self.study.ask(self.space or given)
        trial.set_user_attr("point", key)
        for name in values.keys() - numbers.keys() if not self.space else ():
            trial.set_user_attr(name, values[name])
        self.trials[key], self.reports[key] = trial, 0
        if not self.space:
            return point
        texts = {name: str(value) for name, value in trial.params.items()}
        shown = " ".join(f"{name}={text}" for name, text in texts.items())
        values = {name: self.settings.typed.get(name, {}).get(value, value) for name, value in trial.params.items()}
        return point._replace(values=values, texts=texts, shown=f"{point.shown} {shown}")

    def _chosen(self, name: str, value: Any) -> Any:
        """Return the study's form of a point's value: of a choice its text."""
        return next(
            (text for text, one in self.settings.typed.get(name, {}).items() if repr(one) == repr(value)), value
        )

    def report(self, key: str, step: int | None, metrics: Mapping[str, float | None]) -> bool:
        """Take note of a report, and return True if its point is to stop; once it is, it stays so."""
        if key in self.pruned or self.settings.metric not in metrics:
            return key in self.pruned
        self.reports[key] += 1
        value, trial = metrics[self.settings.metric], self.trials[key]
        at = self.reports[key] if step is None else max(0, step)
        try:
            trial.report(math.nan if value is None else value, at)
        except RuntimeError:  # of a trial that another run has ended, because it runs the point now
            return False
        if trial.should_prune():
            self.pruned[key] = at
        return key in self.pruned

    def end(self, key: str, state: str, value: float | None) -> None:
        """Tell the study how a point ended: its state, empty if it was interrupted, and the metric's last value.

        A trial that another run has ended meanwhile, because it runs the point now, stays that run's.
        """
        trial, ended = self.trials.pop(key), self.states.FAIL
        if state == point_end.PRUNED:
            ended = self.states.PRUNED
        elif state == point_end.OK and value is not None:
            ended = self.states.COMPLETE
        self.study.tell(trial, value if ended is self.states.COMPLETE else None, state=ended, skip_if_finished=True)


def mend(journal: str) -> None:
    """Remove the parts of lines from a journal that a full disk, a quota or a node that crashed has left.

    Optuna refuses a journal with such a part. Its result is lost: the trial counts as failed. Bytes of whole lines
    stay where they are, since other jobs of the sweep may read on from there. A part that another line follows in the
    same line becomes blanks.

    Raises
    ------
    ValueError
        If a line is damaged in another way.
    """
    from optuna.storages.journal import JournalFileSymlinkLock

    if not os.path.exists(journal):
        return
    lock = JournalFileSymlinkLock(journal)
    lock.acquire()
    try:
        with open(journal, "r+b") as file:
            place = 0
            for number, line in enumerate(file.readlines(), 1):
                if not line.endswith(b"\n"):
                    file.truncate(place)
                elif blanks := _part_before(line):
                    file.seek(place)
                    file.write(b" " * blanks)
                elif blanks is None:
                    hint = "Remove this line while no job of the sweep runs."
                    raise ValueError(f"line {number} of the sweep's journal {journal} is damaged. {hint}")
                place += len(line)
    finally:
        lock.release()


def _part_before(line: bytes) -> int | None:
    """Return the bytes of a part before the whole line in a line of the journal, as a number; None without a whole."""
    for start in (0, *(match.start() for match in re.finditer(rb'{"op_code"', line))):
        with contextlib.suppress(ValueError):
            if isinstance(json.loads(line[start:]), dict):
                return start
    return None


def _distribution(kind: str, bounds: list[Any]) -> Any:
    from optuna import distributions

    if kind == "choice":
        return distributions.CategoricalDistribution(bounds)
    if kind == "randint":
        return distributions.IntDistribution(*bounds)
    low, high = bounds
    return distributions.FloatDistribution(low, high, log=kind == "loguniform")
