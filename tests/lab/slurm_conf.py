"""The text of every configuration file of the lab's Slurm: slurm.conf, gres.conf, cgroup.conf, slurmdbd.conf, hosts."""

from __future__ import annotations

from lab_paths import (
    CLUSTER,
    CPUS_PER_NODE,
    GPUS_PER_NODE,
    MEMORY_PER_NODE_MB,
    Places,
    address,
    all_nodes,
    compute_nodes,
    number,
)

CGROUP = "cgroup/v1"
SAMPLING = "OverMemoryKill"


def hosts(nodes: int) -> str:
    lines = ["127.0.0.1 localhost", *(f"{address(node)} {node}" for node in [*all_nodes(nodes), "login2"])]
    return "\n".join(lines) + "\n"


# Without a cgroup, Slurm loses a process that left its session: this epilog finds it by the job in its environment.
EPILOG = """\
#!/usr/bin/python3
import os, pathlib, signal
job = b"SLURM_JOB_ID=" + os.environ["SLURM_JOB_ID"].encode()
here, user = os.readlink("/proc/self/ns/mnt"), int(os.environ["SLURM_JOB_UID"])
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        ours = folder.stat().st_uid == user and os.readlink(folder / "ns/mnt") == here
        if ours and job in (folder / "environ").read_bytes().split(b"\\0"):
            os.kill(int(folder.name), signal.SIGKILL)
    except OSError:
        continue
"""


def slurm_conf(places: Places, nodes: int, *, accounting: bool, memory: str) -> str:
    # Jobs of labs apart have numbers apart: the kernel's messages of all labs are one log, and name jobs by them. None is a
    # number that outputs have for other reasons too: tests replace it there.
    fixed = f"""\
ClusterName={CLUSTER}
FirstJobId={1301 + 4000 * (number() - 1)}
SlurmctldHost=ctl({address("ctl")})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={places.munge_socket}
StateSaveLocation={places.top}/state
SlurmdSpoolDir={places.top}/spool/%n
SlurmctldPidFile={places.run}/slurmctld.pid
SlurmdPidFile={places.run}/slurmd-%n.pid
SlurmctldLogFile={places.log}/slurmctld.log
SlurmdLogFile={places.log}/slurmd-%n.log
SlurmdParameters=config_overrides
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PriorityType=priority/basic
EnforcePartLimits=ALL
ReturnToService=2
JobRequeue=0
MinJobAge=300
KillWait=10
UnkillableStepTimeout=600
SlurmctldTimeout=30
SlurmdTimeout=30
MessageTimeout=10
InactiveLimit=0
WaitTime=0
"""
    return fixed + _limits(places, memory) + _accounting(places, accounting) + _nodes(nodes)


def _limits(places: Places, memory: str) -> str:
    """How memory is held to what a job asked for, and how a job's processes are found."""
    if memory == CGROUP:
        words = ["ProctrackType=proctrack/cgroup", "TaskPlugin=task/cgroup", "JobAcctGatherFrequency=task=5"]
    else:
        words = ["ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "JobAcctGatherFrequency=task=1"]
        words += ["JobAcctGatherParams=OverMemoryKill", f"Epilog={places.etc}/epilog"]
    return "\n".join(["JobAcctGatherType=jobacct_gather/linux", *words]) + "\n"


def cgroup_conf(memory: str) -> str:
    """The v1 plugin is named in both cases: unlike autodetection it starts on any machine, used or not."""
    constrain = "yes" if memory == CGROUP else "no"
    return f"CgroupPlugin=cgroup/v1\nConstrainRAMSpace={constrain}\nConstrainSwapSpace={constrain}\n"


def _accounting(places: Places, accounting: bool) -> str:
    if not accounting:
        return "AccountingStorageType=accounting_storage/none\n"
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=ctl
AccountingStoragePass={places.munge_socket}
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
"""


def _nodes(nodes: int) -> str:
    per_cpu = MEMORY_PER_NODE_MB // CPUS_PER_NODE
    size = f"CPUs={CPUS_PER_NODE} CoresPerSocket={CPUS_PER_NODE} RealMemory={MEMORY_PER_NODE_MB}"
    lines = ["GresTypes=gpu", f"DefMemPerCPU={per_cpu}"]
    lines += [
        f"NodeName={node} NodeAddr={address(node)} {size} Gres=gpu:{GPUS_PER_NODE} State=UNKNOWN"
        for node in compute_nodes(nodes)
    ]
    every = ",".join(compute_nodes(nodes))
    lines.append(f"PartitionName=boost Nodes={every} Default=YES MaxTime=1-00:00:00 DefaultTime=01:00:00 State=UP")
    lines.append(f"PartitionName=debug Nodes={every} MaxNodes=2 MaxTime=00:30:00 DefaultTime=00:10:00 State=UP")
    return "\n".join(lines) + "\n"


def gres_conf(places: Places, nodes: int) -> str:
    every = ",".join(compute_nodes(nodes))
    return f"NodeName={every} Name=gpu File={places.top}/dev/gpu[0-{GPUS_PER_NODE - 1}]\n"


def slurmdbd_conf(places: Places) -> str:
    return f"""\
AuthType=auth/munge
AuthInfo=socket={places.munge_socket}
DbdHost=ctl
DbdAddr={address("ctl")}
SlurmUser=root
LogFile={places.log}/slurmdbd.log
PidFile={places.run}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""
