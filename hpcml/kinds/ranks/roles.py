"""The roles of a run of ranks, and the programs that hpcml has for forms of such a run."""

from __future__ import annotations

from hpcml.kind import Role
from hpcml.workload_forms import Form

RANK = Role("rank", every_node=True, title="the ranks", log="all ranks; default for runs with --ranks")
MPI = Role(
    "mpi",
    every_node=True,
    title="the MPI tasks",
    log="with --mpi: srun's tasks, through which the ranks connect",
)
PROGRAMS = {Form.INTERCONNECT: "hpcml.kinds.ranks.node.interconnect"}
