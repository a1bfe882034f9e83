"""The user's script, or JupyterLab, as a child process: signalled once, its end told in words."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

from hpcml.errors import START_FAILED
from hpcml.node import files, processes, script_environment
from hpcml.node.settings import Context

_SERVICES = {  # -P: not with the user's folder as modules
    "jupyter": ("-P", "-m", "hpcml.node.jupyter.server"),
    "fabric": ("-P", "-m", "hpcml.node.fabric"),
}

_SUPERVISOR = ("HPCML_BATCH", "HPCML_STEPS")  # what the batch script tells the supervisor alone


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
        self.context = context
        what = _SERVICES[settings.service] if settings.service else (settings.script,)
        command = [sys.executable, "-u", *what, *settings.arguments]
        environment = {name: value for name, value in environment.items() if name not in _SUPERVISOR}
        jupyter = settings.service == "jupyter"
        if not jupyter:  # which takes up both itself, when its own files are made
            script_environment.restore(environment)
        self.oom_before = oom_kills()
        self.process = subprocess.Popen(
            command,
            cwd=settings.cwd,
            env=environment,
            process_group=0,
            umask=0o077 if jupyter else settings.umask,
            preexec_fn=functools.partial(processes.end_with, os.getpid()),  # noqa: PLW1509 - the supervisor has one thread
        )
        self.signalled = self.killed = False

    def poll(self) -> int | None:
        """Return the exit status as a shell gives it (128 + signal), or None while it runs."""
        code = self.process.poll()
        return None if code is None else 128 - code if code < 0 else code

    def tell_to_end(self) -> None:
        """Send SIGTERM to the script's process group, once."""
        if not self.signalled:
            self.signalled = True
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to everything that is left of the script's process group, and reap it."""
        self.killed = self.killed or self.process.poll() is None
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return  # it ended by itself in between

    def out_of_memory(self, status: int) -> bool:
        """Whether the kernel killed the script, or a process beside it that counted with it, for want of memory."""
        return status == 128 + signal.SIGKILL and not self.killed and oom_kills() > self.oom_before

    def describe_end(self, status: int) -> str:
        """Return how the script ended, in words."""
        if self.context.settings.service == "jupyter" and status in (0, START_FAILED):
            ended = (files.read_json(self.context.attempt.service_of("jupyter")) or {}).get("ended", "it was shut down")
            return f"JupyterLab ended: {ended}" if status == 0 else "JupyterLab could not be started"
        if status == 0:
            return "the script ended with exit status 0"
        if self.out_of_memory(status):
            return "the script was killed because the node's memory limit was reached (out of memory)"
        if status > 128 and status - 128 in signal.valid_signals():
            return f"the script was killed by {signal.Signals(status - 128).name}"
        return f"the script ended with exit status {status}"


def answer(command: list[str], seconds: float) -> str:
    """Return what a command of the node says, nothing if it is not there, fails or is too late."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def oom_kills() -> int:
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
    """Return this process's memory control groups as folders, and the file in each that counts kills.

    /proc/self/cgroup names a group from the hierarchy's root; /proc/self/mountinfo says which part of the hierarchy
    is mounted where (a container or a bind mount shows only a part).
    """
    found = []
    for group_type, option, file in (("cgroup", "memory", "memory.oom_control"), ("cgroup2", "", "memory.events")):
        path = _group_path(option)
        for root, mounted_at in _mounts(group_type, option) if path else []:
            if path == root or path.startswith(root.rstrip("/") + "/"):
                found.append((Path(mounted_at + path[len(root.rstrip("/")) :]), file))
    return found


def _group_path(controller: str) -> str:
    for line in _lines("/proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return ""


def _mounts(group_type: str, option: str) -> list[tuple[str, str]]:
    """Return (root, mount point) of the mounted control group hierarchies of a type (see proc(5), mountinfo)."""
    found = []
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == group_type and (not option or option in options.split(",")):
            fields = before.split()
            found.append((fields[3], fields[4]))
    return found


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
