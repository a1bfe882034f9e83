"""What each key of a profile may do beyond numbers and texts, and which keys somebody else's file may not set."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from hpcml.config_trust import Origin
from hpcml.errors import ConfigError
from hpcml.terminal import json_text


class Power(Enum):
    """What a key may do."""

    HERE = "decides what hpcml starts on this machine, or how the answer is read"
    TRUST = "says whom or what hpcml trusts"
    JOB = "names commands or code of the job, which run on its nodes only, or opens the job to other users"
    ACCOUNT = "says who pays"
    ALONE = "says whether other users' jobs can be on the job's nodes, so of somebody else's file it is in doubt"
    NONE = "neither starts a program nor trusts, nor charges"


# Each key of the schema; of login and facts, all their keys. * is any name.
POWERS: dict[Power, frozenset[str]] = {
    Power.HERE: frozenset(["login", "scheduler", "cost.budget", "cost.budget_row", "partitions.*.budget"]),
    Power.TRUST: frozenset(["facts", "network.private", "paths.trust"]),
    Power.JOB: frozenset([
        "environment", "gpu.pre_import", "network.protocol", "runtime.binds", "runtime.container", "runtime.image",
        "runtime.modules", "runtime.options", "runtime.python", "runtime.setup", "slurm.export", "slurm.extra",
        "slurm.srun_extra", "partitions.*.extra",
    ]),
    Power.ACCOUNT: frozenset(["defaults.account", "partitions.*.account"]),
    Power.ALONE: frozenset([
        "partitions.*.cpus_per_node", "partitions.*.nodes.*.cpus_per_node", "partitions.*.whole_nodes",
        "qos.*.whole_nodes", "resources.exclusive",
    ]),
    Power.NONE: frozenset([
        "description", "extends", "name", "unsupported",
        "code.max_file", "code.max_files", "code.max_total", "code.snapshot",
        "cost.ask", "cost.largest", "cost.unit", "cost.weights",
        "deadlines.answer", "deadlines.connect_notice", "deadlines.idle", "deadlines.idle_notice",
        "deadlines.interconnect", "deadlines.scheduler", "deadlines.script_grace", "deadlines.stage",
        "deadlines.teardown", "deadlines.workers",
        "defaults.gpus_per_node", "defaults.nodes", "defaults.partition", "defaults.qos", "defaults.time",
        "gpu.cuda", "gpu.cudf_spill", "gpu.cudf_spill_stats", "gpu.device_memory_limit", "gpu.gds",
        "gpu.rmm_allocator_libs", "gpu.rmm_async", "gpu.rmm_log_directory", "gpu.rmm_managed_memory",
        "gpu.rmm_maximum_pool_size", "gpu.rmm_pool_size", "gpu.rmm_release_threshold",
        "gpu.rmm_track_allocations", "gpu.spill_order", "gpu.spill_pinned",
        "identify.command", "identify.environment", "identify.hostname", "identify.never", "identify.order",
        "interconnect.nccl", "interconnect.require", "network.adapters", "network.interface",
        "notes.always", "notes.gpus", "notes.image", "notes.nodes",
        "partitions.*.constraint", "partitions.*.gpu_type", "partitions.*.gpus_per_node", "partitions.*.max_nodes",
        "partitions.*.max_time", "partitions.*.memory_per_node", "partitions.*.min_nodes",
        "partitions.*.needs_gpus", "partitions.*.nodes.*.gpu_type", "partitions.*.nodes.*.gpus_per_node",
        "partitions.*.nodes.*.max_nodes", "partitions.*.nodes.*.memory_per_node", "partitions.*.qos",
        "partitions.*.remove",
        "paths.runs", "paths.scratch",
        "qos.*.description", "qos.*.max_jobs", "qos.*.max_nodes", "qos.*.max_time", "qos.*.min_nodes",
        "qos.*.partitions", "qos.*.without_gpus",
        "repairs.closing", "repairs.dead_worker_memory", "repairs.file_names", "repairs.finder", "repairs.spilling",
        "repairs.switching",
        "report.advice.*.above", "report.advice.*.below", "report.advice.*.figure", "report.advice.*.off",
        "report.advice.*.sentence", "report.sample_every",
        "resources.cpus_per_node", "resources.memory_per_node", "resources.node_gpus",
        "runtime.kind", "runtime.setup_errors", "runtime.stage", "runtime.stage_to",
        "slurm.account_required", "slurm.exclude_failed", "slurm.gpu_request", "slurm.gpu_type",
        "slurm.remove", "slurm.signal_lead", "slurm.timeout",
        "workers.memory_limit", "workers.on_loss", "workers.per_node", "workers.resources", "workers.start",
        "workers.restart_on_cuda_error", "workers.restarts", "workers.threads",
    ]),
}  # fmt: skip
_BY_KEY = {key: power for power, keys in POWERS.items() for key in keys}
_REFUSED = {
    Power.HERE: "decides what hpcml starts on this machine",
    Power.TRUST: "says whom or what you trust",
}

_LONGEST = 100  # characters of a value in a note


def _power(key: str) -> Power:
    """Return the permissions of a key, or of the table above it; none for an unknown key. ``*`` is a name."""
    parts = key.split(".")
    if parts[0] in ("partitions", "qos", "facts") and parts[1:]:
        parts[1] = "*"
    if parts[0] == "partitions" and parts[2:3] == ["nodes"] and parts[3:]:
        parts[3] = "*"
    for end in range(len(parts), 0, -1):
        if power := _BY_KEY.get(".".join(parts[:end])):
            return power
    return Power.NONE


def is_refused(key: str) -> bool:
    """Whether somebody else's file or line may not set a key."""
    return _power(key) in _REFUSED


def is_doubted(key: str) -> bool:
    """Whether a key counts as no more than reported if somebody else's file or line sets it."""
    return _power(key) is Power.ALONE


def check(key: str, origin: Origin, place: str) -> None:
    """Refuse a key that somebody else's file or line may not set; ``key`` is as Layers keep it.

    Raises
    ------
    ConfigError
        The file or line and the key, and where the user sets it.
    """
    if origin.foreign and is_refused(key):
        reason = _REFUSED[_power(key)]
        shown = key.replace("\0", ".")
        whose = "A project's file" if origin is not Origin.LINE else "A line of a script"
        hint = f"If you want this, write {shown} into ~/.config/hpcml/config.toml, or type it with --set."
        message = f"{whose} may not set '{shown}', which {reason}"
        raise ConfigError(message, place=f"{place}: {shown}", hint=hint)


def described(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return those settings that say what the job runs, whom it is open to, or who pays; of variables the names."""
    texts = []
    for key, value in sorted(settings.items()):
        if _power(key) in (Power.JOB, Power.ACCOUNT):
            text = json_text(value)
            cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
            shown = key.replace("\0", ".")
            texts.append(shown if key.startswith("environment.") else f"{shown} = {cut}")
    return tuple(texts)
