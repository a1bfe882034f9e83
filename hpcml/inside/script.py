"""The user's script as a child process: started in its folder, signalled once, and its end told in words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from hpcml.inside.settings import Context


class Script:
    """The running script, in a process group of its own so that nothing it started outlives it."""

    def __init__(self, context: Context, environment: dict[str, str]) -> None:
        """Start it.

        Raises
        ------
        OSError
            If the folder it should run in is not there, or the interpreter cannot be started.
        """
        settings = context.settings
        command = [sys.executable, "-u", settings.script, *settings.arguments]
        self.oom_before = _oom_kills()
        self.process = subprocess.Popen(command, cwd=settings.cwd, env=environment, process_group=0)
        self.told = False

    def poll(self) -> int | None:
        """Return the exit status as a shell gives it (128 + signal), or None while it runs."""
        code = self.process.poll()
        return None if code is None else 128 - code if code < 0 else code

    def tell_to_end(self) -> None:
        """Send SIGTERM to the script's process group, once."""
        if not self.told:
            self.told = True
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to everything that is left of the script's process group, and reap it."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return  # it ended by itself in between

    def describe_end(self, status: int) -> str:
        """Return how the script ended, in words."""
        if status == 0:
            return "the script ended with exit status 0"
        if status == 128 + signal.SIGKILL and _oom_kills() > self.oom_before:
            return "the script was killed because the node's memory limit was reached (out of memory)"
        if status > 128 and status - 128 in signal.valid_signals():
            return f"the script was killed by {signal.Signals(status - 128).name}"
        return f"the script ended with exit status {status}"


def _oom_kills() -> int:
    """Return how many processes of this control group the kernel has killed for memory (cgroup v1 and v2)."""
    for folder, name in _memory_groups():
        try:
            lines = (folder / name).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    return 0


def _memory_groups() -> list[tuple[Path, str]]:
    found = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            found.append((Path(f"/sys/fs/cgroup/memory{path}"), "memory.oom_control"))
        elif controllers == "":
            found.append((Path(f"/sys/fs/cgroup{path}"), "memory.events"))
    return found
