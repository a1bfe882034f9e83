"""What is lost while the script runs: said once, for good only when nothing can come back, and never for a suspension."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from absences import absence_of
from hpcml.kinds.dask import KIND
from hpcml.kinds.dask.node.lost_workers import WORDS, Losses
from hpcml.node import process_helpers, shared_files
from hpcml.node.context import Context
from hpcml.node.job_steps import LAST_WORDS, Steps
from hpcml.node.process_helpers import MOST, OwnTime
from hpcml.paths import RunPaths
from node_settings import settings as settings_of
from tests.said import says


class Clock(OwnTime):
    """A clock that a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0


@pytest.fixture
def context(tmp_path: Path) -> Context:
    run = RunPaths(tmp_path)
    for folder in (run.attempt(0).nodes, run.attempt(0).exits, run.logs):
        folder.mkdir(parents=True)
    settings = settings_of(deadlines__workers=30.0, workers__per_node=2, job__one_machine=False)
    return Context(run, run.attempt(0), 0, settings, "n1", ("n1", "n2"))


def losses(context: Context, **facts: Any) -> Losses:
    return Losses(absence_of(context, KIND, WORDS, clock=Clock(), **facts))


def told(context: Context) -> list[dict[str, object]]:
    return [json.loads(line) for line in context.run.events.read_text().splitlines()]


def mark(context: Context, node: str, state: str) -> None:
    facts = {"refused": "", "failed": [], "deaths": {}, "state": state}
    shared_files.write_json(context.attempt.mark_of(node), facts)


def test_workers_that_the_script_retires_are_no_loss(context: Context) -> None:
    mark(context, "n2", "workers")
    names = context.worker_names("n2")
    present = {*context.worker_names("n1")}
    assert [node.node for node in losses(context).look(present)] == ["n2"]
    path = context.attempt.mark_of("n2")
    shared_files.write_json(path, {**(shared_files.read_json(path) or {}), "retired": list(names)})
    assert losses(context).look(present) == []
    (context.attempt.exits / "worker@n2").write_text("0\n")
    assert losses(context).look(present) == []


def test_a_node_whose_task_has_ended_is_told_once(context: Context, capsys: pytest.CaptureFixture[str]) -> None:
    mark(context, "n2", "workers")
    (context.attempt.exits / "worker@n2").write_text("137\n")
    found = losses(context)
    for _ in range(3):
        missing = found.look({"n1-0", "n1-1"})
        found.tell(missing)
    assert [node.final for node in missing] == [True]
    words = "n2 lost 2 workers permanently: the workers' parent process exited with status 137 (killed by SIGKILL); 2 of 4 workers are left."
    assert capsys.readouterr().out == f"{words}\n"
    assert [(event["event"], event["workers"]) for event in told(context)] == [("workers-lost", ["n2-0", "n2-1"])]


def test_a_task_that_is_started_again_is_told_and_not_lost(
    context: Context, capsys: pytest.CaptureFixture[str]
) -> None:
    mark(context, "n2", "starting")
    (context.attempt.exits / "killed@n2@1").write_text("137\n")
    found = losses(context)
    for _ in range(2):
        found.tell(found.look({"n1-0", "n1-1"}))
    assert (
        capsys.readouterr().out.count("n2: the workers' parent process was killed (exit status 137); it restarts") == 1
    )
    assert [event["event"] for event in told(context)] == ["worker-task-killed"]


def test_workers_that_stay_away_are_lost_after_the_deadline(context: Context) -> None:
    """As those of a node that lost its network: nothing says that they ended."""
    mark(context, "n2", "workers")
    found = losses(context)
    assert not found.look({"n1-0", "n1-1"})[0].final
    found.clock.seconds = 29.0
    assert not found.look({"n1-0", "n1-1"})[0].final
    found.clock.seconds = 31.0
    assert found.look({"n1-0", "n1-1"})[0].final
    assert found.look({"n1-0", "n1-1", "n2-0", "n2-1"}) == []
    assert not found.look({"n1-0", "n1-1"})[0].final  # they were back: counted anew


def test_a_step_that_is_gone_makes_every_node_final(context: Context) -> None:
    mark(context, "n1", "workers")
    mark(context, "n2", "workers")
    first, second = losses(context, gone={"worker"}).look(set())
    assert first.final
    assert second.final
    assert "the job step that runs the workers ended" in first.why


def test_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    step = subprocess.Popen(["sleep", "100"])
    monkeypatch.setenv("HPCML_STEPS", f"{os.getpid()} {step.pid}")
    steps = Steps(KIND, clock, tmp_path / "job.log")
    assert (steps.gone("worker"), steps.alive()) == (False, [os.getpid(), step.pid])
    step.kill()
    step.wait()
    assert (steps.gone("worker"), steps.alive()) == (False, [os.getpid()])  # its tasks' last words are awaited
    clock.seconds += LAST_WORDS + 0.1
    assert (steps.gone("worker"), steps.gone("scheduler")) == (True, False)


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("srun: error: Task launch for StepId=1.0 failed on node n2: Communication connection failure", ["n2"]),
        (
            "srun: Job step aborted: Waiting up to 12 seconds for job step to finish.\nsrun: error: n2: task 1: Killed",
            [],
        ),
        ("srun: error: n2: task 1: Killed", ["n2"]),
        ("srun: error: n[1-2]: tasks 0-1: Segmentation fault", ["n1", "n2"]),
        ("srun: error: n2: task 1: Exited with exit code 81", []),  # step.sh has written it
        ("srun: error: n[1-: task 1: Killed", []),
        ("srun: error: n2: task 1: Kil", []),  # no whole line yet
    ],
)
def test_a_task_that_srun_has_lost_does_not_come_back(context: Context, line: str, nodes: list[str]) -> None:
    """Its step.sh was killed, or never ran: nothing wrote an exit status. What srun kills itself later is no cause."""
    context.run.job_log.write_text("srun: error: n1: task 0: Killed\n")  # of an attempt before
    steps = Steps(KIND, Clock(), context.run.job_log)
    with context.run.job_log.open("a") as log:
        log.write(line if line.endswith("Kil") else f"{line}\n")
    for _ in range(2):
        assert sorted(steps.lost_tasks()) == nodes
    mark(context, "n2", "workers")
    missing = losses(context, tasks=steps.lost_tasks).look({"n1-0", "n1-1"})
    said = says("the workers started but did not register")
    if "n2" in nodes:
        said = f"the workers' parent process {'could not be launched' if 'launch' in line else 'was killed'} ({line})"
    assert [(node.node, node.final, node.why) for node in missing] == [("n2", "n2" in nodes, said)]


def test_a_zombie_and_a_pid_given_out_again_have_ended() -> None:
    child = subprocess.Popen(["true"])
    process = process_helpers.Process.named(child.pid)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not process.alive
    child.wait()
    assert not process_helpers.Process(os.getpid(), "1").alive
    assert process_helpers.Process.named(os.getpid()).alive


def test_a_suspension_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 100.5, 4000.0, 4001.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    clock = OwnTime()
    assert [clock.tick(), clock.tick(), clock.tick()] == [0.5, 0.5 + MOST, 1.5 + MOST]


def test_a_node_whose_agent_has_its_line_is_known_by_it_and_no_file_is_read(context: Context) -> None:
    """Neither what a file says of it, nor what step.sh would write when the agent had ended."""
    both = ("n1", "n2")
    mark(context, "n2", "starting")
    said = {"refused": "", "failed": [], "deaths": {}, "state": "workers", "memory": "it was large"}
    present = {"n1-0", "n1-1"}
    (missing,) = losses(context, connected=both, marks={"n2": said}).look(present)
    assert (missing.why, missing.memory) == (
        says("the workers started but did not register"),
        "it was large",
    )
    (context.attempt.exits / "worker@n2").write_text("137\n")
    found = losses(context, connected=both, marks={"n2": said})
    (missing,) = found.look(present)
    assert not missing.final
    opened: list[str] = []
    sys.addaudithook(
        lambda event, arguments: opened.append(str(arguments[0])) if event in ("open", "os.scandir") else None
    )
    found.look(present)
    assert [path for path in opened if str(context.run.directory) in path] == []
    (missing,) = losses(context, connected=("n2",), marks={"n2": said}).look(present)[-1:]
    assert missing.why == says("the workers started but did not register")
    (missing,) = losses(context, connected=("n1",), marks={"n2": said}).look(present)
    assert missing.final


@pytest.mark.parametrize(("facts", "why", "final"), [
    ({"lost": {"n2": "it closed the connection"}}, says("the connection to n2"), False),
    ({"lost": {"n2": "it closed the connection"}, "silent": {"n2"}}, "n2 has not answered for 600 s", True),
    ({"lost": {"n2": "x"}, "gone": {"worker"}, "silent": {"n2"}}, says("the job step that runs the workers ended"), True),
    ({"lost": {"n2": "x"}, "gone": {"worker"}, "marks": {"n2": {"refused": "it has no room", "own_fault": True}}}, "it has no room", True),
])  # fmt: skip
def test_a_lost_node_is_final_when_it_is_silent_for_long(context: Context, facts: Any, why: str, final: bool) -> None:
    (missing,) = losses(context, connected=("n1",), **facts).look({"n1-0", "n1-1"})
    assert (missing.why, missing.final) == (why, final)


def test_a_task_that_is_back_before_the_look_is_told_too(context: Context, capsys: pytest.CaptureFixture[str]) -> None:
    """Its line ended and came back; where none ended, the folder of exit statuses is not listed."""
    (context.attempt.exits / "killed@n2@1").write_text("137\n")
    found = losses(context, connected=("n1", "n2"))
    said = "n2: the workers' parent process was killed (exit status 137); it restarts with its workers (restart 1)."
    for ends, count in ((0, 0), (1, 1), (1, 0)):
        found.agents.ends = ends
        found.tell(found.look({"n1-0", "n1-1"}))
        assert capsys.readouterr().out.count(said) == count
