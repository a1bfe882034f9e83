"""One pure function decides everything that can be decided before the job runs: ``plan(site, spec, place) -> Plan``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpcml import units
from hpcml.errors import SiteError, UsageError
from hpcml.inside.settings import Settings
from hpcml.jobs import JobSpec, job_name
from hpcml.layout import RunPaths
from hpcml.sites import Partition, Site


@dataclass(frozen=True, slots=True)
class Place:
    """Where the run will live: its id, its directory, and the interpreter that runs hpcml itself."""

    run_id: str
    directory: Path
    python: str
    version: str


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the batch script: ``launcher`` (srun and its options, empty on the local site) and ``command``."""

    role: str
    launcher: tuple[str, ...]
    command: tuple[str, ...]
    log: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A run as it will be submitted. ``reasons`` say why it came out so, ``notices`` what the user should know."""

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
    steps: tuple[Step, ...]
    inside: Settings
    reasons: tuple[str, ...]
    notices: tuple[str, ...]


def plan(site: Site, spec: JobSpec, place: Place) -> Plan:
    """Return the plan of a request on a site.

    Raises
    ------
    UsageError
        If the request is wrong in itself (no nodes, a bad time).
    SiteError
        If the site cannot give what is asked for.
    """
    reasons: list[str] = []
    nodes = _count(spec.nodes, site.defaults.nodes, "--nodes", least=1)
    gpus = _count(spec.gpus_per_node, site.defaults.gpus_per_node, "--gpus-per-node", least=0)
    time_limit = _time_limit(spec, site)
    _refuse_what_is_missing(site, spec)
    name = job_name(spec)
    paths = RunPaths(place.directory)
    slurm = site.scheduler == "slurm"
    directives: tuple[tuple[str, str], ...] = ()
    if slurm:
        chosen, partition = _partition(site, spec, nodes, gpus, time_limit, reasons)
        directives = _directives(site, spec, place, name, nodes, gpus, time_limit, chosen, partition, reasons)
    elif nodes > 1:
        reasons.append(f"the local site has one machine: the workers of {nodes} nodes all run on it")
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
        environment=tuple(site.environment.items()),
        steps=_steps(site, paths, nodes, slurm, site.runtime.python or place.python),
        inside=_inside(site, spec, paths, nodes, gpus, time_limit, slurm),
        reasons=tuple(reasons),
        notices=_notices(site, gpus),
    )


def _count(asked: int | None, default: int, option: str, *, least: int) -> int:
    number = default if asked is None else asked
    if number < least:
        raise UsageError(f"{number} is not a number of {option.strip('-').split('-')[0]}", place=option,
                         hint=f"Ask for at least {least}.")  # fmt: skip
    return number


def _time_limit(spec: JobSpec, site: Site) -> int:
    """Return the time limit in seconds, 0 if none is asked for (the partition's default holds then)."""
    text = spec.time or site.defaults.time
    if not text:
        return 0
    try:
        return units.parse_time_limit(text)
    except ValueError as error:
        raise UsageError(str(error), place="--time") from error


def _refuse_what_is_missing(site: Site, spec: JobSpec) -> None:
    """Say no to what this version cannot do, rather than do something else."""
    if spec.image or site.runtime.kind == "image":
        place = "--image" if spec.image else f"profile {site.name}: runtime.kind"
        hint = "Use runtime.kind = 'python' with a venv or conda environment (runtime.python)."
        raise SiteError("This version of hpcml cannot run inside an image", place=place, hint=hint)
    if spec.protocol not in ("", "auto", "tcp", "tls"):
        hint = "Leave --protocol out: Dask then speaks TLS over TCP."
        raise SiteError(f"This version of hpcml cannot use the protocol '{spec.protocol}'", place="--protocol", hint=hint)
    if spec.gpus_per_node and site.scheduler == "local":
        raise SiteError("The local site of this version starts no GPU workers", place="--gpus-per-node")


def _notices(site: Site, gpus: int) -> tuple[str, ...]:
    notices = []
    if gpus:
        notices.append(f"this version starts CPU workers: the {gpus} GPUs of a node are visible to them, but bound to none")
    if site.unconfirmed:
        notices.append(f"profile {site.name} has {len(site.unconfirmed)} unconfirmed facts (hpcml site show {site.name})")
    return tuple(notices)


def _partition(
    site: Site, spec: JobSpec, nodes: int, gpus: int, time_limit: int, reasons: list[str]
) -> tuple[str, Partition]:
    """Return the partition to ask for: the one named, else the first that fits, collecting why others do not."""
    named = spec.partition or site.defaults.partition
    if spec.partition and site.partitions and named not in site.partitions:
        reasons.append(f"partition {named} is not in the profile: its limits are not known here")
    if spec.partition or not site.partitions:
        partition = site.partitions.get(named, Partition())
        if misfit := _misfit(named, partition, nodes, gpus, time_limit):
            raise SiteError(misfit, place=f"profile {site.name}", hint=_another(site, named, nodes, gpus, time_limit))
        return named, partition
    ordered = sorted(site.partitions, key=lambda name: name != named)
    misfits = []
    for candidate in ordered:
        misfit = _misfit(candidate, site.partitions[candidate], nodes, gpus, time_limit)
        if not misfit:
            reasons += [f"partition {candidate}: the first that fits", *misfits]
            return candidate, site.partitions[candidate]
        misfits.append(misfit)
    raise SiteError("No partition fits", place=f"profile {site.name}", hint="Ask for less.", quote=tuple(misfits))


def _misfit(name: str, partition: Partition, nodes: int, gpus: int, time_limit: int) -> str:
    if partition.max_nodes and nodes > partition.max_nodes:
        return f"Partition '{name}' allows {partition.max_nodes} nodes, {nodes} requested"
    if partition.max_time and time_limit > (longest := units.parse_time_limit(partition.max_time)):
        asked, allowed = units.format_time_limit(time_limit), units.format_time_limit(longest)
        return f"Partition '{name}' allows {allowed}, {asked} requested"
    if partition.gpus_per_node and gpus > partition.gpus_per_node:
        return f"Partition '{name}' has {partition.gpus_per_node} GPUs per node, {gpus} requested"
    return ""


def _another(site: Site, named: str, nodes: int, gpus: int, time_limit: int) -> str:
    for name, partition in site.partitions.items():
        if name != named and not _misfit(name, partition, nodes, gpus, time_limit):
            return f"Try --partition {name}."
    return "Ask for less."


def _directives(
    site: Site, spec: JobSpec, place: Place, name: str, nodes: int, gpus: int, time_limit: int,
    partition_name: str, partition: Partition, reasons: list[str],
) -> tuple[tuple[str, str], ...]:  # fmt: skip
    """Return the #SBATCH options in order, as (option, value) with an empty value for a flag."""
    account = spec.account or site.defaults.account
    if site.slurm.account_required and not account:
        hint = "Give --account, or write [defaults] account = '…' into hpcml.toml."
        raise UsageError(f"Site {site.name} wants an account", place="--account", hint=hint)
    paths = RunPaths(place.directory)
    cpus = spec.cpus_per_node or site.resources.cpus_per_node or partition.cpus_per_node
    memory = spec.memory_per_node or site.resources.memory_per_node or partition.memory_per_node
    options = [
        ("--job-name", name),
        ("--comment", f"hpcml:{place.run_id}"),
        ("--account", account),
        ("--partition", partition_name),
        ("--qos", spec.qos or site.defaults.qos or partition.qos),
        ("--nodes", str(nodes)),
        ("--ntasks-per-node", "1"),
        ("--cpus-per-task", str(cpus) if cpus else ""),
        *_gpu_directives(site, gpus),
        ("--mem", _memory(memory)),
        ("--time", units.format_time_limit(time_limit) if time_limit else ""),
        ("--dependency", spec.dependency),
        ("--output", filename_pattern(paths.job_log)),
        ("--open-mode", "append"),
        ("--no-requeue", "\0"),
        ("--signal", f"B:USR1@{round(units.parse_seconds(site.slurm.signal_lead))}"),
        ("--export", site.slurm.export),
    ]
    if not cpus and not site.resources.exclusive:
        reasons.append("one CPU per node: neither the request nor the profile says more (--cpus-per-node)")
    removed = set(site.slurm.remove)
    chosen = [(option, value.strip("\0")) for option, value in options if value and option not in removed]
    if site.resources.exclusive and "--exclusive" not in removed:
        chosen.append(("--exclusive", ""))
    for line in site.slurm.extra:
        option, _, value = line.partition("=")
        chosen.append((option.strip(), value.strip()))
    return tuple(chosen)


def _gpu_directives(site: Site, gpus: int) -> list[tuple[str, str]]:
    if not gpus or site.slurm.gpu_request == "none":
        return []
    kind = f"{site.slurm.gpu_type}:" if site.slurm.gpu_type else ""
    if site.slurm.gpu_request == "gres":
        return [("--gres", f"gpu:{kind}{gpus}")]
    return [("--gpus-per-node", f"{kind}{gpus}")]


def _memory(text: str) -> str:
    if not text:
        return ""
    try:
        return units.format_memory_for_slurm(units.parse_memory(text)) if text != "0" else "0"
    except ValueError as error:
        raise UsageError(str(error), place="--memory-per-node") from error


def filename_pattern(path: Path) -> str:
    """Return a path as Slurm's ``--output`` takes it: per cent signs doubled, since they begin its patterns."""
    return str(path).replace("%", "%%")


def _steps(site: Site, paths: RunPaths, nodes: int, slurm: bool, python: str) -> tuple[Step, ...]:
    logs = {"scheduler": paths.scheduler_log, "driver": paths.driver_log, "worker": paths.worker_log("local")}
    steps = []
    for role in ("scheduler", "worker", "driver"):
        command = ("/bin/sh", str(paths.step), role, python, "-m", "hpcml.inside", role)
        launcher = _launcher(site, paths, role, nodes) if slurm else ()
        steps.append(Step(role, launcher, command, str(logs[role])))
    return tuple(steps)


def _launcher(site: Site, paths: RunPaths, role: str, nodes: int) -> tuple[str, ...]:
    """Return srun and its options for a role; ``--cpus-per-task`` is added by the script, from the allocation.

    ``--wait=0`` and ``--kill-on-bad-exit`` are said outright, because a site's WaitTime would otherwise kill the
    other workers after the first one's end; ``--overlap``, because the three steps share the first node.
    """
    everywhere = role == "worker"
    log = paths.logs / role
    pattern = filename_pattern(log) + ("-%N.log" if everywhere else ".log")
    where = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1") if everywhere else (
        "--nodes=1", "--ntasks=1", "--relative=0")  # fmt: skip
    fixed = ("--overlap", f"--kill-on-bad-exit={0 if everywhere else 1}", "--wait=0", "--cpu-bind=none", "--export=ALL")
    named = (f"--job-name={role}", f"--output={pattern}", "--open-mode=append")
    return ("srun", *fixed, *where, *named, *site.slurm.srun_extra)


def _inside(
    site: Site, spec: JobSpec, paths: RunPaths, nodes: int, gpus: int, time_limit: int, slurm: bool
) -> Settings:
    return Settings(
        local=not slurm,
        nodes=nodes,
        workers_per_node=_count(site.workers.per_node, 1, "workers.per_node", least=1),
        threads=site.workers.threads,
        memory_limit=units.parse_memory(site.workers.memory_limit) if site.workers.memory_limit else 0,
        restarts=site.workers.restarts,
        on_loss=site.workers.on_loss,
        gpus_per_node=gpus,
        interface=site.network.interface,
        protocol="tls",
        scratch=site.paths.scratch,
        time_limit=time_limit,
        signal_lead=units.parse_seconds(site.slurm.signal_lead),
        scheduler_deadline=units.parse_seconds(site.deadlines.scheduler),
        workers_deadline=units.parse_seconds(site.deadlines.workers),
        driver_grace=units.parse_seconds(site.deadlines.driver_grace),
        teardown_deadline=units.parse_seconds(site.deadlines.teardown),
        script=str(paths.code / spec.script.name),
        arguments=spec.arguments,
        cwd=str(spec.cwd),
    )
