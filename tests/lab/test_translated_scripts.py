"""A batch script by sbatch and by `hpcml submit --translate`: the same tasks on the same nodes, and the same status."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from conftest import Cluster
from lab_state import PATIENCE

pytestmark = pytest.mark.lab

TASK = """import os, socket, sys
print("task", os.environ["SLURM_PROCID"], "of", os.environ["SLURM_NTASKS"], "on", socket.gethostname(), sys.argv[1:],
      os.environ.get("LEVEL"), os.getcwd(), os.environ["SLURM_JOB_NUM_NODES"], flush=True)
sys.exit(int(os.environ.get("STATUS", "0")))
"""
SHORT = "#SBATCH --time=5 --mem-per-cpu=100M"
CASES = {
    "tasks on two nodes": '#SBATCH --nodes=2 --ntasks-per-node=2 --nodelist=n1,n2\nexport LEVEL=3\nsrun python3 task.py "$1"',
    "a number of tasks, by a line and a variable": (
        "#SBATCH -n 4 --ntasks-per-node=2 --nodelist=n1,n2\nset -eu\n. ./settings.sh\nARGS=\"--a $SLURM_NTASKS\"\n"
        "OUT=$BASE/$SLURM_JOB_PARTITION\nmkdir -p $OUT\nMASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n"
        "srun -n $SLURM_NTASKS python3 task.py $ARGS $OUT\necho ended"
    ),
    "CPUs of a task": "#SBATCH -N 1 -n 2 -c 2 --nodelist=n2\nexport LEVEL=$SLURM_CPUS_PER_TASK\nsrun -c 2 python3 task.py",
    "a status": "#SBATCH -N 2 --ntasks-per-node=1 --nodelist=n1,n2\nexport STATUS=3\nsrun python3 task.py",
}  # fmt: skip


def tasks(text: str, folder: Path) -> list[str]:
    found = re.findall(r"task \d+ of .*", text)
    return sorted(line.replace(str(folder), "FOLDER") for line in found)


@pytest.mark.parametrize("name", CASES)
def test_a_translated_script_does_the_same(cluster: Cluster, name: str) -> None:
    folder = cluster.work / f"translated-{time.time_ns()}"
    script = cluster.write(f"{folder.name}/job.sh", f"#!/bin/bash\n{SHORT}\n{CASES[name]}\n")
    cluster.write(f"{folder.name}/task.py", TASK)
    cluster.write(f"{folder.name}/settings.sh", "export LEVEL=5\nBASE=made\n")
    words = ["sbatch", "--parsable", f"--output={folder}/out.txt", str(script), "a b"]
    done = cluster.run(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    facts = cluster.job_end(done.stdout.strip(), 60 * PATIENCE)
    expected = tasks((folder / "out.txt").read_text(), folder)
    assert expected, (folder / "out.txt").read_text()
    done = cluster.run("hpcml", "submit", "--json", "--detach", "--translate", str(script), "a b", cwd=folder)
    assert done.returncode == 0, done.stderr
    submitted = json.loads(done.stdout)
    directory = Path(submitted["directory"])
    ended = cluster.job_end(submitted["job"], 90 * PATIENCE)
    logs = cluster.run("hpcml", "logs", directory.name, "rank")
    assert tasks(logs.stdout, folder) == expected, logs.stdout + (directory / "logs/job.log").read_text()
    if "echo ended" not in CASES[name]:
        assert (ended["ExitCode"], ended["JobState"]) == (facts["ExitCode"], facts["JobState"])
    same = ("NumNodes", "NumCPUs") if "nodelist" in CASES[name] else ("NumNodes",)
    assert {key: ended[key] for key in same} == {key: facts[key] for key in same}
