"""The time accounting of a run: each second of each GPU or core that was paid for belongs to parts that add up to it.

What is here holds for every kind of run: the allocation's start, the script, use, the idle end, and the arithmetic. How
a kind's processes explain an idle device, the kind says by an :class:`Accounting` (``Kind.accounting``).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hpcml.report.advice import Rule
from hpcml.run_files import Event
from hpcml.samples import Series

NOT_SAMPLED = 3.0  # times the distance of samples: a longer gap is not known
LEAST_GAP = 15.0  # seconds
EVERY = 5.0  # seconds between samples where a file does not say

Column = list[float | None]
Shares = Mapping[str, float]  # of an idle moment by parts of the kind; they add up to 1


# -- what a kind says ------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """A part of the hours; ``{unit}`` in its texts is GPU, core or node."""

    title: str
    text: str
    light: str  # its colour on a light page and on paper
    dark: str  # its colour on a dark page


class Device(NamedTuple):
    """What hours are counted of: a GPU, the cores of a node, or a node."""

    node: str
    place: int | None = None  # of the GPU among those of its node; None for the cores
    gpus: int = 0  # of the node

    @property
    def label(self) -> str:
        """Its name in the report."""
        return self.node if self.place is None else f"{self.node}:{self.place}"


class Function(NamedTuple):
    """The tasks of one function."""

    name: str
    tasks: float
    seconds: float  # of all tasks together
    longest: float  # seconds of one task

    @property
    def mean_of_others(self) -> float:
        """The mean seconds of all tasks but the longest."""
        return max(0.0, self.seconds - self.longest) / max(1.0, self.tasks - 1)


class Activity(Protocol):
    """What a kind's processes did in the course of a run, by their own samples."""

    @property
    def t(self) -> Sequence[float]:
        """The times of the columns, in seconds since 1970."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """What the kind's plots show, by name."""

    @property
    def functions(self) -> Sequence[Function]:
        """The functions whose tasks ran, those that took longest first."""

    def alone(self, begin: float, end: float) -> tuple[float, float]:
        """Return the seconds without a task between two times: until the last task, and after it."""

    def figures(self, begin: float, end: float) -> tuple[dict[str, float], dict[str, str]]:
        """Return figures of the tasks between two times, and words that sentences of advice may use."""

    def last(self) -> float | None:
        """Return the time of the last work, in seconds since 1970; None if there was none, or it is not known."""

    def shares(self, device: Device) -> Callable[[float], Shares | None]:
        """Return the function that explains why a device is idle at a time; its answer is None where nobody knows."""


class Plot(NamedTuple):
    """A plot over time of one column of a kind's :class:`Activity`."""

    title: str
    column: str
    label: str  # of its line
    unit: str = ""
    always: bool = False  # drawn also where all values are zero


class ShareFigure(NamedTuple):
    """A figure for advice: a part's share of the hours paid, in percent, or one that the kind's Activity has."""

    name: str
    part: str = ""
    unit: str = ""  # of the runs that have it; empty for all


class Accounting(NamedTuple):
    """What a kind adds to the time accounting; the defaults are those of a kind that says nothing."""

    parts: Mapping[str, Part] = {}  # in the page's order; its own, and those of all kinds that it words anew
    startup: str = "starting"  # the part for the time until the kind's processes are ready
    before_script: str = "Starting"  # title of the phase between that moment and the script's first line
    activity: Callable[[Series[Any]], Activity | None] | None = None  # None: the kind's processes explain nothing
    missing: str = ""  # the sentence for a run without samples of the kind's processes
    figures: tuple[ShareFigure, ...] = ()
    rules: tuple[Rule, ...] = ()
    plots: tuple[Plot, ...] = ()
    process: str = ""  # the noun of processes that have a GPU each, where a node has as many; empty: none have
    sentences: Callable[[Sequence[Event]], tuple[str, ...]] = lambda _: ()  # by the run's events


PLAIN = Accounting()
_PARTS = {  # of all kinds; those of a kind come before the last three
    "starting": Part("Starting", "hpcml was starting on the first node.", "#8c959f", "#6e7681"),
    "script": Part("Script, {unit} idle", "The {unit} was idle while the script ran.", "#d29922", "#bb8009"),
    "useful": Part("Useful", "The {unit} was in use while the script ran.", "#2da44e", "#238636"),
    "tail": Part(
        "Idle tail",
        "The {unit} was idle after the script's end, until the end of the job.",
        "#b0b7bf",
        "#484f58",
    ),
    "unknown": Part("Not known", "hpcml has no measurements for this time.", "#dfe3e8", "#2b3138"),
}
_LAST = ("useful", "tail", "unknown")


def parts_of(accounting: Accounting) -> dict[str, Part]:
    """Return all parts of the hours of a kind's runs, in the page's order."""
    before = [name for name in accounting.parts if name not in _LAST]
    names = dict.fromkeys(("starting", *before, "script", *_LAST))
    return {name: {**_PARTS, **accounting.parts}[name] for name in names}


# -- the arithmetic --------------------------------------------------------------------------------------------------


class Phases(NamedTuple):
    """Moments of an attempt in seconds since 1970; None where it did not come that far."""

    began: float  # of the allocation
    allocated: float | None  # the first role ran
    ready: float | None  # the kind's processes were ready
    script: float | None  # the script began
    script_end: float | None  # the script ended, or the run gave up
    end: float


class Usage(NamedTuple):
    """How a device was used."""

    device: Device
    weight: float  # how many units it counts for
    t: Sequence[float]  # times of the samples, in seconds since 1970
    use: Sequence[float | None]  # percent since the sample before
    every: float = EVERY  # seconds between samples


class Ledger(NamedTuple):
    """The hours of a run; those of the parts add up to those paid."""

    unit: str  # GPU, core or node
    number: float  # of units
    paid: float  # hours
    parts: dict[str, float]  # hours by part
    of_each: dict[str, dict[str, float]]  # hours by the device's label and by part

    def share(self, *names: str) -> float:
        """Return the share of parts in the hours paid, in percent."""
        return 100 * sum(self.parts[name] for name in names) / self.paid if self.paid else 0.0


def divide(
    unit: str, phases: Phases, usages: Sequence[Usage], accounting: Accounting, activity: Activity | None
) -> Ledger:
    """Return the hours of a run by parts."""
    parts = parts_of(accounting)
    last_work = activity.last() if activity else None
    unexplained = _script_alone if accounting.activity is None else _nobody_knows
    of_each, total = {}, dict.fromkeys(parts, 0.0)
    for usage in usages:
        seconds = dict.fromkeys(parts, 0.0)
        for name, begin, end in moments(phases, accounting):
            if name == "script":
                explain = activity.shares(usage.device) if activity else unexplained
                _in_the_script(seconds, begin, end, usage, explain, last_work)
            else:
                seconds[name] += end - begin
        hours = {name: one * usage.weight / 3600 for name, one in seconds.items()}
        of_each[usage.device.label] = hours
        total = {name: total[name] + hours[name] for name in parts}
    number = sum(usage.weight for usage in usages)
    return Ledger(unit, number, number * (phases.end - phases.began) / 3600, total, of_each)


def _script_alone(_: float) -> Shares:
    return {"script": 1.0}


def _nobody_knows(_: float) -> None:
    return None


def moments(phases: Phases, accounting: Accounting) -> list[tuple[str, float, float]]:
    """Return the phases of a run: a part's name (``script`` for all of the script) with begin and end, in order."""
    named: list[tuple[str, float, float]] = []
    at = phases.began
    given_up = phases.end if phases.script_end is None else phases.script_end
    ends = (
        ("starting", phases.allocated),
        (accounting.startup, phases.ready),
        ("starting", phases.script),
        ("script", phases.script_end),
    )
    for name, end in ends:
        until = min(phases.end, max(at, given_up if end is None else end))
        if until > at:
            named.append((name, at, until))
        at = until
        if end is None:  # it came no further
            break
    return [*named, ("tail", at, phases.end)] if at < phases.end else named


def _in_the_script(
    seconds: dict[str, float],
    begin: float,
    end: float,
    usage: Usage,
    explain: Callable[[float], Shares | None],
    last_work: float | None,
) -> None:
    """Add the seconds of the script's time to a device's parts."""
    at = begin
    longest = max(LEAST_GAP, NOT_SAMPLED * usage.every)
    for place in range(bisect.bisect_right(usage.t, begin), len(usage.t)):
        until = min(end, usage.t[place])
        before = usage.t[place - 1] if place else begin
        use = usage.use[place] if usage.t[place] - max(before, begin) <= longest else None
        _slice(seconds, (at, until), use, explain, last_work)
        at = until
        if at >= end:
            break
    seconds["unknown"] += max(0.0, end - at)


def _slice(
    seconds: dict[str, float],
    when: tuple[float, float],
    use: float | None,
    explain: Callable[[float], Shares | None],
    last_work: float | None,
) -> None:
    """Divide one slice of one device's time."""
    begin, end = when
    length = end - begin
    if length <= 0:
        return
    if use is None:
        seconds["unknown"] += length
        return
    useful = use / 100 * length
    idle = length - useful
    seconds["useful"] += useful
    middle = (begin + end) / 2
    shares = explain(middle)
    if shares is None:
        seconds["unknown"] += idle
    elif last_work is not None and middle > last_work:
        seconds["tail"] += idle
    else:
        for name, share in shares.items():
            seconds[name] += share * idle
