"""``hpcml.map``: how many tasks an array has, what is asked of Slurm for a point, and when one has ended."""

from __future__ import annotations

import atexit
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hpcml
from hpcml import errors
from hpcml.api import map as map_api
from hpcml.errors import SiteError, SlurmUnreachableError
from hpcml.plan import make_plan
from hpcml.request import record as request
from hpcml.schedulers import Submission, slurm
from hpcml.sites import schema
from hpcml.subprocesses import Answer
from hpcml.workload_forms import Form
from matrix import site_of

SITE = {
    "scheduler": "slurm",
    "name": "two",
    "defaults": {"partition": "gpu", "account": "mine"},
    "slurm": {"extra": ["--requeue", "--constraint=fast"], "srun_extra": ["--mpi=none"]},
    "partitions": {"gpu": {"gpus_per_node": 4, "qos": "gpuqos", "memory_per_node": "100G"}},
}
ID = "f-20261123-090000-abcd"


def answer(text: str, code: int = 0, err: str = "") -> Answer:
    return Answer(code, text, err)


@pytest.mark.parametrize(("told", "most"), [
    (answer("MaxArraySize            = 10\nSchedulerParameters     = bf_interval=30,max_array_tasks=20\n"), 10),
    (answer("MaxArraySize            = 1001\nSchedulerParameters     = max_array_tasks=500,bf_interval=30\n"), 500),
    (answer("MaxArraySize            = 0\nSchedulerParameters     = (null)\n"), 0),
    (answer("", 1, "scontrol: error"), 1000),  # Slurm's default
])  # fmt: skip
def test_an_array_is_as_large_as_slurm_says(monkeypatch: pytest.MonkeyPatch, told: Answer, most: int) -> None:
    monkeypatch.setattr(slurm, "ask", lambda _: told)
    assert slurm.most_tasks() == most


def test_tasks_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def ask(command: list[str]) -> Answer:
        asked.append(command)
        rows = f"12|0|RUNNING|hpcml:{ID}.0\n12|1|PENDING|hpcml:{ID}.0\n13|0|TIMEOUT|hpcml:{ID}.1\n"
        return answer(f"{rows}13|1|RUNNING|(null)\n14|N/A|RUNNING\nnoise\n")

    monkeypatch.setattr(slurm, "ask", ask)
    states = {("12", 0): "RUNNING", ("12", 1): "PENDING", ("13", 0): "TIMEOUT"}
    assert slurm.task_states([f"12 {ID}.0", f"13 {ID}.1"]) == states
    assert len(asked) == 1


def test_a_job_that_slurm_forgot_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(command: list[str]) -> Answer:
        return answer("13|4|RUNNING\n") if "--jobs=13" in command else answer("", 1, "Invalid job id specified")

    monkeypatch.setattr(slurm, "ask", ask)
    assert slurm.task_states(["12", "13"]) == {("13", 4): "RUNNING"}
    monkeypatch.setattr(slurm, "ask", lambda _: answer("", 1, "Unable to contact slurm controller"))
    with pytest.raises(SlurmUnreachableError):
        slurm.task_states(["12"])


class Submitted:
    """Five points on a Slurm of two tasks in an array, which takes the first arrays and refuses the others."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        cancelled: list[str] | None = None,
        *,
        taken: int = 9,
        most: int = 2,
        **asked: Any,
    ) -> None:
        self.scripts: list[str] = []
        self.cancelled = [] if cancelled is None else cancelled
        self.taken = taken
        monkeypatch.setattr(slurm, "submit", self.submit)
        monkeypatch.setattr(slurm, "cancel", self.cancelled.append)
        monkeypatch.setattr(slurm, "most_tasks", lambda: most)
        spec = request.RunRequest.of(Path("f"), (), Path("/"), name="f", form=Form.MAP, **{"nodes": 1, **asked})

        def plan_of(number: int) -> make_plan.Plan:
            return make_plan.plan(
                site_of(SITE), spec, make_plan.RunLocation(folder / f"{ID}.{number}", "/usr/bin/python3", "0")
            )

        self.jobs = map_api.submit(site_of(SITE), plan_of, "#!/bin/bash\n", abs, range(5), 1)

    def submit(self, _: schema.Site, run: Any) -> Submission:
        if len(self.scripts) == self.taken:
            raise SiteError("exceeds a limit of the QoS")
        self.scripts.append(run.script.read_text())
        return Submission(job=str(100 + len(self.scripts)))


def test_a_point_asks_for_what_a_run_would_and_is_never_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Submitted(
        tmp_path, monkeypatch, nodes=2, gpus_per_node=4, memory_per_node=request.measure("memory_per_node", "2G")
    )
    assert [line for line in made.scripts[2].splitlines() if "--array" in line] == ["#SBATCH --array=0-0%1"]
    lines = made.scripts[0].splitlines()
    wanted = {"--account=mine", "--partition=gpu", "--qos=gpuqos", "--nodes=2", "--gpus-per-node=4", "--mem=2048M",
              "--constraint=fast", "--no-requeue", "--array=0-1%1", f"--comment=hpcml:{ID}.0"}  # fmt: skip
    asked = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")}
    assert wanted <= asked
    assert not [option for option in asked if option.startswith(("--requeue", "--signal"))]
    srun = lines[-1]
    assert srun.startswith("exec srun ")
    for option in ("mpi=none", "nodes=2", "ntasks=2", "gpu-bind=none", "kill-on-bad-exit=1"):
        assert f" --{option} " in srun
    assert "-m submitit.core._submit" in srun
    assert [job.job_id for job in made.jobs] == ["101_0", "101_1", "102_0", "102_1", "103_0"]
    folder = tmp_path / f"{ID}.1"
    assert made.jobs[3].num_tasks == 2
    assert made.jobs[3].task(1).paths.result_pickle == folder / "102_1_1_result.pkl"
    assert made.jobs[3].submission().args == (3,)
    made.jobs[3].cancel()
    assert made.cancelled == [f"102_1 {ID}.1"]


def test_a_refusal_of_a_later_array_takes_the_first_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[str] = []
    with pytest.raises(SiteError, match="exceeds a limit"):
        Submitted(tmp_path, monkeypatch, cancelled, taken=2)
    assert cancelled == [f"101 {ID}.0", f"102 {ID}.1"]
    with pytest.raises(SiteError, match="not support job arrays"):
        Submitted(tmp_path, monkeypatch, most=0)


def test_a_point_has_ended_when_slurm_says_so_or_forgot_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(map_api.SlurmPoint, "watcher", map_api._Watcher(1))
    monkeypatch.setattr(map_api.SlurmPoint, "_results_timeout_s", 0)
    job = Submitted(tmp_path, monkeypatch).jobs[0]
    answers: dict[tuple[str, int], str] = {}

    def states(_: list[str]) -> dict[tuple[str, int], str]:
        if "silent" in answers.values():
            raise SlurmUnreachableError("silent")
        return answers

    monkeypatch.setattr(slurm, "task_states", states)
    for state in ("silent", "PENDING", "RUNNING", "REQUEUED", "TIMEOUT", "OUT_OF_MEMORY", "CANCELLED", "PREEMPTED", ""):
        with subtests.test(state=state):
            job.watcher.clear()
            answers.clear()
            answers.update({("101", 0): state} if state else {})
            ended = state not in ("silent", "PENDING", "RUNNING", "REQUEUED")
            assert job.done(force_check=True) == ended
            if ended:
                assert f"(state: {state or 'GONE'})" in str(job.exception())


LOCK = threading.Lock()


@pytest.mark.parametrize(("words", "options", "status", "said"), [
    ((3, [1]), {}, 64, "3 is not callable"),
    ((abs, [LOCK]), {}, 64, "A point cannot be pickled"),
    ((lambda x, _=LOCK: x, [1]), {}, 64, "The function cannot be pickled"),
    ((abs, [1]), {"at_once": 0}, 64, "at_once=0 is too small: no point could run"),
    ((abs, [1]), {"partitoin": "x"}, 64, "hpcml.map has no option 'partitoin'"),
    ((abs, [1]), {"image": "x.sif"}, 64, "hpcml.map has no option 'image'"),
    ((abs, [1]), {"time": "soon"}, 64, "'soon' is not a time"),
    ((abs, [1]), {"sbatch": "--nodes=2"}, 64, "hpcml sets --nodes itself"),
    ((abs, [1]), {"env": ["SECRET of mine"]}, 64, "The text is not a valid variable name"),
    ((abs, [1]), {"env": {"HPCML_X": "secret"}}, 64, "HPCML_X is reserved for hpcml"),
    ((abs, [1]), {"set": {"runtime.kind": "image", "runtime.image": "/x.sif"}}, 65, "hpcml.map cannot run inside an image"),
    ((abs, [1]), {"nodes": 2, "gpus_per_node": 1}, 65, "The local site has one machine"),
    ((abs, [1]), {"site": "nosuch"}, 78, ""),
])  # fmt: skip
def test_bad_input_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Any, options: dict[str, Any], status: int, said: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(errors.HpcmlError) as caught:
        hpcml.map(*words, **{"site": "local", **options})
    assert caught.value.exit_status == status
    assert str(caught.value).startswith(said)
    assert "ecret" not in str(caught.value)
    assert not (tmp_path / ".hpcml").exists()


def test_local_points_end_with_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    at_the_end: list[Any] = []

    class Executor:
        def __init__(self, *_: object, **__: object) -> None: ...

        def update_parameters(self, **_: object) -> None: ...

        def submit(self, _: object, point: int) -> Any:
            return SimpleNamespace(done=lambda: point == 2, cancel=lambda: ended.append(point))

    monkeypatch.setattr(map_api, "LocalExecutor", Executor)
    monkeypatch.setattr(atexit, "register", lambda function, *words: at_the_end.append((function, words)))
    inside = SimpleNamespace(gpus=0, job=SimpleNamespace(time_limit=0, nodes=1))
    made: Any = SimpleNamespace(directory=str(tmp_path / "map"), inside=inside)
    map_api.start_here(made, "", abs, [1, 2, 3], at_once=3, cpus=1)
    for function, words in at_the_end:
        function(*words)
    assert ended == [1, 3]
