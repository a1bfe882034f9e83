"""Where a value lies on an axis of a picture: by its number, by the logarithm of it, or by its place among names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hpcml.sweeps.points import Typed

_GEOMETRIC = 4.0  # the largest of a logarithmic axis is at least so many times the smallest
_EVEN = 0.06  # of what values span: by how much evenly spaced ones may be out of place
_ALL = 8  # so many values are each a tick
MARGIN = 0.04  # of an axis, before its first and behind its last value


class Tick(NamedTuple):
    """A place from 0 to 1 and what stands there."""

    at: float
    text: str


class Scale(NamedTuple):
    """An axis. ``kind`` is linear, log or names; ``low`` and ``high`` are its ends, in logarithms if it is one."""

    kind: str
    low: float
    high: float
    ticks: tuple[Tick, ...]
    names: tuple[Typed, ...] = ()

    def at(self, value: Typed) -> float:
        """Return the place of a value, from 0 to 1."""
        if self.kind == "names":
            return _place(self.names.index(value), len(self.names))
        number = math.log10(float(value)) if self.kind == "log" else float(value)
        return (number - self.low) / (self.high - self.low)


def of(values: Sequence[Typed], *, margin: float = MARGIN, rounded: bool = False) -> Scale:
    """Return the axis on which values lie; texts and mixed values stand beside each other in their order.

    A few numbers are each a tick, unless ticks are to be ``rounded``.
    """
    distinct = list(dict.fromkeys(values))
    if not all(is_number(value) for value in distinct):
        ticks = tuple(Tick(_place(place, len(distinct)), _name(value)) for place, value in enumerate(distinct))
        return Scale("names", 0.0, 1.0, ticks, tuple(distinct))
    numbers = sorted({float(value) for value in distinct})
    log = is_geometric(numbers)
    ends = [math.log10(number) if log else number for number in (numbers[0], numbers[-1])]
    room = (ends[1] - ends[0]) * margin or abs(ends[0]) * 0.1 or 1.0
    low, high = ends[0] - room, ends[1] + room
    scale = Scale("log" if log else "linear", low, high, ())
    shown = numbers if len(numbers) <= _ALL and not rounded else round_numbers(low, high, log=log)
    return scale._replace(ticks=tuple(Tick(scale.at(number), written(number)) for number in shown))


def is_number(value: Typed) -> bool:
    """Whether a value is a number, which True is not here."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_geometric(numbers: Sequence[float]) -> bool:
    """Whether sorted numbers are spaced by a factor rather than by a difference."""
    if len(numbers) < 3 or numbers[0] <= 0 or numbers[-1] < _GEOMETRIC * numbers[0]:
        return False
    return _unevenness([math.log(number) for number in numbers]) < _unevenness(numbers)


def is_even(values: Sequence[Typed], one: Scale) -> bool:
    """Whether the values on an axis of numbers have about the same distance from each other."""
    return _unevenness(sorted({one.at(value) for value in values})) < _EVEN


def _unevenness(numbers: Sequence[float]) -> float:
    """Return by how much sorted numbers differ from evenly spaced ones, as a share of what they span."""
    if len(numbers) < 3:
        return 0.0
    span = numbers[-1] - numbers[0]
    even = (numbers[0] + span * place / (len(numbers) - 1) for place in range(len(numbers)))
    return max(abs(one - other) for one, other in zip(numbers, even, strict=True)) / span


def round_numbers(low: float, high: float, *, log: bool, most: int = 7) -> list[float]:
    """Return round numbers between two ends, which are logarithms if ``log``."""
    if log:
        decades = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
        every = max(1, math.ceil(len(decades) / most))
        if len(decades) >= 3:
            return [10.0**power for power in decades[::every]]
        fine = [step * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for step in (1, 2, 5)]
        found = [number for number in fine if low <= math.log10(number) <= high]
        return found if len(found) > 1 else [10**low, 10**high]
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(size * step for size in (1, 2, 5, 10) if (high - low) / (size * step) <= most)
    return [place * step for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def written(number: float) -> str:
    """Return a number as a tick has it: short, and 1e-5 without a zero that says nothing."""
    text = f"{number:.4g}" if number else "0"
    mantissa, exponent, power = text.partition("e")
    return f"{mantissa}e{int(power)}" if exponent else text.replace("-", "−", 1) if text.startswith("-") else text


def _name(value: Typed) -> str:
    return written(value) if is_number(value) and not isinstance(value, str) else str(value)


def _place(place: int, count: int) -> float:
    return (place + 0.5) / count
