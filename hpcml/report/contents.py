"""The contents of a run's report: its files joined into hours, figures, advice, and what was asked for and used."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from hpcml import attempt_history, earlier_names, samples, typed_json
from hpcml.attempt_history import Attempt
from hpcml.failures import stack_groups
from hpcml.failures.end import End
from hpcml.failures.rules import of_xid
from hpcml.kind import Kind
from hpcml.paths import RunPaths
from hpcml.repairs import Decision
from hpcml.report import advice, ledger, results, series
from hpcml.report import ending as endings
from hpcml.report.advice import Advice
from hpcml.report.ending import Ending
from hpcml.report.ledger import PLAIN, Accounting, Activity, Device, Ledger, Part, Phases, Plot, Usage
from hpcml.report.results import Points, Results
from hpcml.report.series import Node, figures_of, hot_share
from hpcml.run_files import Event, Recorded, RecordedPlan
from hpcml.units import first_of_many, format_bytes, format_seconds

MOST_EVENTS = 20  # of the nodes, in the report
SHORTEST = 10.0  # seconds of a script whose samples, one each second, tell when no task ran
MOST_GROUPS, MOST_NAMES = 20, 8  # of processes with equal stacks, and of names in each
T = TypeVar("T")
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

    interconnect: str  # empty without a check
    interconnect_ok: bool
    interconnect_remedy: str


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
        table = typed_json.plain(self._replace(drawing=Drawing({}, {}, None, ())), spread=_SPREAD)
        del table["drawing"]
        return {
            **earlier_names.with_earlier(table),
            "ending": self.course.ending.as_json(),
            "ledger": {**table["ledger"], "definitions": definitions},
            "results": [file.name for file in self.results.files],
            "points": [{"state": end.state, **typed_json.plain(end)} for end in self.points.ended],
            "versions": dict(self.machines.versions),
            "repairs": {name: decision._asdict() for name, decision in self.machines.repairs},
            "topology": dict(self.machines.topology),
        }


_SPREAD = (Identity, Course, Hours, Findings, Machines, Interconnect)  # groups that the JSON does not show


def accounting_of(kind: Kind) -> Accounting:
    """Return the part of the time accounting that a kind adds."""
    return kind.accounting() or PLAIN


class _TornDown(NamedTuple):
    """What the event ``torn-down`` says."""

    seconds: float = 0.0  # that it took


class _Ready(NamedTuple):
    """What the event ``environment-ready`` says."""

    versions: dict[str, str] = {}  # by library


class _Repairs(NamedTuple):
    """What the event ``repairs`` says."""

    repairs: dict[str, Decision] = {}


class _Checked(NamedTuple):
    """What the events of the interconnect's check say."""

    line: str = ""
    ok: bool = True
    problem: str = ""
    remedy: str = ""


class _Measured(NamedTuple):
    """An attempt by its events and samples."""

    events: list[Event]
    times: dict[str, float]  # of the last event of each name, in seconds since 1970
    by_node: dict[str, Node]
    names: tuple[str, ...]  # of the nodes
    activity: Activity | None
    accounting: Accounting
    phases: Phases
    ledger: Ledger

    def event(self, name: str, kind: type[T]) -> T:
        """Return the facts of the first event of a name, the defaults if there is none."""
        facts = next((event.facts.facts for event in self.events if event.name == name), None)
        return typed_json.salvage(kind, facts or {})[0]


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
    recorded = Recorded(paths)
    plan, inside = recorded.plan, recorded.plan.inside
    measured = _measure(recorded, attempt, kind, recorded.end, most)
    phases, by_node = measured.phases, measured.by_node
    ending = endings.ending_of(recorded, paths.attempt(attempt), kind, measured.times) if ending is None else ending
    hours, uncounted = _hours(recorded, attempt, ending.end, measured)
    machines = _machines(measured, inside.workers.per_node)
    memory = plan.memory or memory
    limit = inside.job.time_limit
    figures = figures_of(measured.ledger, measured.accounting, phases, by_node, limit, memory)
    texts: dict[str, str] = {}
    script = (phases.script, phases.script_end or phases.end) if phases.script else (0.0, 0.0)
    alone = measured.activity.alone(*script) if measured.activity else (0.0, 0.0)
    if measured.activity and measured.ledger.unit != "GPU":  # for GPUs the hours say it: work may go on without tasks
        of_tasks, texts = measured.activity.figures(*script)
        of_job = (script[1] - script[0]) / (phases.end - phases.began)  # all shares are of the job's time
        figures |= {name: share * of_job for name, share in of_tasks.items()}
    rules = advice.changed((*advice.RULES, *measured.accounting.rules), inside.report.advice)
    rules = tuple(rule for rule in rules if rule.unless not in measured.times)
    unknown = _unknown(measured, recorded.end, machines.devices, plan.gpus)
    places, damaged = _places(paths, attempt, ending)
    return Report(
        run=Identity(
            paths.directory.name,
            plan.name,
            plan.site,
            hours.attempts[-1].job,
            inside.code.command(),
            attempt,
            plan.version,
        ),
        made=time.time(),
        course=Course(phases.began, phases.end, ending, _named(phases, measured.accounting)),
        hours=hours,
        findings=Findings(
            figures,
            advice.advise(rules, figures, texts),
            functions=tuple(measured.activity.functions) if measured.activity else (),
            script_seconds=script[1] - script[0],
            script_alone=sum(alone) if measured.activity and script[1] - script[0] >= SHORTEST else None,
            asked=_asked(figures, plan, measured.names, phases),
            processes=places,
            happened=(
                *measured.accounting.sentences(measured.events),
                *_happened(by_node, machines.devices, phases.began),
            ),
            unknown=(*unknown, *uncounted, *damaged, *recorded.problems, *_thinned(paths, attempt, most)),
            profiles=tuple(endings.profile_commands(paths)),
        ),
        results=results.results_of(paths),
        points=results.points_of(paths, inside.points.sweep),
        has_cluster="scheduler-up" in measured.times,
        machines=machines,
        interconnect=_interconnect(measured),
        drawing=Drawing(ledger.parts_of(measured.accounting), by_node, measured.activity, measured.accounting.plots),
    )


def ledger_of(recorded: Recorded, attempt: int, kind: Kind, most: int = 0) -> Ledger:
    """Return the hours of an attempt that is over; ``most`` as in :func:`load`."""
    return _measure(recorded, attempt, kind, recorded.end_of(attempt), most).ledger


def _measure(recorded: Recorded, attempt: int, kind: Kind, end: End | None, most: int) -> _Measured:
    of_attempt, events = recorded.paths.attempt(attempt), attempt_history.events(recorded, attempt)
    times = {event.name: event.time for event in events}
    alone = "cluster-waits" in times and kind.ready not in times  # the script ran without the kind's processes
    accounting, activity = PLAIN if alone else accounting_of(kind), None
    if accounting.activity and (measured := samples.of_kind(of_attempt, kind)):
        activity = accounting.activity(measured)
    names = attempt_history.allocated(events).nodes
    by_node = dict(sorted(series.nodes(of_attempt, most).items(), key=lambda one: _place(one[0], names)))
    names = names or tuple(by_node)
    phases = _phases(events, times, end, by_node, kind)
    plan = recorded.plan
    unit, usages = _usages(by_node, names, plan.gpus, one_machine=plan.inside.job.one_machine)
    hours = ledger.divide(unit, phases, usages, accounting, activity)
    return _Measured(events, times, by_node, names, activity, accounting, phases, hours)


def _place(name: str, names: Sequence[str]) -> int:
    """Return a node's place in the allocation; others come last."""
    return names.index(name) if name in names else len(names)


# -- time and hours --------------------------------------------------------------------------------------------------


def _phases(
    events: Sequence[Event],
    times: Mapping[str, float],
    end: End | None,
    by_node: Mapping[str, Node],
    kind: Kind,
) -> Phases:
    """Return the times at which phases began; the end is the last sign of the run."""
    seen = [event.time for event in events]
    seen += [at for node in by_node.values() for at in (node.t[0], node.t[-1])]
    if end and end.time > 1:
        seen.append(end.time)
    if not seen:
        return Phases(0.0, None, None, None, None, 0.0)
    first = times.get("image-staging") or times.get("allocated") or min(seen)
    began = attempt_history.begin_of(attempt_history.allocated(events).began, first)
    script, torn = times.get("script-started"), times.get("torn-down")
    script_end = times.get("script-ended")
    if script_end is None and torn is not None:
        facts = next(event.facts.facts for event in events if event.name == "torn-down")
        script_end = torn - typed_json.salvage(_TornDown, facts)[0].seconds
    ready = min(filter(None, (times.get(kind.ready), script)), default=None)  # a late cluster is in the script's time
    return Phases(began, times.get("allocated") or ready, ready, script, script_end, max(began, *seen))


def _named(phases: Phases, accounting: Accounting) -> tuple[Phase, ...]:
    parts = ledger.parts_of(accounting)
    named: list[Phase] = []
    for kind, begin, end in ledger.moments(phases, accounting):
        title = _TITLES.get(kind) or parts[kind].title
        if kind == "starting" and any(phase.kind == accounting.startup for phase in named):
            title = accounting.before_script
        named.append(Phase(kind, title, begin - phases.began, end - phases.began))
    return tuple(named)


def _usages(
    by_node: Mapping[str, Node], names: Sequence[str], per_node: int, *, one_machine: bool
) -> tuple[str, list[Usage]]:
    """Return the devices whose hours are counted: the run's GPUs, else the cores of its nodes, else its nodes.

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
                use = [None if cores is None else min(100.0, max(0.0, 100 * cores / node.cores)) for cores in cpu]
                usages.append(Usage(Device(name), node.cores, node.t, use, node.every))
            else:
                usages.append(Usage(Device(name), cores, [], []))
        return "core", usages
    return "node", [Usage(Device(name), 1.0, [], []) for name in names]


def _hours(recorded: Recorded, attempt: int, end: End, measured: _Measured) -> tuple[Hours, tuple[str, ...]]:
    """Return the hours of all attempts until one, and sentences on those that the sum lacks."""
    counted, phases = measured.ledger, measured.phases
    before, total = attempt_history.earlier(recorded, attempt), dict(counted.parts)
    uncounted = []
    for attempt_before in before:
        kept = attempt_history.sums(recorded, attempt_before.number)
        if kept.unit == counted.unit:
            total = {name: hours + kept.parts.get(name, 0.0) for name, hours in total.items()}
        else:
            uncounted.append(
                f"The total of the {counted.unit}-hours does not include attempt {attempt_before.number}, "
                "which has no samples."
            )
    this = attempt_history.one(recorded, attempt)._replace(begin=phases.began, end=phases.end)
    this = this._replace(hours=counted.paid, useful=counted.share("useful"))
    if end.over:
        this = this._replace(state=end.state, exit_status=end.exit_status, message=end.message)
    return Hours(counted, (*before, this), total), tuple(uncounted)


# -- machines --------------------------------------------------------------------------------------------------------


def _machines(measured: _Measured, each: int) -> Machines:
    """Return the machines of the run; ``each`` is the number of processes per node."""
    process, names = measured.accounting.process, measured.names
    places = [
        (name, gpu, f"{process} {_place(name, names) * each + place}" if process and len(node.gpus) == each else "")
        for name, node in measured.by_node.items()
        for place, gpu in enumerate(node.gpus)
    ]
    versions = measured.event("environment-ready", _Ready).versions
    return Machines(
        measured.names,
        tuple(_summary(name, gpu, process) for name, gpu, process in places),
        tuple((name, _topology(node)) for name, node in measured.by_node.items()),
        tuple(sorted(versions.items())),
        tuple(measured.event("repairs", _Repairs).repairs.items()),
    )


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


def _interconnect(measured: _Measured) -> Interconnect:
    name = "interconnect-checked" if "interconnect-checked" in measured.times else "interconnect-seen"
    checked = measured.event(name, _Checked)
    return Interconnect(checked.line, checked.ok and not checked.problem, checked.remedy)


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
    figures: Mapping[str, float], plan: RecordedPlan, names: Sequence[str], phases: Phases
) -> tuple[tuple[str, str, str], ...]:
    job, per_node = plan.inside.job, plan.gpus
    limit = job.time_limit
    used_time = format_seconds(phases.end - phases.began) if phases.began else "not known"
    rows = [("Time", format_seconds(limit) if limit else "no limit", used_time)]
    nodes, partition = str(job.nodes or ""), plan.directive("--partition")
    asked_nodes = f"{nodes} of partition {partition}" if partition else nodes
    rows.append(("Nodes", asked_nodes, str(len(names)) if names else "none"))
    if per_node or "gpus" in figures:
        used = figures.get("gpus", 0.0) - figures.get("gpus_unused", 0.0)
        asked = per_node * (job.nodes or 1)
        rows.append(("GPUs", str(asked or ""), f"{used:.0f}" if "gpus" in figures else "not known"))
    if "memory_peak" in figures:
        size = figures.get("memory_asked")
        peak = f"{format_bytes(figures['memory_peak'])} at most"
        rows.append(("Memory of a node", format_bytes(size) if size else "the site's default", peak))
    return tuple(rows)


def _unknown(measured: _Measured, end: End | None, devices: Sequence[GpuSummary], per_node: int) -> tuple[str, ...]:
    sentences = []
    by_node = measured.by_node
    missing = [name for name in measured.names if name not in by_node]
    if missing:
        sentences.append(f"There are no samples of {first_of_many(missing, 4)}.")
    if measured.activity is None and measured.accounting.missing:
        sentences.append(measured.accounting.missing)
    if per_node and by_node and not devices:
        sentences.append("There are no samples of the GPUs: their driver did not respond.")
    if any(node.of_host for node in by_node.values()):
        sentences.append(
            "The use of cores and memory includes all programs on the node: the job has no readable cgroup."
        )
    if end is None:
        sentences.append(
            "The run's processes exited without writing a status: the last event or sample counts as the run's end."
        )
    return tuple(sentences)


def _places(paths: RunPaths, attempt: int, ending: Ending) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the places of the processes before the end, a line each, and a sentence if these cannot be read."""
    if ending.end.exit_status not in stack_groups.KEPT or any(row.file.endswith("/stacks") for row in ending.evidence):
        return (), ()  # `hpcml report` quotes them as evidence
    try:
        groups = stack_groups.kept(paths, attempt)
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
