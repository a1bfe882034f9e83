"""What an elastic cluster writes of itself: who keeps it, whether it is over, and what a killed program left."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path

from hpcml import files, subprocesses
from hpcml.errors import HpcmlError
from hpcml.schedulers import slurm

RECORD = "cluster.json"
CLOSED = "closed"  # jobs that find it begin nothing


def write(folder: Path, site: str, address: str) -> None:
    """Write who keeps the cluster, and where its scheduler is."""
    pid = os.getpid()
    keeper = {"host": socket.gethostname(), "pid": pid, "start": subprocesses.start_time(pid)}
    facts = {"id": folder.name, "site": site, "address": address, **keeper}
    files.write(folder / RECORD, json.dumps(facts, indent=1) + "\n")


def close(folder: Path, by: str, cancelled: list[str], left: list[str]) -> None:
    """Write that the cluster is over."""
    facts = {"by": by, "cancelled": cancelled, "left": left}
    files.write(folder / CLOSED, json.dumps(facts) + "\n")


def addressed(clusters: Path, address: str) -> Path | None:
    """Return the folder of the open cluster whose scheduler has an address, None if there is none of this user's."""
    for folder in _open(clusters):
        if _read(folder).get("address") == address:
            return folder
    return None


def left_behind(clusters: Path) -> list[str]:
    """Return, in sentences, which jobs are left of clusters of this machine whose program was killed."""
    dead = [folder.name for folder in _open(clusters) if _is_dead(_read(folder))]
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
    return [folder for folder in found if files.is_own_folder(folder) and not (folder / CLOSED).exists()]


def _read(folder: Path) -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError):
        facts = files.read_json(folder / RECORD)
        return facts if isinstance(facts, dict) else {}
    return {}


def _is_dead(facts: dict[str, object]) -> bool:
    pid = facts.get("pid")
    if facts.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False  # only its own machine can tell
    return subprocesses.start_time(pid) != facts.get("start")
