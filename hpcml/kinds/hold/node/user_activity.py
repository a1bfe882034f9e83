"""hpcml's agent on a node of a hold: it samples the node, and reports that something of the user's works there."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcml import samples
from hpcml.errors import ROLE_LOST
from hpcml.kinds.batch.roles import AGENT
from hpcml.node import agent, job, process_helpers
from hpcml.node.context import load
from hpcml.safe_files import stat_fields

MEMBERS = agent.Members(AGENT.name, restarts=0, failed=ROLE_LOST)
LOOK = 5.0  # seconds between two looks
CPU, GPU = 0.05, 2.0  # of a core, and per cent of a GPU: who uses more works
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Stay on the node until the hold ends; no run depends on it."""
    context = load()
    node = agent.begin(context, MEMBERS)
    bystander, users = agent.Bystander(node), Users(job.job_id())
    path = context.attempt.samples_of(context.node)
    agent.watch(context)

    def each(orders: Sequence[dict[str, Any]]) -> None:
        for text in (str(order.get("text")) for order in orders if order.get("do") == "say"):
            users.say(text)
        if context.settings.code.idle and users.look_is_due() and (what := users.working() or _gpu(path)):
            node.link.send(event="use", what=what)

    bystander.wait_for("close", each)
    node.link.close()
    return 0


def _gpu(path: Path) -> str:
    """Return a GPU that is in use by the node's newest sample, empty if none is."""
    series = samples.last_of_node(path)
    newest = series.samples[-1] if series and series.samples else samples.NodeSample(0.0)
    return next((f"GPU {number}" for number, gpu in enumerate(newest.gpus) if (gpu.use or 0) > GPU), "")


class Users:
    """The user's processes in the job that are not hpcml's own, such as a shell's: known by control group or variable.

    Without a job there are none: a process on this machine may be of anything.
    """

    def __init__(self, job_id: str, root: Path = Path("/proc")) -> None:
        self.root, self.variable = root, job.mark_of(job_id) if job_id else b""
        own = (root / "self/cgroup").read_text() if job_id else ""
        self.groups = {line.partition("/step_")[0] for line in own.splitlines() if "/step_" in line}
        self.looked, self.seconds = -LOOK, dict[int, float]()  # of a processor, by pid

    def look_is_due(self) -> bool:
        """Whether some seconds have passed since the last look."""
        return bool(self.variable) and time.monotonic() - self.looked > LOOK

    def working(self) -> str:
        """Return a process that used more of a core than an idle one does since the last look, empty if none did."""
        passed, before, busy = time.monotonic() - self.looked, self.seconds, ""
        self.looked, self.seconds = time.monotonic(), {}
        for pid, fields in self._fields():
            self.seconds[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
            if pid in before and self.seconds[pid] - before[pid] > CPU * passed:
                busy = busy or f"process {pid}"
        return busy

    def say(self, text: str) -> None:
        """Write a line to the terminals of these processes."""
        for number in {int(fields[4]) for _, fields in self._fields()} - {0}:
            minor = (number & 0xFF) | (number >> 12 & 0xFFF00)
            path = f"/dev/pts/{((number >> 8 & 0xFFF) - 136) * 256 + minor}"
            with contextlib.suppress(OSError):  # it is none of these, or gone
                descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                status = os.fstat(descriptor)
                if stat.S_ISCHR(status.st_mode) and status.st_uid == os.getuid():
                    os.write(descriptor, f"\r\nhpcml: {text}\r\n".encode())
                os.close(descriptor)

    def _fields(self) -> list[tuple[int, list[str]]]:
        """Return the processes with what stat(5) of proc says of each behind its name."""
        found = []
        for pid in process_helpers.pids():
            place = self.root / str(pid)
            try:
                if place.stat().st_uid != os.getuid() or not self._is_in_job(place):
                    continue
                found.append((pid, stat_fields(place)))
            except OSError:  # it has ended
                continue
        return found

    def _is_in_job(self, place: Path) -> bool:
        variables = (place / "environ").read_bytes().split(b"\0")
        if any(variable.startswith(b"HPCML_RUN_DIR=") for variable in variables):
            return False
        groups = (place / "cgroup").read_text().splitlines()
        return self.variable in variables or any(line.partition("/step_")[0] in self.groups for line in groups)
