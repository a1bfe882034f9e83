"""A task as a child process of the supervisor: how it starts, how it ended, and what its error needs."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml.errors import MEANING, START_FAILED, STOPPED, signal_name, signal_of_status
from hpcml.files import size_of
from hpcml.forms import Form
from hpcml.kind import FailedProcess
from hpcml.node import files, job, processes, script_environment
from hpcml.node.kernel import oom_kills
from hpcml.node.script import launcher, worlds
from hpcml.node.settings import Context

if TYPE_CHECKING:
    from hpcml.node.tasks.task import Task

# The working directory is no place for hpcml itself. No -P: processes that the script starts would inherit it.
_START = "import sys; sys.path[:] = filter(None, sys.path); from hpcml.node.script.launcher import main; main()"

_START_PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path); from importlib import import_module;"
    " import_module(sys.argv[1]).main()"
)
_PROGRAM = (sys.executable, "-u", "-c", _START_PROGRAM)  # followed by Task.program

# `-m` of another Python finds a module of the folder that the user submitted from, and not the copy.
START_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; folder, name = sys.argv[1:3]; del sys.argv[1:3];"
    " sys.path.insert(0, folder); runpy.run_module(name, run_name='__main__', alter_sys=True)"
)

# what the batch script tells the supervisor alone
_SUPERVISOR = ("HPCML_BATCH", "HPCML_STEPS", "HPCML_SETUP", job.GIVEN)
_HINT_RULES = ("gpu-arrays", "no-keyboard")  # whose errors are the script's own, on this node


class OneProcess:
    """How a task ended that is one process on this node."""

    log_begin = 0

    def __init__(self) -> None:
        self.oom_before = oom_kills()
        self.killed = False

    def killed_by_others(self, status: int) -> bool:
        """Whether somebody else's SIGKILL ended the script."""
        return status == 128 + signal.SIGKILL and not self.killed

    def out_of_memory(self, status: int) -> bool:
        """Whether the kernel killed the script, or a process counted with it, because it was out of memory."""
        return self.killed_by_others(status) and oom_kills() > self.oom_before

    def failed_process(self) -> FailedProcess:
        """Return where its output begins: the script is one process."""
        return FailedProcess(log_begin=self.log_begin)

    def describe_end(self, status: int) -> str:
        """Return how the script ended, in words."""
        return self._special_end(status) or f"the script exited with status {status}"

    def only_exited(self, status: int) -> bool:
        """Whether these words say no more than the exit status."""
        return not self._special_end(status)

    def _special_end(self, status: int) -> str:
        if status == STOPPED:
            return MEANING[STOPPED]
        if self.out_of_memory(status):
            return "the script was killed because the node's memory limit was reached (out of memory)"
        if number := signal_of_status(status):
            return f"the script was killed by {signal_name(number)}"
        return ""


class Script(OneProcess):
    """The running script, in a process group of its own so that nothing it started outlives it."""

    def __init__(
        self,
        context: Context,
        task: Task,
        environment: dict[str, str],
        programs: Mapping[Form, str],
        *,
        waits: bool = False,
    ) -> None:
        """Start a task; an OSError if its folder is not there, or the interpreter cannot be started.

        ``programs`` are those of the run's kind, which start with -P: they import nothing of the user's folder. With
        ``waits`` the interpreter starts, and the script's first line runs after :meth:`begin` (see :func:`can_wait`).
        """
        super().__init__()
        self.context, self.task = context, task
        settings, form = context.settings, task.code.form
        environment = job.of_batch_script(environment, cpus=job.cpus() if settings.job.nodes == 1 else 0)
        environment = variables_of_script(context, environment, task.error)
        if settings.job.nodes > 1 and not (task.program or form is Form.JUPYTER):
            environment[worlds.RECORD] = str(context.attempt.world)
        if "memray" in settings.report.profilers and form.traits.is_script:
            path = context.run.profiles / f"memray-script.{context.number}.bin"
            environment |= {"HPCML_MEMRAY": str(path)}
        if form is not Form.JUPYTER:  # which takes up both itself, when its own files are made
            script_environment.restore(environment)
        self.log_begin = size_of(task.log)
        self._begin: int | None = None
        descriptors = os.pipe() if waits else ()
        if descriptors:
            environment[launcher.BEGIN], self._begin = str(descriptors[0]), descriptors[1]
        try:
            self.process = self._start(environment, programs, descriptors[:1])
        except OSError:
            self._close()
            raise
        finally:
            for descriptor in descriptors[:1]:
                os.close(descriptor)
        self.signalled = False

    def _start(
        self, environment: Mapping[str, str], programs: Mapping[Form, str], descriptors: Sequence[int]
    ) -> subprocess.Popen[bytes]:
        task, code = self.task, self.task.code
        return subprocess.Popen(
            [*_PROGRAM, task.program] if task.program else command_of_script(self.context, programs),
            cwd=code.cwd,
            env=environment,
            process_group=0,
            umask=0o077 if code.form is Form.JUPYTER else code.umask,
            pass_fds=(*descriptors, *task.descriptors),
            preexec_fn=functools.partial(_become_script, os.getpid()),  # noqa: PLW1509 - other threads only send
        )

    def begin(self) -> None:
        """Let a script that waits run its first line."""
        if self._begin is not None:
            self.oom_before = oom_kills()
            with contextlib.suppress(BrokenPipeError):  # it has ended, which poll() tells
                os.write(self._begin, b"\n")
        self._close()

    def end_unbegun(self) -> None:
        """Kill the script if it was never begun."""
        if self._begin is not None:
            self.kill()

    def _close(self) -> None:
        if self._begin is not None:
            os.close(self._begin)
            self._begin = None

    @property
    def pid(self) -> int:
        """The script's process."""
        return self.process.pid

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
        self._close()
        self.killed = self.killed or self.process.poll() is None
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return  # it ended by itself in between

    def _special_end(self, status: int) -> str:
        if self.task.code.form is Form.JUPYTER and status in (0, START_FAILED):
            ended = (files.read_json(self.context.attempt.service_of("jupyter")) or {}).get("ended", "it was shut down")
            return f"JupyterLab ended: {ended}" if status == 0 else "JupyterLab could not be started"
        if status == START_FAILED and self.task.code.form is Form.NOTEBOOK:
            return "the notebook could not be executed: the run's environment lacks packages for notebooks"
        return super()._special_end(status)


def can_wait(context: Context, programs: Mapping[Form, str]) -> bool:
    """Whether hpcml's own launcher runs the script, which can start the interpreter and wait before the first line."""
    code = context.settings.code
    plain = code.form in (Form.SCRIPT, Form.MODULE) and code.form not in programs
    return plain and not code.interpreter and not context.settings.points.sweep


def _become_script(supervisor: int) -> None:
    processes.end_with(supervisor)
    processes.lower_file_limit()


def command_of_script(context: Context, programs: Mapping[Form, str]) -> list[str]:
    """Return the command that starts what the run runs; ``programs`` as for :class:`Script`."""
    settings, python = context.settings, (sys.executable, "-u")
    form, is_script = settings.code.form, settings.code.form.traits.is_script
    if form in programs:
        script = [settings.code.script] if is_script else []
        return [*python, "-P", "-m", programs[form], *script, *settings.code.arguments]
    if form is Form.PROGRAM:
        return [settings.code.script, *settings.code.arguments]
    if settings.code.interpreter and form is Form.MODULE:
        folder, _, name = settings.code.script.rpartition("/")
        return [*settings.code.interpreter, "-c", START_MODULE, folder, name, *settings.code.arguments]
    if settings.code.interpreter:
        return [*settings.code.interpreter, settings.code.script, *settings.code.arguments]
    module = ["-m"] if form is Form.MODULE else []
    return [*python, "-c", _START, *module, settings.code.script, *settings.code.arguments]


def variables_of_script(context: Context, environment: Mapping[str, str], error: Path) -> dict[str, str]:
    """Return the variables of a script: those given, without the supervisor's, with hpcml's own.

    ``error`` is the file in which an error that ends the script is written down.
    """
    code = context.settings.code
    variables = {name: value for name, value in environment.items() if name not in _SUPERVISOR}
    variables |= {"HPCML_CODE_OF": code.copy_of} if code.copy_of else {}
    variables |= {"HPCML_SCRIPT_ERROR": str(error)} if code.form.traits.is_script else {}
    return variables | libraries_logs(context, variables)


def world_of_one(context: Context, path: Path) -> str:
    """Return where MPI or JAX started as a world of one process, as a clause; empty if that was not noticed.

    ``path`` is the file that :mod:`hpcml.node.script.worlds` writes in the script's processes.
    """
    if not (record := files.read_json(path)):
        return ""
    file = str(record.get("file", "")).removeprefix(f"{context.run.code}/")
    file = file.removeprefix(f"{context.settings.code.cwd}/")
    place = f" ({file}:{record.get('line')})" if file else ""
    return f"{record.get('library')} started with one process{place}"


def libraries_logs(context: Context, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which NCCL and UCX tell what goes wrong; what the user chose stays.

    NCCL keeps silent otherwise, and has a file for each process; no line is written where nothing goes wrong.
    """
    nccl = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": str(context.run.logs / "nccl-%h.%p.log")}
    ucx = {"UCX_LOG_LEVEL": "warn"}
    return {**({} if nccl.keys() & chosen.keys() else nccl), **({} if ucx.keys() & chosen.keys() else ucx)}


def next_step(context: Context, note: Path) -> str:
    """Return the next step after the error that a task's process has written down, empty if none is known."""
    try:
        error = files.read_json(note)
    except (OSError, ValueError) as problem:
        return f"The reason for the script's end cannot be read: {problem}."
    return next(
        (hint for one in (error or {}).get("chain", ()) if (hint := _hint(one, context.settings.job.image))), ""
    )


def _hint(error: dict[str, Any], image: str) -> str:
    if hiding := error.get("hides"):
        return f"{hiding} has the same name as a module that the script or a library needs. Rename the file."
    if error["type"] == "ModuleNotFoundError" and error["name"] and "." not in error["name"]:
        return _add_to_path(error["name"], error["has"]) if error.get("has") else _add_module(error["name"], image)
    from hpcml.failures.rules import BY_NAME

    rules, text = map(BY_NAME.__getitem__, _HINT_RULES), f"{error['type']}: {error['message']}"
    return next((rule.remedy for rule in rules if re.search(rule.pattern, text)), "")


def _add_to_path(name: str, file: str) -> str:
    """Say how workers find a module that the script has found."""
    return (
        f"The script found the module '{name}' ({file}), but the workers did not. Add the module's folder to "
        "PYTHONPATH before you submit, or to sys.path before the script opens its cluster."
    )


def _add_module(name: str, image: str) -> str:
    """Say where a module is missing and how it gets there; its package may have another name."""
    if image:
        return f"The image {image} has no module '{name}'. Build an image with this module (hpcml image build --help)."
    if name in sys.stdlib_module_names:
        return f"{sys.executable} was built without the standard module '{name}': set runtime.python to another Python."
    add = f"{sys.executable} -m pip install {name}"
    lacks = f"{sys.executable}, which ran the script, has no module '{name}'"
    return f"{lacks}. Install the module with: {add}; or set runtime.python to another Python."
