"""Slurm's variables in the shell of a batch script: what the #SBATCH lines decide, and what another job has too."""

from __future__ import annotations

import re

FOLDER = "SLURM_SUBMIT_DIR"  # the folder that the script was submitted from
_SAME = re.compile(
    r"SLURM_(?:JOB_?ID|JOB_NODELIST|NODELIST|JOB_ACCOUNT|JOB_PARTITION|JOB_QOS|JOB_USER|CLUSTER_NAME|TMPDIR)"
)
_OF_STEPS = re.compile(r"SRUN_\w+|SLURM_CPU_BIND\w*|SLURM_EXPORT_ENV|SLURM_HINT|SLURM_DISTRIBUTION")
ZEROS = {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"}  # numbers of a task, which are 0 in a batch script
_NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")


def is_slurms(name: str) -> bool:
    """Whether a variable is Slurm's."""
    return name.startswith("SLURM")


def is_same(name: str) -> bool:
    """Whether a job of hpcml's for the same nodes has the variable with the same value."""
    return bool(_SAME.fullmatch(name))


def is_of_steps(name: str) -> bool:
    """Whether a variable only changes how ``srun`` starts its tasks."""
    return bool(_OF_STEPS.fullmatch(name))


def is_number_of_nodes(text: str) -> bool:
    """Whether a text is a reference to the number of nodes."""
    return text.startswith("$") and text[1:] in _NODES


def decided(nodes: int, tasks: int, cpus: int, gpus: int) -> dict[str, str]:
    """Return the variables that the sizes of a job decide; a size of 0 is not among the lines."""
    tasks_of = {"SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks, "SLURM_CPUS_PER_TASK": cpus, "SLURM_GPUS_ON_NODE": gpus}
    found = {**dict.fromkeys(_NODES, nodes), **tasks_of}
    return {name: str(number) for name, number in found.items() if number}
