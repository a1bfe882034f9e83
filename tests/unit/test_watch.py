"""What is told of a run, from its own files and from what Slurm says of its job: no more than is known."""

from __future__ import annotations

import io
import itertools
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from hpcml import errors, kinds, schedulers
from hpcml.cli import ls
from hpcml.cli.status import show as show_status
from hpcml.cli.waiting_display import Progress
from hpcml.failures import stack_groups
from hpcml.failures.end import End
from hpcml.failures.stack_groups import Frame, Process, grouped, wait_sentence, waits
from hpcml.kinds.dask import KIND
from hpcml.node.context import Context
from hpcml.node.events_and_end import EventLog, write_status
from hpcml.node.run_state import RunState
from hpcml.paths import RunPaths
from hpcml.runs import directories, top_view, waiting, why
from hpcml.runs import status as run_status
from hpcml.runs.stacks import Answer as StacksAnswer
from hpcml.schedulers import JobState, Submission
from hpcml.states import Wait
from node_settings import settings
from tests.said import says

UP = ("allocated", "scheduler-up", "environment-ready", "worker-added")
FACTS: dict[str, dict[str, Any]] = {
    "allocated": {"nodes": ["n1"]},
    "scheduler-up": {"protocol": "tls", "because": "CPU workers", "security": "mutual TLS"},
    "environment-ready": {"words": "3 roles"},
    "worker-added": {"count": 1},
    "time-limit-near": {"seconds": 5},
    "workers-silent": {"since": {"n4": 100}},
    "interconnect-checked": {"line": "TCP on eth0", "ok": True, "problem": ""},
}


@pytest.fixture
def run(tmp_path: Path) -> directories.Run:
    directory = tmp_path / "a-20261121-074500-1a2b"
    directory.mkdir(mode=0o700)
    inside = {"job": {"nodes": 1}, "workers": {"per_node": 1}}
    directories.write_json(directory / "plan.json", {"site": "lab", "inside": inside})
    directories.write_json(directory / "submission.json", {"site": "lab", "job": "12"})
    (directory / "attempts/0/exit").mkdir(parents=True)
    (directory / "logs").mkdir()
    return directories.load(directory)


def diary(run: directories.Run, *names: str) -> None:
    with run.paths.events.open("a") as file:
        for name in names:
            file.write(json.dumps({"event": name, "time": 100.0, "attempt": 0, **FACTS.get(name, {})}) + "\n")


def shown(status: run_status.Status) -> str:
    out = io.StringIO()
    Progress(out, {}).show(status)
    return out.getvalue()


def test_a_run_whose_files_change_is_looked_at_sooner(run: directories.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now = itertools.count(100.0, 0.0)
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: next(now))
    monkeypatch.setattr(waiting, "time", clock)
    pace = waiting._Pace()
    pace.sleep([1])
    now = itertools.count(100.0 + waiting.SETTLED, 0.0)
    pace.sleep([1])
    pace.sleep([2])
    assert slept == [waiting.SOON, waiting.LOOK, waiting.SOON]
    assert waiting.SOON < waiting.LOOK


def test_a_check_of_the_wire_is_told_only_where_there_is_one(run: directories.Run) -> None:
    """Runs of CPU workers over TLS check nothing."""
    diary(run, *UP, "workers-ready")
    status = run_status.status(run, ask=False)
    assert status.message == "the script starts"
    assert "interconnect" not in shown(status)
    diary(run, "interconnect-checking")
    status = run_status.status(run, ask=False)
    assert status.message == "checking the interconnect"
    assert "· interconnect checking the interconnect" in shown(status)
    diary(run, "interconnect-checked")
    status = run_status.status(run, ask=False)
    assert (status.message, status.cluster.interconnect) == ("the script starts", "TCP on eth0")
    assert "checking the" not in shown(status)


def test_the_time_limit_is_near_for_a_script_that_can_learn_of_it(run: directories.Run) -> None:
    """Nothing reaches a script that does not use hpcml.run."""
    diary(run, *UP, "workers-ready", "script-started", "time-limit-near")
    assert run_status.status(run, ask=False).hint == says("5s", "uses hpcml.run")


def test_an_interconnect_that_an_earlier_version_called_fabric(
    run: directories.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FACTS, "fabric-checked", FACTS["interconnect-checked"])
    diary(run, *UP, "workers-ready", "fabric-checking", "fabric-checked")
    status = run_status.status(run, ask=False)
    assert "✓ interconnect TCP on eth0" in shown(status)
    table = status.as_json()
    assert table["interconnect"] == table["fabric"] == "TCP on eth0"
    assert table["interconnect_ok"] is table["fabric_ok"] is True
    assert {"interconnect-checked", "fabric-checked"} <= table["times"].keys()  # type: ignore[attr-defined]


def test_a_silent_worker_is_told_with_its_seconds(run: directories.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 165.4)
    diary(run, *UP, "workers-ready", "script-started", "workers-silent")
    status = run_status.status(run, ask=False)
    assert status.silences() == ("n4: a worker sent no heartbeat for 65 s",)
    assert top_view.view(status, top_view.Reader(kinds.get("dask")).look(run, 0), 165.4).warnings == status.silences()
    assert why.of_status(run, status).warnings[-1].text == status.silences()[0]
    with run.paths.events.open("a") as file:
        file.write('{"event": "workers-silent", "time": 166, "attempt": 0, "since": {}}\n')
    assert run_status.status(run, ask=False).silences() == ()


def rank_at(number: int, line: int) -> Process:
    frame = Frame("train.py", line, "<module>", "")
    return Process(f"n{1 + number // 4}", 70 + number, f"rank {number}", False, "python", "py-spy", "", ((frame,),))


RANKS = grouped([*(rank_at(number, 30) for number in range(8) if number != 3), rank_at(3, 22)])


@pytest.fixture
def ranks(run: directories.Run, monkeypatch: pytest.MonkeyPatch) -> directories.Run:
    """Return a run of eight ranks of which none uses a CPU since second 100; now it is second 183."""
    monkeypatch.setattr(time, "time", lambda: 183.4)
    monkeypatch.setattr("hpcml.runs.stacks.ask", lambda *_: StacksAnswer(tuple(RANKS), ()))
    inside = {"kind": "ranks", "job": {"nodes": 2}, "workers": {"per_node": 4}}
    directories.write_json(run.paths.plan, {"site": "lab", "inside": inside})
    events: tuple[tuple[str, dict[str, Any]], ...] = (
        ("allocated", {"nodes": ["n1", "n2"]}),
        ("script-started", {}),
        ("ranks-idle", {"since": 100.0}),
    )
    for name, facts in events:
        with run.paths.events.open("a") as file:
            file.write(json.dumps({"event": name, "time": 160.0, "attempt": 0, **facts}) + "\n")
    return run


def test_ranks_of_which_none_uses_a_cpu_are_told_with_the_one_they_wait_for(ranks: directories.Run) -> None:
    """A deadlock is told while the run lives; a busy loop is none."""
    status = run_status.status(ranks, ask=False)
    assert status.cluster.idle_since == 100
    assert status.silences() == (f"no rank has used a CPU for 83 s: hpcml stacks {ranks.id} shows where",)
    answer = why.of_status(ranks, status)
    wait = "7 ranks wait at train.py:30 <module>, for rank 3 (n1) at train.py:22 <module>"
    assert answer.cause == f"the script runs, with 0 of 8 ranks, but no rank has used a CPU for 1:23: {wait}"
    assert answer.next_step == says(f"hpcml stacks {ranks.id}", f"hpcml cancel {ranks.id}", "script")
    assert not answer.failed
    waiting: Any = answer.as_json()["waiting"]
    assert [(one["place"], len(one["ranks"])) for one in waiting] == [("at train.py:30 <module>", 7), ("at train.py:22 <module>", 1)]  # fmt: skip
    with ranks.paths.events.open("a") as file:
        file.write('{"event": "ranks-idle", "time": 183, "attempt": 0, "since": 0.0}\n')
        file.write(json.dumps({"event": "ranks-left", "time": 184, "attempt": 0, "count": 1}) + "\n")
    status = run_status.status(ranks, ask=False)
    assert (status.silences(), why.of_status(ranks, status).cause) == ((), "the script runs, with 1 of 8 ranks")


def test_a_run_that_nobody_may_ask_is_told_as_idle_all_the_same(
    ranks: directories.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> NoReturn:
        raise errors.StorageError("The request cannot be written")

    monkeypatch.setattr("hpcml.runs.stacks.ask", ask)
    answer = why.of_status(ranks, run_status.status(ranks, ask=False))
    assert answer.cause.endswith("no rank has used a CPU for 1:23")
    assert answer.warnings[-1].text == "The request cannot be written"


@pytest.mark.parametrize("is_idle", [True, False])
def test_at_the_time_limit_a_deadlock_gets_no_more_time(
    ranks: directories.Run, monkeypatch: pytest.MonkeyPatch, is_idle: bool
) -> None:
    monkeypatch.setattr("hpcml.failures.stack_groups.kept", lambda *_: RANKS)
    if not is_idle:
        with ranks.paths.events.open("a") as file:
            file.write('{"event": "ranks-idle", "time": 183, "attempt": 0, "since": 0.0}\n')
    end = End(errors.TIME_LIMIT, "job", "scheduler", "the time limit was reached", ended_as="TIMEOUT", over=True)
    status = run_status._with_end(run_status.status(ranks, ask=False), end)
    answer = why.of_status(ranks, status)
    assert ("for rank 3 (n1)" in answer.cause, "more time" in answer.next_step or "--time" in answer.next_step) == (
        is_idle,
        not is_idle,
    ), answer
    assert answer.evidence[0].text.startswith("7 processes at train.py:30")


@pytest.mark.parametrize(("asked_at", "is_shown"), [(150, True), (90, False), (0, False)])
def test_a_cancelled_run_has_the_stacks_that_were_taken_while_it_was_idle(
    ranks: directories.Run, monkeypatch: pytest.MonkeyPatch, asked_at: int, is_shown: bool
) -> None:
    monkeypatch.setattr("hpcml.failures.stack_groups.kept", lambda *_: RANKS)
    if asked_at:
        request = ranks.paths.attempt(0).stacks_request
        request.parent.mkdir(parents=True, exist_ok=True)
        request.touch()
        os.utime(request, (asked_at, asked_at))
    end = End(errors.CANCELLED, "script", "hpcml", "the run was cancelled", over=True)
    answer = why.of_status(ranks, run_status._with_end(run_status.status(ranks, ask=False), end))
    assert ("for rank 3 (n1)" in answer.cause, "train.py:22" in str(answer.evidence)) == (is_shown, is_shown), answer


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([30, 30, 22], "train.py:22"), ([5], "train.py:5"), ([5, 5], "train.py:5"),
        ([5, 6], ""), (list(range(5, 14)), ""), ([15, 18, 18, 21], ""), ([18] * 6 + [15, 21], ""), ([18] * 5 + [21] * 3, ""),
    ],
)  # fmt: skip
def test_the_next_step_of_an_end_for_idleness_names_a_line_only_if_the_guilty_rank_is_there(
    ranks: directories.Run, monkeypatch: pytest.MonkeyPatch, lines: list[int], named: str
) -> None:
    groups = grouped(rank_at(number, line) for number, line in enumerate(lines))
    monkeypatch.setattr("hpcml.failures.stack_groups.kept", lambda *_: groups)
    end = End(errors.IDLE, "script", "hpcml", "no rank used a CPU for 15 s", "hpcml why", over=True)
    answer = why.of_status(ranks, run_status._with_end(run_status.status(ranks, ask=False), end))
    assert [line for line in map("train.py:{}".format, sorted({*lines})) if line in answer.next_step] == [named] * bool(named)  # fmt: skip
    assert "hpcml why" not in answer.next_step
    assert named or "evidence" in answer.next_step
    places = len({*lines})
    assert len([line for line in answer.evidence if "train.py" in line.text]) == min(places, 6)
    assert places <= 6 or answer.evidence[-1].text == says("6 of", f" {places} groups"), "none is left out silently"


def test_a_file_s_name_with_a_comma_is_a_line_to_correct() -> None:
    found = (stack_groups.Wait("at a,b.py:3 f, which called c.py:4 g", ("rank 0", "rank 1"), "a,b.py:3 f"),)
    assert stack_groups.place_to_check(found) == "Look at a,b.py:3 f."


def test_ranks_that_wait_outside_the_user_s_code_have_no_lines_to_compare() -> None:
    of_program = stack_groups.Wait("without a Python stack: state S, in futex", ("rank 0", "rank 1"))
    of_script = stack_groups.Wait("at a.py:3 f", ("rank 2", "rank 3"), "a.py:3 f")
    assert "lines" not in stack_groups.place_to_check([of_program])
    assert "lines" in stack_groups.place_to_check([of_program, of_script])


@pytest.mark.parametrize(("lines", "sentence"), [
    ([5, 5], "all 2 ranks wait at train.py:5 <module>"), ([5, 6], ""), ([5], ""), ([], ""), ([5, 5, 6, 6], ""),
    ([5] * 10 + [7] * 5, "10 ranks wait at train.py:5 <module>, for rank 10 (n3), rank 11 (n3), rank 12 (n4) and 2 more at train.py:7 <module>"),
    ([5] * 9 + [7] * 5, ""), ([5] * 6 + [6, 7], ""),
])  # fmt: skip
def test_which_rank_the_others_wait_for(lines: list[int], sentence: str) -> None:
    """Only where few are at one place and all others at one other."""
    found = waits(grouped(rank_at(number, line) for number, line in enumerate(lines)))
    assert wait_sentence(found) == sentence


def test_the_keys_of_a_status_for_programs() -> None:
    assert " ".join(sorted(run_status.Status("r").as_json())) == (
        "address ahead at_fault attempt blocked_on brought by cause clocks command cut_short differences directory estimate exit_status expected fabric fabric_ok has_cluster hint hold idle_since in_image interconnect interconnect_ok job job_state "
        "jupyter killed_ranks kind log log_begin lost_nodes memory_limit message node node_count nodes not_ahead not_brought original others phase points protocol quote rank reason repairs role run seconds seconds_before security service services setup_warnings silent silent_workers site staging "
        "state times versions wait warnings workers"
    )


def test_repairs_are_in_the_record_and_in_the_log_those_that_are_off(
    run: directories.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """UCX's release is that which the node's probe found loaded."""
    attempt = run.paths.attempt(0)
    context: Any = SimpleNamespace(run=run.paths, number=0, node="n1", attempt=attempt, settings=settings())
    attempt.probe_of("n1").parent.mkdir(parents=True)
    attempt.probe_of("n1").write_text('{"ucx": {"version": "1.18.0"}}')
    state = RunState(context, KIND, EventLog(run.paths.events, 0), tmp_path)
    state.note_repairs({"distributed": "2026.7.1", "ucx": "1.21.0"})
    off = "repair dead_worker_memory is off: it was tested with ucx ==1.21.0, not with 1.18.0"
    assert run.paths.job_log.read_text() == f"hpcml: {off}.\n"
    status = run_status.status(run, ask=False)
    states = {name: row["state"] for name, row in status.progress.repairs.items()}
    assert status.as_json()["repairs"] == status.progress.repairs
    assert states == {"closing": "applied", "switching": "applied", "dead_worker_memory": "untried"}
    show_status(run, as_json=False, all_notes=False, host="")
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("repair ")] == [
        f"repair     {off.removeprefix('repair ')}"
    ]


def test_the_time_of_attempts_before_is_kept(run: directories.Run) -> None:
    """The table of runs shows the time of all attempts, as they are paid."""
    for attempt, (begin, end) in enumerate(((100, 160), (200, 243), (300, 320))):
        with run.paths.events.open("a") as file:
            for name, at in (("allocated", begin), ("script-started", begin + 5), ("torn-down", end)):
                file.write(json.dumps({"event": name, "time": at, "attempt": attempt, "nodes": ["n1"]}) + "\n")
    status = run_status.status(run, ask=False)
    assert (status.progress.attempt, status.progress.seconds_before) == (2, 103)
    ended = status.changed(phase="ended", exit_status=0, ended_as="COMPLETED")
    assert (ended.seconds(), ls.cells(ended, 1000.0)[ls.HEADER.index("TIME")]) == (20, "2:03")


@pytest.mark.parametrize("status", [errors.STORAGE, errors.START_FAILED, 1])
def test_the_batch_script_s_own_end_is_told_by_its_exit_status(
    run: directories.Run, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a folder that is another's now, into which it writes nothing; its log is quoted and not read."""
    monkeypatch.setattr(schedulers, "end", lambda _: schedulers.JobEnd(exit_status=status))
    run.paths.job_log.write_text("missing, or not yours: /work/me/runs/a")
    found = run_status.status(run, JobState("FAILED"))
    expected = errors.ALLOCATION_LOST if status == 1 else status
    assert (found.state, found.exit_status) == ("FAILED", expected)
    assert found.ending.quote == ("missing, or not yours: /work/me/runs/a",)


@pytest.mark.parametrize(("facts", "state"), [
    ({"phase": "refused", "exit_status": errors.REFUSED}, "REFUSED"), ({"phase": "queued"}, "PENDING"), ({"phase": "ending"}, "RUNNING"),
    ({"exit_status": 137, "ended_as": "FAILED", "job_state": "OUT_OF_MEMORY"}, "OUT_OF_MEMORY"),
    ({"exit_status": 0, "ended_as": "COMPLETED", "job_state": "OUT_OF_MEMORY"}, "COMPLETED"),
])  # fmt: skip
def test_the_state_is_slurm_s_word(facts: dict[str, Any], state: str) -> None:
    assert run_status.Status.of("r", "lab", **{"phase": "ended", **facts}).state == state


@pytest.mark.parametrize(("exit_status", "by", "ended_as", "state"), [
    (0, "script", "", "COMPLETED"), (3, "script", "", "FAILED"), (0, "script", "CANCELLED", "CANCELLED"),
    (errors.ALLOCATION_LOST, "hpcml", "", "FAILED"), (errors.TIME_LIMIT, "script", "", "FAILED"), (errors.TIME_LIMIT, "scheduler", "", "TIMEOUT"),
    (errors.CANCELLED, "user", "", "CANCELLED"), (errors.PREEMPTED, "scheduler", "", "PREEMPTED"),
    (errors.ROLE_LOST, "hpcml", "", "FAILED"), (errors.ALLOCATION_LOST, "scheduler", "", "NODE_FAIL"),
    (137, "script", "OUT_OF_MEMORY", "OUT_OF_MEMORY"), (137, "script", "", "FAILED"),
])  # fmt: skip
def test_what_the_nodes_write_is_slurm_s_word(
    run: directories.Run, exit_status: int, by: str, ended_as: str, state: str
) -> None:
    end = End(exit_status, "script", by, "it ended", ended_as=ended_as)
    write_status(end, cast("Context", SimpleNamespace(run=run.paths, number=0)))
    assert run_status.status(run, ask=False).state == state


@pytest.mark.parametrize(("word", "exit_status", "state"), [
    ("NODE_FAIL", errors.ALLOCATION_LOST, "NODE_FAIL"), ("BOOT_FAIL", errors.ALLOCATION_LOST, "NODE_FAIL"),
    ("FAILED", errors.ALLOCATION_LOST, "FAILED"), ("OUT_OF_MEMORY", 137, "OUT_OF_MEMORY"),
    ("DEADLINE", errors.TIME_LIMIT, "TIMEOUT"), ("CANCELLED", errors.CANCELLED, "CANCELLED"),
])  # fmt: skip
def test_an_end_that_slurm_alone_tells(run: directories.Run, word: str, exit_status: int, state: str) -> None:
    found = run_status.status(run, JobState(word))
    assert (found.state, found.exit_status) == (state, exit_status)


def test_the_next_job_took_the_place_of_the_one_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = directories.Run("job-1", RunPaths(tmp_path), Submission(job="7", requeue=True))
    run.paths.job.symlink_to("7")
    run.paths.next_job.symlink_to("8")

    def state(of: Submission) -> JobState:
        if of.job == "7":  # its batch script ends while Slurm is asked
            run.paths.next_job.rename(run.paths.job)
        return JobState({"7": "COMPLETED", "8": "RUNNING"}[of.job])

    monkeypatch.setattr(schedulers, "state", state)
    found, job = run_status.present_job(run)
    assert (found.job, job.state) == ("8", "RUNNING")


@pytest.mark.parametrize(("wait", "failed", "rule"), [
    (Wait.NEVER, True, ""), (Wait.DEPENDENCY, True, "dependency"), (Wait.HELD, False, ""), (Wait.PASSES, False, ""),
])  # fmt: skip
def test_a_run_that_can_never_start_is_known_by_a_field(
    run: directories.Run, wait: Wait, failed: bool, rule: str
) -> None:
    current = run_status.status(run, JobState("PENDING", "the job will never start", wait=wait))
    assert (current.phase, current.allocation.wait, current.as_json()["wait"]) == ("queued", wait, str(wait))
    answer = why.of_status(run, current)
    assert (answer.failed, answer.rule) == (failed, rule)


def test_a_warning_is_said_once_and_kept(run: directories.Run, tmp_path: Path) -> None:
    events = EventLog(run.paths.events, 0)
    events.write("allocated", nodes=["n1"], job="12", node="n1")
    context: Any = SimpleNamespace(run=run.paths, number=0, settings=settings())
    state = RunState(context, KIND, events, tmp_path)
    for _ in range(2):
        state.warn("n2 works with less memory")
    assert run.paths.job_log.read_text() == "hpcml: warning: n2 works with less memory\n"
    write_status(End(0, "script", "script", "the script ended"), context, state.warnings)
    assert run_status.status(run, ask=False).progress.warnings == ("n2 works with less memory",)
    events.write("allocated", nodes=["n1"], job="12", node="n1")  # Slurm has started the job again
    assert run_status.status(run, ask=False).progress.warnings == ()


def test_a_line_that_does_not_fit_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    path = tmp_path / "events.jsonl"
    log = EventLog(path, 0)
    log.write("first")
    write = os.write
    with monkeypatch.context() as full:
        full.setattr("os.write", lambda descriptor, line: write(descriptor, line[:7]))
        log.write("cut")
    log.write("last")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["first", "last"]
    assert "the log of events cannot be written" in capsys.readouterr().err


def test_a_wait_ends_where_slurm_is_silent_for_too_long(run: directories.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[directories.Run] = []

    def silent(one: directories.Run) -> NoReturn:
        asked.append(one)
        assert len(asked) < 20, "it goes on for ever"
        raise errors.SlurmUnreachableError("squeue does not answer")

    clock = itertools.count(step=20.0)
    monkeypatch.setattr(waiting, "_present_job", silent)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(errors.SlurmUnreachableError):
        list(waiting.follow(run, lambda: None, patience=100.0))
    assert len(asked) > 1  # not at once


def test_an_attempt_that_runs_is_the_run_s_own_though_the_next_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = directories.Run("job-1", RunPaths(tmp_path), Submission(job="7", requeue=True))
    run.paths.job.symlink_to("7")
    run.paths.next_job.symlink_to("8")
    monkeypatch.setattr(schedulers, "state", lambda of: JobState({"7": "RUNNING", "8": "PENDING"}[of.job]))
    found, job = run_status.present_job(run)
    assert (found.job, job.state) == ("7", "RUNNING")


def test_a_run_that_was_put_back_has_the_job_of_its_present_attempt(run: directories.Run) -> None:
    directories.write_json(run.paths.directory / "submission.json", {"site": "lab", "job": "12", "requeue": True})
    run.paths.job.symlink_to("13")
    assert directories.load(run.paths.directory).job == "13"
