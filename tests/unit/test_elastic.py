"""``hpcml.ElasticCluster``: what its jobs ask for and start, what it refuses, and what it says of a killed program."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask_jobqueue
import pytest
from dask_jobqueue.core import Job
from distributed import Adaptive, Security
from distributed.cli.dask_worker import main as dask_worker
from distributed.deploy.spec import SpecCluster

import hpcml
from hpcml import files
from hpcml.elastic import cluster, doors, records, request
from hpcml.elastic.job import ElasticJob, Recipe, gpu_options
from hpcml.errors import HpcmlError, SiteError
from hpcml.runs import beside
from hpcml.runs.submit import prepare
from hpcml.schedulers import slurm
from hpcml.subprocesses import Answer

SITE = {
    "slurm.gpu_request": "gres",
    "slurm.gpu_type": "a100",
    "slurm.extra": ["--requeue", "--constraint=fast"],
    "partitions.gpu.gpus_per_node": 4,
    "partitions.gpu.qos": "gpuqos",
    "partitions.gpu.memory_per_node": "100G",
    "runtime.modules": ["cuda/13"],
    "environment.COLOUR": "a b",
    "network.interface": "ib0",
    "workers.resources": ["GPU=1"],
}
OPTIONS: dict[str, Any] = {"site": "slurm", "account": "mine", "time": "30m", "env": ["SECRET=of mine"]}
OF_A_RUN = {"--comment", "--output", "--open-mode", "--signal", "--requeue"}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def job(**options: Any) -> tuple[request.Request, ElasticJob]:
    asked = request.make({**OPTIONS, **options})
    recipe = Recipe.of(asked, "/home/me/code")
    keys = Security(tls_ca_file="/k/ca", tls_worker_cert="/k/cert", tls_worker_key="/k/key", require_encryption=True)
    about = {"cores": 1, "memory": "1GiB", "processes": recipe.workers, "python": "python", "log_directory": None}
    return asked, ElasticJob("tls://10.0.0.1:8786", "name", recipe=recipe, security=keys, **about)


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def test_a_job_asks_for_what_a_run_would(tmp_path: Path) -> None:
    asked, one = job(gpus_per_node=4, set=SITE)
    text = one.job_script()
    run = prepare(asked.loaded, asked.spec.changed(nodes=1)).script
    mine, theirs = (
        [line for line in directives(script) if line.split("=")[0] not in OF_A_RUN | {"--no-requeue"}]
        for script in (text, run)
    )
    assert mine == theirs
    assert {"--gres=gpu:a100:4", "--partition=gpu", "--qos=gpuqos", "--mem=102400M", "--constraint=fast"} <= set(mine)
    assert "--no-requeue" in directives(text)
    for line in ("module load cuda/13 || exit 80", "export COLOUR='a b'", '. "$HPCML_RUN_DIR/environment.sh"'):
        assert line in text.splitlines()
    assert "export DASK_DISTRIBUTED__WORKER__LIFETIME__DURATION=1740s" in text
    assert "of mine" not in text
    asked.folder.mkdir(parents=True)
    one.recipe.write()
    assert (asked.folder / "environment.sh").stat().st_mode & 0o777 == 0o600
    path = tmp_path / "job.sh"
    path.write_text(text)
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_the_workers_are_dask_cuda_s_with_gpus_and_dask_s_without() -> None:
    _, one = job(gpus_per_node=4, set=SITE)
    command = next(line for line in one.job_script().splitlines() if "10.0.0.1" in line)
    assert f'{sys.executable} -P -m hpcml.node.elastic_job "" dask_cuda.cli tls://10.0.0.1:8786 --name name' in command
    for words in ("--rmm-pool-size 0.9", "--device-memory-limit 0.8", "--interface ib0", "--resources GPU=1"):
        assert words in command
    assert "--nworkers" not in command
    assert one.recipe.workers == 4
    _, other = job(set={"workers.per_node": 3})
    command = next(line for line in other.job_script().splitlines() if "10.0.0.1" in line)
    for words in (
        '-P -m hpcml.node.elastic_job "" distributed.cli.dask_worker tls:',
        "--nworkers 3",
        "--tls-ca-file /k/ca --tls-cert /k/cert",
        "--protocol tls",
    ):
        assert words in command
    assert "threads=$((cpus / 3))" in other.job_script()


def test_a_scheduler_without_a_folder_of_its_own_is_refused() -> None:
    """Dask would take /tmp/dask-scratch-space, whoever made it, and put it first on sys.path."""
    with pytest.raises(ValueError, match="local_directory of its own"):
        doors.PrivateScheduler(host="127.0.0.1", port=0, dashboard=False)


def test_gpu_options_are_the_profile_s() -> None:
    asked = request.make(
        {
            **OPTIONS,
            "gpus_per_node": 1,
            "set": {"gpu.rmm_async": True, "gpu.cudf_spill": True, "gpu.device_memory_limit": "none"},
        }
    )
    assert asked.plan.inside.gpu
    words = gpu_options(asked.plan.inside.gpu)
    assert words[:2] == ["--device-memory-limit", "0"]
    assert {"--rmm-async", "--enable-cudf-spill"} <= set(words)
    assert "--rmm-pool-size" not in words


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"set": {"network.protocol": "ucx"}}, 64, "UCX cannot join jobs that start apart"),
    ({"site": "local"}, 65, "Use dask.distributed.LocalCluster()"),
    ({"nodes": 2}, 64, "no option 'nodes'"),
    ({"after": "x"}, 64, "hpcml.submit() has it"),
    ({"partitoin": "x"}, 64, "Did you mean partition?"),
    ({"idle": "soon"}, 64, "Write idle='10m'."),
    ({"unused": -1}, 64, "is no duration"),
    ({"maximum": 0}, 64, "do not go together"),
    ({"host": "192.0.2.77"}, 64, "This machine has no address 192.0.2.77"),
    ({"image": "/nosuch.sif"}, 66, "The image cannot be read"),
]


def test_what_it_cannot_do_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for options, status, words in REFUSED:
        with subtests.test(words):
            with pytest.raises(HpcmlError) as caught:
                hpcml.ElasticCluster(**{**OPTIONS, **options})
            assert caught.value.exit_status == status
            assert words in str(caught.value)
    assert not (tmp_path / ".hpcml").exists()
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho Invalid partition specified >&2\nexit 1\n")
    with pytest.raises(HpcmlError, match="There is no such partition"):
        hpcml.ElasticCluster(**OPTIONS)
    assert not list((tmp_path / ".hpcml/runs/.clusters").iterdir())
    (tmp_path / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HpcmlError, match="go to a login node"):
        hpcml.ElasticCluster(**OPTIONS)
    monkeypatch.setenv("APPTAINER_CONTAINER", "/x.sif")
    with pytest.raises(HpcmlError, match="Start Python outside the image"):
        hpcml.ElasticCluster(**OPTIONS)


def test_jobs_of_a_killed_program_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"host": socket.gethostname(), "pid": 1 << 22, "start": "1", "address": "tls://10.0.0.1:1"}
    for name, more in (("dead", {}), ("over", {}), ("elsewhere", {"host": "other"}), ("bare", {})):
        (tmp_path / name).mkdir(mode=0o700)
        files.write(tmp_path / name / beside.CLUSTER_RECORD, json.dumps(facts | more))
    (tmp_path / "over" / beside.CLOSED).touch()
    (tmp_path / "another-s").symlink_to(tmp_path / "dead")  # a link is nobody's own folder
    rows = "7|PENDING|hpcml:dead.1\n4|RUNNING|hpcml:another-s.1\n8|RUNNING|hpcml:dead.2\n9|RUNNING|hpcml:elsewhere.1\n5|COMPLETING|hpcml:bare.1\n6|RUNNING|hpcml:a-run\n"
    monkeypatch.setattr(slurm, "ask", lambda *_: Answer(0, rows, ""))
    (said,) = records.left_behind(tmp_path)
    assert "scancel 7 8" in said
    assert records.addressed(tmp_path, "tls://10.0.0.1:1") == tmp_path / "bare"
    assert records.addressed(tmp_path, "tls://10.0.0.1:2") is None


def test_dask_jobqueue_has_what_is_built_on() -> None:
    """The names of the libraries that this stands on, beyond what they document."""
    assert issubclass(cluster.ElasticCluster, dask_jobqueue.SLURMCluster)
    for name in ("job_header", "_command_template"):
        assert name in inspect.getsource(Job), name
    for name in ("_start", "_close", "_correct_state", "_update_worker_status", "scale_down"):
        assert hasattr(SpecCluster, name), name
    for name in ("target", "workers_to_close", "scale_up", "scale_down", "plan", "requested", "observed"):
        assert hasattr(Adaptive, name), name
    known = {option for parameter in dask_worker.params for option in (*parameter.opts, *parameter.secondary_opts)}
    _, one = job()
    command = next(line for line in one.job_script().splitlines() if "10.0.0.1" in line)
    assert set(re.findall(r" (--[a-z-]+)", command)) <= known


def test_a_refusal_of_slurm_s_does_not_end_the_look_at_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: list[str]) -> None:
        raise SiteError("Slurm refuses")

    monkeypatch.setattr(slurm, "states", refuse)
    jobs = {"w": SimpleNamespace(came=False, problem=None, key="1 w", job_id="1")}
    here: Any = SimpleNamespace(scheduler=SimpleNamespace(workers={}), workers=jobs, _lost=lambda _: None, name="c")
    here._ask_at = here._soon = 0.0
    asyncio.run(cluster.ElasticCluster._look(here))
    assert "Slurm does not report the jobs of cluster c: Slurm refuses" in capsys.readouterr().err
