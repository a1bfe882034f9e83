"""``hpcml.map``: how many tasks an array has, what is asked of Slurm for a point, and when one has ended."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import hpcml
from hpcml import errors
from hpcml.errors import SiteError, SlurmUnreachableError
from hpcml.map_jobs import jobs as point_jobs
from hpcml.map_jobs.call import Call
from hpcml.plan import plan
from hpcml.request import record as request
from hpcml.schedulers import Submission, slurm, slurm_arrays
from hpcml.sites import schema
from hpcml.subprocesses import Answer
from matrix import site_of

# of a Slurm 22.05, `scontrol show config`
CONFIG = """Configuration data as of 2026-11-23T09:00:00
MaxArraySize            = {size}
MaxDBDMsgs              = 20008
MaxJobCount             = 10000
SchedulerParameters     = {parameters}
SchedulerType           = sched/backfill
"""
SITE = {
    "scheduler": "slurm",
    "name": "two",
    "defaults": {"partition": "gpu", "account": "mine"},
    "slurm": {"extra": ["--requeue", "--constraint=fast"], "srun_extra": ["--mpi=none"]},
    "partitions": {"gpu": {"gpus_per_node": 4, "qos": "gpuqos", "memory_per_node": "100G"}},
}


def site() -> schema.Site:
    return site_of(SITE)


def answer(text: str, code: int = 0, err: str = "") -> Answer:
    return Answer(code, text, err)


@pytest.mark.parametrize(("size", "parameters", "most"), [
    ("1001", "(null)", 1001),
    ("10", "bf_interval=30,max_array_tasks=20", 10),
    ("100000", "max_array_tasks=500,bf_interval=30", 500),
    ("0", "(null)", 0),
])  # fmt: skip
def test_an_array_is_as_large_as_slurm_says(
    monkeypatch: pytest.MonkeyPatch, size: str, parameters: str, most: int
) -> None:
    monkeypatch.setattr(slurm, "ask", lambda _: answer(CONFIG.format(size=size, parameters=parameters)))
    assert slurm_arrays.most_tasks() == most


def test_without_scontrol_an_array_is_as_large_as_slurm_s_default_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: list[str]) -> Answer:
        raise SlurmUnreachableError("there is no scontrol")

    for ask in (missing, lambda _: answer("", 1, "scontrol: error")):
        monkeypatch.setattr(slurm, "ask", ask)
        assert slurm_arrays.most_tasks() == 1000


def test_no_array_is_too_large_and_no_point_is_left_out() -> None:
    assert [list(one) for one in point_jobs.none_too_large(5, 2)] == [[0, 1], [2, 3], [4]]
    assert point_jobs.none_too_large(4, 4) == [range(4)]
    with pytest.raises(SiteError, match="no job arrays"):
        point_jobs.none_too_large(4, 0)


def test_tasks_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def ask(command: list[str]) -> Answer:
        asked.append(command)
        own, other = "hpcml:f-20261123-090000-abcd.0", "hpcml:f-20261123-090000-abcd.1"
        return answer(
            f"12|0|RUNNING|{own}\n12|1|PENDING|{own}\n13|0|TIMEOUT|{other}\n13|1|RUNNING|(null)\n14|N/A|RUNNING\nnoise\n"
        )

    monkeypatch.setattr(slurm, "ask", ask)
    run = "f-20261123-090000-abcd"
    assert slurm_arrays.states([f"12 {run}.0", f"13 {run}.1"]) == {
        ("12", 0): "RUNNING",
        ("12", 1): "PENDING",
        ("13", 0): "TIMEOUT",
    }
    assert len(asked) == 1


def test_a_job_that_slurm_forgot_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(command: list[str]) -> Answer:
        return answer("13|4|RUNNING\n") if "--jobs=13" in command else answer("", 1, "Invalid job id specified")

    monkeypatch.setattr(slurm, "ask", ask)
    assert slurm_arrays.states(["12", "13"]) == {("13", 4): "RUNNING"}
    monkeypatch.setattr(slurm, "ask", lambda _: answer("", 1, "Unable to contact slurm controller"))
    with pytest.raises(SlurmUnreachableError):
        slurm_arrays.states(["12"])


class Submitted:
    """Points on a Slurm that takes the first arrays and refuses the others."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, taken: int = 9, **asked: Any) -> None:
        self.scripts: list[str] = []
        self.taken = taken
        monkeypatch.setattr(slurm, "submit", self.submit)
        spec = request.RunRequest.of(Path("f"), (), Path("/"), name="f", service="map", **{"nodes": 1, **asked})
        runs = []
        for number, array in enumerate(point_jobs.none_too_large(5, 2)):
            place = plan.RunLocation(folder / f"f-20261123-090000-abcd.{number}", "/usr/bin/python3", "0")
            runs.append((plan.plan(site(), spec, place), array))
        self.jobs = point_jobs.SlurmJobs(site(), runs, "#!/bin/bash\n", 1)
        self.jobs.submit(Call(abs), range(5))

    def submit(self, _: schema.Site, run: Any) -> Submission:
        if len(self.scripts) == self.taken:
            raise SiteError("beyond a limit of the QoS")
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
              "--constraint=fast", "--no-requeue", "--array=0-1%1", "--comment=hpcml:f-20261123-090000-abcd.0"}  # fmt: skip
    asked = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")}
    assert wanted <= asked
    assert not [option for option in asked if option.startswith(("--requeue", "--signal"))]
    srun = lines[-1]
    assert srun.startswith("exec srun ")
    for word in ("--mpi=none", "--nodes=2", "--ntasks=2", "--gpu-bind=none", "-m submitit.core._submit"):
        assert word in srun
    assert len(made.jobs.tasks[3].results) == 2
    folder = tmp_path / "f-20261123-090000-abcd.1"
    assert made.jobs.tasks[3].results[1] == folder / "102_1_1_result.pkl"
    assert (folder / "102_1_submitted.pkl").exists()


def test_what_slurm_refuses_after_the_first_array_is_told_by_its_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Submitted(tmp_path, monkeypatch, taken=1)
    assert sorted(made.jobs.tasks) == [0, 1]
    assert [type(made.jobs.problem(number)) for number in (2, 3, 4)] == [SiteError] * 3
    (none := tmp_path / "none").mkdir()
    with pytest.raises(SiteError, match="beyond a limit"):
        Submitted(none, monkeypatch, taken=0)


def test_a_point_has_ended_when_slurm_says_so_or_forgot_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    jobs = Submitted(tmp_path, monkeypatch).jobs
    monkeypatch.setattr(point_jobs, "_LATE", -1.0)
    monkeypatch.setattr(slurm_arrays, "accounted", lambda *_: "NODE_FAIL")
    answers: dict[str, Any] = {}

    def states(_: list[str]) -> dict[tuple[str, int], str]:
        if "error" in answers:
            raise SlurmUnreachableError("silent")
        return dict(answers["states"])

    monkeypatch.setattr(slurm_arrays, "states", states)
    for state, exit_status in (
        ("PENDING", None),
        ("RUNNING", None),
        ("REQUEUED", None),
        ("TIMEOUT", errors.TIME_LIMIT),
        ("OUT_OF_MEMORY", 137),
        ("CANCELLED", errors.CANCELLED),
        ("PREEMPTED", errors.PREEMPTED),
        ("", errors.ALLOCATION_LOST),
        ("silent", None),
    ):
        with subtests.test(state=state):
            answers.clear()
            answers.update({"error": True} if state == "silent" else {"states": {("101", 0): state} if state else {}})
            jobs.ask_at = 0.0
            jobs.begin([0])
            problem = jobs.problem(0)
            assert (problem.exit_status if problem else None) == exit_status
            if problem:
                assert (state or "NODE_FAIL") in problem.message


def test_a_point_that_was_cancelled_before_it_began_never_begins(tmp_path: Path) -> None:
    spec = request.RunRequest.of(Path("f"), (), Path("/"), name="f", service="map", nodes=1)
    made = plan.plan(schema.Site(), spec, plan.RunLocation(tmp_path, "/usr/bin/python3", "0"))
    jobs = point_jobs.LocalJobs(made, "", 1, 0)
    jobs.submit(Call(abs), [1])
    jobs.cancel(0)
    jobs.begin([0])
    assert (jobs.tasks, jobs.free) == ({}, [0])


LOCK = threading.Lock()


@pytest.mark.parametrize(("words", "options", "status", "said"), [
    ((3, [1]), {}, 64, "3 cannot be called"),
    ((abs, [LOCK]), {}, 64, "A point cannot be pickled"),
    ((lambda x, _=LOCK: x, [1]), {}, 64, "The function cannot be pickled"),
    ((abs, [1]), {"at_once": 0}, 64, "at_once=0 lets no point run"),
    ((abs, [1]), {"partitoin": "x"}, 64, "hpcml.map has no option 'partitoin'"),
    ((abs, [1]), {"image": "x.sif"}, 64, "hpcml.map has no option 'image'"),
    ((abs, [1]), {"until_done": True}, 64, "hpcml.map has no option 'until_done'"),
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


def test_without_submitit_one_sentence_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(errors.HpcmlError) as caught:
        hpcml.map(abs, [1], site="local")
    assert str(caught.value) == "hpcml.map needs submitit (submitit).\nInstall it: pip install 'hpcml[sweep]'."
