"""The user's script, or JupyterLab, as a child process: signalled once, its end told in words."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from hpcml.errors import MEANING, START_FAILED, STOPPED
from hpcml.node import files, processes, script_environment
from hpcml.node.hardware import sysfs
from hpcml.node.settings import Context

_SERVICES = {  # -P: not with the user's folder as modules
    "jupyter": ("-P", "-m", "hpcml.node.jupyter.server"),
    "fabric": ("-P", "-m", "hpcml.node.fabric"),
    "doctor": ("-P", "-m", "hpcml.kinds.dask.node.checkup"),
}

# The working directory is no place for hpcml itself. No -P: processes that the script starts would inherit it.
_START = "import sys; sys.path[:] = filter(None, sys.path); from hpcml.node.script.launcher import main; main()"

# `-m` of another Python finds a module of the folder that the user submitted from, and not the copy.
START_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; folder, name = sys.argv[1:3]; del sys.argv[1:3];"
    " sys.path.insert(0, folder); runpy.run_module(name, run_name='__main__', alter_sys=True)"
)

# A point of a sweep is a fork of this process.
_START_POINTS = "import sys; sys.path[:] = filter(None, sys.path); from hpcml.node.sweep.server import serve; serve()"

_SUPERVISOR = ("HPCML_BATCH", "HPCML_STEPS")  # what the batch script tells the supervisor alone


class Script:
    """The running script, in a process group of its own so that nothing it started outlives it."""

    def __init__(self, context: Context, environment: dict[str, str]) -> None:
        """Start it; an OSError if its folder is not there, or the interpreter cannot be started."""
        settings = context.settings
        self.context = context
        python = (sys.executable, "-u")
        if settings.service:
            command = [*python, *_SERVICES[settings.service], *settings.arguments]
        elif settings.sweep:
            command = [*python, "-c", _START_POINTS]
        elif settings.form == "notebook":
            command = [*python, "-P", "-m", "hpcml.node.jupyter.execute", settings.script, *settings.arguments]
        elif settings.form == "program":
            command = [settings.script, *settings.arguments]
        elif settings.interpreter and settings.form == "module":
            folder, _, name = settings.script.rpartition("/")
            command = [*settings.interpreter, "-c", START_MODULE, folder, name, *settings.arguments]
        elif settings.interpreter:
            command = [*settings.interpreter, settings.script, *settings.arguments]
        else:
            module = ["-m"] if settings.form == "module" else []
            command = [*python, "-c", _START, *module, settings.script, *settings.arguments]
        environment = {name: value for name, value in environment.items() if name not in _SUPERVISOR}
        environment |= {"HPCML_CODE_OF": settings.code_of} if settings.code_of else {}
        environment |= {} if settings.service else {"HPCML_SCRIPT_ERROR": str(context.attempt.script_error)}
        if "memray" in settings.profile and not settings.service:
            path = context.run.profiles / f"memray-script.{context.number}.bin"
            environment |= {"HPCML_MEMRAY": str(path)}
        environment |= libraries_logs(context, environment)
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

    def killed_by_others(self, status: int) -> bool:
        """Whether somebody else's SIGKILL ended the script."""
        return status == 128 + signal.SIGKILL and not self.killed

    def out_of_memory(self, status: int) -> bool:
        """Whether the kernel killed the script, or a process beside it that counted with it, for want of memory."""
        return self.killed_by_others(status) and oom_kills() > self.oom_before

    def describe_end(self, status: int) -> str:
        """Return how the script ended, in words."""
        if self.context.settings.service == "jupyter" and status in (0, START_FAILED):
            ended = (files.read_json(self.context.attempt.service_of("jupyter")) or {}).get("ended", "it was shut down")
            return f"JupyterLab ended: {ended}" if status == 0 else "JupyterLab could not be started"
        if status == START_FAILED and self.context.settings.form == "notebook":
            return "the notebook could not be executed: the run's environment lacks what does it"
        if self.context.settings.sweep and (told := files.read_json(self.context.attempt.points_end)):
            return str(told["ended"])
        if status == 0:
            return "the script ended with exit status 0"
        if status == STOPPED:
            return MEANING[STOPPED]
        if self.out_of_memory(status):
            return "the script was killed because the node's memory limit was reached (out of memory)"
        if status > 128 and status - 128 in signal.valid_signals():
            return f"the script was killed by {signal.Signals(status - 128).name}"
        return f"the script ended with exit status {status}"


def libraries_logs(context: Context, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which NCCL and UCX tell what goes wrong; what the user chose stays.

    NCCL keeps silent otherwise, and has a file for each process; no line is written where nothing goes wrong.
    """
    nccl = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": str(context.run.logs / "nccl-%h.%p.log")}
    ucx = {"UCX_LOG_LEVEL": "warn"}
    return {**({} if nccl.keys() & chosen.keys() else nccl), **({} if ucx.keys() & chosen.keys() else ucx)}


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
    for path in _oom_files():
        if found := re.search(r"^oom_kill (\d+)$", sysfs.read(path), re.MULTILINE):
            return int(found[1])
    return 0


@functools.cache
def _oom_files() -> tuple[Path, ...]:
    """Return the files that may tell it."""
    names = {1: "memory.oom_control", 2: "memory.events"}
    return tuple(folder / names[version] for version, folder in sorted(sysfs.control_groups(Path("/"), "memory")))
