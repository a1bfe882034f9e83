"""The kinds of run: what a run is made of (docs/architecture.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcml.kinds import batch, dask, hold, ranks

if TYPE_CHECKING:
    from hpcml.kind import Kind, Role

KINDS = {kind.name: kind for kind in (dask.KIND, ranks.KIND, batch.KIND, hold.KIND)}


def get(name: str) -> Kind:
    """Return a kind by its name, as plan.json has it; KeyError if there is none."""
    return KINDS[name]


def roles() -> dict[str, Role]:
    """Return the roles of all kinds by their names."""
    return {role.name: role for kind in KINDS.values() for role in kind.roles}
