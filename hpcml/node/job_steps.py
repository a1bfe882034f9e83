"""The steps of a run's job as its supervisor sees them: which are alive, and which tasks srun reports as lost."""

from __future__ import annotations

import os
from pathlib import Path

from hpcml.failures.job_log import LostTasks
from hpcml.kind import Kind
from hpcml.node.process_helpers import OwnTime, Process
from hpcml.safe_files import size_of

LAST_WORDS = 1.0  # seconds from a step's end until what its tasks wrote last is there
_MOST_LOG = 1 << 20  # bytes of the job's log that are read at a time


class Steps:
    """The steps of the kind's roles as processes of the batch script: ``srun``, or ``step.sh`` without Slurm.

    A step that is gone takes its role with it: nothing would start it again. So does a task of it that srun reports as
    killed, or as not launched, in the job's log: step.sh outlives its role otherwise.
    """

    def __init__(self, kind: Kind, clock: OwnTime, job_log: Path) -> None:
        self.job_log, self.read = job_log, size_of(job_log)
        steps = os.environ.get("HPCML_STEPS", "").split()
        self.processes = {role.name: Process.named(int(pid)) for role, pid in zip(kind.roles, steps, strict=False)}
        self.lost = LostTasks(kind.agent.name)
        self.clock = clock
        self.ended: dict[str, float] = {}
        self.outlived: dict[str, float] = {}  # by role: when its step was first seen alive after the role's end

    def gone(self, role: str) -> bool:
        """Whether a role's step has ended, long enough ago that its tasks' last words have arrived."""
        process = self.processes.get(role)
        if process is None or process.alive:
            return False
        return self.clock.seconds - self.ended.setdefault(role, self.clock.seconds) > LAST_WORDS

    def still_writes(self, role: str) -> bool:
        """Whether srun may still write the last lines of a role that has ended; srun ends when it has written them."""
        process = self.processes.get(role)
        if process is None or not process.alive:
            return False
        return self.clock.seconds - self.outlived.setdefault(role, self.clock.seconds) < LAST_WORDS

    def lost_tasks(self) -> dict[str, str]:
        """Return srun's reports, in this attempt, of tasks that were killed or not launched: a clause for each node."""
        if size_of(self.job_log) > self.read:
            with self.job_log.open("rb") as log:
                log.seek(self.read)
                text = log.read(_MOST_LOG)
            text = text[: text.rfind(b"\n") + 1]
            self.read += len(text)
            for line in text.decode(errors="replace").splitlines():
                self.lost.note(line)
        return self.lost.by_node

    def alive(self) -> list[int]:
        """Return the pids of the steps that have not ended."""
        return [process.pid for process in self.processes.values() if process.alive]
