"""The scheduler's job as this process sees it: the only reader of the scheduler's variables on the nodes.

The batch script gives hpcml's own names, which each scheduler's lines set (docs/schedulers.md). Slurm's names count
where they are missing: in an elastic cluster's job, in the survey's, and for what Slurm alone says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

GIVEN = "HPCML_JOB_VARIABLES"  # Slurm's variables of the batch script, a line each; not set without Slurm
_PMI = re.compile("PMI_|PMI2_|PMIX_(?!MCA_)")
_OF_A_STEP = re.compile(f"SLURM|SRUN_|{_PMI.pattern}")
_ONLY_OF_A_STEP = re.compile(
    "SLURM_(STEP|SRUN_|LAUNCH_|CPU_BIND|MEM_BIND|GPU_BIND|DISTRIBUTION|NTASKS|NPROCS|TASKS_PER_NODE|UMASK|MPI_TYPE)|"
    f"SRUN_|{_PMI.pattern}"
)
_OF_A_NODE = (
    "SLURMD_NODENAME",
    "SLURM_NODEID",
    "SLURM_CPUS_ON_NODE",
    "SLURM_TOPOLOGY_ADDR",
    "SLURM_TOPOLOGY_ADDR_PATTERN",
)
_BY_HPCML = ("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS", "SLURM_NPROCS")  # hpcml asks for one task on each node


def job_id() -> str:
    """Return the id of the run's job, empty without one."""
    return os.environ.get("HPCML_JOB") or os.environ.get("SLURM_JOB_ID", "")


def mark_of(job: str) -> bytes:
    """Return the variable that the environment of a process of a job has, as Linux shows it."""
    return f"SLURM_JOB_ID={job}".encode()


def number_in_logs() -> str:
    """Return the number of the job in Slurm's own lines: a task of an array has one of its own there."""
    return os.environ.get("SLURM_JOB_ID") or job_id()


def node_name() -> str:
    """Return the name of this node, as the scheduler knows it."""
    this_node = os.environ.get("HPCML_NODE") or os.environ.get("SLURMD_NODENAME")
    return this_node or os.uname().nodename.partition(".")[0]


def node_names() -> str:
    """Return the names of all nodes as the scheduler writes them (``n[1-4]``), empty if it does not say."""
    return os.environ.get("HPCML_NODE_NAMES") or os.environ.get("SLURM_JOB_NODELIST", "")


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if asked := os.environ.get("SLURM_CPUS_PER_TASK"):
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def requested_memory(cpus: int) -> int:
    """Return the bytes that the job asked for on this node, where it has so many CPUs; 0 if the scheduler is silent."""
    per_node, per_cpu = (os.environ.get(f"SLURM_MEM_PER_{unit}", "") for unit in ("NODE", "CPU"))
    mebibytes = int(per_node) if per_node.isdigit() else int(per_cpu) * cpus if per_cpu.isdigit() else 0
    return mebibytes * 1024**2


def end_time() -> float:
    """Return the time of the job's time limit, in seconds since 1970; infinite if the scheduler is silent."""
    return float(os.environ.get("SLURM_JOB_END_TIME") or "inf")  # Slurm 22.05 does not set it


def without_pmi(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without Slurm's own for MPI: a process that is not Slurm's task would join as another one.

    Slurm sets them where a site's default is a kind of PMI. What configures PMIx (``PMIX_MCA_``) stays.
    """
    return {name: value for name, value in variables.items() if not _PMI.match(name)}


def of_batch_script(variables: Mapping[str, str], *, cpus: int = 0) -> dict[str, str]:
    """Return the variables that a program of the batch script would have: those of a step without what srun changed.

    MPI and Lightning would take a step of one task for the whole world. So neither is the number of tasks there, which
    a job has because hpcml asks for one on each node. Without Slurm the variables stay as they are.

    Parameters
    ----------
    cpus
        The CPUs of a job with one node, each of which ``mpiexec`` may give a process; 0 for jobs with several nodes.
    """
    rest = {name: value for name, value in variables.items() if name != GIVEN}
    given = dict(line.split("=", 1) for line in variables.get(GIVEN, "").splitlines() if "=" in line)
    if not given:
        return rest
    if given.get("SLURM_NTASKS_PER_NODE") == "1":
        given = {name: value for name, value in given.items() if name not in _BY_HPCML}
    # In a user's allocation the batch script is a step too, from which only the job's names are left.
    dropped = _ONLY_OF_A_STEP if "HPCML_ALLOCATION" in variables else _OF_A_STEP
    own = {name: variables[name] for name in _OF_A_NODE if name in variables}
    slots = {"SLURM_TASKS_PER_NODE": str(cpus)} if cpus else {}
    return {name: value for name, value in rest.items() if not dropped.match(name)} | given | own | slots


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


def batch_process() -> Path:
    """Return the folder in which Linux shows the batch script's shell, beside which this process runs."""
    return Path(f"/proc/{int(os.environ['HPCML_BATCH'])}")


def variables_of_batch_process(folder: str, *, own_log: bool) -> dict[str, str]:
    """Return the variables that the scheduler gave to the batch script, before the script changed any.

    Parameters
    ----------
    folder
        The one that the user submitted from, which may not be sbatch's.
    own_log
        Whether the output goes to a log of hpcml's, to which Slurm appends: srun would take that for its files too.
    """
    entries = (batch_process() / "environ").read_bytes().split(b"\0")
    variables = dict(os.fsdecode(entry).split("=", 1) for entry in entries if b"=" in entry[1:])
    if own_log:
        variables.pop("SLURM_OPEN_MODE", None)
    return variables | {"SLURM_SUBMIT_DIR": folder}


def placement() -> dict[str, str]:
    """Return the partition, the QoS and the nodes that Slurm gave to the job, by the ends of its variables' names."""
    return {name: os.environ.get(f"SLURM_{name}", "") for name in ("JOB_PARTITION", "JOB_QOS", "JOB_NODELIST")}
