"""What an elastic cluster writes of itself: who keeps it, whether it is over, and what a killed program left."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from hpcml import files, subprocesses
from hpcml.errors import HpcmlError
from hpcml.runs import beside
from hpcml.schedulers import slurm


def write(folder: Path, site: str, address: str) -> None:
    """Write who keeps the cluster, and where its scheduler is."""
    pid = os.getpid()
    keeper = {"host": socket.gethostname(), "pid": pid, "start": subprocesses.start_time(pid)}
    facts = {"id": folder.name, "site": site, "address": address, **keeper}
    files.write(folder / beside.CLUSTER_RECORD, json.dumps(facts, indent=1) + "\n")


def close(folder: Path, by: str, cancelled: list[str], left: list[str]) -> None:
    """Write that the cluster is over."""
    facts = {"by": by, "cancelled": cancelled, "left": left}
    files.write(folder / beside.CLOSED, json.dumps(facts) + "\n")


def addressed(clusters: Path, address: str) -> Path | None:
    """Return the folder of the open cluster whose scheduler has an address, None if there is none of this user's."""
    for folder in _open(clusters):
        if beside.facts_of(folder).get("address") == address:
            return folder
    return None


def left_behind(clusters: Path) -> list[str]:
    """Return, in sentences, which jobs are left of clusters of this machine whose program was killed."""
    dead = [folder.name for folder in _open(clusters) if beside.is_dead(beside.facts_of(folder))]
    if not dead:
        return []
    try:
        jobs = slurm.jobs_of_clusters()
    except HpcmlError:
        return []  # what asks for workers will say that Slurm does not answer
    return [
        f"the program of cluster {name} was killed, and jobs of it are left, which end by themselves soon after they "
        f"start, or at once by: scancel {' '.join(jobs[name])}"
        for name in dead
        if jobs.get(name)
    ]


def _open(clusters: Path) -> list[Path]:
    try:
        found = sorted(clusters.iterdir())
    except OSError:
        return []
    return [folder for folder in found if files.is_own_folder(folder) and not (folder / beside.CLOSED).exists()]
