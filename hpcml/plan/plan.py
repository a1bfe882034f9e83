"""One pure function decides everything that can be decided before the job runs: ``plan(site, spec, place) -> Plan``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from hpcml import units
from hpcml.errors import ConfigError, SiteError, UsageError
from hpcml.node.settings import Settings
from hpcml.paths import ROLES, RunPaths
from hpcml.plan.container import entry, image_of, interpreter, kernels
from hpcml.plan.request import JobSpec, job_name
from hpcml.plan.staging import Stage, stage
from hpcml.plan.workers import gpu_settings, protocol, shared_environment, worker_resources
from hpcml.sites.schema import Partition, Site

# Directives that a profile cannot have: by its comment a job is found again, and an array would run in one directory.
# The cluster of another controller would have to be named in every question.
_RESERVED = ("--comment", "--array", "--clusters", "--cluster")
_DIRECTIVE = re.compile(r"--[a-z][a-z0-9-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A CPU worker has 67 MiB when it has registered (Python 3.11, Dask 2026.7), and Dask gives it no task above 80 % of its
# limit. Others need more; their nodes measure it.
_LEAST_FOR_A_WORKER = 80 * 1024**2
_MOST_SIGNAL_LEAD = 65535  # seconds, sbatch(1) --signal


class Place(NamedTuple):
    """Where the run will live: its id, its directory, the interpreter that runs hpcml itself, and the user's umask."""

    run_id: str
    directory: Path
    python: str
    version: str
    umask: int = 0o077


class Step(NamedTuple):
    """One step of the batch script: ``launcher`` (srun and its options, empty on the local site) and ``command``."""

    role: str
    launcher: tuple[str, ...]
    command: tuple[str, ...]
    log: str


class Plan(NamedTuple):
    """A run as it will be submitted.

    ``entry`` are the words before a role's interpreter that lead into an image, none without one; ``stage`` is how the
    image is copied to the nodes before. ``reasons`` say why it came out so, ``notices`` what the user should know.
    """

    run_id: str
    name: str
    site: str
    version: str
    directory: str
    slurm: bool
    directives: tuple[tuple[str, str], ...]
    modules: tuple[str, ...]
    setup: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    entry: tuple[str, ...]
    stage: Stage | None
    steps: tuple[Step, ...]
    inside: Settings
    reasons: tuple[str, ...]
    notices: tuple[str, ...]


class Ask(NamedTuple):
    """The request's sizes once defaults have been filled in; memory in bytes, 0 is "not said"."""

    nodes: int
    gpus: int
    cpus: int
    memory: int
    time: int


def plan(site: Site, spec: JobSpec, place: Place) -> Plan:
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
    reasons: list[str] = []
    notices: list[str] = []
    name = job_name(spec)
    image = image_of(site, spec)
    _check_directory(place.directory)
    if site.runtime.python and not site.runtime.python.startswith("/"):
        hint = "Write the path that it has on the compute nodes, from the root."
        raise ConfigError(f"{site.runtime.python!a} is not an absolute path", place="runtime.python", hint=hint)
    ask = Ask(
        nodes=_count(spec.nodes, site.defaults.nodes, "--nodes", "defaults.nodes", least=1),
        gpus=_count(spec.gpus_per_node, site.defaults.gpus_per_node, "--gpus-per-node", "defaults.gpus_per_node"),
        cpus=_count(spec.cpus_per_node, site.resources.cpus_per_node, "--cpus-per-node", "resources.cpus_per_node"),
        memory=_memory(spec.memory_per_node, site.resources.memory_per_node),
        time=_time_limit(spec, site),
    )
    lead = _signal_lead(site, ask.time, reasons)
    paths = RunPaths(place.directory)
    slurm = site.scheduler == "slurm"
    directives: tuple[tuple[str, str], ...] = ()
    if slurm:
        chosen = _partition(site, spec, ask, reasons, notices)
        _check_workers(site, ask, ask.memory or _memory("", site.partitions.get(chosen, Partition()).memory_per_node))
        directives = _directives(site, spec, place, name, ask, chosen, lead, reasons)
    else:
        _check_workers(site, ask, 0)
    if not slurm and ask.nodes > 1 and ask.gpus:
        hint = "Ask for one node; --gpus-per-node says how many GPUs."
        raise SiteError("The local site has one machine, and so one node with GPUs", place="--nodes", hint=hint)
    if not slurm and ask.nodes > 1:
        reasons.append(f"the local site has one machine: the workers of {ask.nodes} nodes all run on it")
    python = interpreter(site) if image else site.runtime.python or place.python
    if image:
        reasons.append(f"all roles run inside {image}, by {site.runtime.container}")
    staged = stage(site, image)
    if staged:
        staged = staged._replace(launcher=_launcher(site, paths, "stage", ask) if slurm else ())
        reasons.append(f"the image is copied to each node by {staged.mode}")
    return Plan(
        run_id=place.run_id,
        name=name,
        site=site.name,
        version=place.version,
        directory=str(place.directory),
        slurm=slurm,
        directives=directives,
        modules=site.runtime.modules,
        setup=site.runtime.setup,
        environment=_environment(site, ask.gpus, spec.protocol, image),
        entry=entry(site, spec, paths, image, ask.gpus) if image else (),
        stage=staged,
        steps=_steps(site, paths, ask, slurm, python),
        inside=_inside(site, spec, place, ask, lead, slurm, image),
        reasons=tuple(reasons),
        notices=(*notices, *_notices(site)),
    )


def _count(asked: int | None, default: int, option: str, key: str, *, least: int = 0) -> int:
    number = default if asked is None else asked
    if number < least:
        place = key if asked is None else option
        raise UsageError(f"{number} is too few for {place}", place=place, hint=f"Ask for at least {least}.")
    return number


def _time_limit(spec: JobSpec, site: Site) -> int:
    """Return the time limit in seconds, 0 if none is asked for (the partition's default holds then)."""
    if not spec.time:
        return int(site.defaults.time)
    try:
        return units.parse_time_limit(spec.time)
    except ValueError as error:
        raise UsageError(str(error), place="--time", hint="See sbatch(1), --time.") from error


def _check_workers(site: Site, ask: Ask, memory: int) -> None:
    """Refuse workers whose share of the node's memory is less than any needs to start; 0 bytes are not known here."""
    limit = site.workers.memory_limit
    count = ask.gpus or site.workers.per_node
    least = units.in_mib(_LEAST_FOR_A_WORKER)
    if 0 < limit < _LEAST_FOR_A_WORKER:
        words = f"workers.memory_limit is {units.in_mib(limit)}, and a worker needs more than {least} to start"
        raise SiteError(words, place="workers.memory_limit", hint="Raise it, or leave it out for an equal share.")
    if not limit and memory and count > 0 and memory // count < _LEAST_FOR_A_WORKER:
        each = f"{count} workers share {units.in_mib(memory)} of a node: {units.in_mib(memory // count)} each"
        hint = "Ask for fewer workers (--set workers.per_node=…) or for more memory (--memory-per-node)."
        raise SiteError(f"{each}, and a worker needs more than {least} to start", place="workers.per_node", hint=hint)


def _memory(requested: str, usual: units.Memory) -> int:
    try:
        size = units.Memory(requested) if requested else usual
    except ValueError as error:
        raise UsageError(str(error), place="--memory-per-node", hint="Units are powers of 1024.") from error
    if size.text and size < 1024**2:
        hint = "Leave it out for what the site gives."
        raise UsageError(f"'{size.text}' is less than 1 MiB", place="--memory-per-node", hint=hint)
    return int(size)


def _signal_lead(site: Site, time_limit: int, reasons: list[str]) -> int:
    """Return how many seconds before the limit the script is told: at most half of the time that it has."""
    lead = max(1, min(round(site.slurm.signal_lead), _MOST_SIGNAL_LEAD))
    if time_limit and lead > time_limit // 2:
        reasons.append(
            f"the script is told {time_limit // 2} s before the time limit, not {lead} s: that is half of it"
        )
        return max(1, time_limit // 2)
    return lead


def _check_directory(directory: Path) -> None:
    """Refuse a run directory that could not work, before it is made."""
    for character, why in ((":", "divides PYTHONPATH"), ("\\", "switches off the patterns in srun's --output")):
        if character in str(directory):
            hint = "Choose another folder for runs with --set paths.runs=…."
            raise ConfigError(
                f"The folder for runs holds '{character}', which {why}", place=f"paths.runs: {directory}", hint=hint
            )


def _environment(site: Site, gpus: int, asked: str, image: str) -> tuple[tuple[str, str], ...]:
    for name in site.environment:
        if not _VARIABLE.fullmatch(name):
            hint = "Use letters, digits and '_', no digit first."
            raise ConfigError(f"'{name}' is not a variable's name", place=f"site {site.name}: environment", hint=hint)
    inner = (("HPCML_CONTAINER_ENV", " ".join(site.environment)),) if image else ()  # beside the run's own
    if image and gpus and "CUPY_CACHE_DIR" not in site.environment:
        inner = (*inner, ("HPCML_CUPY_CACHE", kernels(image)))
    shared = [(name, value) for name, value in shared_environment(site, gpus, asked) if name not in site.environment]
    return (*shared, *site.environment.items(), *inner)


def _notices(site: Site) -> tuple[str, ...]:
    if not site.unconfirmed:
        return ()
    return (f"profile {site.name} has {len(site.unconfirmed)} unconfirmed facts (hpcml site show {site.name})",)


def _partition(site: Site, spec: JobSpec, ask: Ask, reasons: list[str], notices: list[str]) -> str:
    """Return the partition to ask for: the one named, else the first that fits, collecting why others do not."""
    named = spec.partition or site.defaults.partition
    if spec.partition and site.partitions and named not in site.partitions:
        reasons.append(f"partition {named} is not in the profile: its limits are not known here")
    if spec.partition or not site.partitions:
        if misfit := _misfit(site, named, ask):
            others = (name for name in site.partitions if name != named and not _misfit(site, name, ask))
            other = next(others, "")
            hint = f"Try --partition {other}." if other else "Ask for less."
            raise SiteError(misfit, place=f"profile {site.name}", hint=hint)
        return named
    misfits: list[str] = []
    for candidate in sorted(site.partitions, key=lambda name: name != named):
        misfit = _misfit(site, candidate, ask)
        if not misfit:
            reasons += [f"partition {candidate}: the first that fits", *misfits]
            if misfits and named:
                notices.append(f"partition {candidate} is asked for, because: {misfits[0]}")
            return candidate
        misfits.append(misfit)
    if len(misfits) == 1:
        raise SiteError(misfits[0], place=f"profile {site.name}", hint="Ask for less.")
    raise SiteError("No partition fits", place=f"profile {site.name}", hint="Ask for less.", quote=tuple(misfits))


def _misfit(site: Site, name: str, ask: Ask) -> str:
    """Return why a request does not fit a partition; nothing if it does, as far as the profile knows."""
    partition = site.partitions.get(name)
    if partition is None:
        return ""
    gpus_are_known = any(other.gpus_per_node for other in site.partitions.values())
    if partition.max_nodes and ask.nodes > partition.max_nodes:
        return f"Partition '{name}' allows {partition.max_nodes} nodes, {ask.nodes} requested"
    if 0 < partition.max_time < ask.time:
        asked, allowed = units.format_time_limit(ask.time), units.format_time_limit(partition.max_time)
        return f"Partition '{name}' allows {allowed}, {asked} requested"
    if gpus_are_known and ask.gpus > partition.gpus_per_node:
        return f"Partition '{name}' has {partition.gpus_per_node or 'no'} GPUs per node, {ask.gpus} requested"
    if partition.cpus_per_node and ask.cpus > partition.cpus_per_node:
        return f"Partition '{name}' has {partition.cpus_per_node} CPUs per node, {ask.cpus} requested"
    if 0 < partition.memory_per_node < ask.memory:
        asked, allowed = map(units.format_memory_for_slurm, (ask.memory, partition.memory_per_node))
        return f"Partition '{name}' has {allowed} of memory per node, {asked} requested"
    return ""


def _directives(
    site: Site, spec: JobSpec, place: Place, name: str, ask: Ask, partition_name: str, lead: int, reasons: list[str]
) -> tuple[tuple[str, str], ...]:
    """Return the #SBATCH options in order, as (option, value) with an empty value for a flag."""
    account = spec.account or site.defaults.account
    if site.slurm.account_required and not account:
        hint = "Give --account, or write [defaults] account = '…' into hpcml.toml."
        raise UsageError(f"Site {site.name} wants an account", place="--account", hint=hint)
    partition = site.partitions.get(partition_name, Partition())
    cpus = ask.cpus or partition.cpus_per_node
    memory = ask.memory or _memory("", partition.memory_per_node)
    if not cpus and not site.resources.exclusive:
        reasons.append("one CPU per node: neither the request nor the profile says more (--cpus-per-node)")
    valued = (
        ("--job-name", name),
        ("--comment", f"hpcml:{place.run_id}"),
        ("--account", account),
        ("--partition", partition_name),
        ("--qos", spec.qos or site.defaults.qos or partition.qos),
        ("--nodes", str(ask.nodes)),
        ("--ntasks-per-node", "1"),
        ("--cpus-per-task", str(cpus or "")),
        *_gpu_directives(site, ask.gpus),
        ("--mem", units.format_memory_for_slurm(memory) if memory else ""),
        ("--time", units.format_time_limit(ask.time) if ask.time else ""),
        ("--dependency", spec.dependency),
        ("--output", filename_pattern(RunPaths(place.directory).job_log)),
        ("--open-mode", "append"),
        ("--signal", f"B:USR1@{lead}"),
        ("--export", site.slurm.export),
    )
    extra = [_extra_directive(site, line) for line in site.slurm.extra]
    flags = [] if ("--requeue", "") in extra else ["--no-requeue"]
    flags += ["--exclusive"] if site.resources.exclusive else []
    left_out = {*(_known_directive(site, option) for option in site.slurm.remove), *(option for option, _ in extra)}
    own = [(option, value) for option, value in valued if value] + [(flag, "") for flag in flags]
    return (*((option, value) for option, value in own if option not in left_out), *extra)


def _extra_directive(site: Site, line: str) -> tuple[str, str]:
    option, _, value = line.partition("=")
    return _known_directive(site, option.strip()), value.strip()


def _known_directive(site: Site, option: str) -> str:
    """Return a directive of the profile, refusing what is none or would break the run."""
    place = f"site {site.name}: slurm.extra, slurm.remove"
    if not _DIRECTIVE.fullmatch(option):
        raise ConfigError(f"'{option}' is not a directive", place=place, hint="Write --constraint=gpu, without quotes.")
    if option in _RESERVED:
        raise ConfigError(f"{option} belongs to hpcml", place=place, hint="Take it out of the profile.")
    return option


def _gpu_directives(site: Site, gpus: int) -> list[tuple[str, str]]:
    if not gpus or site.slurm.gpu_request == "none":
        return []
    kind = f"{site.slurm.gpu_type}:" if site.slurm.gpu_type else ""
    if site.slurm.gpu_request == "gres":
        return [("--gres", f"gpu:{kind}{gpus}")]
    return [("--gpus-per-node", f"{kind}{gpus}")]


def filename_pattern(path: Path) -> str:
    """Return a path as Slurm's ``--output`` takes it: per cent signs doubled, since they begin its patterns."""
    return str(path).replace("%", "%%")


def _steps(site: Site, paths: RunPaths, ask: Ask, slurm: bool, python: str) -> tuple[Step, ...]:
    logs = {"scheduler": paths.scheduler_log, "driver": paths.driver_log, "worker": paths.worker_log("local")}
    steps = []
    for role in ROLES:
        inside = ("-P", "-m", "hpcml.node", role)  # -P: no module of the folder that the user submits from
        command = ("/bin/sh", str(paths.step), role, python, *inside)
        launcher = _launcher(site, paths, role, ask) if slurm else ()
        steps.append(Step(role, launcher, command, str(logs[role])))
    return tuple(steps)


def _launcher(site: Site, paths: RunPaths, role: str, ask: Ask) -> tuple[str, ...]:
    """Return srun and its options for a role; ``--cpus-per-task`` is added by the script, from the allocation.

    ``--wait=0`` and ``--kill-on-bad-exit`` are said outright, because a site's WaitTime would otherwise kill the
    other workers after the first one's end; ``--overlap``, because the three steps share the first node.
    """
    everywhere = role in ("worker", "stage")
    log = paths.logs / role
    pattern = filename_pattern(log) + ("-%N.log" if everywhere else ".log")
    where = (
        (f"--nodes={ask.nodes}", f"--ntasks={ask.nodes}", "--ntasks-per-node=1")
        if everywhere
        else ("--nodes=1", "--ntasks=1", "--relative=0")
    )
    fixed = ("--overlap", f"--kill-on-bad-exit={0 if everywhere else 1}", "--wait=0", "--cpu-bind=none", "--export=ALL")
    bind = ("--gpu-bind=none",) if ask.gpus else ()  # a GPU that is hidden from its neighbours has no cuda_ipc
    output = () if role == "stage" else (f"--output={pattern}", "--open-mode=append")  # that one speaks to the script
    named = (f"--job-name={role}", *output)
    return ("srun", *fixed, *bind, *where, *named, *site.slurm.srun_extra)


def _inside(site: Site, spec: JobSpec, place: Place, ask: Ask, lead: int, slurm: bool, image: str) -> Settings:
    code = RunPaths(place.directory).code
    in_place = site.code.snapshot == "none" and not spec.staged
    return Settings(
        local=not slurm,
        nodes=ask.nodes,
        workers_per_node=ask.gpus or _count(site.workers.per_node, 1, "workers.per_node", "", least=1),
        threads=site.workers.threads or (1 if ask.gpus else 0),
        memory_limit=int(site.workers.memory_limit),
        restarts=site.workers.restarts,
        on_loss=site.workers.on_loss,
        resources=worker_resources(site),
        gpu=gpu_settings(site, ask.gpus),
        interface=site.network.interface,
        protocol=protocol(site, spec),
        nic_affinity=site.network.nic_affinity,
        fabric=site.fabric.require,
        nccl=site.fabric.nccl,
        scratch=site.paths.scratch,
        time_limit=ask.time,
        signal_lead=float(lead),
        scheduler_deadline=float(site.deadlines.scheduler),
        workers_deadline=float(site.deadlines.workers),
        fabric_deadline=float(site.deadlines.fabric),
        driver_grace=float(site.deadlines.driver_grace),
        teardown_deadline=float(site.deadlines.teardown),
        answer_deadline=float(site.deadlines.answer),
        connect_notice=float(site.deadlines.connect_notice),
        idle_notice=float(site.deadlines.idle_notice),
        idle_end=float(site.deadlines.idle),
        script="" if spec.service else str(spec.script if in_place else code / spec.script.name),
        arguments=spec.arguments,
        cwd=str(spec.cwd),
        umask=place.umask,
        image=image,
        service=spec.service,
        idle=spec.idle,
    )
