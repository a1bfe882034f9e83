"""A run with a Dask cluster: a scheduler on the first node, and workers on every node."""

from __future__ import annotations

from hpcml.kind import Kind, Role, Stage

_NODE = f"{__name__}.node"
SCHEDULER = Role("scheduler", f"{_NODE}.scheduler", every_node=False, title="the scheduler")
WORKER = Role("worker", f"{_NODE}.workers", every_node=True, title="the workers")

KIND = Kind(
    name="dask",
    roles=(SCHEDULER, WORKER),
    processes=f"{_NODE}.cluster",
    in_script=f"{_NODE}.replacements",
    programs={
        "jupyter": f"{_NODE}.jupyter.server",
        "notebook": f"{_NODE}.jupyter.execute",
        "fabric": f"{_NODE}.interconnect",
        "doctor": f"{_NODE}.checkup",
    },
    startup=(
        Stage(
            "scheduler", "allocated", "scheduler-up", "the scheduler starts", "the scheduler starts", "up, {protocol}"
        ),
        Stage(
            "workers",
            "scheduler-up",
            "workers-ready",
            "{workers} of {expected} workers are there",
            "{workers}/{expected}",
            "{expected}/{expected}",
        ),
        Stage(
            "fabric",
            "workers-ready",
            "fabric-checked",
            "the interconnect between the workers is checked",
            "the interconnect between the workers is checked",
            "{fabric}",
            asked="fabric-checking",
            good="fabric_ok",
        ),
    ),
    ready="workers-ready",
)
