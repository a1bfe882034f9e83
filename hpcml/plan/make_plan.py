"""One pure function decides everything that can be decided before the job runs: ``plan(site, spec, place) -> Plan``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcml import features_by_point, kinds, repairs, schedulers, typed_json
from hpcml.errors import ConfigError, SiteError, UsageError
from hpcml.hold_queue import Part
from hpcml.kind import Kind, Role
from hpcml.paths import SUPERVISOR, RunPaths, task_of_array
from hpcml.plan.container import Stage, entry, image_of, interpreter, kernels, stage
from hpcml.request.record import NOT_SAID, RunRequest, job_name
from hpcml.schedulers import JobLayout, JobRequest, Launcher
from hpcml.settings import Attempts, Code, Job, Report, Settings, Workers
from hpcml.sites.schema import Site
from hpcml.units import TimeLimit, counted

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_RESTARTS = 20  # of a run that goes on until it is done, where the user says nothing
_MANY_NODES = 64  # from which on importing from a shared file system may be what a run waits for
_SHORT = 300  # seconds of a time limit, of which Slurm may take 60: it sends its signal early
ADAPTERS = ("NCCL_IB_HCA", "UCX_NET_DEVICES")  # variables that name RDMA adapters
_MOST_SIGNAL_LEAD = 65535  # seconds, sbatch(1) --signal


class RunLocation(NamedTuple):
    """Where the run will live: its directory, the interpreter that runs hpcml itself, and the user's umask."""

    directory: Path
    python: str
    version: str
    umask: int = 0o077
    python_from: str = ""  # who named the Python of the run's processes; empty: it is this one


class Step(NamedTuple):
    """One step of the batch script: ``launcher``, ``wrapper``, the words into an image, then ``command``.

    ``wrapper`` is the shell that records the role's end. ``log`` is empty where the launcher writes it.
    """

    role: str
    launcher: Launcher | None
    wrapper: tuple[str, ...]
    command: tuple[str, ...]
    log: str


class Plan(NamedTuple):
    """A run as it will be submitted."""

    run_id: str
    name: str
    site: str
    version: str  # of hpcml
    directory: str
    scheduler: str
    directives: tuple[tuple[str, str], ...]  # this one and others below are the scheduler's: see JobLayout
    directive_word: str
    lines: tuple[str, ...]
    warning: str
    forwarded: tuple[str, ...]
    may_start_again: bool
    modules: tuple[str, ...]
    setup: tuple[str, ...]  # lines of bash
    setup_errors: str  # what a line that fails does: warn or end
    environment: tuple[tuple[str, str], ...]
    variables: tuple[str, ...]  # names of the user's own, whose values are in the run's directory alone
    prologue: tuple[str, ...]
    starts_word: str
    job_word: str
    follow_up: str  # this one and the next three are empty where attempts are one process
    forget: str
    may_put_back: str
    put_back: str
    entry: tuple[str, ...]  # the words into an image, before it and a role's interpreter; none without one
    stage: Stage | None  # how the image is copied to the nodes before
    steps: tuple[Step, ...]
    scripts: tuple[str, ...]  # the shell that the run needs beside the batch script
    inside: Settings
    reasons: tuple[str, ...]  # why it came out so
    notices: tuple[str, ...]  # what the user should know
    ignored: tuple[str, ...]  # see JobLayout
    after: tuple[str, ...] = ()  # the runs that it waits for, as ``ID:ok``
    hold: str = ""  # directory of the kept allocation that it runs in, empty without one
    part: tuple[Part, ...] = ()  # this and the next one: see Place
    no_wait: bool = False
    python: str = ""  # the interpreter of the run's processes; in an image the image's
    python_from: str = ""  # who named it: an option, a file of settings, a variable; empty: hpcml's own
    array: tuple[int, ...] = ()  # the tasks of a job array: each is a run with the plan that of_task() returns
    at_once: int = 0
    index_word: str = ""
    code_of: str = ""  # the first task of a laptop's array: all tasks run in its copy of the code; empty: the run's own
    gpus_because: tuple[str, ...] = ()  # what of the script hpcml chose the GPUs for; empty: it did not
    gpus_lacking: tuple[str, ...] = ()  # packages without which hpcml chose no GPUs

    def of_task(self, index: int) -> Plan:
        """Return the plan of a task of the array, in the task's own directory."""
        task = str(self.task_directory(index))

        def moved(text: str) -> str:
            return text.replace(self.directory, task, 1)

        steps = tuple(
            step._replace(wrapper=tuple(map(moved, step.wrapper)), log=moved(step.log)) for step in self.steps
        )
        inside = self.inside
        if self.code_of:
            first = str(Path(self.directory).with_name(self.code_of))
            script, cwd = (text.replace(self.directory, first, 1) for text in (inside.code.script, inside.code.cwd))
            inside = inside._replace(code=inside.code._replace(script=script, cwd=cwd))
        return self._replace(run_id=Path(task).name, directory=task, steps=steps, array=(), at_once=0, inside=inside)

    def task_directory(self, index: int | str) -> Path:
        """Return the directory of a task's run."""
        return Path(self.directory).with_name(task_of_array(self.run_id, index))

    @property
    def task_in_shell(self) -> tuple[str, str]:
        """The directory of a task's run before and after the task's index, for the script of the array."""
        before, _, after = str(self.task_directory("\0")).partition("\0")
        return before, after

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of the steps beside the supervisor's."""
        return tuple(step.role for step in self.steps if step.role != SUPERVISOR)


def plan(site: Site, asked: RunRequest, location: RunLocation) -> Plan:
    """Return the plan of a request on a site.

    Raises
    ------
    UsageError
        If the request is wrong in itself (no nodes, a bad time).
    SiteError
        If the site cannot give what is asked for.
    ConfigError
        If a value of the profile cannot be used.
    """
    if site.unsupported:
        hint = "Choose another site. For CPU jobs, try the generic profile: --site slurm."
        raise SiteError(site.unsupported, place=f"profile {site.name}", hint=hint)
    reasons: list[str] = []
    kind = kinds.get(asked.kind)
    site, sized = kind.sized(site, asked)
    spec = _filled(site, sized)
    site = kind.decided(site, spec)
    _check_directory(location.directory)
    if site.runtime.python and not site.runtime.python.startswith("/"):
        hint = "Use Python's absolute path on the compute nodes."
        raise ConfigError(f"{site.runtime.python!a} is not an absolute path", place="runtime.python", hint=hint)
    paths = RunPaths(location.directory)
    roles = kind.planned_roles(spec)
    request = JobRequest(spec, asked, paths, _signal_lead(site, spec.size.time, reasons), roles)
    layout = schedulers.get(site.scheduler).lay_out(site, request)
    reasons += layout.reasons
    origins = [f"{option} ({origin})" for option, origin in spec.origins]
    reasons += origins
    reasons += kind.reasons(site, spec)
    _check_attempts(site, spec)
    python = interpreter(site) if spec.image else site.runtime.python or location.python
    if spec.image:
        reasons.append(f"{site.runtime.container} runs all processes in {spec.image}")
    staged = stage(site, spec.image, layout)
    if staged:
        reasons.append(f"hpcml copies the image to each node ({staged.mode})")
    inside = _inside(site, request, layout, kind, location.umask)
    by_scheduler: dict[str, Any] = {name: getattr(layout, name) for name in JobLayout._fields if name in Plan._fields}
    by_scheduler["may_start_again"] |= bool(spec.attempts.several_jobs)
    by_scheduler["reasons"] = tuple(reasons)
    by_scheduler["notices"] = (
        *(
            [f"these options do not come from the command line: {', '.join(origins)}"]
            if origins and not spec.code.batch_words  # of whose lines the translation is shown
            else ()
        ),
        *layout.notices,
        *_notices(site, spec),
        *kind.notices(inside),
    )
    return Plan(
        **by_scheduler,
        run_id=location.directory.name,
        name=spec.name,
        site=site.name,
        version=location.version,
        directory=str(location.directory),
        scheduler=site.scheduler,
        modules=site.runtime.modules,
        setup=site.runtime.setup,
        setup_errors=site.runtime.setup_errors,
        environment=_environment(site, spec, kind),
        variables=tuple(name for name, _ in spec.environment),
        entry=entry(site, spec, paths) if spec.image else (),
        stage=staged,
        code_of=task_of_array(paths.directory.name, layout.array[0]) if layout.array and spec.code.staged else "",
        steps=_steps(paths, roles, layout, python),
        scripts=tuple(script.name for script in _scripts(paths, site, spec, layout)),
        inside=inside,
        after=tuple(awaited.text for awaited in spec.place.after),
        hold=asked.place.hold,
        part=asked.place.part,
        no_wait=asked.place.no_wait,
        python=python,
        python_from=location.python_from,
        gpus_because=spec.size.gpus_because,
        gpus_lacking=spec.size.gpus_lacking,
    )


def _scripts(paths: RunPaths, site: Site, spec: RunRequest, layout: JobLayout) -> list[Path]:
    """Return the shell that the run needs beside the batch script."""
    return [
        paths.step,
        *([paths.image] if spec.image else []),
        *([paths.stage, paths.keep] if stage(site, spec.image, layout) else []),
        *([paths.sweep] if layout.one_machine else []),
        *([paths.agents] if layout.launchers and SUPERVISOR not in layout.launchers else []),
        *([paths.setup] if site.runtime.setup else []),
    ]


def _filled(site: Site, asked: RunRequest) -> RunRequest:
    """Return the request with the site's defaults where the user said nothing."""
    defaults, resources = site.defaults, site.resources
    memory = asked.size.memory_per_node if asked.size.memory_per_node.text else resources.memory_per_node
    if memory.text and 0 < memory < 1024**2:  # 0 is Slurm's word for all memory of the node
        hint = "Remove the value to use the site's default. For all memory of a node, use 0."
        raise UsageError(f"'{memory.text}' is less than 1 MiB", place="--memory-per-node", hint=hint)
    gpus = _count(asked.size.gpus_per_node, defaults.gpus_per_node, "--gpus-per-node", "defaults.gpus_per_node")
    time = asked.size.time or defaults.time
    if time % 60 and schedulers.get(site.scheduler).BATCH_SCRIPTS:  # Slurm's limits are whole minutes
        time = TimeLimit(str(-(-time // 60)))
    return asked.changed(
        name=job_name(asked),
        nodes=_count(asked.size.nodes, defaults.nodes, "--nodes", "defaults.nodes", least=1),
        gpus_per_node=gpus,
        cpus_per_node=_count(
            asked.size.cpus_per_node, resources.cpus_per_node, "--cpus-per-node", "resources.cpus_per_node"
        ),
        memory_per_node=memory,
        time=time,
        account=asked.place.account or defaults.account,
        partition=asked.place.partition or defaults.partition,
        image=image_of(site, asked),
    )


def _count(asked: int, default: int, option: str, key: str, *, least: int = 0) -> int:
    number, place = (default, key) if asked == NOT_SAID else (asked, option)
    if number < least:
        raise UsageError(f"{number} is too small for {place}", place=place, hint=f"Use at least {least}.")
    return number


def _check_attempts(site: Site, spec: RunRequest) -> None:
    """Refuse limits for attempts that no attempt could keep, or that mean nothing."""
    if not spec.attempts.several_jobs:
        if spec.attempts.max_restarts != NOT_SAID or spec.attempts.max_node_hours:
            option = "--max-node-hours" if spec.attempts.max_node_hours else "--max-restarts"
            raise UsageError(f"{option} needs --until-done", place=option, hint="Add --until-done.")
        return
    if not schedulers.get(site.scheduler).OWN_JOBS:
        hint = "Remove --until-done, or use: hpcml submit --until-done."
        problem = "A run in an existing allocation ends when the allocation ends"
        raise UsageError(problem, place="--until-done", hint=hint)
    if not spec.code.form.traits.is_script:
        raise UsageError(f"{spec.code.form} cannot be continued", place="--until-done", hint="Remove --until-done.")
    one = spec.size.nodes * int(spec.size.time) / 3600
    if spec.attempts.max_node_hours and one > spec.attempts.max_node_hours:
        hint = "Reduce --time, or increase --max-node-hours."
        most = f"the limit for all attempts is {spec.attempts.max_node_hours:g}"
        problem = f"One attempt may take {one:g} node-hours, but {most}"
        raise UsageError(problem, place="--max-node-hours", hint=hint)


def _signal_lead(site: Site, time_limit: int, reasons: list[str]) -> int:
    """Return the seconds before the limit at which the script is warned: at most half of the time that it has."""
    lead = max(1, min(round(site.slurm.signal_lead), _MOST_SIGNAL_LEAD))
    if time_limit and lead > time_limit // 2:
        reasons.append(
            f"slurm.signal_lead is {lead} s, more than half of the time limit: "
            f"hpcml warns the script {time_limit // 2} s before the limit"
        )
        return max(1, time_limit // 2)
    return lead


def _check_directory(directory: Path) -> None:
    """Refuse a run directory that could not work, before it is made."""
    for character, why in ((":", "divides PYTHONPATH"), ("\\", "switches off the patterns in srun's --output")):
        if character in str(directory):
            hint = "Choose another runs folder with --set paths.runs=…."
            raise ConfigError(
                f"The path of the runs folder contains '{character}', which {why}",
                place=f"paths.runs: {directory}",
                hint=hint,
            )


def _environment(site: Site, spec: RunRequest, kind: Kind) -> tuple[tuple[str, str], ...]:
    for name in site.environment:
        if not _VARIABLE.fullmatch(name):
            hint = "Use letters, digits and '_'. The first character must not be a digit."
            raise ConfigError(
                f"'{name}' is not a valid variable name", place=f"site {site.name}: environment", hint=hint
            )
    inherited = dict.fromkeys((*site.environment, *(name for name, _ in spec.environment)))
    inner = (("HPCML_CONTAINER_ENV", " ".join(inherited)),) if spec.image else ()  # beside the run's own
    if spec.image and spec.size.gpus_per_node and "CUPY_CACHE_DIR" not in site.environment:
        inner = (*inner, ("HPCML_CUPY_CACHE", kernels(spec.image)))
    inner = (*inner, *repairs.variables(site.repairs._asdict()))
    options = _options_of_python(spec.code.interpreter[1:])
    inner = (*inner, *(pair for pair in options.items() if pair[0] not in inherited))
    shared = kind.environment(site, spec)
    return (*(pair for pair in shared if pair[0] not in site.environment), *site.environment.items(), *inner)


def _options_of_python(words: Sequence[str]) -> dict[str, str]:
    """Return the variables for options of the script's Python, which tasks get as workers of a LocalCluster would."""
    optimize, variables, rest = 0, dict[str, str](), [*words]
    while rest:
        letters, letter, value = re.fullmatch(r"-?([^WX]*)([WX]?)(.*)", rest.pop(0), re.DOTALL).groups()  # type: ignore[union-attr] # of any text
        value = rest.pop(0) if letter and not value and rest else value
        optimize += letters.count("O")
        if letter == "X" and value in ("utf8", "utf8=1"):
            variables["PYTHONUTF8"] = "1"
    return variables | ({"PYTHONOPTIMIZE": str(optimize)} if optimize else {})


def _notices(site: Site, spec: RunRequest) -> tuple[str, ...]:
    said = (
        (site.notes.always, True),
        (site.notes.nodes, spec.size.nodes > 1),
        (site.notes.gpus, spec.size.gpus_per_node > 0),
        (site.notes.image, bool(spec.image)),
    )
    notes = [text for text, applies in said if text and applies]
    notes += _other_adapters(site, spec)
    one_machine = schedulers.get(site.scheduler).ONE_MACHINE
    if spec.size.nodes >= _MANY_NODES and not spec.image and not one_machine:
        notes.append(
            f"{spec.size.nodes} nodes load Python at the same time, which is slow on a shared file system: "
            "use an image (--image)"
        )
    if spec.attempts.until_done and 0 < spec.size.time < _SHORT and not one_machine:
        notes.append(
            "Slurm may warn the script 60 s early, which leaves a short attempt no time to work: "
            "use a time limit of 5 minutes or more"
        )
    if 0 < (cpus := spec.size.cpus_per_node) < (gpus := spec.size.gpus_per_node):
        notes.append(f"each node has {gpus} GPUs but only {counted(cpus, 'CPU')} (--cpus-per-node)")
    if count := site.doubts():
        notes.append(f"profile {site.name} has {count} unconfirmed values (hpcml site show {site.name} --facts)")
    return tuple(notes)


def _other_adapters(site: Site, spec: RunRequest) -> list[str]:
    """Return a warning for each variable that names RDMA adapters that the nodes have not; nothing else says so."""
    notes = []
    for name, value in {**site.environment, **dict(spec.environment)}.items():
        if name in ADAPTERS and site.network.adapters:
            has = site.network.adapters
            if strange := [adapter for adapter in named_adapters(value) if adapter not in has]:
                which = f"{name} names {', '.join(strange)}"
                notes.append(f"{which}, which the nodes of {site.name} do not have (these nodes have {', '.join(has)})")
    return notes


def named_adapters(value: str) -> list[str]:
    """Return the RDMA adapters that a value of ``NCCL_IB_HCA`` or ``UCX_NET_DEVICES`` names; none if it excludes some.

    Only Mellanox's names are known to be no interfaces.
    """
    if value.startswith("^"):
        return []
    named = {word.strip().partition(":")[0] for word in value.lstrip("=").split(",")}
    return sorted(word for word in named if word.startswith("mlx"))


def _steps(paths: RunPaths, roles: tuple[Role, ...], layout: JobLayout, python: str) -> tuple[Step, ...]:
    logs = {role.name: paths.log(role.name, "local" if role.every_node else "") for role in roles}
    logs[SUPERVISOR] = paths.script_log
    return tuple(
        Step(
            role,
            launcher := layout.launchers.get(role),
            ("/bin/sh", str(paths.step), role),
            (python, "-P", "-m", "hpcml.kinds", role),  # -P: no module of the folder that the user submits from
            "" if launcher else str(logs[role]),
        )
        for role in logs
    )


def _inside(site: Site, request: JobRequest, layout: JobLayout, kind: Kind, umask: int) -> Settings:
    spec, code, form = request.spec, request.paths.code, request.spec.code.form
    profilers = kind.profilers(spec)
    workers: Workers = kind.workers(site, spec, layout.memory, layout.cpus)
    if workers.gpu and "rmm" in profilers:
        workers = workers._replace(gpu=workers.gpu._replace(rmm_log_directory=str(request.paths.profiles)))
    advice = features_by_point.only("site's advice")(site.report.advice, kind) if site.report.advice else {}
    in_place = not spec.code.copied or (site.code.snapshot == "none" and not spec.code.staged)
    return Settings(
        kind=spec.kind,
        job=Job(
            nodes=spec.size.nodes,
            gpus=spec.size.gpus_per_node,
            one_machine=layout.one_machine,
            launched=bool(layout.launchers),
            time_limit=int(spec.size.time),
            signal_lead=float(request.signal_lead),
            image=spec.image,
            scratch=site.paths.scratch,
            node_gpus=layout.node_gpus,
            whole_nodes=layout.whole_nodes,
        ),
        code=Code(
            form=form,
            script=str(spec.code.script if in_place else code / spec.code.place) if form.traits.is_script else "",
            arguments=spec.code.arguments,
            cwd=str(spec.code.cwd),
            umask=umask,
            copy_of="" if in_place or spec.code.staged else str(spec.code.top),
            interpreter=spec.code.interpreter,
            idle=spec.code.idle,
            keeps=spec.code.keeps,
            programs=spec.code.programs,
        ),
        workers=workers,
        network=site.network,
        deadlines=site.deadlines,
        attempts=Attempts(
            several_jobs=spec.attempts.several_jobs,
            max_restarts=_MOST_RESTARTS if spec.attempts.max_restarts == NOT_SAID else spec.attempts.max_restarts,
            max_node_hours=spec.attempts.max_node_hours,
        ),
        points=spec.points,
        report=Report(sample_every=float(site.report.sample_every), advice=advice, profilers=profilers),
        interconnect=site.interconnect,
        services=spec.service,
        of_kind=dict(typed_json.plain(kind.own(site, spec))),
    )
