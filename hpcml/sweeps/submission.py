"""Submit the missing points of a sweep, or those that failed with the memory, time or nodes that the cause asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcml import units
from hpcml.errors import TIME_LIMIT, SiteError, UsageError
from hpcml.failures.cause import KINDS, Cause, kind_of
from hpcml.failures.rule import Retry
from hpcml.failures.rules import BY_NAME
from hpcml.paths import RunPaths
from hpcml.request.record import Code, RunRequest
from hpcml.runs import bad_nodes, directories, folders_code_uses, packages, pythons, why
from hpcml.runs import status as run_status
from hpcml.runs import submit as runs_submit
from hpcml.runs.record import Record
from hpcml.sites import lookup, settings_layers
from hpcml.sites.schema import Partition
from hpcml.states import State
from hpcml.sweeps import points, record
from hpcml.sweeps.points import Point, Value
from hpcml.sweeps.record import Planned, Progress, Sweep
from hpcml.terminal import note
from hpcml.units import Memory, TimeLimit

if TYPE_CHECKING:
    from hpcml.runs.submit import Prepared
    from hpcml.sweeps.search import Search

ALL = "all"
_OF_A_RUN = ("oom", "timeout", "node")  # ends of a run that are also its points' failure


class Fault(NamedTuple):
    """Why a point failed."""

    kind: str
    options: tuple[str, ...] = ()  # with which another try may help, as `hpcml why` names them


class More(NamedTuple):
    """A request with what is asked for beyond the command line."""

    spec: RunRequest
    settings: tuple[str, ...] = ()  # as --set takes them
    words: tuple[str, ...] = ()  # what that is, in sentences


def asked(text: str) -> tuple[str, ...]:
    """Return the kinds that ``--only-failed=KIND,…`` means; UsageError if one is none."""
    if text == ALL:
        return KINDS
    kinds = tuple(word.strip() for word in text.split(","))
    if wrong := [word for word in kinds if word not in KINDS]:
        hint = f"Use one or more of: {', '.join(KINDS)}. For all kinds, write --only-failed without a value."
        raise UsageError(f"'{wrong[0]}' is not a kind of failure", place="--only-failed", hint=hint)
    return kinds


class Faults:
    """The failures of a sweep's points; each run, and each cause in it, is judged once and when it is asked for."""

    def __init__(self, runs: Path, progress: Progress) -> None:
        self.runs, self.progress = runs, progress
        self._runs: dict[str, tuple[directories.Run, run_status.Status]] = {}
        self._ends: dict[str, Fault] = {}
        self._options: dict[tuple[str, str, tuple[str, ...]], tuple[str, ...]] = {}

    def of(self, key: str) -> Fault | None:
        """Return the cause of a point's failure; None if it did not fail, or is not over."""
        if key in self.progress.under_way:
            return None
        if end := self.progress.ended.get(key):
            if not end.failed:
                return None
            return Fault(end.kind or "error", self._help(end.run, end.rule, end.nodes))
        if run_id := self.progress.interrupted.get(key):
            fault = self._ends.get(run_id) or self._end(run_id)
            return fault if fault.kind in _OF_A_RUN else None
        return None

    def _run(self, run_id: str) -> tuple[directories.Run, run_status.Status]:
        if run_id not in self._runs:
            run = directories.load(self.runs / run_id)
            self._runs[run_id] = run, run_status.status(run, ask=False)
        return self._runs[run_id]

    def _end(self, run_id: str) -> Fault:
        """Return the cause of the end of a run in which points were interrupted."""
        run, status = self._run(run_id)
        answer = why.of_status(run, status)
        kind = kind_of(answer.rule, evident=answer.known)
        if status.state == State.TIMEOUT or status.exit_status == TIME_LIMIT:
            kind = "timeout"
        by_rule = BY_NAME[answer.rule].retry if answer.rule in BY_NAME else Retry.NONE
        retry = Retry.TIME if kind == "timeout" else by_rule
        options = why.options(run, Cause("", "", rule=answer.rule, retry=retry, nodes=answer.nodes))
        if "--exclude" in options and not bad_nodes.at_fault(status, answer.rule, answer.nodes):
            options = ()
        self._ends[run_id] = Fault(kind, options)
        return self._ends[run_id]

    def _help(self, run_id: str, rule: str, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the options with which a point that failed by a rule may be tried again."""
        if rule not in BY_NAME:
            return ()
        if (run_id, rule, nodes) not in self._options:
            run, status = self._run(run_id)
            bad = nodes
            if BY_NAME[rule].retry is Retry.EXCLUDE:
                bad = bad_nodes.at_fault(status, rule, nodes)
            cause = Cause("", "", rule=rule, retry=BY_NAME[rule].retry, nodes=bad)
            self._options[run_id, rule, nodes] = why.options(run, cause)
        return self._options[run_id, rule, nodes]


def _to_run(planned: Sequence[Planned], progress: Progress, faults: Faults, only: tuple[str, ...]) -> list[Planned]:
    """Return the points to run: those that no run has ended or is running, or only what failed by one of some kinds.

    What failed by the fault of a node that can be left out counts as not ended.
    """

    def wanted(one: Planned) -> bool:
        if one.key in progress.under_way:
            return False
        if one.key not in progress.ended and not only:
            return True
        fault = faults.of(one.key)
        return fault is not None and (
            fault.kind in only if only else fault.kind == "node" and "--exclude" in fault.options
        )

    return [point for point in planned if wanted(point)]


def more(
    spec: RunRequest,
    faults: Sequence[Fault],
    partition: Partition,
    name: str,
    now: Mapping[str, int],
    *,
    asked_for: bool,
) -> More:
    """Return the request with what the causes of the failures ask for, and say what that is.

    Parameters
    ----------
    partition, name
        The partition's limits as the profile knows them, which nothing is raised beyond, and its name.
    now
        What the request comes to as it is, 0 where that is not known: ``memory`` of a node and a worker's
        ``memory_limit`` in bytes, ``time`` in seconds.
    asked_for
        Whether the user asked for what failed: else only nodes are left out.
    """
    given = _options_of(faults)
    spec, sentences = _without_nodes(spec, given.get("--exclude", ()))
    if not asked_for:
        return More(spec, (), tuple(sentences))
    times = [int(TimeLimit(text)) for text in given.get("--time", ())]
    longer, told = _raised_to("the time limit", times, now["time"], partition.max_time, name, units.format_time_limit)
    sizes = [int(Memory(text)) for text in given.get("--memory-per-node", ())]
    most = partition.memory_per_node
    larger, told_of_memory = _raised_to("the memory per node", sizes, now["memory"], most, name, units.format_bytes)
    spec = spec.changed(time=TimeLimit(units.format_time_limit(longer))) if longer else spec
    spec = spec.changed(memory_per_node=Memory(units.format_memory_for_slurm(larger))) if larger else spec
    sentences += [*told, *told_of_memory]
    settings: list[str] = []
    limits = [int(Memory(text.partition("=")[2])) for text in given.get("--set", ())]
    if limits and (wanted := max(limits)) > now["memory_limit"]:
        settings.append(f"workers.memory_limit={units.format_memory_for_slurm(wanted)}")
        sentences.append(_raised("the memory per worker", *map(units.format_bytes, (now["memory_limit"], wanted))))
    if not (sizes or limits) and any(fault.kind == "oom" for fault in faults):
        sentences.append(
            "hpcml does not raise memory: the profile does not give a node's memory. Use fewer workers per node"
        )
    return More(spec, tuple(settings), tuple(sentences))


def _options_of(faults: Sequence[Fault]) -> dict[str, list[str]]:
    """Return the values of all options that causes ask for, by option."""
    values: dict[str, list[str]] = {}
    for fault in faults:
        for option, text in zip(fault.options[::2], fault.options[1::2], strict=True):
            values.setdefault(option, []).append(text)
    return values


def _without_nodes(spec: RunRequest, lists: Sequence[str]) -> tuple[RunRequest, list[str]]:
    """Return the request without the nodes of some lists, and a sentence that says so, or why it keeps them."""
    nodes = dict.fromkeys(node for text in lists for node in text.split(","))
    passed = dict(spec.place.sbatch)
    if not nodes:
        return spec, []
    if "--nodelist" in passed:
        return spec, [f"hpcml does not exclude the nodes {','.join(nodes)}, because the request has --nodelist"]
    excluded = passed.get("--exclude", "")
    hosts = why.hosts(excluded)
    text = ",".join(filter(None, [excluded, *(node for node in nodes if node not in hosts)]))
    rest = tuple(pair for pair in spec.place.sbatch if pair[0] != "--exclude")
    sentence = f"hpcml excludes {','.join(nodes)}: points failed because of a node fault"
    return spec.changed(sbatch=(*rest, ("--exclude", text))), [sentence]


def _raised_to(
    resource: str, asked: Sequence[int], now: int, most: int, partition: str, words: Callable[[int], str]
) -> tuple[int, list[str]]:
    """Return the new amount of a resource, 0 if it stays, and a sentence; nothing if no cause ``asked`` for more.

    ``most`` is the limit of the partition, 0 if that is not known.
    """
    if not asked:
        return 0, []
    wanted = min(max(asked), most or max(asked))
    if wanted > now:
        return wanted, [_raised(resource, words(now), words(wanted))]
    why_not = f"the request ({words(now)}) is already larger than the request of the failed points"
    if wanted < max(asked):
        why_not = f"{words(now)} is the maximum of partition {partition}"
    return 0, [f"hpcml does not raise {resource}: {why_not}"]


def _raised(resource: str, before: str, after: str) -> str:
    return f"hpcml raises {resource} from {before} to {after}"


# -- what is checked before a submission -------------------------------------------------------------------------------


def check_names(names: Collection[str], arguments: Sequence[str]) -> None:
    """Raise UsageError if the script's own arguments give a name already: which of the two counted would be a guess."""
    given = {word.partition("=")[0] for word in arguments}
    if twice := sorted(name for name in names if f"--{name}" in given):
        hint = f"Remove --{twice[0]} after --, or remove {twice[0]} from the points."
        raise UsageError(f"The script's arguments and the points both set --{twice[0]}", place="hpcml sweep", hint=hint)


def check_packages(prepared: Prepared, more: Sequence[str]) -> None:
    """Refuse a search or a pruner if the nodes' Python lacks Optuna or ``more``; in an image the run shows it."""
    runtime = prepared.loaded.site.runtime
    if not (prepared.plan.inside.job.image or runtime.modules or runtime.setup):
        python = prepared.plan.steps[-1].command[0]
        packages.check_packages(("optuna",), python, "extra 'sweep'", sure=True)
        packages.check_packages(more, python, "--sampler", sure=True)
    elif more:
        note(f"--sampler needs the package {', '.join(more)} in the nodes' Python, which this machine cannot check")


def check_worker_groups(prepared: Prepared) -> None:
    """Raise UsageError if more points are to run at once than there are workers."""
    inside = prepared.plan.inside
    if inside.points.at_once <= inside.worker_count:
        return
    count = inside.points.at_once
    message = f"{count} parallel points need {count} workers, but the run has {inside.worker_count}"
    more = (
        ""
        if inside.workers.gpu
        else f"more workers (--set workers.per_node={-(-inside.points.at_once // inside.job.nodes)}), or "
    )
    raise UsageError(message, place="--at-once", hint=f"Request {more}more nodes.")


def with_python(spec: RunRequest) -> RunRequest:
    """Return the request with the Python of the sweep's newest run, so that all points have the same."""
    place = spec.place
    loaded = lookup.load_here(place.site, spec.code.cwd, place.settings, place.line_settings)
    runs = directories.runs_folder(loaded.site.paths.runs, settings_layers.process_environment())
    before = record.load(runs, spec.points.sweep)
    if spec.python or not before or not before.runs or not (runs / before.runs[-1]).is_dir():
        return spec
    request = Record(RunPaths(runs / before.runs[-1])).request
    kept = pythons.kept(request.site) if request else ()
    return spec.changed(line_settings=(*place.line_settings, *kept))


# -- a submission ------------------------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """What a command says of the whole sweep."""

    max_fails: int | None  # begin no more points when more have failed
    jobs: int  # that take points of the sweep
    metric: str  # that sorts the table, empty for the sweep's
    maximize: bool  # the largest metric is the best
    study: Search | None  # what Optuna does for the sweep
    key: str  # tells that study from others of the sweep, empty without one


class Choice(NamedTuple):
    """The points of a sweep before a submission, and those of them that are to run."""

    before: Sweep  # the record as it is
    planned: list[Planned]
    chosen: list[Planned]
    stale: int  # as record.stale counts
    prepared: Prepared  # the run with what the causes of failures ask for
    progress: Progress


def _modules_of_project(code: Code) -> list[Path]:
    """Return the modules outside the script's folder that it reaches in its project."""
    script = code.script.resolve()
    found = folders_code_uses.of_python(script, script.parent).modules if code.root else ()
    return [module for module in found if not module.is_relative_to(script.parent)]


def planned(prepared: Prepared, wanted: Sequence[Point], study: Search | None) -> tuple[list[Planned], str]:
    """Return the points with their keys, and the key of the study."""
    spec = prepared.spec
    with directories.storage(spec.code.script):
        code = points.code_digest(spec.code.script.resolve(), _modules_of_project(spec.code))
    image_table = runs_submit.check_image(prepared)
    image = ""
    if image_table:
        image = str(image_table.get("digest") or [image_table.get(name) for name in ("path", "size", "modified")])
    same = (code, spec.code.arguments, image)
    if study is None:
        return [Planned(points.key_of(point, *same), point) for point in wanted], ""
    mark = Value("study", study.text, study.text)
    more = (mark,) if study.draws else ()
    return [Planned(points.key_of((*point, *more), *same), point) for point in wanted], points.key_of((mark,), *same)[
        :8
    ]


def choose(
    prepared: Prepared, planned: Sequence[Planned], progress: Progress, only_failed: str
) -> tuple[list[Planned], More]:
    """Return the points to run, and the run's request with what is asked for beyond the command line.

    ``only_failed`` is the option's text: run again what failed by one of its kinds, and nothing else.
    """
    failed = any(end.failed for end in progress.ended.values())
    if not (only_failed or failed or progress.interrupted):
        busy = progress.ended.keys() | progress.under_way.keys()
        return [point for point in planned if point.key not in busy], More(prepared.spec)
    only = asked(only_failed) if only_failed else ()
    faults = Faults(Path(prepared.plan.directory).parent, progress)
    chosen = _to_run(planned, progress, faults, only)
    of_points = [fault for point in chosen if (fault := faults.of(point.key))]
    if prepared.plan.hold:
        same = "hpcml changes no time limit, memory or nodes: the run has those of its hold"
        return chosen, More(prepared.spec, (), (same,) if any(fault.kind in _OF_A_RUN for fault in of_points) else ())
    inside, directives = prepared.plan.inside, dict(prepared.plan.directives)
    name = directives.get("--partition", "")
    memory = int(Memory(directives["--mem"])) if directives.get("--mem") else 0
    now = {"time": inside.job.time_limit, "memory": memory, "memory_limit": inside.workers.memory_limit}
    limits = prepared.loaded.site.partitions.get(name, Partition())
    return chosen, more(prepared.spec, of_points, limits, name, now, asked_for=bool(only))


def submit(choice: Choice, asked: Asked) -> list[directories.Run]:
    """Write the sweep's record and submit runs for the chosen points; at least one, or it is an error."""
    old, prepared = choice.before, choice.prepared
    runs = Path(prepared.plan.directory).parent
    record.remove_leases(runs, old.name, choice.progress.leases)
    jobs, leases = [prepared], ""
    if asked.jobs > 1:
        leases = str(record.new_leases(runs, old.name))
        with directories.storage(runs):
            Path(leases).mkdir(mode=0o700)
        others = min(asked.jobs, len(choice.chosen)) - 1
        jobs += [runs_submit.prepare(prepared.loaded, prepared.spec) for _ in range(others)]
    ids = [job.plan.run_id for job in jobs]
    metric, maximize = asked.metric or old.metric, asked.maximize or old.maximize
    sweep = old._replace(points=tuple(choice.planned), runs=(*old.runs, *ids), metric=metric, maximize=maximize)
    record.save(runs, sweep)
    numbers = {point.key: {"number": number} for number, point in enumerate(choice.planned, 1)}
    table: dict[str, object] = {
        "sweep": old.name,
        "max_fails": asked.max_fails,
        "points": [numbers[point.key] | _for_the_nodes(point, choice.progress) for point in choice.chosen],
    }
    if leases:
        table |= {"claims": leases, "runs": ids}
    if asked.study:
        table["study"] = asked.study.for_the_nodes(runs, old.name, asked.key)
    text = json.dumps(table, indent=1) + "\n"
    started: list[directories.Run] = []
    for job in jobs:
        try:
            started.append(runs_submit.submit(job._replace(points=text)))
        except SiteError as error:
            if not started:
                raise
            sharing = f"{len(started)} of {len(jobs)} jobs share all points"
            note(f"{sharing}, because another job could not be submitted: {error.message}")
            break
    return started


def _for_the_nodes(planned: Planned, progress: Progress) -> dict[str, object]:
    """Return a point as the first node of a run reads it; a search chooses its values there, unless it had some."""
    values = {value.name: value.typed for value in planned.point}
    table: dict[str, object] = {"key": planned.key, "shown": points.shown(planned.point)}
    if "draw" in values:
        before = progress.ended[planned.key].values if planned.key in progress.ended else {}
        return table | {"values": before, "texts": {}} | values
    return table | {"values": values, "texts": {value.name: value.text for value in planned.point}}
