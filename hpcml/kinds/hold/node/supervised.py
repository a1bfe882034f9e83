"""A hold as its supervisor sees it: agents on the nodes, and in the place of a script what takes runs."""

from __future__ import annotations

import contextlib
import os

from hpcml import errors
from hpcml.kind import Hindrance
from hpcml.kinds.batch.node.observing_agents_supervised import Beside
from hpcml.kinds.hold.node.holding import Holding
from hpcml.node.run_state import TICK, RunState
from hpcml.node.tasks.task import Task
from hpcml.units import format_seconds


class Processes(Beside):
    """The agents, and what takes runs."""

    continues = "The hold continues, but does not notice that it is idle."

    def __init__(self, state: RunState, folders: contextlib.ExitStack) -> None:
        super().__init__(state, folders, {"use": {"what": str}})
        self.holding: Holding | None = None

    def start(self) -> dict[str, str]:
        """Wait for nobody."""
        self.agents.begin()
        self.state.events.write("hold-ready", seconds=self.state.seconds)
        return dict(os.environ)

    def run(self, task: Task, environment: dict[str, str]) -> Holding:  # noqa: ARG002 - it starts no program of its own
        """Begin to take runs."""
        self.holding = Holding(self.state)
        return self.holding

    def step(self) -> None:
        """Take in what the agents report, and look for runs."""
        self.state.clock.tick()
        news = self.agents.receive(TICK)
        if self.holding:
            self._look_for_lost_nodes(self.holding)
            self.holding.step(used=any(message["event"] == "use" for _, message in news))
            if text := self.holding.warning():
                self.state.warn(text)
                self.agents.hub.send(do="say", text=text)

    def _look_for_lost_nodes(self, holding: Holding) -> None:
        """Name nodes whose agents are lost; at the hold's end all of them end."""
        if holding.is_closed:
            return
        lost = {node for node in self.context.node_names if node in self.agents.lost or self.agents.is_silent(node)}
        for node in sorted(lost - holding.lost):
            self.state.warn(f"{node} does not answer. The hold continues, and starts no further run on {node}")
        holding.lose(lost)

    def hindrance(self, status: int) -> Hindrance | None:  # noqa: ARG002 - it is the hold's own
        """Return the reason why the hold took no further run, None if it had to end."""
        if not self.holding or self.holding.told:
            return None
        if self.state.end_requests.time_limit_near:
            hint = "Start another hold, with a longer --time if its runs need more."
            return Hindrance(errors.TIME_LIMIT, "the hold reached its time limit", hint)
        idle = format_seconds(self.context.settings.code.idle)
        return Hindrance(0, f"the hold was idle for {idle} (--idle)", "")
