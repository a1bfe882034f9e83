"""Looks at what others change meanwhile: files that are written, processes that begin and end, and free ports."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterable
from pathlib import Path

from hpcml import safe_files


def whole_lines(path: Path) -> list[str]:
    """Return a file's whole lines, none if there is no file: of the last line a part may be written so far."""
    text = path.read_text() if path.exists() else ""
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]


def by_age(pids: Iterable[int]) -> list[int]:
    """Return processes, the oldest first: Linux gives numbers again, so a child may have a lower one than its parent."""
    began = {pid: int(ticks) for pid in pids if (ticks := safe_files.state_and_start(pid)[1])}
    return sorted(began, key=lambda pid: (began[pid], pid))


def free_port() -> int:
    """Return a port that nobody has, and that the kernel gives nobody who asks for any port."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(given.read_text().split()[0]) if given.exists() else 32768
    for port in random.sample(range(first // 2, first), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise AssertionError(f"no port below {first} is free")


LATE_REPORT = "the report was not ready within"


def without_late_report(warnings: Iterable[str]) -> list[str]:
    """Return a run's warnings, but not that its nodes did not wait for its report: a busy machine may take that long."""
    return [warning for warning in warnings if LATE_REPORT not in warning]
