"""How much memory a job has asked for on each node, as accounting tells it: what a site gives where nothing is said."""

from __future__ import annotations

import re

from hpcml import units
from hpcml.schedulers import slurm

_REQUESTED = re.compile(r"(\d+(?:\.\d+)?[KMGT]?)([cn]?)", re.IGNORECASE)


def per_node(requested: str, nodes: int, cpus: int) -> float:
    """Return sacct's ReqMem in bytes for each node of a job, 0 if it says nothing that can be read.

    Before Slurm 21.08 it is for each node (``4Gn``) or processor (``2000Mc``), since then of the whole job (``16G``).
    """
    match = _REQUESTED.fullmatch(requested.strip())
    if match is None or nodes < 1:
        return 0.0
    size = float(units.parse_memory(match[1]))
    parts = {"n": 1.0, "c": nodes / max(1, cpus)}
    return size / parts.get(match[2].lower(), float(nodes))


def requested(job: str) -> float:
    """Return the bytes that a job asked for on each node, 0 where accounting does not tell."""
    for fields in slurm.accounted([job], "ReqMem,NNodes,NCPUS").values():
        if fields[1].isdecimal() and fields[2].isdecimal():
            return per_node(fields[0], int(fields[1]), int(fields[2]))
    return 0.0
