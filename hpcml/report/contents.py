"""The contents of a run's report: its files joined into hours, figures, advice, and what was asked for and used."""

from __future__ import annotations

import importlib
import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hpcml import records, samples
from hpcml.failures import stacks
from hpcml.failures.end import End
from hpcml.failures.evidence import table
from hpcml.failures.rules import of_xid
from hpcml.forms import Form
from hpcml.kind import Kind
from hpcml.paths import RunPaths
from hpcml.repairs import Decision
from hpcml.report import advice, attempts, ledger, results, series
from hpcml.report.advice import Advice
from hpcml.report.attempts import Attempt, Ending, number
from hpcml.report.ledger import PLAIN, Accounting, Activity, Device, Ledger, Part, Phases, Plot, Usage
from hpcml.report.results import Points, Results
from hpcml.report.series import Node, figures_of, hot_share
from hpcml.units import format_bytes, format_seconds

MOST_EVENTS = 20  # of the nodes, in the report
MOST_GROUPS, MOST_NAMES = 20, 8  # of processes with equal stacks, and of names in each
_TITLES = {"starting": "Starting", "script": "Script", "tail": "End"}


class Phase(NamedTuple):
    """A phase of the run."""

    kind: str  # a part of the hours
    title: str
    begin: float  # seconds since the run's start
    end: float  # seconds since the run's start


class GpuSummary(NamedTuple):
    """One GPU over the whole run; None: not known."""

    label: str
    process: str  # which process of the run has it, empty if that is not known
    name: str
    use: float | None  # mean, percent
    memory: float | None  # highest, bytes
    memory_size: float  # bytes, 0 if not known
    power: float | None  # mean, W
    energy: float | None  # kWh
    throttled: float | None  # percent of the samples


class Identity(NamedTuple):
    """Which run, and which attempt of it, the report is of."""

    run: str
    name: str
    site: str
    job: str
    script: str  # with its arguments
    attempt: int  # from 0
    version: str  # of hpcml


class Course(NamedTuple):
    """When the attempt ran, and how it ended."""

    began: float  # seconds since 1970
    end: float  # seconds since 1970
    ending: Ending
    phases: tuple[Phase, ...]


class Hours(NamedTuple):
    """What was paid for."""

    ledger: Ledger  # of this attempt
    attempts: tuple[Attempt, ...]  # all until this one
    total: dict[str, float]  # hours of all attempts by part


class Findings(NamedTuple):
    """What is said of the run."""

    figures: dict[str, float]
    advice: tuple[Advice, ...]
    functions: tuple[ledger.Function, ...]  # whose tasks ran
    script_seconds: float  # for which the script ran
    script_alone: float | None  # seconds of them in which no task ran; None if that is not known
    asked: tuple[tuple[str, str, str], ...]  # a resource, asked for, used
    happened: tuple[str, ...]  # events of the nodes, as sentences
    processes: tuple[str, ...]  # where they were before an end by the time limit or by hpcml, as lines
    unknown: tuple[str, ...]  # what the report cannot tell, as sentences
    profiles: tuple[str, ...]  # the command that opens each


class Machines(NamedTuple):
    """What the run had."""

    nodes: tuple[str, ...]
    devices: tuple[GpuSummary, ...]
    topology: tuple[tuple[str, str], ...]  # a node, its hardware
    versions: tuple[tuple[str, str], ...]  # a library, its version
    repairs: tuple[tuple[str, Decision], ...]  # by name, what became of each repair of a library


class Interconnect(NamedTuple):
    """The result of the check between the workers."""

    fabric: str  # empty without a check
    fabric_ok: bool
    fabric_remedy: str


class Drawing(NamedTuple):
    """What the page's pictures are drawn from; it is not among the facts for programs."""

    parts: dict[str, Part]  # of the hours
    series: dict[str, Node]
    activity: Activity | None  # of the kind's processes
    plots: tuple[Plot, ...]  # of their activity


class Report(NamedTuple):
    """All that the page shows."""

    run: Identity
    made: float  # seconds since 1970
    course: Course
    hours: Hours
    findings: Findings
    results: Results
    points: Points
    has_cluster: bool  # whether it had a Dask cluster
    machines: Machines
    interconnect: Interconnect
    drawing: Drawing

    def as_json(self) -> dict[str, Any]:
        """Return all but what pictures are drawn from as one JSON-ready table."""
        unit = self.hours.ledger.unit
        definitions = {name: part.text.format(unit=unit) for name, part in self.drawing.parts.items()}
        table = records.plain(self._replace(drawing=Drawing({}, {}, None, ())), spread=_SPREAD)
        del table["drawing"]
        return {
            **table,
            "ending": self.course.ending.as_json(),
            "ledger": {**table["ledger"], "definitions": definitions},
            "results": [one.name for one in self.results.files],
            "points": table["points"]["ended"],
            "versions": dict(self.machines.versions),
            "repairs": {name: decision._asdict() for name, decision in self.machines.repairs},
            "topology": dict(self.machines.topology),
        }


_SPREAD = (Identity, Course, Hours, Findings, Machines, Interconnect)  # groups that the JSON does not show


def accounting_of(kind: Kind) -> Accounting:
    """Return what a kind adds to the time accounting."""
    if not kind.accounting:
        return PLAIN
    accounting: Accounting = importlib.import_module(kind.accounting).ACCOUNTING
    return accounting


class _Measured(NamedTuple):
    """An attempt by its events and samples."""

    events: list[dict[str, Any]]
    times: dict[str, float]  # of the last event of each name, in seconds since 1970
    by_node: dict[str, Node]
    names: tuple[str, ...]  # of the nodes
    activity: Activity | None
    accounting: Accounting
    phases: Phases
    ledger: Ledger

    def event(self, name: str) -> Mapping[str, Any]:
        """Return the first event of a name, empty if there is none."""
        return next((one for one in self.events if one["event"] == name), {})


def load(
    paths: RunPaths, attempt: int, kind: Kind, ending: Ending | None = None, memory: float = 0.0, most: int = 0
) -> Report:
    """Return the report of an attempt.

    Parameters
    ----------
    ending
        How the attempt ended, if that is known already.
    memory
        The bytes that it asked for on each node, for a plan that does not say.
    most
        Bytes of the nodes' samples that are read, as in :func:`hpcml.samples.step`.
    """
    plan, status = table(paths.plan), table(paths.status)
    inside = _table(plan.get("inside"))
    job, code = _table(inside.get("job")), _table(inside.get("code"))
    measured = _measure(paths, attempt, kind, status, inside, most)
    phases, by_node = measured.phases, measured.by_node
    ending = attempts.ending_of(paths, paths.attempt(attempt), kind, measured.times) if ending is None else ending
    hours, uncounted = _hours(paths, attempt, ending.end, measured)
    machines = _machines(measured, int(number(_table(inside.get("workers")).get("per_node")) or 0))
    memory = attempts.memory_in_plan(plan) or memory
    figures = figures_of(measured.ledger, measured.accounting, phases, by_node, job, memory)
    texts: dict[str, str] = {}
    script = (phases.script, phases.script_end or phases.end) if phases.script else (0.0, 0.0)
    alone = measured.activity.alone(*script) if measured.activity else (0.0, 0.0)
    if measured.activity and measured.ledger.unit != "GPU":  # for GPUs the hours say it: work may go on without tasks
        of_tasks, texts = measured.activity.figures(*script)
        figures |= of_tasks
    rules = advice.changed((*advice.RULES, *measured.accounting.rules), _changes(inside))
    rules = tuple(rule for rule in rules if rule.unless not in measured.times)
    unknown = _unknown(measured, status, machines.devices, _per_node(inside))
    places, damaged = _places(paths, attempt, ending)
    sweep = str(_table(inside.get("points")).get("sweep", ""))
    return Report(
        run=Identity(
            paths.directory.name,
            str(plan.get("name", "")),
            str(plan.get("site", "")),
            hours.attempts[-1].job,
            _command(code),
            attempt,
            str(plan.get("version", "")),
        ),
        made=time.time(),
        course=Course(phases.began, phases.end, ending, _named(phases, measured.accounting)),
        hours=hours,
        findings=Findings(
            figures,
            advice.advise(rules, figures, texts),
            functions=tuple(measured.activity.functions) if measured.activity else (),
            script_seconds=script[1] - script[0],
            script_alone=sum(alone) if measured.activity and phases.script else None,
            asked=_asked(figures, plan, measured.names, phases),
            processes=places,
            happened=(
                *measured.accounting.sentences(measured.events),
                *_happened(by_node, machines.devices, phases.began),
            ),
            unknown=(*unknown, *uncounted, *damaged, *_thinned(paths, attempt, most)),
            profiles=tuple(attempts.profile_commands(paths)),
        ),
        results=results.results_of(paths),
        points=results.points_of(paths, sweep),
        has_cluster="scheduler-up" in measured.times,
        machines=machines,
        interconnect=_interconnect(measured, table(paths.attempt(attempt).fabric)),
        drawing=Drawing(ledger.parts_of(measured.accounting), by_node, measured.activity, measured.accounting.plots),
    )


def ledger_of(paths: RunPaths, attempt: int, kind: Kind, most: int = 0) -> Ledger:
    """Return the hours of an attempt that is over; ``most`` as in :func:`load`."""
    inside = _table(table(paths.plan).get("inside"))
    return _measure(paths, attempt, kind, attempts.last_end(paths, attempt), inside, most).ledger


def _measure(
    paths: RunPaths, attempt: int, kind: Kind, status: Mapping[str, Any], inside: Mapping[str, Any], most: int
) -> _Measured:
    of_attempt, events = paths.attempt(attempt), attempts.events(paths, attempt)
    times = {one["event"]: float(one["time"]) for one in events}
    alone = "cluster-waits" in times and kind.ready not in times  # the script ran without the kind's processes
    accounting, activity = PLAIN if alone else accounting_of(kind), None
    if accounting.activity and (measured := samples.of_kind(of_attempt, kind)):
        activity = accounting.activity(measured)
    allocated = next((one for one in events if one["event"] == "allocated"), {})
    names = _texts(allocated.get("nodes"))
    by_node = dict(sorted(series.nodes(of_attempt, most).items(), key=lambda one: _place(one[0], names)))
    names = names or tuple(by_node)
    phases = _phases(events, times, status, by_node, kind)
    unit, usages = _usages(
        by_node, names, _per_node(inside), one_machine=bool(_table(inside.get("job")).get("one_machine"))
    )
    hours = ledger.divide(unit, phases, usages, accounting, activity)
    return _Measured(events, times, by_node, names, activity, accounting, phases, hours)


def _per_node(inside: Mapping[str, Any]) -> int:
    """Return the planned GPUs of a node."""
    of_workers, of_job = _table(_table(inside.get("workers")).get("gpu")), _table(inside.get("job"))
    return int(number(of_workers.get("count")) or number(of_job.get("gpus")) or 0)


def _command(code: Mapping[str, Any]) -> str:
    """Return the script with its arguments as a shell would take them, without its folder."""
    option = ["-m"] if code.get("form") == Form.MODULE else []
    script = str(code.get("script", "")).rpartition("/")[2]
    return shlex.join([*option, script, *_texts(code.get("arguments"))]) if script else ""


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


def _place(name: str, names: Sequence[str]) -> int:
    """Return a node's place in the allocation; others come last."""
    return names.index(name) if name in names else len(names)


def _changes(inside: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    changes = _table(_table(inside.get("report")).get("advice"))
    return {name: one for name, one in changes.items() if isinstance(one, dict)}


# -- time and hours --------------------------------------------------------------------------------------------------


def _phases(
    events: Sequence[Mapping[str, Any]],
    times: Mapping[str, float],
    status: Mapping[str, Any],
    by_node: Mapping[str, Node],
    kind: Kind,
) -> Phases:
    """Return when the phases began; the end is the last sign of the run."""
    seen = [float(one["time"]) for one in events]
    seen += [at for node in by_node.values() for at in (node.t[0], node.t[-1])]
    if (written := number(status.get("time"))) and written > 1:
        seen.append(written)
    if not seen:
        return Phases(0.0, None, None, None, None, 0.0)
    first = times.get("image-staging") or times.get("allocated") or min(seen)
    allocated = next((one for one in events if one["event"] == "allocated"), {})
    began = attempts.begin_of(allocated, first)
    script, torn = times.get("driver-started"), times.get("torn-down")
    script_end = times.get("driver-ended")
    if script_end is None and torn is not None:
        seconds = next((number(one.get("seconds")) for one in events if one["event"] == "torn-down"), None)
        script_end = torn - (seconds or 0.0)
    ready = min(filter(None, (times.get(kind.ready), script)), default=None)  # a late cluster is in the script's time
    return Phases(began, times.get("allocated") or ready, ready, script, script_end, max(began, *seen))


def _named(phases: Phases, accounting: Accounting) -> tuple[Phase, ...]:
    parts = ledger.parts_of(accounting)
    named: list[Phase] = []
    for kind, begin, end in ledger.moments(phases, accounting):
        title = _TITLES.get(kind) or parts[kind].title
        if kind == "starting" and any(one.kind == accounting.startup for one in named):
            title = accounting.before_script
        named.append(Phase(kind, title, begin - phases.began, end - phases.began))
    return tuple(named)


def _usages(
    by_node: Mapping[str, Node], names: Sequence[str], per_node: int, *, one_machine: bool
) -> tuple[str, list[Usage]]:
    """Return what hours are counted of: GPUs where the run has some, else the cores of its nodes, else its nodes.

    A node or a GPU without samples counts too; what it did is not known.
    """
    all_names = dict.fromkeys((*names, *by_node))
    usages: list[Usage] = []
    if per_node or any(node.gpus for node in by_node.values()):
        for name in all_names:
            node = by_node.get(name)
            gpus = node.gpus if node else ()
            count = max(len(gpus), 0 if one_machine and gpus else per_node)
            for place in range(count):
                device = Device(name, place, count)
                if node and place < len(gpus):
                    usages.append(Usage(device, 1.0, node.t, gpus[place].columns.use, node.every))
                else:
                    usages.append(Usage(device, 1.0, [], []))
        return "GPU", usages
    if by_node:
        cores = statistics.median(node.cores for node in by_node.values())
        for name in all_names:
            if node := by_node.get(name):
                cpu = node.columns.cpu
                use = [None if one is None else min(100.0, max(0.0, 100 * one / node.cores)) for one in cpu]
                usages.append(Usage(Device(name), node.cores, node.t, use, node.every))
            else:
                usages.append(Usage(Device(name), cores, [], []))
        return "core", usages
    return "node", [Usage(Device(name), 1.0, [], []) for name in names]


def _hours(paths: RunPaths, attempt: int, end: End, measured: _Measured) -> tuple[Hours, tuple[str, ...]]:
    """Return the hours of all attempts until one, and sentences on those that the sum lacks."""
    counted, phases = measured.ledger, measured.phases
    before, total = attempts.earlier(paths, attempt), dict(counted.parts)
    uncounted = []
    for one in before:
        kept = table(paths.attempt(one.number).ledger)
        if kept.get("unit") == counted.unit:
            parts = _table(kept.get("parts"))
            total = {name: hours + (number(parts.get(name)) or 0.0) for name, hours in total.items()}
        else:
            uncounted.append(
                f"The total of the {counted.unit}-hours does not include attempt {one.number + 1}, "
                "which has no samples."
            )
    this = attempts.one(paths, attempt)._replace(begin=phases.began, end=phases.end)
    this = this._replace(hours=counted.paid, useful=counted.share("useful"))
    if end.over:
        this = this._replace(state=end.state, exit_status=end.exit_status, message=end.message)
    return Hours(counted, (*before, this), total), tuple(uncounted)


# -- machines --------------------------------------------------------------------------------------------------------


def _machines(measured: _Measured, each: int) -> Machines:
    """Return what the run had; ``each`` are the processes of a node."""
    process, names = measured.accounting.process, measured.names
    places = [
        (name, gpu, f"{process} {_place(name, names) * each + place}" if process and len(node.gpus) == each else "")
        for name, node in measured.by_node.items()
        for place, gpu in enumerate(node.gpus)
    ]
    versions = _table(measured.event("environment-ready").get("versions"))
    return Machines(
        measured.names,
        tuple(_summary(name, gpu, process) for name, gpu, process in places),
        tuple((name, _topology(node)) for name, node in measured.by_node.items()),
        tuple(sorted((name, str(version)) for name, version in versions.items())),
        tuple((name, _decision(_table(row))) for name, row in _table(measured.event("repairs").get("repairs")).items()),
    )


def _decision(row: Mapping[str, Any]) -> Decision:
    return Decision(*(str(row.get(name, "")) for name in Decision._fields))


def _summary(name: str, gpu: series.Gpu, process: str) -> GpuSummary:
    columns, energy = gpu.columns, series.increase(gpu.columns.energy)
    use, memory, power = (
        [value for value in column if value is not None] for column in (columns.use, columns.memory, columns.power)
    )
    return GpuSummary(
        f"{name}:{gpu.number}",
        process,
        gpu.name,
        use=statistics.fmean(use) if use else None,
        memory=max(memory, default=None),
        memory_size=gpu.memory,
        power=statistics.fmean(power) if power else None,
        energy=None if energy is None else energy / 3.6e6,
        throttled=hot_share(columns),
    )


def _topology(node: Node) -> str:
    parts = [f"{node.cores:.0f} cores"]
    if node.memory:
        parts.append(format_bytes(node.memory))
    names = [gpu.name for gpu in node.gpus]
    parts += [f"{names.count(name)} × {name}" for name in dict.fromkeys(names)]
    return ", ".join(parts)


def _interconnect(measured: _Measured, fabric: Mapping[str, Any]) -> Interconnect:
    checked = measured.event("fabric-checked") or measured.event("fabric-seen")
    return Interconnect(
        str(checked.get("line") or fabric.get("line") or ""),
        bool(checked.get("ok", True)) and not checked.get("problem"),
        str(fabric.get("remedy", "")),
    )


# -- sentences -------------------------------------------------------------------------------------------------------


def _happened(by_node: Mapping[str, Node], devices: Sequence[GpuSummary], began: float) -> tuple[str, ...]:
    """Return the samplers' events as sentences."""
    sentences = []
    for name, node in by_node.items():
        sentences += [
            f"{text}, after {format_seconds(max(0.0, event.t - began))}."
            for event in node.events[:MOST_EVENTS]
            if (text := event.sentence(name, of_host=node.of_host, of_xid=of_xid))
        ]
    slow = [
        f"Heat or the power supply slowed GPU {device.label} down in {device.throttled:.0f} % of the samples."
        for device in devices
        if device.throttled
    ]
    return (*sentences[:MOST_EVENTS], *slow[:MOST_EVENTS])


def _asked(
    figures: Mapping[str, float], plan: Mapping[str, Any], names: Sequence[str], phases: Phases
) -> tuple[tuple[str, str, str], ...]:
    inside = _table(plan.get("inside"))
    job = _table(inside.get("job"))
    limit, per_node = number(job.get("time_limit")), _per_node(inside)
    used_time = format_seconds(phases.end - phases.began) if phases.began else "not known"
    rows = [("Time", format_seconds(limit) if limit else "no limit", used_time)]
    nodes, partition = str(job.get("nodes", "")), attempts.directive(plan, "--partition")
    asked_nodes = f"{nodes} of partition {partition}" if partition else nodes
    rows.append(("Nodes", asked_nodes, str(len(names)) if names else "none"))
    if per_node or "gpus" in figures:
        used = figures.get("gpus", 0.0) - figures.get("gpus_unused", 0.0)
        asked = per_node * int(number(job.get("nodes")) or 1)
        rows.append(("GPUs", str(asked or ""), f"{used:.0f}" if "gpus" in figures else "not known"))
    if "memory_peak" in figures:
        size = figures.get("memory_asked")
        peak = f"{format_bytes(figures['memory_peak'])} at most"
        rows.append(("Memory of a node", format_bytes(size) if size else "the site's default", peak))
    return tuple(rows)


def _unknown(
    measured: _Measured, status: Mapping[str, Any], devices: Sequence[GpuSummary], per_node: int
) -> tuple[str, ...]:
    sentences = []
    by_node = measured.by_node
    missing = [name for name in measured.names if name not in by_node]
    if missing:
        few = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if len(missing) > 4 else "")
        sentences.append(f"There are no samples of {few}.")
    if measured.activity is None and measured.accounting.missing:
        sentences.append(measured.accounting.missing)
    if per_node and by_node and not devices:
        sentences.append("There are no samples of the GPUs: their driver did not respond.")
    if any(node.of_host for node in by_node.values()):
        sentences.append(
            "The use of cores and memory includes all programs on the node: the job has no readable cgroup."
        )
    if not status:
        sentences.append(
            "The run's processes exited without writing a status: the last event or sample counts as the run's end."
        )
    return tuple(sentences)


def _places(paths: RunPaths, attempt: int, ending: Ending) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the places of the processes before the end, a line each, and a sentence if these cannot be read."""
    if ending.end.exit_status not in stacks.KEPT or any(line.file.endswith("/stacks") for line in ending.evidence):
        return (), ()  # `hpcml report` quotes them as evidence
    try:
        groups = stacks.kept(paths, attempt)
    except (KeyError, TypeError, ValueError) as error:
        return (), (f"The saved call stacks of the processes cannot be read ({type(error).__name__}: {error}).",)
    return tuple(f"{group.sentence}: {group.names(MOST_NAMES)}" for group in groups[:MOST_GROUPS]), ()


def _thinned(paths: RunPaths, attempt: int, most: int) -> tuple[str, ...]:
    step = samples.step(paths.attempt(attempt), most)
    if step == 1:
        return ()
    all_of_them = f"To use all samples: hpcml report {paths.directory.name}."
    few = f"To save time at the end of the job, this page uses one of every {step} samples."
    return (f"{few} {all_of_them}",)
