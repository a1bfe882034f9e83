"""Slurm as a profile describes its machine: accounting, a controller and nodes by name alone, beside the lab's own."""

from __future__ import annotations

import json
import secrets
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import lab_install
import lab_services
import slurm_conf
from hpcml import units
from hpcml.sites.schema import Partition, Qos, Site
from lab_paths import USERS, LabError, Places, address
from lab_state import State, boot_id, kill, wait_for
from labs import Lab

ACCOUNT = "IscrC_hpcml"  # that of the golden scripts
PORT = 16817  # the lab's own controller has the usual one
LEAST_NODES = 8


class Nodes(NamedTuple):
    """The nodes of a partition: what the profile says of them, or else what is assumed here."""

    cpus: int
    gpus: int = 0
    gpu_type: str = ""
    feature: str = ""
    memory_mb: int = 500_000


# What no profile says: the types are what the GPUs are; whether the sites' Slurms call them so is not known here.
GPU_TYPES = {
    "boost_usr_prod": "a100", "booster": "a100", "develbooster": "a100", "largebooster": "a100",
    "gpu_a100": "a100", "gpu_h100": "h100", "gpu": "a100",
}  # fmt: skip
CPUS_ARE_THREADS = ("marenostrum5", "perlmutter", "vega")
# Where the profile has no partitions, the machine's own rules send a job to one of these by its QoS or constraint.
UNNAMED = {
    "slurm": {"batch": Nodes(64, 4)},
    "marenostrum5": {"acc": Nodes(160, 4, "h100"), "gpp": Nodes(224)},
    "perlmutter": {"gpu": Nodes(128, 4, "a100", "gpu"), "cpu": Nodes(256, feature="cpu")},
}


def nodes_of(site: Site) -> dict[str, Nodes]:
    """Return what the nodes of each partition are."""
    if not site.partitions:
        return UNNAMED[site.name]
    return {
        name: Nodes(
            one.cpus_per_node,
            one.gpus_per_node,
            GPU_TYPES[name] if one.gpus_per_node else "",
            memory_mb=int(one.memory_per_node) >> 20 or Nodes(0).memory_mb,
        )
        for name, one in site.partitions.items()
    }


def slurm_conf_of(site: Site, places: Places) -> str:
    """Return the slurm.conf of a machine."""
    count = _node_count(site)
    threads = 2 if site.name in CPUS_ARE_THREADS else 1
    lines = [_FIXED.format(name=site.name, address=address("ctl"), port=PORT, places=places)]
    if not site.partitions:
        lines.append("JobSubmitPlugins=all_partitions")  # a job that names none may have each that takes it
    for name, kind in nodes_of(site).items():
        size = (
            f"Sockets=2 CoresPerSocket={kind.cpus // 2 // threads} ThreadsPerCore={threads} RealMemory={kind.memory_mb}"
        )
        gpus = ":".join(filter(None, ("gpu", kind.gpu_type, str(kind.gpus))))
        more = [f"Gres={gpus}"] if kind.gpus else []
        more += [f"Feature={kind.feature}"] if kind.feature else []
        lines.append(" ".join([f"NodeName={_names(name, count)} {size} State=CLOUD", *more]))
        limits = site.partitions.get(name, Partition())
        words = [f"PartitionName={name} Nodes={_names(name, count)} State=UP"]
        words += ["Default=YES"] if name == (site.defaults.partition or next(iter(nodes_of(site)))) else []
        words += [f"MaxNodes={limits.max_nodes}"] if limits.max_nodes else []
        words += [f"MinNodes={limits.min_nodes}"] if limits.min_nodes else []
        words += [f"MaxTime={units.format_time_limit(limits.max_time)}"] if limits.max_time else []
        words += [f"AllowQos={','.join(qos)}"] if (qos := _qos_of(site, name)) else []
        lines.append(" ".join(words))
    return "\n".join(lines) + "\n"


# A node in the cloud is one that is off until a job gets it: a test of a submission needs no slurmd.
_FIXED = """\
ClusterName={name}
SlurmctldHost=ctl({address})
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={places.munge_socket}
StateSaveLocation={places.top}/state
SlurmctldPidFile={places.run}/slurmctld.pid
SlurmctldLogFile={places.log}/slurmctld.log
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
EnforcePartLimits=ANY
SuspendTime=600
SuspendProgram=/bin/true
ResumeProgram=/bin/true
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=ctl
AccountingStoragePass={places.munge_socket}
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES=gres/gpu
GresTypes=gpu"""


def _names(partition: str, count: int) -> str:
    return f"{partition.replace('_', '-')}-n[1-{count}]"


def gres_conf_of(site: Site) -> str:
    """Return the gres.conf of a machine."""
    count = _node_count(site)
    lines = [
        f"NodeName={_names(name, count)} Name=gpu {f'Type={kind.gpu_type} ' if kind.gpu_type else ''}Count={kind.gpus}\n"
        for name, kind in nodes_of(site).items()
        if kind.gpus
    ]
    return "".join(lines)


def _node_count(site: Site) -> int:
    """Return how many nodes each partition has: one more than any limit, so that a refusal is the limit's."""
    limits: list[Partition | Qos] = [*site.partitions.values(), *site.qos.values()]
    return 1 + max([LEAST_NODES, *(most for one in limits for most in (one.min_nodes, one.max_nodes))])


def _qos_of(site: Site, partition: str) -> list[str]:
    """Return the QoS that a partition takes; nothing if it takes each."""
    by_qos = any(qos.without_gpus for qos in site.qos.values())  # it, and no partition, chooses the nodes
    has_gpus = nodes_of(site)[partition].gpus > 0
    return [
        name
        for name, qos in site.qos.items()
        if partition in (qos.partitions or (partition,)) and not (by_qos and qos.without_gpus == has_gpus)
    ]


def accounts_of(site: Site) -> list[list[str]]:
    """Return sacctmgr's words for a machine's cluster, QoS, account and user."""
    words = [["add", "cluster", site.name]]
    words += [["add", "qos", name, *_limits(qos)] for name, qos in site.qos.items() if name != "normal"]
    words.append(["add", "account", ACCOUNT, f"Cluster={site.name}", "Description=lab", "Organization=lab"])
    allowed = ",".join(dict.fromkeys(("normal", *site.qos)))
    user = ["add", "user", USERS["alice"], f"Account={ACCOUNT}", f"Cluster={site.name}"]
    return [*words, [*user, f"QOS={allowed}", "DefaultQOS=normal"]]


def _limits(qos: Qos) -> list[str]:
    """Return a QoS's limits as Slurm takes them: refused at once, and in the place of the partition's."""
    flags, words = ["DenyOnLimit"], []
    if qos.max_nodes:
        flags.append("PartitionMaxNodes")
        words.append(f"MaxTRESPerJob=node={qos.max_nodes}")
    if qos.min_nodes:
        flags.append("PartitionMinNodes")
        words.append(f"MinTRESPerJob=node={qos.min_nodes}")
    if qos.max_time:
        flags.append("PartitionTimeLimit")
        words.append(f"MaxWall={units.format_time_limit(qos.max_time)}")
    return [f"Flags={','.join(flags)}", *words, *([f"MaxSubmitJobsPerUser={qos.max_jobs}"] if qos.max_jobs else [])]


class Answer(NamedTuple):
    """What sbatch said of a script."""

    taken: bool
    words: str


class SiteSlurms:
    """One Slurm beside the lab's own, which becomes one machine after another; alice is its user."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.places = Places(lab.places.top / "sites")
        self.scripts = lab.home("alice") / "every-site"
        self._variables = {"SLURM_CONF": str(self.places.slurm_conf)}
        state = State(accounting=True, nodes=0, boot=boot_id(), holders=lab.state().holders)
        self._services = lab_services.Services(self.places, state)

    def start(self, sites: Sequence[Site]) -> None:
        """Start munge and accounting, and tell it of all machines."""
        if reason := lab_install.missing_for_accounting():
            raise LabError(reason)
        copy = f'cp "$(python -c "{JOBS}")"/*.py .'
        self.lab.exec(["mkdir", "-p", str(self.scripts)])
        lab_services.prepare_folders(self.places)
        assert self.lab.exec(["bash", "-ec", copy], cwd=self.scripts).returncode == 0
        lab_services.secret(self.places.etc / "munge.key", secrets.token_bytes(128))
        lab_services.secret(self.places.etc / "slurmdbd.conf", slurm_conf.slurmdbd_conf(self.places).encode())
        self._configure(sites[0])
        self._services.start_munge()
        self._services.start_database()
        self._services.start_slurmdbd([words for site in sites for words in accounts_of(site)])

    def become(self, site: Site) -> None:
        """Start the controller of a machine, in the place of the last one's."""
        self._end("slurmctld")
        shutil.rmtree(self.places.top / "state")
        (self.places.top / "state").mkdir()
        self._configure(site)
        self._services.start_controller()

    def end(self) -> None:
        """End all of it and remove its files."""
        for name in list(self._services.state.daemons):
            self._end(name)
        for folder in filter(Path.exists, (self.places.top, self.scripts)):
            shutil.rmtree(folder)

    def _end(self, name: str) -> None:
        daemon = self._services.state.daemons.get(name)
        if daemon and daemon.alive:
            kill(daemon.pid)
            assert wait_for(lambda: not daemon.alive, 40), name

    def _configure(self, site: Site) -> None:
        self.places.slurm_conf.write_text(slurm_conf_of(site, self.places))
        (self.places.etc / "gres.conf").write_text(gres_conf_of(site))

    def dry_runs(self, submissions: Mapping[str, Sequence[str]]) -> dict[str, Path]:
        """Have `hpcml submit --dry-run` print the batch script of each submission; return their files by its name."""
        done = self.lab.exec(
            ["python", "-c", DRY_RUNS, str(self.scripts)],
            input=json.dumps(submissions), env=self._variables, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, "\n".join(done.stderr.splitlines()[-3:])
        return {name: self.scripts / f"{name}.sh" for name in submissions}

    def ask(self, submissions: Iterable[Sequence[str]], how: str = "--test-only") -> list[Answer]:
        """Ask sbatch of each, options and a script, whether the machine takes it; what it holds is cancelled at once."""
        lines = "".join(f"{shlex.join(words)}\n" for words in submissions)
        done = self.lab.exec(["bash", "-c", ASK, "ask", how], input=lines, env=self._variables, timeout=240)
        assert done.returncode == 0, done.stderr
        return [Answer(line.startswith("0 "), line) for line in done.stdout.splitlines()]


JOBS = "from hpcml import assets; print(assets.folder('jobs'))"
DRY_RUNS = """
import json, os, sys
from hpcml.cli.main import main
for name, words in json.load(sys.stdin).items():
    os.dup2(os.open(f"{sys.argv[1]}/{name}.sh", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    if main(["submit", "--dry-run=script", *words]):
        sys.exit(f"hpcml submit {' '.join(words)}: refused")
"""
ASK = """
while IFS= read -r line; do
  eval "set -- $1 $line"
  said=$(sbatch "$@" 2>&1 </dev/null); code=$?
  echo "$code ${said//$'\\n'/ }"
  [ "$1" = --test-only ] || scancel --me --quiet
done
"""
