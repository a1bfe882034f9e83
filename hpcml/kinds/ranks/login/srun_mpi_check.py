"""What the site's scheduler is asked before a run of ranks is submitted."""

from __future__ import annotations

from hpcml import schedulers
from hpcml.errors import SiteError
from hpcml.kinds.ranks.login.options import PMI

_ASKED_WITHIN = 2.0  # seconds for the question


def check_mpi(asked: str, scheduler: str) -> None:
    """Raise SiteError if the scheduler answers and does not have a kind of PMI."""
    nodes = schedulers.find_nodes(scheduler) if asked else None
    kinds = nodes.mpi_kinds(_ASKED_WITHIN) if nodes else ()
    if kinds and asked not in kinds:
        usable = [kind for kind in PMI if kind in kinds]
        hint = (
            f"Use --mpi {usable[0]}, with an MPI library that supports {usable[0]}."
            if usable
            else "Use mpirun in your own batch script."
        )
        message = f"This cluster's srun supports --mpi={', '.join(kinds)}, not {asked}"
        raise SiteError(message, place="srun --mpi=list", hint=hint)
