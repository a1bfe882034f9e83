"""What a node uses of its processors, memory, disks and network: from the job's control group, else from /proc.

Slurm names the group by the job's number, or by its SLUID (26.05), so it is the one above this process's step. Version
1 and 2 are read, each controller where it is mounted. ``root`` is the folder that /proc and /sys are read below, so
that a recorded tree can stand for a node.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hpcml.node.hardware import sysfs
from hpcml.node.hardware.sysfs import control_groups, read
from hpcml.samples import DiskTraffic, Gpu, NodeHeader, NodeSample, Pressure, Scope, Traffic

_IP_OVER_INFINIBAND = "32"  # <net/if_arp.h>
_SECTOR = 512  # bytes that /proc/diskstats counts by
_TICKS = os.sysconf("SC_CLK_TCK")
_VIRTUAL_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)\d")  # not disks, or made of disks that are counted
_CONTROLLERS = {"cpu": "cpuacct", "memory": "memory", "disk": "blkio"}  # by what is counted, of version 1
_KNOWN_BY = {  # the file without which a group counts nothing of the kind, by version
    1: {"cpu": "cpuacct.usage", "memory": "memory.usage_in_bytes", "disk": "blkio.throttle.io_service_bytes_recursive"},
    2: {"cpu": "cpu.stat", "memory": "memory.current", "disk": "io.stat"},
}


class JobGroup(NamedTuple):
    """The job's control group by what it counts: ``cpu``, ``memory``, ``disk``."""

    folders: dict[str, Path]
    versions: dict[str, int]


def job_group(root: Path) -> JobGroup:
    """Return the job's group, without folders where this process is in no step of a job."""
    group = JobGroup({}, {})
    for counted, controller in _CONTROLLERS.items():
        for version, folder in control_groups(root, controller, above="step_"):
            if read(folder / _KNOWN_BY[version][counted]):
                group.folders[counted], group.versions[counted] = folder, version
    return group


class Host:
    """A node without its GPUs."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.group = job_group(root)
        self.interfaces = _interfaces(root)
        self.ports = [port for port in sysfs.rdma_ports(root) if port.link.state in ("ACTIVE", "")]
        self.before: tuple[float, float] | None = None
        self.kills = self._oom_kills()

    def header(self, node: str, t: float, every: float, gpus: tuple[Gpu, ...] = ()) -> NodeHeader:
        """Return the header of the samples, which does not change."""
        total = _kibibytes(read(self.root / "proc/meminfo")).get("MemTotal", 0)
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        all_cores = len(re.findall(r"^cpu[0-9]+ ", read(self.root / "proc/stat"), re.MULTILINE))
        scope = Scope(*["cgroup" if counted in self.group.folders else "host" for counted in Scope._fields])
        return NodeHeader(
            node,
            t,
            every,
            cores=allowed if allowed and scope.cpu == "cgroup" else all_cores or None,
            memory=min(filter(None, (*self._memory_limits(), total)), default=None),
            scope=scope,
            gpus=gpus,
            interfaces=tuple(self.interfaces),
            infiniband=tuple(f"{port.device}/{port.port}" for port in self.ports),
        )

    def sample(self, t: float = 0.0) -> NodeSample:
        """Return a sample of the current use, without the GPUs."""
        used, swap = self._memory()
        return NodeSample(
            t,
            cpu=self._cores_in_use(),
            memory=used,
            swap=swap,
            pressure=Pressure(*[self._pressure(resource) for resource in Pressure._fields]),
            net=self._network(),
            ib=self._infiniband(),
            disk=self._disk(),
        )

    def new_oom_kills(self) -> int:
        """Return the number of processes that the kernel has killed (out of memory) since the last call."""
        before, self.kills = self.kills, self._oom_kills()
        return max(0, self.kills - before)

    def _cores_in_use(self) -> float | None:
        seconds, now = self._processor_seconds(), time.monotonic()
        before, self.before = self.before, None if seconds is None else (seconds, now)
        if seconds is None or before is None or now <= before[1]:
            return None
        return round(max(0.0, seconds - before[0]) / (now - before[1]), 3)

    def _processor_seconds(self) -> float | None:
        folder = self.group.folders.get("cpu")
        if folder is None:
            times = read(self.root / "proc/stat").partition("\n")[0].split()[1:9]
            # user nice system idle iowait irq softirq steal; guests are in user and nice
            return (sum(map(int, times)) - int(times[3]) - int(times[4])) / _TICKS if len(times) == 8 else None
        if self.group.versions["cpu"] == 1:
            nanoseconds = _whole(read(folder / "cpuacct.usage"))
            return None if nanoseconds is None else nanoseconds / 1e9
        microseconds = _words(read(folder / "cpu.stat")).get("usage_usec")
        return None if microseconds is None else microseconds / 1e6

    def _memory_limits(self) -> list[int]:
        """Return the limits of the job's group and of those above it that are seen here."""
        folder = self.group.folders.get("memory")
        if folder is None:
            return []
        name = {1: "memory.limit_in_bytes", 2: "memory.max"}[self.group.versions["memory"]]
        limits = [_whole(read(place / name)) for place in (folder, *folder.parents)]
        return [limit for limit in limits if limit is not None]

    def _memory(self) -> tuple[int | None, int | None]:
        """Return the bytes that cannot be given back at once (no page cache, but /dev/shm), and those in swap."""
        folder = self.group.folders.get("memory")
        if folder is None:
            sizes = _kibibytes(read(self.root / "proc/meminfo"))
            if "MemTotal" not in sizes or "MemAvailable" not in sizes:
                return None, None
            return sizes["MemTotal"] - sizes["MemAvailable"], sizes.get("SwapTotal", 0) - sizes.get("SwapFree", 0)
        sizes = _words(read(folder / "memory.stat"))
        if self.group.versions["memory"] == 1:
            used, swap = _whole(read(folder / "memory.usage_in_bytes")), sizes.get("total_swap", 0)
            cache = sizes.get("total_cache", 0) - sizes.get("total_shmem", 0)
        else:
            used, swap = _whole(read(folder / "memory.current")), _whole(read(folder / "memory.swap.current")) or 0
            cache = sizes.get("file", 0) - sizes.get("shmem", 0)
        return None if used is None else max(0, used - max(0, cache)), swap

    def _oom_kills(self) -> int:
        folder = self.group.folders.get("memory")
        if folder is None:
            return _words(read(self.root / "proc/vmstat")).get("oom_kill", 0)
        if self.group.versions["memory"] == 2:
            return _words(read(folder / "memory.events")).get("oom_kill", 0)
        # Version 1 counts in the killed process's own group only.
        places = [folder, *folder.glob("step_*"), *folder.glob("step_*/task_*")]
        return sum(_words(read(place / "memory.oom_control")).get("oom_kill", 0) for place in places)

    def _pressure(self, resource: str) -> float | None:
        """Return the per cent of the last 10 s in which something waited; None where the kernel does not count it."""
        counted = {"io": "disk"}.get(resource, resource)
        folder = self.group.folders.get(counted)
        text = read(folder / f"{resource}.pressure") if folder and self.group.versions[counted] == 2 else ""
        match = re.search(r"^some avg10=([0-9.]+)", text or read(self.root / "proc/pressure" / resource))
        return float(match[1]) if match else None

    def _network(self) -> Traffic:
        received: list[int | None] = []
        sent: list[int | None] = []
        for row in read(self.root / "proc/net/dev").splitlines():
            name, _, counters = row.partition(":")
            numbers = counters.split()
            if name.strip() in self.interfaces and len(numbers) >= 9:
                received.append(_whole(numbers[0]))
                sent.append(_whole(numbers[8]))
        return Traffic(_sum(received), _sum(sent))

    def _infiniband(self) -> Traffic:
        moved = [sysfs.port_bytes(self.root, port) for port in self.ports]
        return Traffic(_sum(port["rx"] for port in moved), _sum(port["tx"] for port in moved))

    def _disk(self) -> DiskTraffic:
        folder = self.group.folders.get("disk")
        if folder is None:
            rows = [row.split() for row in read(self.root / "proc/diskstats").splitlines()]
            disks = [row for row in rows if len(row) >= 10 and self._is_disk(row[2])]
            return DiskTraffic(*[_sum(int(row[place]) * _SECTOR for row in disks) for place in (5, 9)])
        if self.group.versions["disk"] == 2:
            text = read(folder / "io.stat")
            patterns = (r"rbytes=(\d+)", r"wbytes=(\d+)")
        else:
            text = read(folder / "blkio.throttle.io_service_bytes_recursive")
            patterns = (r"\d+:\d+ Read (\d+)", r"\d+:\d+ Write (\d+)")
        return DiskTraffic(*[_sum(int(value) for value in re.findall(pattern, text)) for pattern in patterns])

    def _is_disk(self, name: str) -> bool:
        return not _VIRTUAL_DISK.match(name) and (self.root / "sys/block" / name).exists()


def _interfaces(root: Path) -> list[str]:
    """Return the interfaces that are adapters; where there is none (a container), those not made of others.

    IP over InfiniBand is left out: the ports of InfiniBand count its bytes.
    """
    paths = [path for path in sorted((root / "sys/class/net").glob("*")) if path.name != "lo" and path.is_dir()]
    over_infiniband = [path for path in paths if read(path / "type") == _IP_OVER_INFINIBAND]
    if (root / "sys/class/infiniband").is_dir():
        paths = [path for path in paths if path not in over_infiniband]
    adapters = [path for path in paths if (path / "device").exists()]
    return [path.name for path in adapters or [path for path in paths if not any(path.glob("lower_*"))]]


def _kibibytes(meminfo: str) -> dict[str, int]:
    """Return the bytes that /proc/meminfo gives in kB, by name."""
    return {name: int(size) * 1024 for name, size in re.findall(r"^(\w+): +([0-9]+) kB", meminfo, re.MULTILINE)}


def _words(text: str) -> dict[str, int]:
    """Return the numbers of a file of ``NAME NUMBER`` lines."""
    return {name: int(value) for name, value in re.findall(r"^(\S+) ([0-9]+)$", text, re.MULTILINE)}


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _sum(values: Iterable[int | None]) -> int | None:
    present = [value for value in values if value is not None]
    return sum(present) if present else None
