"""How much of its nodes a job takes: some of a node's GPUs with their share of its CPUs and memory, or all of it."""

from __future__ import annotations

from typing import NamedTuple

from hpcml import units
from hpcml.request.record import RunRequest
from hpcml.schedulers import limits
from hpcml.sites.schema import Partition, Qos, Site


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


def of_request(site: Site, partition: str, spec: RunRequest) -> NodePart:
    """Return what a request takes of each node of a partition."""
    qos = limits.qos_of(site, partition, spec)
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
    if site.qos.get(limits.qos_of(site, partition, spec), Qos()).without_gpus:
        return 0
    chosen = partition or "--constraint" in dict(spec.place.sbatch)
    return 0 if chosen and not spec.size.gpus_per_node else site.resources.node_gpus  # the chosen may be nodes without


def unused_gpus(site: Site, partition: str, spec: RunRequest) -> list[str]:
    """Return a warning if a request takes nodes with GPUs that it leaves unused, else nothing."""
    part = of_request(site, partition, spec)
    if part.gpus >= part.of or part.partial:
        return []
    nodes = units.counted(spec.size.nodes, "node") + (f" of {partition}" if partition else "")
    if part.gpus:
        taken = f"only {part.gpus} of a node's {part.of} GPUs used, and {nodes} taken whole"
        ways = [f"ask for all with --gpus-per-node {part.of}", *_to_a_part(site, partition, spec)]
    else:
        taken = f"no GPU is used, and {nodes} with {spec.size.nodes * part.of} GPUs taken"
        cpu_only = next((f"--qos {name}" for name, one in site.qos.items() if one.without_gpus), "nodes without GPUs")
        ways = [f"ask for them with --gpus-per-node {part.of}"]
        ways += ["take a partition without GPUs" if site.partitions else f"take {cpu_only}"]
    return [f"{taken}: {', or '.join(ways)}"]


def _to_a_part(site: Site, partition: str, spec: RunRequest) -> list[str]:
    """Return the QoS that gives a part of a node, where it is the request's QoS that does not."""
    if not site.qos.get(limits.qos_of(site, partition, spec), Qos()).whole_nodes:
        return []
    others = (name for name in site.qos if of_request(site, partition, spec.changed(qos=name)).partial)
    return [f"take --qos {name}, which gives a part of a node" for name in others][:1]
