"""``--search``, ``--sampler`` and ``--pruner``: what Optuna is to do for a sweep, checked before a submission."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcml.errors import UsageError
from hpcml.paths import sweep_folder
from hpcml.sweeps import points
from hpcml.sweeps.points import Distribution, Point, Value

# Not Optuna's Gaussian process: it computes by PyTorch, whose threads no fork may inherit, and points are forks.
_SAMPLERS = {"tpe": "TPESampler", "cmaes": "CmaEsSampler"}
_NEEDS = {"CmaEsSampler": ("cmaes",)}  # beside Optuna
_PRUNERS = {"asha": "SuccessiveHalvingPruner", "median": "MedianPruner", "hyperband": "HyperbandPruner"}
_CHOICE = re.compile(r"(\w+)(?:\((.*)\))?")

Tool = tuple[str, dict[str, Any]]  # a class of Optuna's, and its arguments


class Search(NamedTuple):
    """What Optuna does for a sweep."""

    metric: str
    maximize: bool
    seed: int
    pruner: Tool
    sampler: Tool = ("", {})
    draws: int = 0  # points of the space; with 0 the points were given, and are pruned only
    space: Mapping[str, Distribution] = {}  # by parameter

    @property
    def text(self) -> str:
        """What makes another study of it."""
        return json.dumps([self.metric, self.maximize, sorted(self.space.items())])

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the packages that the sampler needs on the nodes beside Optuna."""
        return _NEEDS.get(self.sampler[0], ())

    def points(self) -> list[Point]:
        """Return a point for each draw, whose values are not known before it begins."""
        return [(Value("draw", str(number), number),) for number in range(self.draws)]

    def for_the_nodes(self, runs: Path, sweep: str, key: str) -> dict[str, object]:
        """Return it as the first node reads it; the study's name ends in ``key``."""
        choices = {name: one.of for name, one in self.space.items() if one.kind == "choice"}
        table = self._asdict()
        del table["draws"]
        return table | {
            "journal": str(sweep_folder(runs, sweep) / "study.journal"),
            "name": f"{sweep}-{key}",
            "typed": {name: {text: points.typed(str(text)) for text in of} for name, of in choices.items()},
        }


def search(
    values: Sequence[str], sampler: str, pruner: str, metric: str, *, maximize: bool, seed: int
) -> Search | None:
    """Return the search by Optuna that the command line requests, None if it requests none.

    Parameters
    ----------
    words
        Those of ``--search``: a number of draws, then ``NAME=DISTRIBUTION``.
    sampler, pruner
        ``tpe``, or ``tpe(n_startup_trials=20)`` with arguments of Optuna's class; empty for none.

    Raises
    ------
    UsageError
        If a word is none of these, or there is no metric.
    """
    if sampler and not values:
        raise UsageError("--sampler needs --search", place="--sampler", hint="Add --search N NAME=DISTRIBUTION.")
    if not values and not pruner:
        return None
    option = "--search" if values else "--pruner"
    if not metric:
        hint = "Choose a metric that the script reports: --metric loss. With --maximize a larger value is better."
        raise UsageError(f"{option} needs a metric", place=option, hint=hint)
    stops = _tool(pruner, "--pruner", _PRUNERS, "pruners") if pruner else ("", {})
    if not values:
        return Search(metric, maximize, seed, stops)
    draws, space = points.distributions(values, "--search")
    if "draw" in space:
        raise UsageError(
            "'draw' is reserved: it numbers the points of a search", place="--search", hint="Choose another name."
        )
    return Search(
        metric, maximize, seed, stops, _tool(sampler or "tpe", "--sampler", _SAMPLERS, "samplers"), draws, space
    )


def _tool(text: str, option: str, classes: Mapping[str, str], module: str) -> Tool:
    """Return the class and the arguments that ``name(key=value,…)`` means; Optuna checks them, if it is here."""
    match = _CHOICE.fullmatch(text)
    if not match or match[1] not in classes:
        raise UsageError(
            f"'{text}' is not one of {', '.join(classes)}", place=option, hint=f"Write {option} {next(iter(classes))}."
        )
    arguments = [word.partition("=") for word in (match[2] or "").split(",") if word]
    options = {name.strip(): points.typed(value.strip()) for name, _, value in arguments}
    try:
        import optuna
    except ImportError:
        return classes[match[1]], options  # hpcml's own Python need not have it
    try:
        getattr(getattr(optuna, module), classes[match[1]])(**options)
    except (TypeError, ValueError, AttributeError, ImportError) as error:
        hint = f"Use the arguments of optuna.{module}.{classes[match[1]]}."
        raise UsageError(f"Optuna refuses '{text}': {error}", place=option, hint=hint) from error
    return classes[match[1]], options
