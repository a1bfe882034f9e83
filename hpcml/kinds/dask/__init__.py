"""A run with a Dask cluster: a scheduler on the first node, and workers on every node."""

from __future__ import annotations

from typing import Any

from hpcml import errors
from hpcml.forms import Form
from hpcml.kind import FABRIC, EndOfKind, Facts, Kind, Role, Stage, seen_of_fabric

_NODE = f"{__name__}.node"
SCHEDULER = Role("scheduler", f"{_NODE}.scheduler_role", every_node=False, title="the scheduler")
WORKER = Role("worker", f"{_NODE}.workers", every_node=True, title="the workers", connected=True)


def _seen(event: str, fields: Facts) -> dict[str, Any]:
    """Return the new values of a status's fields after an event of the cluster."""
    match event:
        case "worker-added" | "worker-removed":
            return {"workers": fields.get("count", int)}
        case "cluster-waits" | "cluster-wanted":
            return {"has_cluster": event == "cluster-wanted"}
        case "workers-silent":
            return {"silent_workers": fields.numbers("since")}
        case "scheduler-up":
            return {"protocol": f"{fields.get('protocol', str)} ({fields.get('because', str)})"}
    return seen_of_fabric(event, fields)


KIND = Kind(
    name="dask",
    options=f"{__name__}.options",
    plan=f"{__name__}.plan",
    roles=(SCHEDULER, WORKER),
    processes=f"{_NODE}.cluster",
    reset=f"{_NODE}.reset",
    in_script=f"{_NODE}.replacements",
    programs={
        Form.JUPYTER: f"{_NODE}.jupyter.server",
        Form.NOTEBOOK: f"{_NODE}.jupyter.execute",
        Form.FABRIC: f"{_NODE}.interconnect",
        Form.DOCTOR: f"{_NODE}.checkup",
    },
    startup=(
        Stage(
            "scheduler",
            begin="allocated",
            end="scheduler-up",
            waiting="the Dask scheduler starts",
            short="the Dask scheduler starts",
            done="up, {protocol}",
            during="before the Dask scheduler had started",
        ),
        Stage(
            "workers",
            begin="scheduler-up",
            end="workers-ready",
            waiting="{workers} of {expected} workers started",
            short="{workers}/{expected}",
            done="{expected}/{expected}",
            during="before all workers had started",
        ),
        FABRIC._replace(begin="workers-ready"),
    ),
    ready="workers-ready",
    services=("dashboard", "jupyter"),
    samples=f"{__name__}.samples",
    accounting=f"{__name__}.accounting",
    noun="worker",
    threads="workers.threads",
    ends=(
        EndOfKind(errors.WORKERS_NEVER_CAME, "workers did not start", followed=True),
        EndOfKind(errors.ROLE_LOST, "Dask workers or scheduler lost", followed=True),
        EndOfKind(errors.FABRIC, "not the required interconnect", followed=False),
    ),
    seen=_seen,
)
