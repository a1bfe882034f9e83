"""The batch scripts in templates/sbatch, unchanged: only sbatch's command line says what is the lab's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Cluster
from hpcml import errors
from test_exit_status import CONNECT

pytestmark = pytest.mark.lab

WORKERS = (
    CONNECT
    + "import os, sys\nsaid = [hpcml.run.nodes, hpcml.run.gpus, len(client.scheduler_info(n_workers=-1)['workers']), sys.argv[1:]]\n"
    + "is_inside = client.submit(os.path.exists, '/opt/hpcml').result()\n"
    + "print(' '.join(map(str, said)) + f'\\n{is_inside}\\n', end='')\n"
)


def submit(cluster: Cluster, name: str, *words: str, export: str = "") -> tuple[int, str, str]:
    """Submit a copy of a template as its first lines say; return how the job ended, what was printed, and the job."""
    folder = cluster.run("python", "-c", "from hpcml import assets; print(assets.folder('templates'))").stdout.strip()
    cluster.run("cp", f"{folder}/sbatch/{name}", str(cluster.work))
    values = f"--export=ALL,VENV={cluster.lab.places.venv}{export}"
    done = cluster.run("sbatch", "--parsable", "--account=lab_account", "--partition=boost", values, name, *words)
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    code = int(cluster.job_end(job, 200)["ExitCode"].partition(":")[0])
    return code, (cluster.work / f"hpcml-{name.removesuffix('.sh')}-{job}.log").read_text(), job


def test_cpu(cluster: Cluster) -> None:
    """The job's status is the script's."""
    script = cluster.write("workers.py", WORKERS + "raise SystemExit(7)\n")
    code, log, job = submit(cluster, "cpu.sh", script.name, "--epochs", "10")
    assert code == 7, log
    assert "2 0 2 ['--epochs', '10']\nFalse\n" in log
    facts = cluster.job(job)
    assert (facts["Account"], facts["TimeLimit"], facts["NumCPUs"]) == ("lab_account", "00:30:00", "16")


def test_gpu_asks_for_gpus_and_every_worker_would_have_one(cluster: Cluster) -> None:
    """The lab's GPUs are null devices: Slurm hands all of them out, and the nodes are refused in words."""
    script = cluster.write("workers.py", WORKERS)
    code, log, job = submit(cluster, "gpu.sh", script.name)
    assert code == errors.WORKERS_NEVER_CAME, log
    assert "no GPU is visible" in log
    run = cluster.directory(job)
    probes = [json.loads(path.read_text()) for path in run.glob("attempts/0/probe/*.json")]
    assert {probe["visible_devices"] for probe in probes} == {"0,1,2,3"}  # the first node that refuses ends the run
    assert json.loads((run / "plan.json").read_text())["inside"]["workers"]["per_node"] == 4


def test_gpu_image(cluster: Cluster, image: Path) -> None:
    """Every role is inside the image, in its place by the script; the lab's has no RAPIDS, so it is tried without the GPUs."""
    place = cluster.work / "rapids-cu12.sif"
    cluster.run("ln", "-sf", str(image), str(place))
    script = cluster.write("workers.py", WORKERS)
    code, log, _ = submit(cluster, "gpu-image.sh", "--gpus-per-node", "0", script.name, export=f",WORK={cluster.work}")
    assert code == 0, log
    assert "2 0 2 []\nTrue\n" in log
