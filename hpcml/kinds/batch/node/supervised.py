"""A batch script's run, as its supervisor sees it: the script waits for nothing of hpcml's."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time

from hpcml import errors
from hpcml.failures.job_log import failed_task
from hpcml.kind import Hindrance
from hpcml.kinds.batch.node.observing_agents_supervised import Beside
from hpcml.kinds.batch.node.script import BatchScript, Copies, Signals
from hpcml.kinds.batch.roles import AGENT
from hpcml.node import full_disk
from hpcml.node.end_cause import LINE, role_end, why_ended
from hpcml.node.run_state import TICK, RunState
from hpcml.node.shared_files import listed
from hpcml.node.tasks.task import Task
from hpcml.run_files import Recorded

_LAST_OUTPUT = 1 << 20  # bytes of the output in which a failed step is looked for


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
        """Return the reason why Slurm ended the job, None if it has not: the script may end only its own steps."""
        return why_ended(self.state.job_logs, with_steps=False)

    @property
    def _was_told_lately(self) -> bool:
        return self.state.clock.seconds - self.told < LINE

    def check(self) -> None:
        """Warn once about agents that are gone: the script continues."""
        if self.state.steps.gone(AGENT.name):
            super().check()
        elif self.state.time_to_look():
            self._name_ended_agents()

    def _name_ended_agents(self) -> None:
        exits = listed(self.context.attempt.exits)
        for node in self.context.node_names:
            if (end := role_end(self.context, AGENT, node, exits)) and end.status:
                self.state.warn(f"{node} is not watched: hpcml's agent {end.why.what}. The script continues.")

    def hindrance(self, status: int) -> Hindrance | None:
        """Return Slurm's end of the job if its log has one: the script had the signal before the supervisor."""
        self.copies.end()
        self._name_ended_agents()
        if status == 0:
            self._name_failed_task()
        if self.script and not self._was_told_lately:
            self._pass_signals_on(self.script)
        while (cause := self._why_ended()) is None and self._was_told_lately:
            self.state.clock.tick()
            time.sleep(TICK)
        return None if cause is None else Hindrance(errors.CANCELLED, "the run was cancelled", "")

    def _name_failed_task(self) -> None:
        """Warn about a step that failed although the script's last command succeeded, as srun reported it."""
        try:
            with self.context.run.script_log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LAST_OUTPUT))
                text = log.read().decode(errors="replace")
        except OSError:  # the log is only read for a warning
            return
        if report := failed_task(text):
            advice = "If the script should end with this error, begin it with: set -e"
            self.state.warn(f"The batch script exited with status 0, but {report}. {advice}.")

    def close(self) -> float:
        """Tell the agents to end."""
        self.copies.end()
        return super().close()
