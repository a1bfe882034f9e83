"""What scheduler and workers report to the supervisor: over the link, and as events of Dask."""

from __future__ import annotations

from hpcml.kinds.dask.samples import QUERIES
from hpcml.node.link.messages import NUMBER, Events

TOPIC = "hpcml"  # of Dask's events: what workers and clients tell the supervisor by way of the scheduler
CLOCK_QUESTION = "hpcml_time"  # the scheduler's handler that tells its time
TASK_OUTPUT = "task-output"
NO_GPU = "worker-without-gpu"  # after a CUDA error of a task
IMPORT = "hpcml-import"  # the order to a scheduler, and from it to workers: import what the script will need
START = "start"  # the order to a scheduler, and to workers of a late cluster: the keys are there
SCHEDULER_IS_UP = "register"  # the order to agents, with the addresses of the scheduler and of those of other shares
EVENTS: Events = {  # of the scheduler, beside those of every kind
    "scheduler-up": {"address": str, "protocol": str, "shares": list},
    "scheduler-closed": {},
    "worker-added": {"worker": str},
    "worker-removed": {"worker": str},
    "worker-task-stopped": {"node": str},
    "client-added": {},
    "use": {"connected": bool, "idle": NUMBER, "waited": NUMBER, "stuck": int, "silent": dict},
    "clock": {"node": str, "ahead": NUMBER, "within": NUMBER},
    "interconnect-checked": {},
    "ucx-up": {},
    "ucx-failed": {"problem": str},
    "gpu-pool": {"worker": str, "node": str, "pid": int, "pool": int},
    "memory-reduced": {"worker": str, "pool": int, "wanted": int},
    "remarks": {"sentences": list},  # on tasks for which the script did not wait
    QUERIES: {},
    NO_GPU: {"worker": str, "node": str, "error": str},
    TASK_OUTPUT: {},
}
