"""A task as a child process of the supervisor: how it starts, how it ended, and what its error needs."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml.errors import MEANING, STOPPED, signal_name, signal_of_status
from hpcml.failures.end import NODE_MEMORY
from hpcml.failures.note import read_note
from hpcml.kind import FailedProcess, Kind
from hpcml.node import job, prestarted_role, process_helpers, script_environment, shared_files
from hpcml.node.context import Context
from hpcml.node.oom_and_hangs import oom_kills
from hpcml.node.script import interpreter_state, launcher, prestarted_script, worlds_of_one
from hpcml.node.tasks import prestarted_interpreter
from hpcml.node.tasks.prestarted_interpreter import Ready
from hpcml.paths import SCRIPT
from hpcml.safe_files import size_of
from hpcml.workload_forms import Form

if TYPE_CHECKING:
    from hpcml.node.tasks.task import Task

# The working directory is no place for hpcml itself. No -P: processes that the script starts would inherit it.
_START = "import sys; sys.path[:] = filter(None, sys.path); from hpcml.node.script.launcher import main; main()"

# `-m` of another Python finds a module of the folder that the user submitted from, and not the copy.
START_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; folder, name = sys.argv[1:3]; del sys.argv[1:3];"
    " sys.path.insert(0, folder); runpy.run_module(name, run_name='__main__', alter_sys=True)"
)

_START_PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path); from importlib import import_module;"
    " import_module(sys.argv[1]).main()"
)
_PROGRAM = (sys.executable, "-u", "-c", _START_PROGRAM)  # followed by Task.program

# what the batch script tells the supervisor alone
_SUPERVISOR = ("HPCML_BATCH", "HPCML_STEPS", "HPCML_SETUP", job.GIVEN)


class OneProcess:
    """How a task ended that is one process on this node."""

    log_begin = 0
    exited = False  # whether it is known that no signal ended the process, whatever its status

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
        """Return the place where its output begins: the script is one process."""
        return FailedProcess(log_begin=self.log_begin)

    def describe_end(self, status: int) -> str:
        """Return the way in which the script ended, in words."""
        return self._special_end(status) or f"the script exited with status {status}"

    def only_exited(self, status: int) -> bool:
        """Whether these words say no more than the exit status."""
        return not self._special_end(status)

    def _special_end(self, status: int) -> str:
        if status == STOPPED:
            return MEANING[STOPPED]
        if self.out_of_memory(status):
            return f"the script was killed because {NODE_MEMORY} (out of memory)"
        if (number := signal_of_status(status)) and not self.exited:
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
        environment = self._variables(environment)
        self.log_begin = size_of(task.log)
        self._begin: int | None = None
        self.signalled = False
        if waiting := _waiting(context, programs, environment, waits=waits):
            self.process, self._begin = waiting.process, waiting.pipe
            self.log_begin = waiting.log_begin if waiting.is_of_run else self.log_begin
            if not waits:
                self._close()
            return
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

    def _variables(self, environment: dict[str, str]) -> dict[str, str]:
        """Return the variables of the script's process."""
        return variables_of_task(self.context, self.task, environment)

    def _start(
        self, environment: Mapping[str, str], programs: Mapping[Form, str], descriptors: Sequence[int]
    ) -> subprocess.Popen[bytes]:
        task, code = self.task, self.task.code
        command = [*_PROGRAM, task.program] if task.program else command_of_script(self.context, programs)
        umask = 0o077 if code.form.traits.web_service else code.umask
        return _started(command, code.cwd, environment, umask, (*descriptors, *task.descriptors))

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
        self.exited = self.task.code.form is Form.PROGRAM and code is not None and code >= 0  # as mpirun with 132
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
        signal_group(self.process.pid, number)

    def _special_end(self, status: int) -> str:
        if note := read_note(self.context.attempt.note_of(SCRIPT, self.context.node)).what:  # of a program of hpcml's
            return note
        return super()._special_end(status)


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group, which may have ended."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # it ended by itself


def _started(
    command: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    umask: int,
    descriptors: Sequence[int],
    stdin: int | None = None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        process_group=0,
        umask=umask,
        stdin=stdin,
        pass_fds=descriptors,
        preexec_fn=functools.partial(become_script, os.getpid()),  # noqa: PLW1509 - other threads only send
    )


def _waiting(
    context: Context, programs: Mapping[Form, str], environment: Mapping[str, str], *, waits: bool
) -> Ready | None:
    """Return an interpreter that started ahead and becomes the script's now; None if there is none that can."""
    waiting: Ready | None = prestarted_role.WAITING.pop() if prestarted_role.WAITING else None
    if waiting and not can_start_ahead(context, programs):
        waiting.end()
    elif waiting and waiting.take(
        command_of_script(context, programs), environment, context.settings.code, waits=waits
    ):
        return waiting
    return None


def start_ahead(context: Context, kind: Kind, *, is_of_run: bool) -> None:
    """Start an interpreter before its script's variables are known: for the run's own script, or for one like it."""
    from hpcml.node.tasks.task import of_run

    if not can_start_ahead(context, kind.programs):
        return
    code, task = context.settings.code, of_run(context)
    environment = variables_of_task(context, task, {**os.environ, interpreter_state.IN_SCRIPT: kind.in_script})
    environment[prestarted_role.VARIABLE] = code.script if code.form is Form.SCRIPT else ""
    if not all(entry.startswith("/") for entry in environment["PYTHONPATH"].split(":")):
        return  # Python makes the others absolute as it starts, and the run's folder is not known
    reader, writer = os.pipe()
    environment[launcher.BEGIN] = str(reader)
    command, log_begin = command_of_script(context, kind.programs)[: launcher.ARGUMENTS], size_of(task.log)
    try:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, prestarted_interpreter.ROOM)
        os.set_blocking(writer, False)
        os.write(writer, prestarted_script.IMPORTS)
        with open(os.devnull) as nothing:  # only to read, as every script has it
            process = _started(command, code.cwd, environment, code.umask, (reader,), stdin=nothing.fileno())
        prestarted_role.WAITING.append(Ready(process, writer, reader, is_of_run, log_begin))
    except OSError:  # the run starts one itself, or says why it cannot
        os.close(writer)
    finally:
        os.close(reader)


def can_start_ahead(context: Context, programs: Mapping[Form, str]) -> bool:
    """Whether the interpreter of a run's script can start before the run."""
    return can_wait(context, programs) and "memray" not in context.settings.report.profilers


def can_wait(context: Context, programs: Mapping[Form, str]) -> bool:
    """Whether hpcml's own launcher runs the script, which can start the interpreter and wait before the first line."""
    code = context.settings.code
    plain = code.form in (Form.SCRIPT, Form.MODULE) and code.form not in programs
    return plain and not code.interpreter and not context.settings.points.sweep


def become_script(supervisor: int) -> None:
    """In the child of the supervisor, before the script takes its place."""
    process_helpers.end_with(supervisor)
    for number in (signal.SIGINT, signal.SIGQUIT):  # a shell has its background processes ignore them
        signal.signal(number, signal.SIG_DFL)
    process_helpers.lower_file_limit()


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


def variables_of_task(context: Context, task: Task, environment: dict[str, str]) -> dict[str, str]:
    """Return the variables of a task's process."""
    settings, traits = context.settings, task.code.form.traits
    environment = job.of_batch_script(environment, cpus=job.cpus() if settings.job.nodes == 1 else 0)
    environment = variables_of_script(context, environment, task.error)
    if settings.job.nodes > 1 and traits.is_script and not task.program:
        environment[worlds_of_one.RECORD] = str(context.attempt.world)
    if "memray" in settings.report.profilers and traits.is_script:
        path = context.run.profiles / f"memray-script.{context.number}.bin"
        environment |= {"HPCML_MEMRAY": str(path)}
    if not traits.web_service:  # it takes up both itself, when its own files are made
        script_environment.restore(environment)
    return environment


def variables_of_script(context: Context, environment: Mapping[str, str], error: Path) -> dict[str, str]:
    """Return the variables of a script: those given, without the supervisor's, with hpcml's own.

    ``error`` is the file in which an error that ends the script is written down.
    """
    code = context.settings.code
    variables = {name: value for name, value in environment.items() if name not in _SUPERVISOR}
    variables |= {"HPCML_CODE_OF": code.copy_of} if code.copy_of else {}
    variables |= {"PATH": f"{code.programs}:{variables.get('PATH', os.defpath)}"} if code.programs else {}
    variables |= {"HPCML_SCRIPT_ERROR": str(error)} if code.form.traits.is_script else {}
    return variables | libraries_logs(context, variables)


def world_of_one(context: Context, path: Path) -> str:
    """Return the place where MPI or JAX started as a world of one process, as a clause; empty if that was not noticed.

    ``path`` is the file that :mod:`hpcml.node.script.worlds_of_one` writes in the script's processes.
    """
    if not (record := shared_files.read_json(path)):
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
