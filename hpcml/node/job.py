"""The scheduler's job as this process sees it: the only reader of the scheduler's variables on the nodes.

The batch script gives hpcml's own names, which each scheduler's lines set (docs/schedulers.md). Slurm's names count
where they are missing: in an elastic cluster's job, in the survey's, and for what Slurm alone says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_PMI = re.compile("PMI_|PMI2_|PMIX_(?!MCA_)")


def job_id() -> str:
    """Return the id of the run's job, empty without one."""
    return os.environ.get("HPCML_JOB") or os.environ.get("SLURM_JOB_ID", "")


def node_name() -> str:
    """Return the name of this node, as the scheduler knows it."""
    this_node = os.environ.get("HPCML_NODE") or os.environ.get("SLURMD_NODENAME")
    return this_node or os.uname().nodename.partition(".")[0]


def node_names() -> str:
    """Return the names of all nodes as the scheduler writes them (``n[1-4]``), empty if it does not say."""
    return os.environ.get("HPCML_NODE_NAMES") or os.environ.get("SLURM_JOB_NODELIST", "")


def cpus() -> int:
    """Return how many CPUs this process may use."""
    if asked := os.environ.get("SLURM_CPUS_PER_TASK"):
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def requested_memory(cpus: int) -> int:
    """Return the bytes that the job asked for on this node, where it has so many CPUs; 0 if the scheduler is silent."""
    per_node, per_cpu = (os.environ.get(f"SLURM_MEM_PER_{unit}", "") for unit in ("NODE", "CPU"))
    mebibytes = int(per_node) if per_node.isdigit() else int(per_cpu) * cpus if per_cpu.isdigit() else 0
    return mebibytes * 1024**2


def end_time() -> float:
    """Return when the job reaches its time limit, in seconds since 1970; infinite if the scheduler is silent."""
    return float(os.environ.get("SLURM_JOB_END_TIME") or "inf")  # Slurm 22.05 does not set it


def without_pmi(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without Slurm's own for MPI: a process that is not Slurm's task would join as another one.

    Slurm sets them where a site's default is a kind of PMI. What configures PMIx (``PMIX_MCA_``) stays.
    """
    return {name: value for name, value in variables.items() if not _PMI.match(name)}


def task_variables(*, rank: int, local: int, node: int, each: int, nodes: int) -> dict[str, str]:
    """Return Slurm's variables of a task: what srun would set if each rank were one of its tasks.

    JAX and Lightning read the number of a rank in them. Without Slurm the job is 0, so that they do so there too.
    """
    total, per_node = each * nodes, f"{each}(x{nodes})" if nodes > 1 else str(each)
    values = {
        "PROCID": rank, "LOCALID": local, "NODEID": node, "NTASKS": total, "NPROCS": total, "NTASKS_PER_NODE": each,
        "TASKS_PER_NODE": per_node, "STEP_NUM_TASKS": total, "STEP_NUM_NODES": nodes, "STEP_TASKS_PER_NODE": per_node,
        "NNODES": nodes,
    }  # fmt: skip
    without_slurm = {"SLURM_JOB_ID": "0", "SLURM_STEP_NODELIST": node_names()}
    return {
        **{name: os.environ.get(name, value) for name, value in without_slurm.items()},
        **{f"SLURM_{name}": str(value) for name, value in values.items()},
    }


def task_rank() -> int:
    """Return the number of this process among the tasks of its step."""
    return int(os.environ["SLURM_PROCID"])


def placement() -> dict[str, str]:
    """Return the partition, the QoS and the nodes that Slurm gave to the job, by the ends of its variables' names."""
    return {name: os.environ.get(f"SLURM_{name}", "") for name in ("JOB_PARTITION", "JOB_QOS", "JOB_NODELIST")}
