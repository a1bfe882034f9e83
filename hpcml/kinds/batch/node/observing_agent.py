"""hpcml's agent on a node of a batch script: it samples the node, and writes stacks where these are asked for."""

from __future__ import annotations

from hpcml.errors import ROLE_LOST
from hpcml.kinds.batch.roles import AGENT
from hpcml.node import agent
from hpcml.node.context import load

MEMBERS = agent.Members(AGENT.name, restarts=0, failed=ROLE_LOST)


def main() -> int:
    """Stay beside the batch script until the run ends; nothing of the script's depends on it."""
    context = load()
    node = agent.begin(context, MEMBERS)
    bystander = agent.Bystander(node)
    agent.watch(context)
    bystander.wait_for("close")
    node.link.close()
    return 0
