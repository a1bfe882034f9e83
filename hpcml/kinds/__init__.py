"""The kinds of run: what a run is made of (docs/architecture.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcml.kinds import dask

if TYPE_CHECKING:
    from hpcml.kind import Kind

KINDS = {kind.name: kind for kind in (dask.KIND,)}


def get(name: str) -> Kind:
    """Return a kind by its name, as plan.json has it; KeyError if there is none."""
    return KINDS[name]
