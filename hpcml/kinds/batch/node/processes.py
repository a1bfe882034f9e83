"""A batch script's run, as its supervisor sees it: the script waits for nothing of hpcml's."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time

from hpcml import errors
from hpcml.kind import Hindrance
from hpcml.kinds.batch.node.beside import Beside
from hpcml.kinds.batch.node.script import BatchScript, Copies, Signals
from hpcml.node import full_disk
from hpcml.node.end_cause import LINE, why_ended
from hpcml.node.run_state import TICK, RunState
from hpcml.node.tasks.task import Task
from hpcml.recorded import Recorded


class Processes(Beside):
    """The agents beside a batch script, and what the script gets of Slurm's."""

    continues = "The script continues."

    def __init__(self, state: RunState, folders: contextlib.ExitStack) -> None:
        super().__init__(state, folders, {})
        self.copies = Copies(state)
        self.script: BatchScript | None = None
        self.told = -math.inf  # when the script was told to end, by the supervisor's clock

    def start(self) -> dict[str, str]:
        """Say where the supervisor is, and wait for nobody."""
        self.agents.begin()
        self.signals = Signals(self.context, Recorded(self.context.run).plan.forwarded)
        self.state.events.write("script-ready", seconds=self.state.seconds)
        return dict(os.environ)

    def run(self, task: Task, environment: dict[str, str]) -> BatchScript:
        """Start the script."""
        self.script = BatchScript(self.context, task, environment, {})
        return self.script

    def step(self) -> None:
        """Take in what the agents report, pass on signals, and copy the output."""
        self.state.clock.tick()
        self.agents.receive(TICK)
        if self.script:
            self._pass_signals_on(self.script)
        self.copies.copy()

    def _pass_signals_on(self, script: BatchScript) -> None:
        """Pass on what the batch script's shell got; with SIGTERM Slurm may end the job, which its log says."""
        for number in self.signals.look():
            script.pass_on(number)
            if number == signal.SIGTERM:
                self.told = self.state.clock.seconds
        requests = self.state.end_requests
        if not requests.signalled and self._was_told_lately and self._why_ended() is not None:
            full_disk.write_end(self.context.run, self.context.attempt.terminate, {})  # the script has its signal
            requests.signalled = True

    def _why_ended(self) -> str | None:
        """Return why Slurm ended the job, None if it has not: the script may end its own steps and continue."""
        return why_ended(self.state.job_logs, with_steps=False)

    @property
    def _was_told_lately(self) -> bool:
        return self.state.clock.seconds - self.told < LINE

    def hindrance(self, status: int) -> Hindrance | None:  # noqa: ARG002 - what Slurm says counts
        """Return that Slurm ended the job, if its log says so: the script had the signal before the supervisor."""
        self.copies.end()
        if self.script and not self._was_told_lately:
            self._pass_signals_on(self.script)
        while (cause := self._why_ended()) is None and self._was_told_lately:
            self.state.clock.tick()
            time.sleep(TICK)
        return None if cause is None else Hindrance(errors.CANCELLED, "the run was cancelled", "")

    def close(self) -> float:
        """Tell the agents to end."""
        self.copies.end()
        return super().close()
