"""hpcml's agent on a node of a batch script: it samples the node, and writes stacks where these are asked for."""

from __future__ import annotations

import os

from hpcml.errors import ROLE_LOST
from hpcml.kinds.batch.roles import AGENT
from hpcml.node import agent
from hpcml.node.settings import load

MEMBERS = agent.Members(AGENT.name, restarts=0, failed=ROLE_LOST)
EVERY = 1.0  # seconds between two looks


def main() -> int:
    """Stay beside the batch script until the run ends; nothing of the script's depends on it."""
    context = load()
    node = agent.begin(context, MEMBERS)
    bystander = agent.Bystander(node)
    agent.watch(context)
    while os.getppid() == node.parent:
        if any(order.get("do") == "close" for order in bystander.look()):
            break
        if not node.link.is_up and agent.run_has_ended(context):
            break
        node.link.wait(EVERY)
    node.link.close()
    return 0
