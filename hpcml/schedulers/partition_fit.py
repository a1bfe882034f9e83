"""A request in a partition, by what the profile says: whether it keeps the limits, and how much of a node it takes.

A limit that the profile has unconfirmed refuses nothing. A request may name several partitions (``a,b``): the job
runs in the first that can start it, so it must fit all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hpcml import units
from hpcml.errors import UsageError
from hpcml.request.record import RunRequest, Size
from hpcml.sites.schema import Partition, Qos, Site


class _Misfit(NamedTuple):
    """What a request exceeds, and the key of the profile that says so."""

    text: str
    key: str


def misfit(site: Site, name: str, spec: RunRequest) -> str:
    """Return the reason why a request cannot have a partition; nothing if it can, as far as the profile is sure."""
    return next((found.text for found in _misfits(site, name, spec) if not site.doubtful(found.key)), "")


def doubtful_misfits(site: Site, name: str, spec: RunRequest) -> list[str]:
    """Return the limits that a request exceeds if they are as the profile has them, unconfirmed."""
    return [
        f"{found.text}; the profile's limit is only {how}, so Slurm decides"
        for found in _misfits(site, name, spec)
        if (how := site.doubtful(found.key))
    ]


def way_out(site: Site, name: str, spec: RunRequest) -> str:
    """Return the next step if a partition does not fit: another QoS or partition, or a smaller request."""
    if other := next((qos for qos in _choices(site, name, spec) if qos), ""):
        return f"Try --qos {other}."
    others = (other for other in site.partitions if other != name and not misfit(site, other, spec))
    if other := next((other for other in others if not doubtful_misfits(site, other, spec)), ""):
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
    """Return the QoS of a request in a partition, the first of several; may be empty."""
    return spec.place.qos or next((partition.qos for partition in _named(site, name)), "") or site.defaults.qos


def _named(site: Site, names: str) -> tuple[Partition, ...]:
    """Return the partitions of a list that the profile has."""
    return tuple(site.partitions[name] for name in names.split(",") if name in site.partitions)


class Terms(NamedTuple):
    """What the profile has of a partition besides sizes."""

    account: str = ""
    qos: str = ""
    gpu_type: str = ""
    extra: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def terms(site: Site, names: str, asked: RunRequest, *, with_gpus: bool) -> Terms:
    """Return the account, QoS, GPU type and sbatch options of a request; ``asked`` is as the user gave it.

    Raises
    ------
    UsageError
        If the request names several partitions, and one job cannot be right for each of them.
    """
    terms_by_name = {name: _terms_of(site, name, asked, with_gpus=with_gpus) for name in names.split(",")}
    first, *others = terms_by_name.values()
    if any(other != first for other in others):
        raise _unlike(terms_by_name)
    return first


def _terms_of(site: Site, name: str, asked: RunRequest, *, with_gpus: bool) -> Terms:
    place, partition = asked.place, site.partitions.get(name, Partition())
    constraint = [f"--constraint={partition.constraint}"] if partition.constraint else []
    return Terms(
        account=place.account or partition.account or site.defaults.account,
        qos=qos_of(site, name, asked),
        gpu_type=asked.size.gpu_type or (with_gpus and partition.gpu_type) or site.slurm.gpu_type,
        extra=(*site.slurm.extra, *partition.extra, *constraint),
        remove=(*site.slurm.remove, *partition.remove),
    )


def _unlike(terms_by_name: dict[str, Terms]) -> UsageError:
    """Return the refusal of a list of partitions whose jobs are not alike, with a line for each of them."""
    every = [*terms_by_name.values()]
    words = {"account": "--account {}", "qos": "--qos {}", "gpu_type": "--gpus-per-node {}:N"}
    unlike = [name for name in Terms._fields if len({getattr(terms, name) for terms in every}) > 1]
    lines = []
    for name, one in terms_by_name.items():
        options = [words[key].format(value) for key in unlike if key in words and (value := getattr(one, key))]
        lines.append(" ".join(["--partition", name, *options]))
    what = {"account": "account", "qos": "QoS", "gpu_type": "GPU type", "extra": "options", "remove": "options"}
    problem = " and ".join(dict.fromkeys(what[key] for key in unlike))
    message = (
        f"One job cannot be for the partitions {' and '.join(terms_by_name)}: the profile has another {problem} for"
    )
    hint = f"Submit with one of these lines: {'; or '.join(lines)}."
    return UsageError(f"{message} each", place="--partition", hint=hint)


def nodes_for(site: Site, names: str, size: Size) -> tuple[Partition, ...]:
    """Return the kinds of nodes that a request may get, each as a partition of such nodes alone; at least one."""
    kinds: list[Partition] = []
    for partition in _named(site, names):
        fitting = _serving(site, partition, size)
        plain = [kind for kind in fitting if not kind.gpus_per_node] if size.gpus_per_node <= 0 else []
        kinds += plain or fitting or [partition]
    return tuple(kinds) or (Partition(),)


def _kinds(partition: Partition) -> list[Partition]:
    """Return the kinds of nodes of a partition, itself if it lists none; what a kind does not say is not known."""
    return [partition._replace(**kind._asdict(), nodes={}) for kind in partition.nodes.values()] or [partition]


def _serving(site: Site, partition: Partition, size: Size) -> list[Partition]:
    """Return the kinds of nodes of a partition that have what a request asks for on each node."""
    gpu_type = size.gpu_type or partition.gpu_type or site.slurm.gpu_type
    return [
        kind
        for kind in _kinds(partition)
        if size.gpus_per_node <= kind.gpus_per_node
        and not (size.gpus_per_node > 0 and gpu_type and kind.gpu_type not in ("", gpu_type))
        and size.cpus_per_node <= (kind.cpus_per_node or size.cpus_per_node)
        and size.memory_per_node <= (kind.memory_per_node or size.memory_per_node)
    ]


def largest(site: Site, names: str) -> Partition:
    """Return the largest node of some partitions: its GPUs, CPUs and memory."""
    kinds = [kind for partition in _named(site, names) for kind in _kinds(partition)] or [Partition()]
    return Partition(
        gpus_per_node=max(kind.gpus_per_node for kind in kinds),
        cpus_per_node=max(kind.cpus_per_node for kind in kinds),
        memory_per_node=max((kind.memory_per_node for kind in kinds), key=int),
    )


def smallest(numbers: Iterable[int]) -> int:
    """Return the smallest of the numbers that are known; 0 if none is."""
    return min(filter(None, numbers), default=0)


def _misfits(site: Site, names: str, spec: RunRequest) -> Iterator[_Misfit]:
    for name in names.split(","):
        yield from _misfits_of(site, name, spec)


def _misfits_of(site: Site, name: str, spec: RunRequest) -> Iterator[_Misfit]:
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
    if partition.nodes:
        yield from _misfits_of_kinds(site, name, partition, spec)
        return
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


def _misfits_of_kinds(site: Site, name: str, partition: Partition, spec: RunRequest) -> Iterator[_Misfit]:
    """Yield that no kind of nodes serves a request, or that too few nodes do."""
    size, first = spec.size, f"partitions.{name}.nodes.{next(iter(partition.nodes))}"
    if not (serving := _serving(site, partition, size)):
        memory = units.format_memory_for_slurm(size.memory_per_node) if size.memory_per_node else ""
        wants = {f" {size.gpu_type}".rstrip() + " GPUs": size.gpus_per_node, "CPUs": size.cpus_per_node}
        texts = [f"{number} {noun.strip()}" for noun, number in wants.items() if number > 0]
        what = " and ".join([*texts, *([f"{memory} of memory"] if memory else [])])
        yield _Misfit(f"Partition '{name}' has no node with {what}", f"{first}.max_nodes")
    elif all(kind.max_nodes for kind in serving) and (most := sum(kind.max_nodes for kind in serving)) < size.nodes:
        has = f"Partition '{name}' has only {units.counted(most, 'node')} for such a request"
        yield _Misfit(f"{has}, but the run requests {size.nodes}", f"{first}.max_nodes")


class _Limits(NamedTuple):
    """Whose limits they are, in words and as a table of the profile."""

    who: str
    key: str
    limits: Partition | Qos


def _sizes(by_partition: _Limits, by_qos: _Limits, spec: RunRequest) -> Iterator[_Misfit]:
    """Yield the misfits of nodes and time: a limit of the QoS replaces the partition's."""

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
        """Return the part for the GPUs out of an amount that a node has, at least 1; all of it where none is left."""
        return max(1, amount * self.gpus // self.of) if amount and self.partial else amount


def node_part(site: Site, partition: str, spec: RunRequest) -> NodePart:
    """Return the part that a request takes of each node of a partition."""
    qos = qos_of(site, partition, spec)
    alone = dict(spec.place.sbatch).get("--exclusive") == ""
    extra = (*site.slurm.extra, *(line for row in _named(site, partition) for line in row.extra))
    alone = alone or "--exclusive" in (line.strip() for line in extra)
    whole = alone or site.resources.exclusive or gives_whole_nodes(site, partition, qos)
    return NodePart(spec.size.gpus_per_node, gpus_of_node(site, partition, spec), whole)


def share_of_cpus(
    site: Site, part: NodePart, kinds: Sequence[Partition], cpus: Sequence[int], memory: list[int]
) -> tuple[int, list[int]]:
    """Return a node's CPUs and the memory of each kind for some of them without GPUs; 0 and all for all of a node."""
    counts = [kind.cpus_per_node if site.partitions else site.resources.cpus_per_node for kind in kinds]
    if part.gpus or part.whole or not all(map(int.__lt__, cpus, counts)):
        return 0, memory
    sizes = zip(memory, cpus, counts, strict=True)
    return smallest(counts), [amount and max(1, amount * number // count) for amount, number, count in sizes]


def gives_whole_nodes(site: Site, names: str, qos: str) -> bool:
    """Return True if each of some partitions, or the QoS, gives whole nodes, whatever a job asks for."""
    named = _named(site, names)
    by_partition = bool(named) and all(row.whole_nodes for row in named) and len(named) == len(names.split(","))
    return by_partition or site.qos.get(qos, Qos()).whole_nodes


def gpus_of_node(site: Site, partition: str, spec: RunRequest) -> int:
    """Return the number of GPUs on each node of a request; 0 if there are none, or the profile does not say."""
    if site.partitions:
        return min(kind.gpus_per_node for kind in nodes_for(site, partition, spec.size))
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
    kinds = nodes_for(site, partition, spec.size) if site.partitions else (site.resources,)
    cpus, memory = smallest(kind.cpus_per_node for kind in kinds), smallest(int(kind.memory_per_node) for kind in kinds)
    typed = site.partitions or size.memory_per_node != site.resources.memory_per_node
    by_cpus = 0 if 0 < size.cpus_per_node < cpus else memory
    has_all = {
        "CPUs": 0 < cpus <= (size.cpus_per_node or cpus),
        "memory": 0 < memory <= (int(size.memory_per_node if typed else 0) or by_cpus),
    }
    taken = " and ".join(name for name, is_all in has_all.items() if is_all)
    if not taken:
        return None if cpus or memory else ""
    return f"requests all {taken} of its nodes"


def _to_a_part(site: Site, partition: str, spec: RunRequest) -> list[str]:
    """Return the QoS that gives a part of a node, if the request's QoS does not."""
    if not site.qos.get(qos_of(site, partition, spec), Qos()).whole_nodes:
        return []
    others = (name for name in site.qos if node_part(site, partition, spec.changed(qos=name)).partial)
    return [f"choose --qos {name}, which reserves only a part of a node" for name in others][:1]
