"""Who is measured: the files each contender needs, as its users write them, and the command that starts it."""

from __future__ import annotations

from dataclasses import dataclass, field

NODES = 4
JOB = "bringup"
INSIDE = ("hpcml-image", "sbatch-image")
RUN = ("run-salloc", "run-batch")
CPUS = 8
FOLDER = "$BRINGUP"  # replaced by the folder of the run
VENV = "$VENV"  # replaced by the lab's environment

# Sourced by the batch script's bash before its first line (BASH_ENV), whoever wrote that script. No process is started.
START = """\
unset BASH_ENV
if [ -n "${SLURM_JOB_ID:-}" ]; then
  now=$EPOCHREALTIME
  read -r _ cpu </proc/stat
  printf '%s %s\\n' "$now" "$cpu" >"$BRINGUP/start-$SLURM_JOB_ID"
fi
"""

# The end of every driver. The scheduler's own diary says when it counted each worker: the same clock and place for all.
REPORT = '''\
"""Wait for the workers, then leave behind when they came."""

import json
import os
import time


def report(client, workers, **more):
    client.wait_for_workers(workers)
    usable = time.time()
    with open("/proc/stat") as file:
        cpu = file.readline().split(maxsplit=1)[1]
    events = client.get_events("all")
    events = sorted(when for when, what in events if isinstance(what, dict) and what.get("action") == "add-worker")
    uid = os.getuid()
    owned = [entry.name for entry in os.scandir("/proc") if entry.name.isdigit() and owner(entry) == uid]
    new = os.environ["BRINGUP"] + "/result.new"
    with open(new, "w") as file:
        json.dump({**more, "registered": events, "usable": usable, "cpu": cpu, "processes": len(owned),
                   "driver_end": time.time()}, file)
    os.rename(new, new.removesuffix("new") + "json")


def owner(entry):
    try:
        return entry.stat().st_uid
    except FileNotFoundError:
        return None
'''

_HPCML = """\
import hpcml
from report import report

report(hpcml.connect(), {workers})
"""

_BY_HAND = """\
#!/bin/bash
#SBATCH --job-name={job}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
#SBATCH --mem=3500M
#SBATCH --time=00:20:00
#SBATCH --output={folder}/job.log
source {venv}/bin/activate
file="$PWD/scheduler-$SLURM_JOB_ID.json"
dask scheduler --interface eth0 --scheduler-file "$file" &
srun --cpus-per-task={cpus} --cpu-bind=none \\
  dask worker --interface eth0 --scheduler-file "$file" --nworkers {each} --nthreads {threads} --local-directory /tmp &
python driver.py
status=$?
wait
exit $status
"""

# The same with the image that the roles enter, each for itself, as the manuals of Apptainer and of many sites have it.
_BY_HAND_INSIDE = """\
#!/bin/bash
#SBATCH --job-name={job}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
#SBATCH --mem=3500M
#SBATCH --time=00:20:00
#SBATCH --output={folder}/job.log
file="$PWD/scheduler-$SLURM_JOB_ID.json"
apptainer exec {image} python -m dask scheduler --interface eth0 --scheduler-file "$file" &
srun --cpus-per-task={cpus} --cpu-bind=none apptainer exec {image} \\
  python -m dask worker --interface eth0 --scheduler-file "$file" --nworkers {each} --nthreads {threads} --local-directory /tmp &
apptainer exec {image} python driver.py
status=$?
wait
exit $status
"""

_BY_HAND_DRIVER = """\
import os

from dask.distributed import Client
from report import report

client = Client(scheduler_file=f"scheduler-{{os.environ['SLURM_JOB_ID']}}.json")
report(client, {workers})
client.shutdown()
"""

_RUNNER = """\
#!/bin/bash
#SBATCH --job-name={job}
#SBATCH --nodes={nodes}
#SBATCH --ntasks=6
#SBATCH --cpus-per-task=4
#SBATCH --mem=3500M
#SBATCH --time=00:20:00
#SBATCH --output={folder}/job.log
source {venv}/bin/activate
srun -n 6 --cpus-per-task=4 --cpu-bind=none python driver.py
"""

_RUNNER_DRIVER = """\
import os

from dask.distributed import Client
from dask_jobqueue.slurm import SLURMRunner
from report import report

eth0 = {{"interface": "eth0"}}
file = os.environ["BRINGUP"] + "/scheduler-{{job_id}}.json"
with SLURMRunner(scheduler_file=file, scheduler_options=dict(eth0), worker_options=dict(eth0)) as runner:
    with Client(runner) as client:
        report(client, {workers})
"""

_CLUSTER = """\
import os
import time

from dask.distributed import Client
from dask_jobqueue import SLURMCluster
from report import report

folder = os.environ["BRINGUP"]
cluster = SLURMCluster(queue="boost", cores={cpus}, processes=1, memory="3GiB", walltime="00:20:00",
                       interface="eth0", local_directory="/tmp", log_directory=folder, n_workers=0, job_name="{job}")
client = Client(cluster)
asked = time.time()
cluster.scale({workers})
report(client, {workers}, asked=asked)
client.close()
cluster.close()
"""


@dataclass(frozen=True)
class Contender:
    """One way to bring a cluster up. ``command`` runs on the login node, in the folder that has ``files``."""

    name: str
    workers: int
    command: tuple[str, ...]
    files: dict[str, str] = field(default_factory=dict)
    jobs: int = 1
    environment: dict[str, str] = field(default_factory=dict)
    image: str = ""

    def laid_out(self, folder: str, venv: str) -> tuple[list[str], dict[str, str]]:
        """Return the command and the files for a run in ``folder``."""
        facts = {"workers": self.workers, "each": self.workers // NODES, "threads": CPUS * NODES // self.workers,
                 "nodes": NODES, "cpus": CPUS, "folder": folder, "venv": venv, "job": JOB,
                 "image": self.image}  # fmt: skip
        files = {name: text.format(**facts) for name, text in self.files.items()}
        return [word.replace(VENV, venv).replace(FOLDER, folder) for word in self.command], files


def hpcml(name: str, workers: int, source: str = "") -> Contender:
    """Return hpcml as installed in the lab, or from a folder that holds another ``hpcml`` (for comparing changes)."""
    each = ("--set", f"workers.per_node={workers // NODES}") if workers != NODES else ()
    command = (
        f"{VENV}/bin/python",
        "-m",
        "hpcml",
        "submit",
        "--nodes",
        str(NODES),
        "--wait",
        "--name",
        JOB,
        *each,
        "script.py",
    )
    environment = {"PYTHONPATH": source} if source else {}
    return Contender(name, workers, command, {"script.py": _HPCML}, environment=environment)


_RUN_BATCH = """\
#!/bin/bash
#SBATCH --job-name={job}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cpus}
#SBATCH --mem=3500M
#SBATCH --time=00:20:00
#SBATCH --output={folder}/job.log
{venv}/bin/python -m hpcml run --name {job} script.py
"""


def in_allocation() -> tuple[Contender, Contender]:
    """Return ``hpcml run`` in an allocation: as salloc's command on the login node, and in a batch script on the first node.

    salloc's command is a bash too, so that BASH_ENV writes the time when the allocation is there.
    """
    sizes = (f"--nodes={NODES}", "--ntasks-per-node=1", f"--cpus-per-task={CPUS}", "--mem=3500M", "--time=00:20:00")
    salloc = ("salloc", "--quiet", f"--job-name={JOB}", *sizes)
    line = f"{VENV}/bin/python -m hpcml run --name {JOB} script.py; exit $?"  # no exec: bash stays, as a shell does
    by_salloc, by_batch = RUN
    files = {"script.py": _HPCML}
    return (
        Contender(by_salloc, NODES, (*salloc, "bash", "-c", line), files),
        Contender(by_batch, NODES, ("sbatch", "job.sh"), {**files, "job.sh": _RUN_BATCH}),
    )


def inside(image: str) -> tuple[Contender, Contender]:
    """Return hpcml and the hand-written script with all roles inside an image. Both run the same files inside.

    hpcml lets in what the run says and no other variable; the script by hand lets everything in, and the home directory.
    """
    ours, theirs = INSIDE
    own = hpcml(ours, NODES)
    words = ("--image", image, "--set", f"environment.BRINGUP={FOLDER}")
    command = (*own.command[:-1], *words, own.command[-1])
    files = {"job.sh": _BY_HAND_INSIDE, "driver.py": _BY_HAND_DRIVER}
    return Contender(ours, NODES, command, own.files, image=image), Contender(
        theirs, NODES, ("sbatch", "job.sh"), files, image=image
    )


def by_hand(name: str, workers: int) -> Contender:
    """Return the hand-written batch script: scheduler file, srun, Nannies, wait_for_workers, no sleep."""
    files = {"job.sh": _BY_HAND, "driver.py": _BY_HAND_DRIVER}
    return Contender(name, workers, ("sbatch", "job.sh"), files)


ALL = (
    hpcml("hpcml", NODES),
    by_hand("sbatch", NODES),
    Contender("runner", NODES, ("sbatch", "job.sh"), {"job.sh": _RUNNER, "driver.py": _RUNNER_DRIVER}),
    Contender("cluster", NODES, (f"{VENV}/bin/python", "driver.py"), {"driver.py": _CLUSTER}, jobs=NODES),
    hpcml("hpcml-32", 32),
    by_hand("sbatch-32", 32),
)
