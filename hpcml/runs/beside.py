"""What lies beside the runs, each in a folder of its own: maps and elastic clusters, and which may still be alive."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcml import files, subprocesses
from hpcml.errors import HpcmlError
from hpcml.runs import directories, maps

CLUSTERS = ".clusters"  # below the folder of runs
CLUSTER_RECORD = "cluster.json"
CLOSED = "closed"  # jobs of a cluster that find it begin nothing
FOLDERS = {"map": maps.FOLDER, "cluster": CLUSTERS}  # by kind


class Entry(NamedTuple):
    """A map or an elastic cluster; ``alive`` is why it may still be alive, empty if it is not."""

    kind: str
    id: str
    directory: Path
    alive: str

    @property
    def state(self) -> str:
        """How it stands, in words."""
        return f"may be going on ({self.alive})" if self.alive else "has ended"

    def as_json(self) -> dict[str, object]:
        """Return what ``ls --json`` prints of it; what it shares with a run has the run's keys."""
        state, phase = ("GOES ON", "running") if self.alive else ("ENDED", "ended")
        facts = {"kind": self.kind, "run": self.id, "state": state, "phase": phase, "over": not self.alive}
        return {**facts, "message": self.alive, "directory": str(self.directory)}


def ids(folder: Path) -> list[tuple[str, str]]:
    """Return the kinds and ids of what lies beside the runs of a folder, oldest first."""
    found = [(kind, name) for kind, below in FOLDERS.items() for name in directories.ids(folder / below)]
    return sorted(found, key=lambda one: one[1][len(directories.name_of(one[1])) :])


def find(folder: Path, word: str) -> Entry | None:
    """Return what an id, or a name (the newest), means beside the runs; None if nothing."""
    there = ids(folder)
    wanted = [one for one in there if one[1] == word] or [one for one in there if directories.name_of(one[1]) == word]
    return standings(folder, wanted[-1:])[0] if wanted else None


def standings(folder: Path, wanted: Sequence[tuple[str, str]]) -> list[Entry]:
    """Return how some of them stand, in their order, with one question to each scheduler."""
    mapped = {one.id: one.alive for one in maps.standings(folder, [name for kind, name in wanted if kind == "map"])}
    open_ones = {name: why for kind, name in wanted if kind == "cluster" and (why := _open(folder / CLUSTERS / name))}
    alive = {**mapped, **_with_jobs(open_ones)}
    return [Entry(kind, name, folder / FOLDERS[kind] / name, alive.get(name, "")) for kind, name in wanted]


def facts_of(cluster: Path) -> dict[str, object]:
    """Return what a cluster's program wrote of itself, nothing if that cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        facts = files.read_json(cluster / CLUSTER_RECORD)
        return facts if isinstance(facts, dict) else {}
    return {}


def is_dead(facts: Mapping[str, object]) -> bool:
    """Whether a cluster's program is gone; only its own machine can tell."""
    pid = facts.get("pid")
    if facts.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    return subprocesses.start_time(pid) != facts.get("start")


def _open(cluster: Path) -> str:
    """Return why a cluster may be alive: its program, or with ``jobs`` only jobs of it; empty if it is over."""
    with contextlib.suppress(OSError, ValueError):
        closed = files.read_json(cluster / CLOSED)
        return "jobs" if not isinstance(closed, dict) or closed.get("left") or closed.get("by") == "guard" else ""
    if not (facts := facts_of(cluster)):
        return "what began it is not known"
    if is_dead(facts):
        return "jobs"
    host = facts.get("host", "")
    return "its program goes on" if host == socket.gethostname() else f"its program runs on {host}, if it does"


def _with_jobs(open_ones: Mapping[str, str]) -> dict[str, str]:
    """Return why clusters are alive; of those whose program is over that is so as long as Slurm has jobs of them."""
    if "jobs" not in open_ones.values():
        return dict(open_ones)
    from hpcml.schedulers import slurm

    try:
        jobs = slurm.jobs_of_clusters()
    except HpcmlError as error:
        return {name: error.message if why == "jobs" else why for name, why in open_ones.items()}
    said = {name: f"jobs of it are left: scancel {' '.join(left)}" for name, left in jobs.items()}
    return {name: said.get(name, "") if why == "jobs" else why for name, why in open_ones.items()}
