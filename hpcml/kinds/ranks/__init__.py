"""A run of ranks: the script once for each GPU, for each node, or N times on each node; no Dask."""

from __future__ import annotations

from typing import Any

from hpcml import errors
from hpcml.forms import Form
from hpcml.kind import FABRIC, EndOfKind, Facts, Kind, Role, Stage, seen_of_fabric

_NODE = f"{__name__}.node"
RANK = Role("rank", f"{_NODE}.ranks", every_node=True, title="the ranks", connected=True)
MPI = Role("mpi", f"{_NODE}.tasks", every_node=True, title="the MPI tasks", connected=True)  # of runs with --mpi


def _seen(event: str, fields: Facts) -> dict[str, Any]:
    """Return the new values of a status's fields after an event of the ranks."""
    match event:
        case "node-ready" | "ranks-running":
            return {"workers": fields.get("count", int)}
        case "ranks-ready":
            return {"address": fields.get("address", str)}
        case "ranks-idle":
            return {"idle_since": float(fields.get("since", float))}
    return seen_of_fabric(event, fields)


KIND = Kind(
    name="ranks",
    options=f"{__name__}.options",
    plan=f"{__name__}.plan",
    roles=(RANK, MPI),
    processes=f"{_NODE}.processes",
    reset="",
    in_script="",
    programs={Form.FABRIC: f"{_NODE}.interconnect"},
    startup=(
        Stage(
            "ranks",
            begin="allocated",
            end="ranks-ready",
            waiting="{workers} of {expected} ranks can start",
            short="{workers}/{expected} can start",
            done="{expected}/{expected} can start",
            during="before all nodes were ready",
        ),
        FABRIC._replace(begin="ranks-ready"),
    ),
    ready="ranks-ready",
    noun="rank",
    threads="",
    ends=(
        EndOfKind(errors.WORKERS_NEVER_CAME, "nodes did not start", followed=True),
        EndOfKind(errors.ROLE_LOST, "a node was lost", followed=True),
        EndOfKind(errors.PORT_TAKEN, "port taken by another program", followed=False),
        EndOfKind(errors.FABRIC, "not the required interconnect", followed=False),
    ),
    seen=_seen,
    accounting=f"{__name__}.accounting",
)
