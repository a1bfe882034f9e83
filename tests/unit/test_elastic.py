"""``hpcml.ElasticCluster``: what its jobs ask for and start, and what it refuses."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Adaptive, Security
from distributed.cli.dask_worker import main as dask_worker
from distributed.core import Status

import hpcml
from hpcml import schedulers
from hpcml.api import elastic as cluster
from hpcml.api import job_guard, keywords_to_job
from hpcml.errors import HpcmlError, SiteError, SlurmUnreachableError
from hpcml.kinds.dask.node import elastic_worker
from hpcml.node.context import load
from hpcml.request.record import Code
from hpcml.runs.submit import prepare
from hpcml.schedulers import slurm
from hpcml.workload_forms import Form

SITE = {
    "slurm.gpu_request": "gres", "slurm.gpu_type": "a100", "slurm.extra": ["--requeue", "--constraint=fast"],
    "partitions.gpu.gpus_per_node": 4, "partitions.gpu.qos": "gpuqos", "partitions.gpu.memory_per_node": "100G",
    "runtime.modules": ["cuda/13"], "environment.COLOUR": "a b", "network.interface": "ib0",
    "workers.resources": ["GPU=1"],
}  # fmt: skip
OPTIONS: dict[str, Any] = {"site": "slurm", "account": "mine", "time": "30m", "env": ["SECRET=of mine"]}
OF_A_RUN = {"--comment", "--output", "--open-mode", "--signal", "--requeue"}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


class Asked:
    """A job of a cluster, with the files that it reads, and the words of Dask's command on its node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        code = Code(Path("elastic"), cwd=Path.cwd(), form=Form.ELASTIC)
        loaded, spec = keywords_to_job.parse("x", "elastic", code, {**OPTIONS, **options})
        self.loaded, self.spec = cluster._without_ucx(loaded), spec.changed(nodes=1)
        self.folder = keywords_to_job.place(self.loaded, ".clusters", "elastic")
        self.made = keywords_to_job.plan_at(self.loaded, self.spec, self.folder)
        keywords_to_job.make(self.folder, self.loaded)
        cluster._write(self.made, self.spec)
        about = {"cores": 1, "memory": "1GiB", "processes": 1, "python": "python", "shebang": "#!/bin/bash"}
        about |= {"security": Security(), "job_script_prologue": cluster._prologue(self.made), "log_directory": None}
        self.script: str = cluster.ElasticJob(
            "tls://10.0.0.1:8786", "name", site=self.loaded.site, made=self.made, **about
        ).job_script()
        monkeypatch.setenv("HPCML_RUN_DIR", str(self.folder))
        self.words = elastic_worker.worker_command(load(), "name", "/scratch/mine")


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def test_a_job_asks_for_what_a_run_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, gpus_per_node=4, set=SITE)
    run = prepare(asked.loaded, asked.spec).script
    mine, theirs = (
        [line for line in directives(script) if line.split("=")[0] not in OF_A_RUN | {"--no-requeue"}]
        for script in (asked.script, run)
    )
    assert mine == theirs
    assert {"--gres=gpu:a100:4", "--partition=gpu", "--qos=gpuqos", "--mem=102400M", "--constraint=fast"} <= set(mine)
    assert {"--no-requeue", "--comment=hpcml:name"} <= set(directives(asked.script))
    for line in ("module load cuda/13 || exit 80", "export COLOUR='a b'", '. "$HPCML_RUN_DIR/environment.sh"'):
        assert line in asked.script.splitlines()
    assert "export DASK_DISTRIBUTED__WORKER__LIFETIME__DURATION=1740s" in asked.script
    assert "of mine" not in asked.script
    assert asked.script.endswith(
        f"{sys.executable} -P -m hpcml.kinds.dask.node.elastic_worker tls://10.0.0.1:8786 name\n"
    )
    assert {path.stat().st_mode & 0o777 for path in (asked.folder, asked.folder.parent)} == {0o700}
    assert (asked.folder / "environment.sh").stat().st_mode & 0o777 == 0o600
    path = tmp_path / "job.sh"
    path.write_text(asked.script)
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


def test_the_workers_are_dask_cuda_s_with_gpus_and_dask_s_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "600")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "7")
    asked = Asked(monkeypatch, gpus_per_node=4, set=SITE)
    given = " ".join(asked.words)
    for words in ("--rmm-pool-size 0.9", "--device-memory-limit 0.8", "--interface ib0", "--resources GPU=1"):
        assert words in given
    assert "--nworkers" not in given
    other = Asked(monkeypatch, set={"workers.per_node": 3})
    given = " ".join(other.words)
    secret = other.folder / "secret"
    for words in (
        "--name name --worker-class hpcml.kinds.dask.node.elastic_worker.ElasticWorker --protocol tls",
        f"--tls-ca-file {secret}/tls-cert.pem --tls-cert {secret}/tls-cert.pem --tls-key {secret}/tls-key.pem",
        f"--no-dashboard --death-timeout 120 --local-directory /scratch/mine --nthreads 2 --memory-limit {200 << 20}",
        "--nworkers 3",
    ):
        assert words in given
    known = {option for parameter in dask_worker.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert set(re.findall(r"(?<!\S)(--[a-z-]+)", given)) <= known


def test_gpu_options_are_the_profile_s(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"gpu.rmm_async": True, "gpu.cudf_spill": True, "gpu.device_memory_limit": "none"}
    asked = Asked(monkeypatch, gpus_per_node=1, set=settings | {"gpu.rmm_maximum_pool_size": "10G"})
    given = " ".join(asked.words)
    for words in (
        "--device-memory-limit 0",
        "--rmm-async",
        "--enable-cudf-spill",
        f"--rmm-maximum-pool-size {10 << 30}",
    ):
        assert words in given
    assert "--rmm-pool-size" not in given


def test_a_scheduler_without_a_folder_of_its_own_is_refused() -> None:
    """Dask would take /tmp/dask-scratch-space, whoever made it, and put it first on sys.path."""
    with pytest.raises(ValueError, match="needs a local_directory"):
        cluster.PrivateScheduler(host="127.0.0.1", port=0, dashboard=False)


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"protocol": "ucx"}, 64, "no option 'protocol'"),
    ({"set": {"network.protocol": "ucx"}}, 64, "Remove network.protocol=ucx."),
    ({"set": {"network.protocol": "tcp"}}, 64, "Remove network.protocol=tcp."),
    ({"site": "local"}, 65, "Use dask.distributed.LocalCluster()"),
    ({"partitoin": "x"}, 64, "Did you mean partition?"),
    ({"idle": "soon"}, 64, "Write idle='10m'."),
    ({"idle": float("nan")}, 64, "is not a duration"),
    ({"maximum": 0}, 64, "are not a valid range"),
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
    with pytest.raises(HpcmlError, match="The partition does not exist"):
        hpcml.ElasticCluster(**OPTIONS)
    assert not list((tmp_path / ".hpcml/runs/.clusters").iterdir())
    (tmp_path / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HpcmlError, match="use a login node"):
        hpcml.ElasticCluster(**OPTIONS)


@pytest.mark.parametrize(("error", "said"), [
    (SiteError("Slurm refuses"), "Slurm does not report the jobs"),
    (SlurmUnreachableError("silent"), ""),
])  # fmt: skip
def test_a_slurm_that_does_not_answer_ends_no_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, said: str
) -> None:
    def refuse(_: list[str]) -> None:
        raise error

    monkeypatch.setattr(slurm, "states", refuse)
    jobs = {"w": SimpleNamespace(problem=None, key="1 w"), "x": SimpleNamespace(problem=error, key="")}
    here: Any = SimpleNamespace(workers=jobs, observed=set(), name="c", _scheduler_name="slurm")
    assert asyncio.run(cluster.ElasticCluster._ended(here)) == {"x": ""}
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("workers", "jobs"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_work_for_less_than_a_whole_job_gets_one(workers: int, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def target(_: object) -> int:
        return workers

    monkeypatch.setattr(Adaptive, "target", target)
    monkeypatch.setattr(Adaptive, "__del__", lambda _: None)  # it was never started
    policy: Any = object.__new__(cluster.WholeJobs)
    policy.cluster = SimpleNamespace(workers_per_job=4)
    assert asyncio.run(policy.target()) == jobs


@pytest.mark.parametrize("wanted", [True, False])
def test_jobs_that_end_without_a_worker_close_it_unless_they_were_given_back(
    wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    problem = SiteError("it was refused")
    jobs = {f"j{number}": SimpleNamespace(joined=False, problem=problem) for number in range(cluster._MOST_FAILURES)}

    async def ended() -> dict[str, str]:
        one.status = Status.closing
        return dict.fromkeys(jobs, "CANCELLED")

    async def close() -> None:
        closed.append(True)

    one: Any = SimpleNamespace(
        status=Status.running, scheduler=SimpleNamespace(status=Status.running), workers=dict(jobs), observed=set(),
        worker_spec=dict(jobs) if wanted else {}, _ended=ended, _close=close, name="cluster", problem=None,
    )  # fmt: skip
    monkeypatch.setattr(cluster, "_LOOK", 0.0)
    asyncio.run(hpcml.ElasticCluster._watch(one))
    assert bool(closed) == wanted


def test_a_job_that_comes_late_does_not_outlive_its_killed_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was just being submitted may still come: one look at an empty queue is not the end."""
    queue = iter([{}, {tmp_path.name: ["7"]}, {}, {}])
    cancelled: list[str] = []
    monkeypatch.setattr(job_guard, "_PAUSE", 0.0)
    monkeypatch.setattr(schedulers, "other_jobs", lambda _: SimpleNamespace(jobs_of_clusters=lambda: next(queue)))
    monkeypatch.setattr(schedulers, "get", lambda _: SimpleNamespace(cancel=cancelled.append))
    assert job_guard.clean(tmp_path, "slurm") == 0
    assert cancelled == ["7"]


def test_the_file_that_dask_jobqueue_writes_is_no_one_s_to_change(tmp_path: Path) -> None:
    """It writes its default settings into the user's folder at its import, where other users may enter the home."""
    code = "import os, distributed; os.umask(0); import hpcml.api.elastic; print(os.umask(0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env={"HOME": str(tmp_path)})  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
    written = tmp_path / ".config/dask/jobqueue.yaml"
    assert not written.stat().st_mode & 0o022
