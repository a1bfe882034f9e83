"""What hpcml has on the nodes beside programs that it does not start as steps: an agent on each."""

from __future__ import annotations

import contextlib

from hpcml.kind import Processes
from hpcml.kinds.batch.roles import AGENT
from hpcml.node.agents import Agents
from hpcml.node.hardware import dask_protocol
from hpcml.node.link.messages import Events
from hpcml.node.run_state import RunState
from hpcml.node.versions_and_clocks import Comparison

CLOSE = 2.0  # seconds in which the agents end by themselves


class Beside(Processes):
    """The agents; nothing waits for them, and nothing ends because they are lost.

    ``events`` are those that they send beside the agents of every kind. ``continues`` says what continues without them.
    """

    continues: str

    def __init__(self, state: RunState, folders: contextlib.ExitStack, events: Events) -> None:
        self.state, self.context = state, state.context
        versions = Comparison(state.context, (AGENT,), shown=("python",))
        self.agents = Agents(state, folders, self._addresses(), versions, events)

    def _addresses(self) -> list[str]:
        """Return this node's addresses for the agents; without one they use files."""
        single, interface = len(self.context.node_names) == 1, self.context.settings.network.interface
        try:
            best, _ = dask_protocol.choose_address(interface, single_node=single)
        except dask_protocol.NoAddressError:
            return []
        return [best]

    def check(self) -> None:
        """Say once that the agents are gone."""
        if self.state.steps.gone(AGENT.name):
            self.state.warn(f"The nodes are not watched: the step of hpcml's agents has ended. {self.continues}")

    def close(self) -> float:
        """Tell the agents to end."""
        self.agents.hub.send(do="close")
        return CLOSE
