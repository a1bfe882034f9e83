"""What a request costs in the site's unit: pure, by the rules of Slurm's TRESBillingWeights (slurm.conf(5))."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpcml.request.record import Size
from hpcml.schedulers import gres, partition_fit, sbatch_lines
from hpcml.sites.schema import Site
from hpcml.units import MEMORY_EXPONENT, Memory, format_bytes, parse_memory

_WEIGHT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([KMGT]?)", re.IGNORECASE)


class Request(NamedTuple):
    """What batch scripts ask for: ``jobs`` alike, on all their nodes together.

    ``memory`` is in bytes, ``seconds`` is 0 without a time limit, ``cpus`` 0 if they are not known.
    """

    nodes: int
    cpus: int
    memory: int
    gpus: int
    seconds: int
    partition: str = ""
    account: str = ""
    jobs: int = 1
    shares_nodes: bool = False  # it takes fewer CPUs than its nodes have, and other jobs may have the rest
    of_node: str = ""  # CPUs and memory of a node, in words, if it does not take all of them

    @property
    def node_hours(self) -> float:
        """Its nodes for all of its time."""
        return self.nodes * self.seconds / 3600

    def times(self, jobs: int) -> Request:
        """Return the request of so many jobs like it together."""
        more = self._replace(nodes=jobs * self.nodes, cpus=jobs * self.cpus, memory=jobs * self.memory)
        return more._replace(gpus=jobs * self.gpus, jobs=jobs * self.jobs)


def request(
    site: Site, directives: Sequence[tuple[str, str]], nodes: int, seconds: int, lines: Sequence[str] = ()
) -> Request:
    """Return the request of directives and a batch script's lines; of whole nodes all that the profile says of them."""
    stated = sbatch_lines.all_options(lines).get("--nodes")
    nodes = max([nodes, *map(int, re.findall(r"\d+", stated.value))]) if stated else nodes  # of --nodes=2-4 the last
    said = {**(sbatch_lines.of_node(lines, nodes) if lines else {}), **dict(directives)}
    cpus = _number(said.get("--cpus-per-task", ""), 1)
    of_gres, per_node = said.get("--gres", ""), said.get("--gpus-per-node", "")
    gpus = gres.total(gres.gpus(of_gres) or gres.gpus(f"gpu:{per_node}" if per_node else ""))
    each_cpu, each_gpu = _memory(said.get("--mem-per-cpu", "")), _memory(said.get("--mem-per-gpu", ""))
    memory = _memory(said.get("--mem", "")) or cpus * each_cpu or gpus * each_gpu
    name, qos = said.get("--partition", ""), said.get("--qos", "")
    partition = partition_fit.largest(site, name)
    size = Size(gpus_per_node=gpus, cpus_per_node=cpus, memory_per_node=Memory(f"{memory >> 20}M"))
    kinds = partition_fit.nodes_for(site, name, size) if site.partitions else (site.resources,)
    of_cpus = partition_fit.smallest(kind.cpus_per_node for kind in kinds)
    parts = (
        [f"{format_bytes(memory)} of memory"] if memory not in (0, *(kind.memory_per_node for kind in kinds)) else []
    )
    whole = said.get("--exclusive") == "" or partition_fit.gives_whole_nodes(site, name, qos)
    if whole or (memory == 0 and "--mem" in said):  # --mem=0 is all of a node's
        memory = max(memory, int(partition.memory_per_node))
    if shares := not whole and 0 < cpus < of_cpus:
        parts.insert(0, f"{cpus} of {of_cpus} CPUs")
    if whole:
        cpus, gpus = max(cpus, partition.cpus_per_node), max(gpus, partition.gpus_per_node)
    asked = Request(nodes, nodes * cpus, nodes * memory, nodes * gpus, seconds, name, said.get("--account", ""))
    return asked._replace(shares_nodes=shares, of_node=" and ".join(parts))


def _number(text: str, default: int) -> int:
    return int(text) if text.isdecimal() else default


def _memory(text: str) -> int:
    try:
        return parse_memory(text)
    except ValueError:
        return 0


def weights(texts: Mapping[str, str]) -> tuple[dict[str, float], list[str]]:
    """Return the weight of each resource by its name in small letters, memory's for a byte; and what is none."""
    weight_by_name, wrong = {}, []
    for name, text in texts.items():
        match = _WEIGHT.fullmatch(text.strip())
        if match is None or (match[2] and name.lower() != "mem"):
            wrong.append(f"cost.weights: '{text}' is not a valid weight of {name}")
            continue
        unit = 1024 ** MEMORY_EXPONENT[match[2].upper()] if name.lower() == "mem" else 1
        weight_by_name[name.lower()] = float(match[1]) / unit
    return weight_by_name, wrong


def billing(asked: Request, by_name: Mapping[str, float], *, largest: bool) -> float:
    """Return the cost of an hour of a request: the sum of its weighted resources, or the largest of them.

    ``largest`` is Slurm's PriorityFlags=MAX_TRES. A weight of a type of GPU (``gres/gpu:a100``) counts
    where there is none for all of them.
    """
    gpu = by_name.get("gres/gpu", max((by_name[name] for name in by_name if name.startswith("gres/gpu:")), default=0.0))
    parts = (
        asked.cpus * by_name.get("cpu", 0.0),
        asked.memory * by_name.get("mem", 0.0),
        asked.gpus * gpu,
        asked.nodes * by_name.get("node", 0.0),
    )
    return max(parts) if largest else sum(parts)
