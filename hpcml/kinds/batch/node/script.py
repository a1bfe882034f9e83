"""A batch script as a process: the variables, folder, files and signals that it would have under sbatch."""

from __future__ import annotations

import functools
import os
import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from hpcml.node import job, shared_files
from hpcml.node.context import Context
from hpcml.node.run_state import RunState
from hpcml.node.tasks.process import Script, become_script
from hpcml.run_files import Recorded
from hpcml.workload_forms import Form

INPUT, OUTPUT, ERRORS = 3, 4, 5  # the descriptors that job.sh got from Slurm, as the supervisor has them
_FOR_SCRIPT = ("HPCML_RUN_DIR", "HPCML_ATTEMPT", "HPCML_GPUS")  # what hpcml.run reads
_LOOK = 0.25  # seconds between two looks for signals
_SAME = 2.0  # seconds within which a signal to the whole job reaches supervisor and batch script
_AT_ONCE = 1 << 20  # bytes that are copied in one piece
_LAST = 10.0  # seconds for the last part of the output


class BatchScript(Script):
    """The running batch script."""

    def _variables(self, environment: dict[str, str]) -> dict[str, str]:
        """Return the variables that Slurm gave to job.sh, the user's own of --env, and those that hpcml.run reads."""
        plan = Recorded(self.context.run).plan
        own_log = bool(plan.directive("--open-mode"))
        variables = job.variables_of_batch_process(self.task.code.cwd, own_log=own_log)
        variables |= {name: environment[name] for name in (*_FOR_SCRIPT, *plan.variables) if name in environment}
        return variables | {"HPCML_NODES": str(len(self.context.node_names))}

    def _start(
        self,
        environment: Mapping[str, str],
        programs: Mapping[Form, str],  # noqa: ARG002 - hpcml has none for it
        descriptors: Sequence[int],  # noqa: ARG002 - it does not wait
    ) -> subprocess.Popen[bytes]:
        own_files = has_own_files(self.context)
        return subprocess.Popen(
            [str(self.context.run.batch_script), *self.task.code.arguments],
            cwd=(job.batch_process() / "cwd").readlink(),
            env=environment,
            stdin=INPUT,
            stdout=OUTPUT if own_files else None,
            stderr=ERRORS if own_files else None,
            process_group=0,
            umask=self.task.code.umask,
            preexec_fn=functools.partial(become_script, os.getpid()),  # noqa: PLW1509 - other threads only send
        )

    def pass_on(self, number: int) -> None:
        """Send a signal to the script's own process, as sbatch would."""
        if self.process.poll() is None:
            self.process.send_signal(number)


def has_own_files(context: Context) -> bool:
    """Whether the script says where its output goes: Slurm has opened another file than the job's log."""
    log = os.path.realpath(context.run.job_log)
    return any(os.path.realpath(f"/proc/self/fd/{descriptor}") != log for descriptor in (OUTPUT, ERRORS))


class Copies:
    """The output of a script that goes into the user's own files, of which the run's log has a copy.

    Other users may be able to rename or replace a file in its folder: so hpcml opens it by Slurm's descriptor. What
    another user owns is not copied, or that user could fill the run's directory.
    """

    def __init__(self, state: RunState) -> None:
        self.log = state.context.run.script_log
        self.sources: dict[int, int] = {}  # by descriptor: the bytes that were copied
        seen = {os.path.realpath(state.context.run.job_log)}
        for number in (OUTPUT, ERRORS) if has_own_files(state.context) else ():
            link, status = Path(f"/proc/self/fd/{number}"), os.fstat(number)
            path = os.path.realpath(link)
            if not stat.S_ISREG(status.st_mode) or path in seen:
                continue
            seen.add(path)
            state.job_logs[link] = status.st_size
            problem = "" if status.st_uid == os.getuid() else "The file belongs to another user"
            try:
                if not problem:
                    self.sources[os.open(link, os.O_RDONLY | os.O_CLOEXEC)] = status.st_size
            except OSError as error:
                problem = str(error.strerror)
            if problem:
                state.warn(f"hpcml logs has no copy of the output in {path}. {problem}.")

    def copy(self) -> bool:
        """Copy a piece of what is new; return True if there was any."""
        pieces = []
        for descriptor, done in self.sources.items():
            begin = done if os.fstat(descriptor).st_size >= done else 0  # the script may have emptied the file
            piece = os.pread(descriptor, _AT_ONCE, begin)
            self.sources[descriptor] = begin + len(piece)
            pieces += [piece] if piece else []
        if pieces:
            with self.log.open("ab") as log:
                log.write(b"".join(pieces))
        return bool(pieces)

    def end(self) -> None:
        """Copy the rest."""
        until = time.monotonic() + _LAST
        while self.copy() and time.monotonic() < until:
            pass


class Signals:
    """Signals that Slurm sends to the batch script's shell alone, which are the user's script's.

    job.sh leaves a file for each. One that is sent to the whole job reaches the script without hpcml.
    """

    def __init__(self, context: Context, names: Sequence[str]) -> None:
        self.context, self.next_look = context, 0.0
        self.numbers = {f"signal-{name}": signal.Signals[f"SIG{name}"] for name in names}
        self.received: dict[int, float] = {}  # by the number of a signal: when the supervisor got it
        for number in self.numbers.values():
            before = signal.getsignal(number)
            signal.signal(number, functools.partial(self._note, before))

    def _note(self, before: object, number: int, frame: FrameType | None) -> None:
        self.received[number] = time.monotonic()
        if callable(before):
            before(number, frame)

    def look(self) -> list[int]:
        """Return the signals that came since the last look and are to be passed on."""
        now = time.monotonic()
        if now < self.next_look:
            return []
        self.next_look = now + _LOOK
        came = [name for name in shared_files.listed(self.context.attempt.directory) if name in self.numbers]
        for name in came:
            (self.context.attempt.directory / name).unlink(missing_ok=True)
        return [number for name in came if now - self.received.get(number := self.numbers[name], -_SAME) >= _SAME]
