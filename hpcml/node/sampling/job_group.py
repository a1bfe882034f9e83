"""The control group of the job on this node: where its use of processors, memory and disks is counted.

Slurm names the group by the job's number, or by its SLUID (26.05), so it is the one above this process's step. Version
1 and 2 are read, each controller where it is mounted.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hpcml.node.hardware.sysfs import read

_CONTROLLERS = {"cpu": "cpuacct", "memory": "memory", "disk": "blkio"}  # by what is counted, of version 1
_KNOWN_BY = {  # the file without which a group counts nothing of the kind, by version
    1: {"cpu": "cpuacct.usage", "memory": "memory.usage_in_bytes", "disk": "blkio.throttle.io_service_bytes_recursive"},
    2: {"cpu": "cpu.stat", "memory": "memory.current", "disk": "io.stat"},
}


class JobGroup(NamedTuple):
    """The folders of the job's group by what they count (``cpu``, ``memory``, ``disk``), and the version of each."""

    folders: dict[str, Path]
    versions: dict[str, int]


def job_group(root: Path) -> JobGroup:
    """Return the job's group, without folders where this process is in no step of a job.

    /proc/self/cgroup names a group from the hierarchy's root; /proc/self/mountinfo says which part of the hierarchy
    is mounted where (a container or a bind mount shows only a part), see proc(5).
    """
    groups = {
        controller: path
        for line in read(root / "proc/self/cgroup").splitlines()
        for controller in line.split(":", 2)[1].split(",")
        for path in line.split(":", 2)[2:]
    }
    found = JobGroup({}, {})
    for line in read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        inner, mounted = before.split()[3:5]
        for what, controller in _CONTROLLERS.items():
            version = {"cgroup": 1, "cgroup2": 2}.get(kind, 0)
            if version == 1 and controller not in options.split(","):
                continue
            folder = _folder(groups.get("" if version == 2 else controller, ""), inner, root / mounted.lstrip("/"))
            if version and folder and read(folder / _KNOWN_BY[version][what]):
                found.folders[what], found.versions[what] = folder, version
    return found


def _folder(group: str, inner: str, mounted: Path) -> Path | None:
    """Return the folder of the job's group in a mount that shows the hierarchy from ``inner`` on."""
    parts = PurePosixPath(group).parts
    steps = [place for place, part in enumerate(parts) if part.startswith("step_")]
    if not steps or ".." in parts:
        return None
    job = PurePosixPath(*parts[: steps[0]])
    return mounted / job.relative_to(inner) if job.is_relative_to(inner) and job != PurePosixPath("/") else None
