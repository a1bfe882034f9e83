"""The control group of the job on this node: where its use of processors, memory and disks is counted.

Slurm names the group by the job's number, or by its SLUID (26.05), so it is the one above this process's step. Version
1 and 2 are read, each controller where it is mounted.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hpcml.node.hardware.sysfs import control_groups, read

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
    """Return the job's group, without folders where this process is in no step of a job."""
    found = JobGroup({}, {})
    for what, controller in _CONTROLLERS.items():
        for version, folder in control_groups(root, controller, above="step_"):
            if read(folder / _KNOWN_BY[version][what]):
                found.folders[what], found.versions[what] = folder, version
    return found
