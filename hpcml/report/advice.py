"""Advice on a run: rules as data over its figures, at most three sentences, the worst first.

The rules and figures here are of every kind of run; a kind has more (:class:`hpcml.report.ledger.Accounting`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hpcml.errors import ConfigError
from hpcml.kind import Kind

SHORTEST = 300.0  # seconds of a run under which most rules say nothing
MOST = 3
FIGURES = (  # of every kind of run, which rules may speak of: docs/report.md
    "seconds", "paid_hours", "useful", "bring_up", "idle_tail", "not_known", "gpus", "gpus_unused", "gpu_use",
    "cpu_use", "imbalance", "throttled", "energy_kwh", "memory_peak", "memory_asked", "memory_used", "time_used",
)  # fmt: skip


class Rule(NamedTuple):
    """A sentence that is said where a figure is above or below its limit.

    The sentence may name any figure, or a word of the kind's, as ``{figure}``. Of the rules that hold those with most
    ``weight`` times the figure (for ``below``: times what is missing to 100) come first. Where one holds that is
    ``alone``, no other is said.
    """

    name: str
    figure: str
    sentence: str
    above: float | None = None
    below: float | None = None
    weight: float = 1.0
    alone: bool = False
    shortest: float = SHORTEST  # seconds of a run for which it holds
    unless: str = ""  # an event of the run, after which the sentence would be wrong

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Whether the sentence is to be said; not where its figure, or one that it names, is not known."""
        value = figures.get(self.figure)
        if value is None or figures.get("seconds", 0.0) < self.shortest:
            return False
        if self.above is not None and value <= self.above:
            return False
        return self.below is None or value < self.below

    def score(self, figures: Mapping[str, float]) -> float:
        """Return the weight that orders advice: the largest is the worst."""
        value = figures[self.figure]
        return self.weight * (100 - value if self.below is not None else value)


class Advice(NamedTuple):
    """A sentence, with the rule and the figure that it comes from."""

    rule: str
    figure: str
    value: float
    sentence: str


RULES = (
    Rule(
        "gpu-unused",
        "gpus_unused",
        "{gpus_unused} of {gpus} GPUs were never used. Request fewer GPUs, or give work to every GPU.",
        above=0,
        alone=True,
    ),
    Rule(
        "gpu-low",
        "gpu_use",
        "The GPUs were in use for {useful} % of the job's time. Use fewer GPUs, or give each GPU more work.",
        below=25,
    ),
    Rule(
        "slow-start",
        "bring_up",
        "The script started after {bring_up} % of the job's time. A container image on the nodes' own "
        "disks (runtime.stage), or a Python environment with fewer small files, starts faster.",
        above=20,
    ),
    Rule(
        "throttled",
        "throttled",
        "Heat or the power supply slowed a GPU down in {throttled} % of the samples. Report the GPU to the site, and "
        "use other nodes (--exclude).",
        above=10,
        weight=1.5,
    ),
    Rule(
        "time-asked",
        "time_used",
        "The run used {time_used} % of its time limit. A job with a shorter limit may start earlier (--time).",
        below=60,
        weight=0.2,
    ),
    Rule(
        "memory-asked",
        "memory_used",
        "The run used at most {memory_used} % of the node memory that it requested. A job that requests less memory "
        "may start earlier (--memory-per-node).",
        below=50,
        weight=0.1,
    ),
)


def of_site(rules: Mapping[str, Any], kind: Kind) -> dict[str, dict[str, str]]:
    """Return a site's changes of the rules (:class:`hpcml.sites.schema.Advice`) for a kind of run, by their names.

    Raises
    ------
    ConfigError
        If one lacks what a rule needs, or has a limit or a figure that is none.
    """
    of_kind = [accounting] if (accounting := kind.accounting()) else []
    known = [rule.name for rule in (*RULES, *(rule for own in of_kind for rule in own.rules))]
    figures = [*FIGURES, *(figure.name for own in of_kind for figure in own.figures)]
    changes: dict[str, dict[str, str]] = {}
    for name, rule in rules.items():
        if rule.off:
            changes[name] = {"off": "true"}
            continue
        keys = ("figure", "above", "below", "sentence")
        changes[name] = {key: text for key in keys if (text := getattr(rule, key))}
        _check(name, rule, known, figures)
    return changes


def _check(name: str, rule: Any, known: Sequence[str], figures: Sequence[str]) -> None:
    """Refuse a site's rule that lacks what a rule needs, or has a limit or a figure that is none."""
    place = f"report.advice.{name}"
    for key in ("above", "below"):
        text = getattr(rule, key)
        try:
            float(text or "0")
        except ValueError as error:
            hint = f"Write {key} = 20."
            raise ConfigError(f"'{text}' is not a number", place=f"{place}.{key}", hint=hint) from error
    is_complete = rule.figure and rule.sentence and (rule.above or rule.below)
    if name not in known and not is_complete:
        hint = "A new rule needs the keys 'figure' and 'sentence', and 'above' or 'below'."
        hint += f" Existing rules: {', '.join(known)}."
        raise ConfigError(f"Rule '{name}' is neither a known rule nor a complete new rule", place=place, hint=hint)
    if rule.figure and rule.figure not in figures:
        hint = f"Use one of: {', '.join(figures)}."
        raise ConfigError(f"Unknown figure '{rule.figure}'", place=f"{place}.figure", hint=hint)


def changed(rules: Iterable[Rule], changes: Mapping[str, Mapping[str, object]]) -> tuple[Rule, ...]:
    """Return rules with a site's changes: limits of an existing rule, or a rule more.

    A change has ``figure``, ``above``, ``below`` and ``sentence`` as they are to be; ``off`` takes the rule away.
    """
    by_name = {rule.name: rule for rule in rules}
    for name, change in changes.items():
        if change.get("off"):
            by_name.pop(name, None)
            continue
        rule = by_name.get(name) or Rule(name, "", "")
        rule = rule._replace(
            figure=str(change.get("figure") or rule.figure), sentence=str(change.get("sentence") or rule.sentence)
        )
        if above := change.get("above"):
            rule = rule._replace(above=float(str(above)))
        if below := change.get("below"):
            rule = rule._replace(below=float(str(below)))
        by_name[name] = rule
    return tuple(by_name.values())


def advise(rules: Iterable[Rule], figures: Mapping[str, float], texts: Mapping[str, str]) -> tuple[Advice, ...]:
    """Return the advice that applies, the worst first; ``texts`` are names that sentences may use beside figures."""
    held = [rule for rule in rules if rule.holds(figures)]
    held = [rule for rule in held if rule.alone] or held
    held.sort(key=lambda rule: -rule.score(figures))
    return tuple(
        Advice(rule.name, rule.figure, figures[rule.figure], _filled(rule.sentence, figures, texts))
        for rule in held[:MOST]
    )


def _filled(sentence: str, figures: Mapping[str, float], texts: Mapping[str, str]) -> str:
    """Return a sentence with its figures and words; one that is not known is a question mark."""

    def text(match: re.Match[str]) -> str:
        value = figures.get(match[1])
        return texts.get(match[1], "?") if value is None else f"{value:.1f}" if 0 < value < 1 else f"{value:.0f}"

    return re.sub(r"\{(\w+)\}", text, sentence)
