"""What Linux tells of processes: which were killed for memory, and which wait for a file system."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from hpcml.node.hardware import sysfs

HUNG_AFTER = 20.0  # seconds of one wait after which it is said
_MOST_THREADS = 64
# Functions of Linux in which a process waits for a file system's server: FUSE, NFS, Lustre, GPFS, CephFS, BeeGFS, 9p.
_WAITS = re.compile(
    r"request_wait_answer|fuse_\w+|rpc_wait_bit_killable|nfs\w*_wait\w*|ptlrpc_\w*wait\w*|cl_\w*wait\w*|ll_\w+|"
    r"cxiWait\w*|ceph_\w*wait\w*|beegfs\w*|p9_client_rpc|folio_wait_bit\w*|wait_on_page_bit\w*|io_schedule"
)
# The numbers of the calls whose first argument is a file: read, write, pread and pwrite.
_READS = {"0", "1", "17", "18"} if os.uname().machine == "x86_64" else set()


def oom_kills() -> int:
    """Return the number of processes of this control group that the kernel has killed for memory (cgroup v1 and v2)."""
    for path in _oom_files():
        if match := re.search(r"^oom_kill (\d+)$", sysfs.read(path), re.MULTILINE):
            return int(match[1])
    return 0


@functools.cache
def _oom_files() -> tuple[Path, ...]:
    """Return the files that may tell it."""
    names = {1: "memory.oom_control", 2: "memory.events"}
    return tuple(folder / names[version] for version, folder in sorted(sysfs.control_groups(Path("/"), "memory")))


class FileSystemHang:
    """How long a process has waited for a file system, as :meth:`look` finds it at each call."""

    def __init__(self, pid: int) -> None:
        self.place = Path(f"/proc/{pid}")
        self.since: dict[str, tuple[float, str]] = {}

    def look(self, now: float) -> str:
        """Return the file and the wait of a hung thread, empty if none has waited for long; ``now`` is in seconds."""
        waiting = {}
        for thread in self._threads():
            function = sysfs.read(thread / "wchan")
            if _WAITS.fullmatch(function):
                counts = sysfs.read(thread / "status")
                woken = counts.rpartition("\nvoluntary_ctxt_switches:")[2]  # counts of two kinds
                began, before = self.since.get(thread.name, (now, woken))
                waiting[thread.name] = (began if before == woken else now, woken)
        self.since = waiting
        longest = min(waiting, key=lambda name: waiting[name][0], default="")
        if not longest or now - waiting[longest][0] < HUNG_AFTER:
            return ""
        thread = self.place / "task" / longest
        return f"{self._file(thread)}{sysfs.read(thread / 'wchan')}"

    def _threads(self) -> list[Path]:
        try:
            return [self.place / "task" / name for name in os.listdir(self.place / "task")[:_MOST_THREADS]]
        except OSError:
            return []  # it has ended

    def _file(self, thread: Path) -> str:
        """Return the file that a thread reads or writes, with a comma; empty where the kernel does not tell it."""
        call = sysfs.read(thread / "syscall").split()
        if len(call) < 2 or call[0] not in _READS:
            return ""
        try:
            path = (self.place / "fd" / str(int(call[1], 16))).readlink()
        except (OSError, ValueError):
            return ""
        return f"{str(path)[:300]}, "
