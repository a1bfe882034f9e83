"""Where the hours of a run's GPUs or cores went: each second of each of them belongs to parts that add up to it."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NOT_SAMPLED = 3.0  # times the distance of samples: a longer gap is not known
LEAST_GAP = 15.0  # seconds

PARTS = {
    "starting": (
        "Starting",
        "From the allocation's start until hpcml ran on the first node, and the check of the interconnect.",
    ),
    "importing": (
        "Importing",
        "Scheduler and workers import their libraries and register, until all were there (or the run gave up waiting).",
    ),
    "script": ("Script without tasks", "The script ran, the {unit} was idle, and its worker had no task."),
    "tasks": ("Tasks, {unit} idle", "The worker had a task, and the {unit} was idle for none of the reasons below."),
    "transfers": (
        "Transfers",
        "The {unit} was idle, by the share of the tasks' time in which they waited for data from other workers.",
    ),
    "spilling": (
        "Spilling",
        "The {unit} was idle, by the share of the tasks' time in which data moved to or from disk or host memory.",
    ),
    "useful": ("Useful", "The {unit} was in use, while the script ran."),
    "tail": ("Idle tail", "The {unit} was idle after the last task of the run, and until the nodes were given back."),
    "unknown": ("Not known", "The script ran, and there are no samples of that time."),
}


class Phases(NamedTuple):
    """Moments of an attempt in seconds since 1970; None where it did not come that far.

    The allocation began; the first role ran; all workers were there; the script began; the script ended, or the run
    gave up; the end.
    """

    began: float
    allocated: float | None
    ready: float | None
    script: float | None
    script_end: float | None
    end: float


class Usage(NamedTuple):
    """A GPU, or the cores of a node: ``weight`` is how many count, ``use`` (0 to 1) is that since the sample before.

    ``workers`` are the names of the Dask workers that compute on it.
    """

    label: str
    weight: float
    workers: tuple[str, ...]
    t: Sequence[float]
    use: Sequence[float | None]
    every: float = 5.0


class Tasks(NamedTuple):
    """What Dask did: ``busy`` are the tasks on each worker at ``t``; ``done`` counts tasks, the rest thread seconds."""

    t: Sequence[float]
    busy: Mapping[str, Sequence[float | None]]
    done: Sequence[float | None]
    work: Sequence[float | None]
    transfer: Sequence[float | None]
    spill: Sequence[float | None]
    every: float = 5.0


class Ledger(NamedTuple):
    """``parts`` are hours by the names of PARTS, of all and ``of_each``; they add up to ``paid``, of so many units."""

    unit: str
    number: float
    paid: float
    parts: dict[str, float]
    of_each: dict[str, dict[str, float]]

    def share(self, *names: str) -> float:
        """Return what parts have of the hours paid, in percent."""
        return 100 * sum(self.parts[name] for name in names) / self.paid if self.paid else 0.0


class _Slice(NamedTuple):
    """How Dask spent a moment: shares of its tasks' time, None if that is not known."""

    transfer: float
    spill: float
    place: int  # of the sample before it


def divide(unit: str, phases: Phases, devices: Sequence[Usage], tasks: Tasks | None) -> Ledger:
    """Return the ledger of a run."""
    last_task = _last_task(tasks)
    of_each, total = {}, dict.fromkeys(PARTS, 0.0)
    if tasks:  # once, and not for each slice of their time
        known = tasks.busy
        devices = [one._replace(workers=tuple(name for name in one.workers if name in known)) for one in devices]
    for device in devices:
        own = dict.fromkeys(PARTS, 0.0)
        for name, begin, end in moments(phases):
            if name == "script":
                _in_the_script(own, begin, end, device, tasks, last_task)
            else:
                own[name] += end - begin
        hours = {name: seconds * device.weight / 3600 for name, seconds in own.items()}
        of_each[device.label] = hours
        total = {name: total[name] + hours[name] for name in PARTS}
    number = sum(device.weight for device in devices)
    return Ledger(unit, number, number * (phases.end - phases.began) / 3600, total, of_each)


def moments(phases: Phases) -> list[tuple[str, float, float]]:
    """Return the phases of a run: a part's name (``script`` for all of the script) with begin and end, in order."""
    found: list[tuple[str, float, float]] = []
    at = phases.began
    given_up = phases.end if phases.script_end is None else phases.script_end
    ends = (
        ("starting", phases.allocated),
        ("importing", phases.ready),
        ("starting", phases.script),
        ("script", phases.script_end),
    )
    for name, end in ends:
        until = min(phases.end, max(at, given_up if end is None else end))
        if until > at:
            found.append((name, at, until))
        at = until
        if end is None:  # it came no further
            break
    return [*found, ("tail", at, phases.end)] if at < phases.end else found


def _last_task(tasks: Tasks | None) -> float | None:
    """Return when tasks were last known to be there; None if there were none, or it is not known."""
    if tasks is None:
        return None
    for place in range(len(tasks.t) - 1, -1, -1):
        before = tasks.done[place - 1] if place else 0.0
        now = tasks.done[place]
        if any(column[place] for column in tasks.busy.values()) or (now is not None and now > (before or 0.0)):
            return tasks.t[place]
    return None


def _in_the_script(
    own: dict[str, float], begin: float, end: float, device: Usage, tasks: Tasks | None, last_task: float | None
) -> None:
    """Add the seconds of the script's time to a device's parts."""
    at = begin
    longest = max(LEAST_GAP, NOT_SAMPLED * device.every)
    for place in range(bisect.bisect_right(device.t, begin), len(device.t)):
        until = min(end, device.t[place])
        before = device.t[place - 1] if place else begin
        use = device.use[place] if device.t[place] - max(before, begin) <= longest else None
        _slice(own, device, (at, until), use, tasks, last_task)
        at = until
        if at >= end:
            break
    own["unknown"] += max(0.0, end - at)


def _slice(
    own: dict[str, float],
    device: Usage,
    when: tuple[float, float],
    use: float | None,
    tasks: Tasks | None,
    last_task: float | None,
) -> None:
    """Divide one slice of one device's time."""
    begin, end = when
    seconds = end - begin
    if seconds <= 0:
        return
    if use is None:
        own["unknown"] += seconds
        return
    own["useful"] += use * seconds
    idle = (1 - use) * seconds
    middle = (begin + end) / 2
    found = _spent(tasks, middle) if tasks else None
    if tasks is None or found is None:
        own["unknown"] += idle
    elif last_task is not None and middle > last_task:
        own["tail"] += idle
    else:
        busy = _busy(tasks, found.place, device.workers)
        waiting = min(1.0, found.transfer + found.spill)
        scale = busy * idle * waiting / ((found.transfer + found.spill) or 1.0)
        own["script"] += (1 - busy) * idle
        own["transfers"] += scale * found.transfer
        own["spilling"] += scale * found.spill
        own["tasks"] += busy * idle * (1 - waiting)


def _spent(tasks: Tasks, when: float) -> _Slice | None:
    """Return how Dask's threads spent the time around a moment; None if no sample is near."""
    near = max(LEAST_GAP, NOT_SAMPLED * tasks.every)
    after = bisect.bisect_left(tasks.t, when)
    if after == len(tasks.t):
        return _Slice(0.0, 0.0, after - 1) if when - tasks.t[-1] <= near else None
    if after == 0:
        return _Slice(0.0, 0.0, 0) if tasks.t[0] - when <= near else None
    if tasks.t[after] - tasks.t[after - 1] > near:
        return None
    work = _rise(tasks.work, after)
    if not work:
        return _Slice(0.0, 0.0, after - 1)
    return _Slice(_rise(tasks.transfer, after) / work, _rise(tasks.spill, after) / work, after - 1)


def _rise(counter: Sequence[float | None], after: int) -> float:
    before, now = counter[after - 1], counter[after]
    return max(0.0, now - before) if before is not None and now is not None else 0.0


def _busy(tasks: Tasks, place: int, workers: Sequence[str]) -> float:
    """Return the share of the time between two samples in which a device's workers had tasks, as far as they show it.

    All workers stand for a device that has none. Tasks may be shorter than the distance of samples: where none was seen
    and tasks were worked on, they had some.
    """
    ends = [place, place + 1] if place + 1 < len(tasks.t) else [place]
    names = workers or list(tasks.busy)
    seen = sum(any(tasks.busy[name][end] for name in names) for end in ends) / len(ends)
    if seen or len(ends) < 2:
        return seen
    seconds = tasks.t[ends[1]] - tasks.t[place]
    return min(1.0, _rise(tasks.work, ends[1]) / (seconds * max(1, len(tasks.busy))))
