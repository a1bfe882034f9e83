"""What Slurm says of an allocation, what a request may say beside it, and the script that runs in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from hpcml import subprocesses
from hpcml.cli import hold, run, submit
from hpcml.errors import HpcmlError, SiteError, StorageError, UsageError
from hpcml.hold_queue import Part
from hpcml.options.parser import Parser
from hpcml.options.reading import request_of
from hpcml.paths import RunPaths
from hpcml.plan.make_plan import RunLocation, plan
from hpcml.request.record import NOT_SAID, Code, RunRequest
from hpcml.schedulers import JobState, existing_allocation, local
from hpcml.schedulers import hold as hold_scheduler
from hpcml.schedulers.existing_allocation import Allocation
from hpcml.sites.schema import Site, SlurmOptions
from hpcml.units import TimeLimit

if TYPE_CHECKING:
    from hpcml.runs.holds import Hold

SHOWN = (
    "JobId=291 JobName=x JobState=RUNNING EndTime=2026-11-22T22:44:52 NodeList=n[1-3] NumNodes=3 JOB_GRES=gpu:6 "
    "  Nodes=n[1-2] CPU_IDs=0-7 Mem=2048 GRES=gpu:2(IDX:0-1)   Nodes=n3 CPU_IDs=0-3,8 Mem=4096 GRES=gpu:a100:2(IDX:0-1) "
    "MinCPUsNode=8 TresPerNode=gres:gpu:2 \n"
)
GIVEN = Allocation("291", ("n1", "n2", "n3"), 5, 2048, 2, 0.0, ("a100",))


def test_what_scontrol_tells() -> None:
    end = time.mktime(time.strptime("2026-11-22T22:44:52", "%Y-%m-%dT%H:%M:%S"))
    assert existing_allocation.parse("291", SHOWN) == GIVEN._replace(end=end)
    assert existing_allocation.parse("291", SHOWN.replace("2026-11-22T22:44:52", "Unknown")).end == 0
    assert (
        existing_allocation.parse("291", SHOWN.replace("gpu:2(IDX:0-1)", "").replace("gpu:a100:2(IDX:0-1)", "")).gpus
        == 0
    )
    other = SHOWN.replace("JobId=291", "JobId=292").replace("n[1-3]", "n[7-9]")  # of the same array
    assert existing_allocation.parse("291", SHOWN + other) == existing_allocation.parse("291", SHOWN)


@pytest.mark.parametrize(("old", "new", "sentence"), [
    ("RUNNING", "COMPLETED", "its job is COMPLETED"),
    ("gpu:a100:2", "gpu:a100:4", "different numbers of GPUs: 2 and 4"),
    ("CPU_IDs", "Cpus", "names no nodes"),
])  # fmt: skip
def test_what_no_run_can_be_in(old: str, new: str, sentence: str) -> None:
    with pytest.raises(SiteError, match=sentence):
        existing_allocation.parse("291", SHOWN.replace(old, new))


@pytest.mark.parametrize(("variables", "sentence"), [
    ({}, "No allocation found"),
    ({"SLURM_JOB_ID": "291", "HPCML_RUN_DIR": "/runs/a"}, "inside another run"),
    ({"SLURM_JOB_ID": "291", "SLURM_STEP_NUM_TASKS": "4"}, "starts 4 processes of hpcml run"),
])  # fmt: skip
def test_where_no_run_can_begin(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], sentence: str) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=sentence):
        existing_allocation.current()


def spec(**asked: object) -> RunRequest:
    return RunRequest.of(Path("/home/alice/a.py"), (), Path("/home/alice")).changed(**asked)


@pytest.mark.parametrize(("asked", "sentence"), [
    ({"nodes": 4}, "--nodes requests 4, but the allocation has 3"),
    ({"gpus_per_node": 4}, "--gpus-per-node requests 4, but the allocation has 2"),
    ({"time": TimeLimit("5")}, "--time cannot change an existing allocation"),
    ({"sbatch": (("--constraint", "a"), ("--exclusive", ""))}, "--constraint cannot change"),
])  # fmt: skip
def test_what_the_allocation_does_not_have_is_refused(asked: dict[str, object], sentence: str) -> None:
    with pytest.raises(HpcmlError, match=sentence):
        run.fitted(spec(**asked), GIVEN)


def test_what_is_refused_in_a_hold_names_the_hold() -> None:
    with pytest.raises(HpcmlError, match="but the allocation has 2") as refused:
        run.fitted(spec(gpus_per_node=4), GIVEN, "hold-1")
    assert refused.value.place == "hold-1"


def test_what_the_script_s_lines_ask_for_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    lines = (("--nodes 8", "line 1 of a.py"), ("--account acc", "line 2 of a.py"), ("--constraint=a", "line 3 of a.py"))
    asked = spec(nodes=8, account="acc", sbatch=(("--constraint", "a"),), origins=lines)
    fitted = run.fitted(asked, GIVEN)
    assert (fitted.size.nodes, fitted.place.account, fitted.place.sbatch) == (3, "", ())
    said = capsys.readouterr().err
    assert "--nodes 8 (line 1 of a.py), --account acc (line 2 of a.py), --constraint=a (line 3 of a.py)" in said


def test_another_type_of_gpu_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The number alone would be met; in a script's own lines it is left out with a note."""
    asked = spec(gpus_per_node=2, gpu_type="h100")
    mixed = GIVEN._replace(gpu_types=("a100", "h100"))  # of which Slurm may choose the other
    for given, has in ((GIVEN, "a100"), (GIVEN._replace(gpu_types=()), "no type"), (mixed, "a100 and h100")):
        with pytest.raises(UsageError, match=f"h100.*{has}"):
            run.fitted(asked, given, "hold-1")
    assert run.fitted(asked.changed(gpu_type="a100"), GIVEN).size.gpus_per_node == 2
    line = ("--gpus-per-node=h100:2", "line 1 of a.py")
    assert run.fitted(asked.changed(origins=(line,)), GIVEN).size.gpu_type == ""
    assert "--gpus-per-node=h100:2 (line 1 of a.py)" in capsys.readouterr().err


def test_a_request_takes_all_that_is_there() -> None:
    fitted = run.fitted(spec(nodes=3, name="mine"), GIVEN._replace(end=time.time() + 630))
    assert (fitted.size.nodes, fitted.size.gpus_per_node, fitted.size.cpus_per_node, fitted.name) == (3, 2, 5, "mine")
    assert (int(fitted.size.memory_per_node), int(fitted.size.time)) == (2048 * 1024**2, 600)


@pytest.mark.parametrize(("gpus", "hidden"), [(0, True), (NOT_SAID, False)])
def test_the_steps_have_what_directives_would_have_said(gpus: int, hidden: bool) -> None:
    site = Site(
        name="slurm", scheduler="allocation", slurm=SlurmOptions(gpu_request="none" if hidden else "gpus-per-node")
    )
    asked = spec(gpus_per_node=gpus)
    made = plan(site, run.fitted(asked, GIVEN), RunLocation(Path("/scratch/runs/a-1"), "/usr/bin/python", "0"))
    assert made.directives == ()
    assert "export HPCML_ALLOCATION=1; cpus=5" in made.prologue
    for step in made.steps:
        assert step.launcher is not None
        assert {"--overlap", "--mem=2048M"} <= set(step.launcher.options)
        assert ("--gres=none" in step.launcher.options) is hidden
        assert ("--gpus-per-node=2" in step.launcher.options) is not hidden
        assert ('--nodelist="$HPCML_NODE_NAMES"' in step.launcher.shell) is ("--no-kill" in step.launcher.options)
        assert "--nodelist=" in step.launcher.shell
    assert made.inside.job.nodes == 3


def test_a_limit_that_was_put_off_is_not_near_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attempts/0").mkdir(parents=True)
    ending, asked = run._Ending.__new__(run._Ending), []  # whose signals stay those of pytest
    ending.paths, began = RunPaths(tmp_path), time.time()
    monkeypatch.setattr(run, "_LONGER", 0.1)

    def current() -> Allocation:
        asked.append((tmp_path / "attempts/0/time-limit").exists())
        return GIVEN._replace(end=began + 1.5)

    monkeypatch.setattr(existing_allocation, "current", current)
    ending._tell_of_the_limit(began + 1, 1.0)
    assert asked == [False, False], "the second look finds the same limit"
    assert (tmp_path / "attempts/0/time-limit").exists()


def test_a_process_that_has_the_pid_of_an_ended_run_gets_no_signal() -> None:
    with subprocess.Popen(["sleep", "300"]) as process:
        assert local.cancel(f"{process.pid} 1") == ""
        assert process.poll() is None
        assert local.cancel(f"{process.pid} {subprocesses.start_time(process.pid)}") == f"process {process.pid}"
        assert process.wait() == -signal.SIGTERM


@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "UNKNOWN"])
def test_a_run_whose_step_is_gone_has_ended(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its allocation goes on."""
    monkeypatch.setattr(existing_allocation, "_steps", lambda _: [("291.0", "there", "n1")])
    monkeypatch.setattr("hpcml.schedulers.slurm.states", lambda jobs: dict.fromkeys(jobs, JobState(state)))
    found = existing_allocation.states(["291 7 /runs/gone", "291 8 /runs/there"])
    assert (found["291 7 /runs/gone"].ended, found["291 8 /runs/there"].active) == (True, True)


def test_hpcml_run_ends_after_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the next line of a batch script would share the nodes with them."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as steps:
        submission = SimpleNamespace(pid=steps.pid, started=subprocesses.start_time(steps.pid))
        here = SimpleNamespace(submission=submission, paths=None)
        inside = SimpleNamespace(job=SimpleNamespace(signal_lead=60))
        monkeypatch.setattr(existing_allocation, "current", lambda: GIVEN)
        monkeypatch.setattr(existing_allocation, "other_steps", lambda _: [])
        monkeypatch.setattr(run, "fitted", lambda *_: None)
        monkeypatch.setattr(run, "prepare", lambda *_: SimpleNamespace(plan=SimpleNamespace(inside=inside)))
        monkeypatch.setattr(run, "_Ending", lambda: SimpleNamespace(begin=lambda *_: None))
        monkeypatch.setattr("hpcml.runs.submit.submit", lambda _: here)
        for name in ("script_spec", "tell_notes", "announce"):
            monkeypatch.setattr(submit, name, lambda *_, **__: None)
        monkeypatch.setattr(submit, "wait_for_end", lambda *_, **__: 7)
        monkeypatch.setattr("time.sleep", lambda _: steps.communicate())  # it has been waited for: it ends
        assert run.run(Namespace(dry_run=False, json=False, no_wait=False, detach=False, **{"in": None})) == 7
        assert steps.returncode == 0


# -- a part of a node of a hold ----------------------------------------------------------------------------------------

NODE = Part(4, 8, 3200)


def part_of(
    *words: str, nodes: tuple[str, ...] = ("n1",), cpus: int = 0, one_machine: bool = False, gpus: int = 4
) -> tuple[Part, ...]:
    """Return the part of a node that options of the command line ask for, in a hold of one node."""
    options = Parser(prog="run")
    run.add_options(options)
    spec = request_of(vars(options.parse_args(list(words))), Code(Path("/x/a.py")))
    inside = SimpleNamespace(job=SimpleNamespace(one_machine=one_machine))
    kept = SimpleNamespace(
        allocation=Allocation("1", ("n1",), NODE.cpus, NODE.memory, gpus, 0.0),
        run=SimpleNamespace(id="hold-1"),
        record=SimpleNamespace(plan=SimpleNamespace(inside=inside, cpus=cpus)),
        status=SimpleNamespace(allocation=SimpleNamespace(nodes=nodes)),
    )
    return hold.part_of(spec, cast("Hold", kept))


def test_a_run_takes_the_share_of_a_node_that_its_gpus_or_cpus_are() -> None:
    assert part_of("--gpus-per-node", "1") == (Part(1, 2, 800), NODE)
    assert part_of("--gpus-per-node", "3", "--cpus-per-node", "1", "--mem", "1G") == (Part(3, 1, 1024), NODE)
    assert part_of("--gpus-per-node", "0", "--cpus-per-node", "2") == (Part(0, 2, 800), NODE)
    assert part_of("--memory-per-node", "1600M", gpus=0) == (Part(0, 4, 1600), NODE._replace(gpus=0))
    assert part_of("--gpus-per-node", "4") == part_of("--gpus-per-node", "0") == part_of() == ()
    assert part_of("--gpus-per-node", "1", one_machine=True) == ()
    for words, kind in (
        (("--gpus-per-node", "1", "--nodes", "2"), UsageError),
        (("--gpus-per-node", "1", "--cpus-per-node", "9"), UsageError),
        (("--cpus-per-node", "2"), UsageError),  # and no word of GPUs
    ):
        with pytest.raises(kind):
            part_of(*words)
    assert part_of("--gpus-per-node", "1", nodes=(), cpus=8) == (Part(1, 2, 800), NODE)  # as the hold asked for
    with pytest.raises(SiteError):
        part_of("--gpus-per-node", "1", nodes=())


def test_parts_fit_beside_each_other_until_one_amount_is_used_up() -> None:
    quarter = Part(1, 2, 800)
    assert quarter.fits([quarter] * 3, NODE)
    assert not quarter.fits([quarter] * 4, NODE)
    assert not Part(1, 2, 801).fits([quarter] * 3, NODE)
    assert not Part(0, 3, 1).fits([quarter] * 3, NODE)


def test_a_run_that_does_not_get_into_the_hold_leaves_nothing_there(tmp_path: Path) -> None:
    """The entry has the variables of the user's shell."""
    kept, run_paths = RunPaths(tmp_path / "hold-1"), RunPaths(tmp_path / "a-1")
    kept.hold.mkdir(parents=True)
    run_paths.directory.mkdir()
    run_paths.plan.write_text(json.dumps({"inside": {}, "hold": str(kept.directory)}))
    with pytest.raises(SiteError, match="takes no further run"):  # as when it ends at the same moment
        hold_scheduler.HERE.submit(Site(name="local"), run_paths)
    assert [*kept.hold.iterdir()] == []
    kept.queue.write_text("")  # as what cannot be written to
    with pytest.raises(StorageError):
        hold_scheduler.HERE.submit(Site(name="local"), run_paths)
    assert [*kept.hold.iterdir()] == [kept.queue]


def test_a_run_whose_job_step_slurm_does_not_start_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a step of the user's has the node; the hold's own bookkeeping says that the node is free."""
    kept, run = RunPaths(tmp_path / "hold-1"), RunPaths(tmp_path / "run-1")
    kept.held.mkdir(parents=True)
    run.directory.mkdir()
    entry = kept.held / "run-1"
    entry.touch()
    job = f"5\n{kept.directory}\n{run.directory}"
    monkeypatch.setattr(hold_scheduler.IN_JOB, "of_holds", SimpleNamespace(states=lambda _: {"5": JobState("RUNNING")}))
    assert hold_scheduler.IN_JOB.states([job])[job] == JobState("RUNNING")
    os.utime(entry, (time.time() - 60,) * 2)
    state = hold_scheduler.IN_JOB.states([job])[job]
    assert (state.pending, "hold-1" in state.reason) == (True, True)
    (run.directory / "attempts").mkdir()
    assert hold_scheduler.IN_JOB.states([job])[job].active
    entry.unlink()
    assert hold_scheduler.IN_JOB.states([job])[job].state == "UNKNOWN"
