"""The role of a batch script's run."""

from __future__ import annotations

from hpcml.kind import Role

AGENT = Role("agent", every_node=True, title="hpcml's agents", log="of batch scripts: hpcml's agents")
