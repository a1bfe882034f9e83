"""The facts of a run's report: its files joined into the ledger, figures, advice, and what was asked for and used."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcml import samples
from hpcml.failures.end import End
from hpcml.failures.evidence import table
from hpcml.paths import RunPaths
from hpcml.report import advice, attempts, ledger, profiles, series
from hpcml.report.advice import Advice
from hpcml.report.attempts import Attempt
from hpcml.report.ending import Ending, events, number, of_files
from hpcml.report.figures import HOT, figures_of, memory_in_plan
from hpcml.report.ledger import Ledger, Phases, Tasks, Usage
from hpcml.report.series import Column, Dask, Node
from hpcml.units import format_bytes, format_seconds

MOST_EVENTS = 20  # that are told
_NAMES = {"starting": "Starting", "importing": "Importing", "script": "Script", "tail": "End"}


class Phase(NamedTuple):
    """A phase of the run in seconds since its start; ``kind`` is a part of the ledger."""

    kind: str
    title: str
    begin: float
    end: float


class Device(NamedTuple):
    """What is said of one GPU: mean use (percent), highest memory (bytes), power (W), energy (kWh); None: not known."""

    label: str
    name: str
    use: float | None
    memory: float | None
    memory_size: float
    power: float | None
    energy: float | None
    throttled: float | None


class Facts(NamedTuple):
    """All that the page shows; times in seconds since 1970, ``series`` are what the lines are drawn from.

    It is of one attempt, but for ``attempts``, which are all until this one, and ``total``: their hours by the parts of
    the ledger, added up.
    """

    run: str
    name: str
    site: str
    job: str
    script: str
    attempt: int
    version: str
    made: float
    began: float
    end: float
    ending: Ending
    nodes: tuple[str, ...]
    phases: tuple[Phase, ...]
    ledger: Ledger
    attempts: tuple[Attempt, ...]
    total: dict[str, float]
    figures: dict[str, float]
    advice: tuple[Advice, ...]
    devices: tuple[Device, ...]
    asked: tuple[tuple[str, str, str], ...]  # what, asked for, used
    fabric: str
    fabric_ok: bool
    fabric_remedy: str
    topology: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]
    happened: tuple[str, ...]
    profiles: tuple[str, ...]  # the command that opens each
    unknown: tuple[str, ...]
    series: dict[str, Node]
    dask: Dask | None

    def as_json(self) -> dict[str, Any]:
        """Return all but the series as JSON-ready tables."""
        facts = self._asdict()
        of_each = self.ledger._asdict()
        definitions = {name: text.format(unit=self.ledger.unit) for name, (_, text) in ledger.PARTS.items()}
        del facts["series"], facts["dask"]
        return {
            **facts,
            "ending": self.ending.as_json(),
            "phases": [phase._asdict() for phase in self.phases],
            "ledger": {**of_each, "definitions": definitions},
            "advice": [one._asdict() for one in self.advice],
            "attempts": [one._asdict() for one in self.attempts],
            "devices": [device._asdict() for device in self.devices],
            "versions": dict(self.versions),
            "topology": dict(self.topology),
        }


def load(paths: RunPaths, attempt: int, end: Ending | None = None, memory: float = 0.0, most: int = 0) -> Facts:
    """Return the facts of an attempt; ``end`` is how it ended, if that was found out elsewhere already.

    ``memory`` are the bytes that it asked for on each node, for a plan that does not say. ``most`` bytes of the nodes'
    samples are understood, as in :func:`hpcml.samples.step`.
    """
    of_attempt = paths.attempt(attempt)
    plan, status = table(paths.plan), table(paths.status)
    inside = _table(plan.get("inside"))
    job, code = _table(inside.get("job")), _table(inside.get("code"))
    joined = _join(paths, attempt, status, inside, most)
    happened, dask, found, names, phases, counted = joined
    times: dict[str, float] = {one["event"]: float(one["time"]) for one in happened}
    end = of_files(paths, of_attempt, times) if end is None else end
    per_node = _per_node(inside)
    tried, total, uncounted = _attempts(paths, attempt, end.end, phases, counted)
    devices = tuple(_device(name, gpu) for name, node in found.items() for gpu in node.gpus)
    figures = figures_of(counted, phases, found, job, memory_in_plan(plan) or memory)
    rules = advice.changed(advice.RULES, _changes(inside))
    fabric = table(of_attempt.fabric)
    checked = next((one for one in happened if one["event"] == "fabric-checked"), {})
    ready = next((one for one in happened if one["event"] == "environment-ready"), {})
    return Facts(
        run=paths.directory.name,
        name=str(plan.get("name", "")),
        site=str(plan.get("site", "")),
        job=tried[-1].job,
        script=" ".join([str(code.get("script", "")).rpartition("/")[2], *_texts(code.get("arguments"))]),
        attempt=attempt,
        version=str(plan.get("version", "")),
        made=time.time(),
        began=phases.began,
        end=phases.end,
        ending=end,
        nodes=names,
        phases=_named(phases),
        ledger=counted,
        attempts=tried,
        total=total,
        figures=figures,
        advice=advice.advise(rules, figures),
        devices=devices,
        asked=_asked(figures, job, names, per_node, phases),
        fabric=str(checked.get("line") or fabric.get("line") or ""),
        fabric_ok=bool(checked.get("ok", True)) and not checked.get("problem"),
        fabric_remedy=str(fabric.get("remedy", "")),
        topology=tuple((name, _topology(node)) for name, node in found.items()),
        versions=tuple(sorted((name, str(one)) for name, one in _table(ready.get("versions")).items())),
        happened=_happened(found, devices, phases.began),
        profiles=tuple(profiles.commands(paths)),
        unknown=(*_unknown(found, dask, names, status, devices, per_node), *uncounted, *_thinned(paths, attempt, most)),
        series=found,
        dask=dask,
    )


class _Joined(NamedTuple):
    """What an attempt's events and samples give."""

    happened: list[dict[str, Any]]
    dask: Dask | None
    found: dict[str, Node]
    names: tuple[str, ...]
    phases: Phases
    counted: Ledger


def _thinned(paths: RunPaths, attempt: int, most: int) -> tuple[str, ...]:
    step = samples.step(paths.attempt(attempt), most)
    all_of_them = f"hpcml report {paths.directory.name} takes all."
    return (
        (f"One in {step} of the nodes' samples was taken, to free the nodes soon: {all_of_them}",) if step > 1 else ()
    )


def _join(
    paths: RunPaths, attempt: int, status: Mapping[str, Any], inside: Mapping[str, Any], most: int = 0
) -> _Joined:
    of_attempt, happened = paths.attempt(attempt), events(paths, attempt)
    times: dict[str, float] = {one["event"]: float(one["time"]) for one in happened}
    dask = series.dask(of_attempt)
    allocated = next((one for one in happened if one["event"] == "allocated"), {})
    names = _texts(allocated.get("nodes"))
    found = dict(sorted(series.nodes(of_attempt, most).items(), key=lambda one: _place(one[0], names)))
    names = names or tuple(found)
    phases = _phases(happened, times, status, found)
    devices = _devices(phases, found, names, _per_node(inside), bool(_table(inside.get("job")).get("one_machine")))
    return _Joined(happened, dask, found, names, phases, ledger.divide(*devices, _tasks(dask)))


def ledger_of(paths: RunPaths, attempt: int, most: int = 0) -> Ledger:
    """Return the ledger of an attempt that is over; ``most`` as in :func:`load`."""
    inside = _table(table(paths.plan).get("inside"))
    return _join(paths, attempt, attempts.last_end(paths, attempt), inside, most).counted


def _attempts(
    paths: RunPaths, attempt: int, end: End, phases: Phases, counted: Ledger
) -> tuple[tuple[Attempt, ...], dict[str, float], tuple[str, ...]]:
    """Return all attempts until one, their hours by the parts of the ledger, and what that sum lacks."""
    before, total = attempts.earlier(paths, attempt), dict(counted.parts)
    uncounted = []
    for one in before:
        kept = table(paths.attempt(one.number).ledger)
        if kept.get("unit") == counted.unit:
            total = {
                name: hours + (number(_table(kept.get("parts")).get(name)) or 0.0) for name, hours in total.items()
            }
        else:
            uncounted.append(
                f"The {counted.unit}-hours of attempt {one.number + 1} are not in the sum: it left no samples."
            )
    own = attempts.one(paths, attempt)._replace(begin=phases.began, end=phases.end)
    own = own._replace(hours=counted.paid, useful=counted.share("useful"))
    if end.over:
        own = own._replace(state=end.state, exit_status=end.exit_status, message=end.message)
    return (*before, own), total, tuple(uncounted)


def _per_node(inside: Mapping[str, Any]) -> int:
    return int(number(_table(_table(inside.get("workers")).get("gpu")).get("count")) or 0)


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


def _place(name: str, names: Sequence[str]) -> int:
    """Return where a node stands among the allocation's; others come last."""
    return names.index(name) if name in names else len(names)


def _happened(found: Mapping[str, Node], devices: Sequence[Device], began: float) -> tuple[str, ...]:
    """Return what the samplers saw happen, in sentences."""
    told = []
    for name, node in found.items():
        told += [
            f"{text}, after {format_seconds(max(0.0, event.t - began))}."
            for event in node.events[:MOST_EVENTS]
            if (text := event.sentence(name, of_host=node.of_host))
        ]
    slow = [
        f"{device.label} was slowed down by heat or its power supply in {device.throttled:.0f} % of the samples."
        for device in devices
        if device.throttled
    ]
    return (*told[:MOST_EVENTS], *slow[:MOST_EVENTS])


def _changes(inside: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    return {
        name: one for name, one in _table(_table(inside.get("report")).get("advice")).items() if isinstance(one, dict)
    }


def _phases(
    happened: Sequence[Mapping[str, Any]],
    times: Mapping[str, float],
    status: Mapping[str, Any],
    found: Mapping[str, Node],
) -> Phases:
    """Return when the phases began; the end is the last that was heard of the run."""
    seen = [float(one["time"]) for one in happened]
    seen += [at for node in found.values() for at in (node.t[0], node.t[-1])]
    if (written := number(status.get("time"))) and written > 1:
        seen.append(written)
    if not seen:
        return Phases(0.0, None, None, None, None, 0.0)
    first = times.get("image-staging") or times.get("allocated") or min(seen)
    allocated = next((one for one in happened if one["event"] == "allocated"), {})
    began = attempts.begin_of(allocated, first)
    script, torn = times.get("driver-started"), times.get("torn-down")
    script_end = times.get("driver-ended")
    if script_end is None and torn is not None:
        took = next((number(one.get("seconds")) for one in happened if one["event"] == "torn-down"), None)
        script_end = torn - (took or 0.0)
    ready = times.get("workers-ready") or script
    return Phases(began, times.get("allocated") or ready, ready, script, script_end, max(began, *seen))


def _named(phases: Phases) -> tuple[Phase, ...]:
    found: list[Phase] = []
    for kind, begin, end in ledger.moments(phases):
        title = "Interconnect" if kind == "starting" and any(one.kind == "importing" for one in found) else _NAMES[kind]
        found.append(Phase(kind, title, begin - phases.began, end - phases.began))
    return tuple(found)


def _workers(dask_name: str, place: int, count: int) -> tuple[str, ...]:
    """Return what a GPU's worker is called: hpcml numbers those of a node, unless there is one alone."""
    return (f"{dask_name}-{place}",) if count > 1 else (dask_name, f"{dask_name}-{place}")


def _devices(
    phases: Phases, found: Mapping[str, Node], names: Sequence[str], per_node: int, one_machine: bool
) -> tuple[str, Phases, list[Usage]]:
    """Return what the ledger counts: GPUs where the run has some, else the cores of its nodes, else its nodes.

    A node or a GPU without samples counts too; what it did is not known.
    """
    devices: list[Usage] = []
    if per_node or any(node.gpus for node in found.values()):
        for name in dict.fromkeys((*names, *found)):
            node = found.get(name)
            gpus = node.gpus if node else ()
            count = max(len(gpus), 0 if one_machine and gpus else per_node)
            for place in range(count):
                own = gpus[place].columns["use"] if place < len(gpus) else []
                workers = _workers(name, place, count)
                every = node.every if node else 5.0
                devices.append(Usage(f"{name}:{place}", 1.0, workers, node.t if node and own else [], own, every))
        return "GPU", phases, devices
    if found:
        cores = statistics.median(node.cores for node in found.values())
        for name in dict.fromkeys((*names, *found)):
            if node := found.get(name):
                use = [None if cpu is None else min(1.0, max(0.0, cpu / node.cores)) for cpu in node.columns["cpu"]]
                devices.append(Usage(name, node.cores, _of_node(name), node.t, use, node.every))
            else:
                devices.append(Usage(name, cores, (), [], []))
        return "core", phases, devices
    return "node", phases, [Usage(name, 1.0, (), [], []) for name in names]


def _of_node(name: str) -> tuple[str, ...]:
    return (name, *(f"{name}-{place}" for place in range(256)))


def _tasks(dask: Dask | None) -> Tasks | None:
    if dask is None:
        return None
    parts = [dask.columns[name] for name in ("execute", "transfer", "spill", "serialize", "other")]
    work: Column = [
        None if all(one is None for one in row) else sum(one or 0.0 for one in row) for row in zip(*parts, strict=True)
    ]
    return Tasks(dask.t, dask.workers, dask.columns["done"], work, parts[1], parts[2], dask.every)


def _device(name: str, gpu: series.Gpu) -> Device:
    known = {key: [value for value in column if value is not None] for key, column in gpu.columns.items()}
    energy = series.increase(gpu.columns["energy"])
    hot = [bool(int(value) & HOT) for value in known["throttle"]]
    use, power = (statistics.fmean(known[key]) if known[key] else None for key in ("use", "power"))
    return Device(
        f"{name}:{gpu.number}",
        gpu.name,
        None if use is None else 100 * use,
        max(known["memory"], default=None),
        gpu.memory,
        power,
        None if energy is None else energy / 3.6e6,
        100 * sum(hot) / len(hot) if hot else None,
    )


def _asked(
    figures: Mapping[str, float], job: Mapping[str, Any], names: Sequence[str], per_node: int, phases: Phases
) -> tuple[tuple[str, str, str], ...]:
    limit = number(job.get("time_limit"))
    used_time = format_seconds(phases.end - phases.began) if phases.began else "not known"
    rows = [("Time", format_seconds(limit) if limit else "no limit", used_time)]
    rows.append(("Nodes", str(job.get("nodes", "")), str(len(names)) if names else "none"))
    if per_node or "gpus" in figures:
        used = figures.get("gpus", 0.0) - figures.get("gpus_unused", 0.0)
        asked = per_node * int(number(job.get("nodes")) or 1)
        rows.append(("GPUs", str(asked or ""), f"{used:.0f}" if "gpus" in figures else "not known"))
    if "memory_peak" in figures:
        size = figures.get("memory_asked")
        peak = f"{format_bytes(figures['memory_peak'])} at most"
        rows.append(("Memory of a node", format_bytes(size) if size else "the site's share", peak))
    return tuple(rows)


def _topology(node: Node) -> str:
    parts = [f"{node.cores:.0f} cores"]
    if node.memory:
        parts.append(format_bytes(node.memory))
    names = [gpu.name for gpu in node.gpus]
    parts += [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    return ", ".join(parts)


def _unknown(
    found: Mapping[str, Node],
    dask: Dask | None,
    names: Sequence[str],
    status: Mapping[str, Any],
    devices: Sequence[Device],
    per_node: int,
) -> tuple[str, ...]:
    """Return what the report cannot tell, in sentences."""
    told = []
    missing = [name for name in names if name not in found]
    if missing:
        few = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        told.append(f"There are no samples of {few}.")
    if dask is None:
        told.append("There are no samples of Dask: tasks, transfers and spilling are not known.")
    if per_node and found and not devices:
        told.append("The samples hold no GPU: NVML did not answer.")
    if any(node.of_host for node in found.values()):
        told.append("Cores and memory in use are those of the whole machine: the job has no cgroup that could be read.")
    if not status:
        told.append("The run did not write its end: it is taken to have lasted until it was last heard of.")
    return tuple(told)
