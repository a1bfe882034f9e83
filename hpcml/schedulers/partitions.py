"""A request in a partition, by what the profile says: whether it keeps the limits, and how much of a node it takes.

A limit that the profile has from hearsay refuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpcml import units
from hpcml.request.record import RunRequest
from hpcml.sites.schema import Partition, Qos, Site


class _Misfit(NamedTuple):
    """What a request exceeds, and the key of the profile that says so."""

    text: str
    key: str


def misfit(site: Site, name: str, spec: RunRequest) -> str:
    """Return why a request cannot have a partition; nothing if it can, as far as the profile surely knows."""
    return next((one.text for one in _misfits(site, name, spec) if not site.doubtful(one.key)), "")


def doubtful_misfits(site: Site, name: str, spec: RunRequest) -> list[str]:
    """Return the limits that a request exceeds if they are as the profile has them from hearsay."""
    return [
        f"{one.text}; the profile's limit is only {how}, so Slurm decides"
        for one in _misfits(site, name, spec)
        if (how := site.doubtful(one.key))
    ]


def way_out(site: Site, name: str, spec: RunRequest) -> str:
    """Return the next step if a partition does not fit: another QoS or partition, or a smaller request."""
    if other := next((qos for qos in _choices(site, name, spec) if qos), ""):
        return f"Try --qos {other}."
    if other := next((other for other in site.partitions if other != name and not misfit(site, other, spec)), ""):
        return f"Try --partition {other}."
    return "Request fewer nodes, GPUs or CPUs, less memory or less time."


def by_qos(site: Site, names: Sequence[str], spec: RunRequest) -> list[str]:
    """Return the options of those of some partitions that would take a request by another QoS."""
    ways = ((name, next(_choices(site, name, spec), "")) for name in names)
    return [f"--partition {name} --qos {qos}" for name, qos in ways if qos]


def _choices(site: Site, name: str, spec: RunRequest) -> Iterator[str]:
    for qos, limits in site.qos.items():
        if qos != qos_of(site, name, spec) and name in (limits.partitions or (name,)):
            other = spec.changed(qos=qos)
            if not misfit(site, name, other) and not doubtful_misfits(site, name, other):
                yield qos


def qos_of(site: Site, name: str, spec: RunRequest) -> str:
    """Return the QoS of a request in a partition, empty where the site's default counts."""
    return spec.place.qos or site.partitions.get(name, Partition()).qos


def _misfits(site: Site, name: str, spec: RunRequest) -> Iterator[_Misfit]:
    partition, qos_name = site.partitions.get(name, Partition()), qos_of(site, name, spec)
    qos = site.qos.get(qos_name, Qos())
    if qos.partitions and name and name not in qos.partitions:
        message = f"QoS '{qos_name}' is for partition {' or '.join(qos.partitions)}, not for {name}"
        yield _Misfit(message, f"qos.{qos_name}.partitions")
    by_partition = _Limits(f"Partition '{name}'", f"partitions.{name}", partition)
    yield from _sizes(by_partition, _Limits(f"QoS '{qos_name}'", f"qos.{qos_name}", qos), spec)
    if partition.needs_gpus and not spec.size.gpus_per_node:
        yield _Misfit(
            f"Partition '{name}' accepts only jobs with GPUs, but the run requests none",
            f"partitions.{name}.needs_gpus",
        )
    gpus_are_known = name in site.partitions and any(other.gpus_per_node for other in site.partitions.values())
    if gpus_are_known and spec.size.gpus_per_node > partition.gpus_per_node:
        has = partition.gpus_per_node or "no"
        message = f"Partition '{name}' has {has} GPUs per node, but the run requests {spec.size.gpus_per_node}"
        yield _Misfit(message, f"partitions.{name}.gpus_per_node")
    if not site.partitions and 0 < site.resources.node_gpus < spec.size.gpus_per_node:
        message = f"A node has {site.resources.node_gpus} GPUs, but the run requests {spec.size.gpus_per_node}"
        yield _Misfit(message, "resources.node_gpus")
    if partition.cpus_per_node and spec.size.cpus_per_node > partition.cpus_per_node:
        cpus, has = spec.size.cpus_per_node, partition.cpus_per_node
        message = f"Partition '{name}' has {has} CPUs per node, but the run requests {cpus}"
        yield _Misfit(message, f"partitions.{name}.cpus_per_node")
    if 0 < partition.memory_per_node < spec.size.memory_per_node:
        asked, allowed = map(units.format_memory_for_slurm, (spec.size.memory_per_node, partition.memory_per_node))
        message = f"Partition '{name}' has {allowed} of memory per node, but the run requests {asked}"
        yield _Misfit(message, f"partitions.{name}.memory_per_node")


class _Limits(NamedTuple):
    """Whose limits they are, in words and as a table of the profile."""

    who: str
    key: str
    limits: Partition | Qos


def _sizes(by_partition: _Limits, by_qos: _Limits, spec: RunRequest) -> Iterator[_Misfit]:
    """Yield what is wrong with nodes and time: a limit of the QoS stands in the place of the partition's."""

    def stated(limit: str) -> tuple[int, str, str]:
        whose = by_qos if getattr(by_qos.limits, limit) else by_partition
        return getattr(whose.limits, limit), whose.who, f"{whose.key}.{limit}"

    most, who, key = stated("max_nodes")
    if 0 < most < spec.size.nodes:
        allowed = units.counted(most, "node")
        yield _Misfit(f"{who} allows at most {allowed}, but the run requests {spec.size.nodes}", key)
    least, who, key = stated("min_nodes")
    if spec.size.nodes < least:
        yield _Misfit(f"{who} needs at least {least} nodes, but the run requests {spec.size.nodes}", key)
    longest, who, key = stated("max_time")
    if 0 < longest < spec.size.time:
        asked, allowed = map(units.format_time_limit, (spec.size.time, longest))
        yield _Misfit(f"{who} allows a time limit of at most {allowed}, but the run requests {asked}", key)


class NodePart(NamedTuple):
    """The GPUs that a job asks for on each node, those that a node has (0: none, or not known), and if it gets all."""

    gpus: int
    of: int
    whole: bool

    @property
    def partial(self) -> bool:
        """Whether others may have the rest of the node."""
        return 0 < self.gpus < self.of and not self.whole

    def share(self, amount: int) -> int:
        """Return what goes with the GPUs out of an amount that a node has, at least 1; all of it where none is left."""
        return max(1, amount * self.gpus // self.of) if amount and self.partial else amount


def node_part(site: Site, partition: str, spec: RunRequest) -> NodePart:
    """Return what a request takes of each node of a partition."""
    qos = qos_of(site, partition, spec)
    alone = dict(spec.place.sbatch).get("--exclusive") == ""
    alone = alone or "--exclusive" in (line.strip() for line in site.slurm.extra)
    whole = alone or site.resources.exclusive or gives_whole_nodes(site, partition, qos)
    return NodePart(spec.size.gpus_per_node, gpus_of_node(site, partition, spec), whole)


def gives_whole_nodes(site: Site, partition: str, qos: str) -> bool:
    """Return whether a partition or a QoS gives whole nodes, whatever a job asks for."""
    return site.partitions.get(partition, Partition()).whole_nodes or site.qos.get(qos, Qos()).whole_nodes


def gpus_of_node(site: Site, partition: str, spec: RunRequest) -> int:
    """Return how many GPUs each node of a request has; 0 if it has none, or the profile does not say."""
    if site.partitions:
        return site.partitions.get(partition, Partition()).gpus_per_node
    if site.qos.get(qos_of(site, partition, spec), Qos()).without_gpus:
        return 0
    chosen = partition or "--constraint" in dict(spec.place.sbatch)
    return 0 if chosen and not spec.size.gpus_per_node else site.resources.node_gpus  # the chosen may be nodes without


def unused_gpus(site: Site, partition: str, spec: RunRequest) -> list[str]:
    """Return a warning if a request reserves GPUs that it does not use, else nothing."""
    part = node_part(site, partition, spec)
    if part.gpus >= part.of or part.partial:
        return []
    nodes = units.counted(spec.size.nodes, "node") + (f" of {partition}" if partition else "")
    if part.gpus:
        taken = f"this job reserves {nodes} and uses {part.gpus} of {part.of} GPUs per node"
        ways = [f"add --gpus-per-node {part.of}", *_to_a_part(site, partition, spec)]
    else:
        gpus = units.counted(spec.size.nodes * part.of, "GPU")
        held = "takes whole nodes" if part.whole else _all_of_nodes(site, partition, spec)
        if held is None:
            return []
        taken = f"this job {held}, so no other job can use their {gpus}" if held else f"this job uses none of {gpus}"
        ways = [f"add --gpus-per-node {part.of} if the script can use GPUs"]
        if not site.partitions:
            cpu_only = next(
                (f"--qos {name}" for name, one in site.qos.items() if one.without_gpus), "nodes without GPUs"
            )
            ways.append(f"choose {cpu_only}")
        elif without := next((name for name, one in site.partitions.items() if not one.gpus_per_node), ""):
            ways.append(f"choose a CPU partition (--partition {without})")
    return [f"{taken}: {', or '.join(ways)}"]


def _all_of_nodes(site: Site, partition: str, spec: RunRequest) -> str | None:
    """Return in words of what a request takes all that a partition's nodes have.

    It is None if the request leaves some of both to others, empty if the profile does not say what a node has.
    """
    size = spec.size
    of = site.partitions.get(partition, Partition()) if site.partitions else site.resources
    has_all = {
        "CPUs": 0 < of.cpus_per_node <= (size.cpus_per_node or of.cpus_per_node),
        "memory": 0 < int(of.memory_per_node) <= int(size.memory_per_node or of.memory_per_node),
    }
    taken = " and ".join(name for name, is_all in has_all.items() if is_all)
    if not taken:
        return None if of.cpus_per_node or of.memory_per_node else ""
    return f"requests all {taken} of its nodes"


def _to_a_part(site: Site, partition: str, spec: RunRequest) -> list[str]:
    """Return the QoS that gives a part of a node, if the request's QoS does not."""
    if not site.qos.get(qos_of(site, partition, spec), Qos()).whole_nodes:
        return []
    others = (name for name in site.qos if node_part(site, partition, spec.changed(qos=name)).partial)
    return [f"choose --qos {name}, which reserves only a part of a node" for name in others][:1]
