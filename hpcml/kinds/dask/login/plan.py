"""Dask's part of the plan: its workers, the profile's GPU options in numbers, the protocol, the resources."""

from __future__ import annotations

from hpcml import units
from hpcml.errors import ConfigError, SiteError, UsageError, did_you_mean, nearest
from hpcml.kinds.dask.login.options import PROFILERS, asked
from hpcml.kinds.dask.own_settings import Own
from hpcml.request.record import RunRequest
from hpcml.settings import Gpu, Settings, Workers
from hpcml.sites.schema import Site
from hpcml.workload_forms import Form

# KvikIO's own names (docs.rapids.ai, kvikio, Runtime Settings); "auto" is KvikIO's default, so nothing is said.
_GDS: dict[str, tuple[tuple[str, str], ...]] = {
    "auto": (),
    "on": (("KVIKIO_COMPAT_MODE", "OFF"), ("LIBCUDF_CUFILE_POLICY", "KVIKIO")),
    "off": (("KVIKIO_COMPAT_MODE", "ON"),),
}
_AMOUNTS = ("rmm_maximum_pool_size", "rmm_release_threshold", "device_memory_limit")
# A CPU worker has 67 MiB when it has registered (Python 3.11, Dask 2026.7), and Dask gives it no task above 80 % of its
# limit. Others need more; their nodes measure it.
_LEAST_FOR_A_WORKER = 80 * 1024**2
_ENOUGH_FOR_A_WORKER = 2 * 1024**3  # bytes, of those whose number hpcml chooses
_CHECKED = {"warn": "; the run measures the interconnect first", "rdma": "; RDMA is required"}
_LIBRARIES = ("cupy", "torch")  # those whose allocator dask-cuda can replace by RMM's


def profilers(spec: RunRequest) -> tuple[str, ...]:
    """Return the profilers that are asked for.

    Raises
    ------
    UsageError
        If there is none of that name, or it profiles GPUs and there are none.
    """
    names = [word.strip() for word in asked(spec).profile.split(",")] if asked(spec).profile else []
    for word in names:
        if word not in PROFILERS:
            hint = did_you_mean(nearest(word, PROFILERS), f"Use one of: {', '.join(PROFILERS)}.")
            raise UsageError(f"Unknown profiler '{word}'", place="--profile", hint=hint)
    if not spec.size.gpus_per_node and (needy := next((name for name in ("ncu", "rmm") if name in names), "")):
        raise UsageError(f"The profiler {needy} needs GPUs", place=f"--profile {needy}", hint="Add --gpus-per-node.")
    if {"ncu", "nsys"} <= {*names}:
        message = "nsys and ncu cannot profile the same process"
        raise UsageError(message, place="--profile ncu,nsys", hint="Use each of them in a separate run.")
    return tuple(name for name in PROFILERS if name in names)


def worker_resources(site: Site) -> tuple[tuple[str, float], ...]:
    """Return Dask's worker resources: (name, amount).

    Raises
    ------
    ConfigError
        If one is not of the form NAME=NUMBER.
    """
    resources = []
    for word in site.workers.resources:
        name, _, amount = word.partition("=")
        try:
            resources.append((name.strip(), float(amount)))
        except ValueError as error:
            hint = "Write resources = ['GPU=1']."
            raise ConfigError(f"'{word}' is not NAME=NUMBER", place="workers.resources", hint=hint) from error
    return tuple(resources)


def workers(site: Site, spec: RunRequest, memory: int, cpus: int) -> Workers:
    """Return Dask's workers of a node with so many bytes of memory and CPUs, 0 if unknown; UsageError for fewer than 0.

    Raises
    ------
    SiteError
        If the share of the node's memory is less than any worker needs to start.
    ConfigError
        If a value of the profile cannot be used.
    """
    gpus = spec.size.gpus_per_node
    count, threads = site.workers.per_node, site.workers.threads or (1 if gpus else 0)
    if count < 0:
        raise UsageError(f"{count} is too small for workers.per_node", place="workers.per_node", hint="Use at least 1.")
    if not (gpus or count) and (spec.code.form.traits.is_script or spec.code.form is Form.JUPYTER):
        count, threads = _shape(site, cpus if not spec.points.sweep else 0, memory)
    count = gpus or count or 1
    _check_memory(site, count, memory)
    gpu = gpu_settings(site, gpus)
    return Workers(
        per_node=count,
        threads=threads,
        memory_limit=int(site.workers.memory_limit),
        restarts=site.workers.restarts,
        gpu=gpu,
        late=is_late(site, spec),
    )


def _shape(site: Site, cpus: int, memory: int) -> tuple[int, int]:
    """Return workers and threads as Dask's LocalCluster has them, of which each has enough memory to work.

    Without threads of its own, each of up to four CPUs has a worker; of more CPUs the number of workers is the smallest
    divisor that is at least the root (``distributed.deploy.utils.nprocesses_nthreads``, which needs Dask here).
    """
    threads, least = site.workers.threads, int(site.workers.memory_limit) or _ENOUGH_FOR_A_WORKER
    divisors = [number for number in range(1, cpus + 1) if cpus % number == 0]
    if threads:
        most = cpus // threads
    else:
        most = cpus if cpus <= 4 else next(number for number in divisors if number**2 >= cpus)
    counts = [
        number for number in (*divisors, most) if 0 < number <= most and (not memory or memory // number >= least)
    ]
    count = max(counts, default=1)
    return count, threads or (cpus // count if count > 1 else 0)  # of one worker the node decides


def own(site: Site, spec: RunRequest) -> Own:
    """Return the settings of Dask's processes and the script alone; ConfigError if a resource is not NAME=NUMBER."""
    return Own(
        on_loss=site.workers.on_loss,
        resources=worker_resources(site),
        own_clusters=asked(spec).own_clusters,
        restart_on_cuda_error=site.workers.restart_on_cuda_error,
    )


def is_late(site: Site, spec: RunRequest) -> bool:
    """Whether the cluster starts at the script's first client: where nothing else than a client can use it."""
    plain = spec.code.form in (Form.SCRIPT, Form.MODULE, Form.PROGRAM) and not spec.points.sweep
    return site.workers.start == "late" and plain and not (asked(spec).own_clusters or asked(spec).profile)


def _check_memory(site: Site, count: int, memory: int) -> None:
    """Refuse workers whose share of the node's memory is less than any needs to start; 0 bytes are not known here."""
    limit, least = site.workers.memory_limit, units.in_mib(_LEAST_FOR_A_WORKER)
    if 0 < limit < _LEAST_FOR_A_WORKER:
        message = f"workers.memory_limit is {units.in_mib(limit)}, but a worker needs more than {least} to start"
        raise SiteError(
            message,
            place="workers.memory_limit",
            hint="Increase the limit, or remove it. Without a limit, the workers share the memory equally.",
        )
    if not limit and memory and memory // count < _LEAST_FOR_A_WORKER:
        each = (
            f"{count} workers share {units.in_mib(memory)} of a node's memory: each has {units.in_mib(memory // count)}"
        )
        hint = "Use fewer workers (--set workers.per_node=…) or more memory (--memory-per-node)."
        raise SiteError(f"{each}, but a worker needs more than {least} to start", place="workers.per_node", hint=hint)


def notices(settings: Settings) -> list[str]:
    """Return a note if nodes are for nothing, or if GPUs do without UCX because other users could reach it."""
    if settings.workers.late and settings.job.nodes > 1:
        once = f"the script does not use Dask. It runs once, on the first of {settings.job.nodes} nodes"
        return [f"{once}. To run it on each node, add --ranks node (hpcml help ranks)"]
    may_share = settings.network.protocol == "auto" and settings.single_node and settings.gpus > 1
    if not may_share or settings.ucx:
        return []
    note = "GPU workers exchange data over TLS, not UCX: other users of the node could connect to UCX. "
    return [f"{note}If the node is yours alone during the job, add --set resources.exclusive=true"]


def network(settings: Settings, interface: str) -> str:
    """Return the network as ``--dry-run`` shows it; ``interface`` is the interface as it shows it."""
    network = settings.network
    protocol = f"protocol {network.protocol}" + (", not encrypted" if network.protocol == "tcp" else "")
    if network.protocol == "auto":
        protocol = "hpcml chooses the protocol on the nodes"
        if settings.ucx == "rdma":
            protocol = "UCX if all nodes have RDMA, else TLS (network.private)"
    is_checked = settings.gpus or network.protocol == "ucx" or settings.interconnect.require == "rdma"
    checked = _CHECKED.get(settings.interconnect.require, "") if is_checked else ""
    return f"{protocol}{f', {interface}' if network.interface else ''}{checked}"


def gpu_settings(site: Site, count: int) -> Gpu | None:
    """Return the settings for the GPU workers of a node; None for CPU workers.

    Raises
    ------
    ConfigError
        If an amount cannot be read, or two options contradict each other (dask-cuda would say so only on the node).
    """
    if not count:
        return None
    gpu = site.gpu
    if gpu.rmm_async and gpu.rmm_managed_memory:
        raise _contradiction("rmm_async", "rmm_managed_memory", "Remove one of the two settings.")
    if gpu.rmm_release_threshold not in ("", "none") and not gpu.rmm_async:
        raise _contradiction("rmm_release_threshold", "rmm_async = false", "Set gpu.rmm_async = true.")
    if gpu.cudf_spill_stats and not gpu.cudf_spill:
        raise _contradiction("cudf_spill_stats", "cudf_spill = false", "Set gpu.cudf_spill = true.")
    if strange := [name for name in gpu.rmm_allocator_libs if name not in _LIBRARIES]:
        hint = f"RMM supports: {', '.join(_LIBRARIES)}."
        raise ConfigError(
            f"RMM cannot allocate GPU memory for the library '{strange[0]}'", place="gpu.rmm_allocator_libs", hint=hint
        )
    pool = "none" if gpu.rmm_pool_size == "auto" and (gpu.rmm_async or gpu.rmm_managed_memory) else gpu.rmm_pool_size
    options = {name: value for name, value in gpu._asdict().items() if name != "gds"}  # that one is for the environment
    options |= {name: _amount(options[name], name) for name in _AMOUNTS}
    options["spill_pinned"] = -1.0 if gpu.spill_pinned == "auto" else _size(gpu.spill_pinned, "spill_pinned")
    options["rmm_pool_size"] = -1.0 if pool == "auto" else _amount(pool, "rmm_pool_size")
    options["cuda"] = "" if gpu.cuda == "any" else gpu.cuda
    return Gpu(count=count, **options)


def _contradiction(one: str, other: str, hint: str) -> ConfigError:
    return ConfigError(f"gpu.{one} cannot be combined with gpu.{other}", place=f"gpu.{one}", hint=hint)


def _amount(text: str, name: str) -> float | None:
    """Return a fraction (up to 1), bytes (above 1) or None."""
    if text in ("", "none", "0"):
        return None
    try:
        fraction = float(text)
    except ValueError:
        fraction = 2.0
    if 0 < fraction <= 1:
        return fraction
    try:
        size = units.parse_memory(text)
    except ValueError as error:
        hint = "Write a size (40G), a fraction of the GPU's memory (0.8) or 'none'."
        raise ConfigError(f"'{text}' is not an amount of GPU memory", place=f"gpu.{name}", hint=hint) from error
    if size < 1024**2:
        raise ConfigError(f"'{text}' is less than 1 MiB", place=f"gpu.{name}", hint="Use at least 1 MiB, or 'none'.")
    return float(size)


def _size(text: str, name: str) -> float | None:
    """Return bytes of host memory, of which a fraction of the GPU's would be none."""
    amount = _amount(text, name)
    if amount is not None and amount <= 1:
        raise ConfigError(
            f"'{text}' is not a valid size", place=f"gpu.{name}", hint="Write a size (40G), 'auto' or 'none'."
        )
    return amount


def environment(site: Site, spec: RunRequest) -> tuple[tuple[str, str], ...]:
    """Return the variables that all roles of a GPU or UCX run share; the profile's own go before them.

    ``RAPIDS_NO_INITIALIZE`` keeps cuDF from taking a GPU at its import, before a worker has been given its own
    (dask-cuda sets it too). NCCL is held to the profile's interface, as Dask's comms are: a management interface that
    does not lead to the other nodes is a hang.
    """
    gpus = spec.size.gpus_per_node
    quiet = (("UCX_WARN_UNUSED_ENV_VARS", "n"),)  # Dask sets one that UCX does not know any more
    if not gpus:
        return quiet if site.network.protocol == "ucx" else ()
    interface = (("NCCL_SOCKET_IFNAME", site.network.interface),) if site.network.interface else ()
    spill = (("CUDF_SPILL", "on"), ("DASK_CUDF_SPILL_WARNING", "False")) if site.gpu.cudf_spill else ()
    return (("RAPIDS_NO_INITIALIZE", "1"), *quiet, *interface, *spill, *_GDS[site.gpu.gds])
