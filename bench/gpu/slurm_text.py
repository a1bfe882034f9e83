"""The text of every configuration file of the GPU tier's Slurm, and of the script that starts every task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NETWORK = "10.77.0"
PARTITION = "gpu"


@dataclass(frozen=True)
class Shape:
    """How the machine is divided: nodes, and GPUs and CPUs of each."""

    nodes: int
    gpus: int
    cpus: int

    def __str__(self) -> str:
        return f"{self.nodes}x{self.gpus}"

    @property
    def names(self) -> list[str]:
        """The compute nodes' names."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]


def address(node: str) -> str:
    """Return the address of ``ctl`` or of a compute node (``n3``)."""
    return f"{NETWORK}.{1 if node == 'ctl' else 10 + int(node.removeprefix('n'))}"


def slurm_conf(shape: Shape, top: Path, plugins: Path) -> str:
    """Return slurm.conf. Memory is not shared out: this machine's grows as it is used, so its size says nothing."""
    lines = [
        "ClusterName=hpcmlgpu",
        f"SlurmctldHost=ctl({address('ctl')})",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={top}/run/munge.sock",
        f"PluginDir={plugins}",
        f"StateSaveLocation={top}/state",
        f"SlurmdSpoolDir={top}/spool/%n",
        f"SlurmctldPidFile={top}/run/slurmctld.pid",
        f"SlurmdPidFile={top}/run/slurmd-%n.pid",
        f"SlurmctldLogFile={top}/log/slurmctld.log",
        f"SlurmdLogFile={top}/log/slurmd-%n.log",
        "SlurmdParameters=config_overrides",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        f"TaskProlog={top}/etc/task_prolog.sh",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "MpiDefault=none",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "ReturnToService=2",
        "JobRequeue=0",
        "KillWait=10",
        "GresTypes=gpu",
    ]
    lines += [
        f"NodeName={node} NodeAddr={address(node)} CPUs={shape.cpus} CoresPerSocket={shape.cpus} RealMemory=16000"
        f"{f' Gres=gpu:{shape.gpus}' if shape.gpus else ''} State=UNKNOWN"
        for node in shape.names
    ]
    lines.append(f"PartitionName={PARTITION} Nodes={','.join(shape.names)} Default=YES MaxTime=INFINITE State=UP")
    return "\n".join(lines) + "\n"


def gres_conf(shape: Shape, devices: str) -> str:
    """Return gres.conf: the first node has the first GPUs, and so on. ``devices`` is a path without its number."""
    lines: list[str] = []
    for place, node in enumerate(shape.names if shape.gpus else ()):
        first, last = place * shape.gpus, (place + 1) * shape.gpus - 1
        numbers = str(first) if first == last else f"[{first}-{last}]"
        lines.append(f"NodeName={node} Name=gpu File={devices}{numbers}")
    return "\n".join(lines) + "\n"


def task_prolog(shape: Shape) -> str:
    """Return the script that puts a task on its node's own GPUs.

    Slurm numbers the GPUs of every node from 0, whatever their files are called, and sets CUDA_VISIBLE_DEVICES to that:
    right on a real node, where the others' are not there; here all nodes would work on the first GPUs of the machine.
    """
    cases = [f"  {node}) first={place * shape.gpus} ;;" for place, node in enumerate(shape.names)]
    return "\n".join([
        "#!/bin/sh",
        'case "$SLURMD_NODENAME" in',
        *cases,
        "  *) exit 0 ;;",
        "esac",
        "own=",
        "IFS=,",
        "for number in ${SLURM_STEP_GPUS:-$SLURM_JOB_GPUS}; do own=$own${own:+,}$((first + number)); done",
        '[ -z "$own" ] || echo "export CUDA_VISIBLE_DEVICES=$own"',
    ]) + "\n"  # fmt: skip


def cgroup_conf(*, unified: bool) -> str:
    """Return cgroup.conf; without systemd, Slurm 22.05's slurmd starts under cgroup v2 with these lines only."""
    return "IgnoreSystemd=yes\nCgroupMountpoint=/sys/fs/cgroup\n" if unified else "CgroupPlugin=cgroup/v1\n"
