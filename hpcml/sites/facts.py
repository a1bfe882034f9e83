"""How each value of a profile is known: which facts hold for the values in force, and which are doubtful."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping

from hpcml.errors import ConfigError, did_you_mean, nearest
from hpcml.sites.layers import Layers
from hpcml.sites.schema import CONFIDENCE, Fact, Site

DOUBTFUL = CONFIDENCE[2:]


def in_force(written: Mapping[str, Fact], layers: Layers) -> dict[str, Fact]:
    """Return the fact of each value that has one, and the facts with a value of their own.

    A fact is of the value that its key names, or of all below the table that it names. It holds for those that were
    set where the fact was: who sets another value answers for it.

    Raises
    ------
    ConfigError
        If a fact lacks something, or is of nothing.
    """
    found: dict[str, Fact] = {}
    covered: set[str] = set()
    for escaped, value in layers.values.items():
        if escaped.startswith("facts."):
            continue
        key = escaped.replace("\0", ".")
        for above in _and_above(key):
            if above in written:
                covered.add(above)
                if _origin(layers, above) == value.origin:
                    found[key] = written[above]
                break
    for key, fact in written.items():
        _check(fact, _place(layers, key), is_setting=key in covered)
        if not (fact.value or key in covered or any(above in layers.values for above in _and_above(key))):
            hint = "Correct the key, or write the value into the fact: value = '…'."
            raise ConfigError("The fact is of no value that is set", place=_place(layers, key), hint=hint)
        if fact.value:
            found[key] = fact
    return found


def _and_above(key: str) -> Iterator[str]:
    while key:
        yield key
        key = key.rpartition(".")[0]


def _origin(layers: Layers, key: str) -> str:
    escaped = key.replace(".", "\0")
    return layers.origin(f"facts.{escaped}")


def _place(layers: Layers, key: str) -> str:
    return f"{_origin(layers, key)}: facts.{key}"


def _check(fact: Fact, place: str, *, is_setting: bool) -> None:
    if fact.confidence not in CONFIDENCE:
        hint = did_you_mean(
            nearest(fact.confidence, CONFIDENCE), f"Write confidence as one of: {', '.join(CONFIDENCE)}."
        )
        raise ConfigError(f"The confidence '{fact.confidence}' is not known", place=place, hint=hint)
    if not fact.source:
        raise ConfigError("The fact has no source", place=place, hint="Write source = 'who says so, and where'.")
    try:
        datetime.date.fromisoformat(fact.date)
    except ValueError as error:
        raise ConfigError(f"'{fact.date}' is not a date", place=place, hint="Write date = 2026-11-22.") from error
    if fact.value and is_setting:
        hint = "Leave 'value' out: it stands where the setting is."
        raise ConfigError("The fact has a value of its own, and is of a setting", place=place, hint=hint)


def doubtful(site: Site, key: str) -> str:
    """Return how a doubtful value is known (``reported``), nothing if it is certain or the user's own."""
    fact = site.facts.get(key)
    return fact.confidence if fact and fact.confidence in DOUBTFUL else ""


def doubts(site: Site) -> int:
    """Return how many values are only reported or guessed."""
    return sum(fact.confidence in DOUBTFUL for fact in site.facts.values())
