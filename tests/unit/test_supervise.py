"""Who is told to be the cause of an end, where several things end in one moment; and what the teardown takes in."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml import errors, safe_files
from hpcml.failures.end import End
from hpcml.kinds.dask import KIND
from hpcml.kinds.dask.node.supervised import Processes
from hpcml.node import full_disk, prestarted_role, process_helpers, report_at_end, supervisor
from hpcml.node.context import Context
from hpcml.node.events_and_end import EventLog, RunEndedError, or_a_full_disk
from hpcml.node.interconnect import result
from hpcml.node.job_steps import LAST_WORDS
from hpcml.node.process_helpers import Process
from hpcml.node.run_state import RunState
from hpcml.node.supervisor import tear_down
from hpcml.node.tasks import process as scripts
from hpcml.node.tasks import run_tasks
from hpcml.node.tasks.task import OneTask, of_run
from hpcml.paths import RunPaths
from hpcml.units import Seconds
from hpcml.workload_forms import Form
from node_settings import settings as settings_of
from tests.said import says

KILLED = 128 + signal.SIGKILL
BY_KERNEL = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
BY_SUPERVISOR = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("ready").touch()
time.sleep(20)
"""
BY_ITSELF = "import time\ntime.sleep(0.3)\nraise SystemExit(1)\n"


LOST = End(errors.ROLE_LOST, "script", "hpcml", "the scheduler was lost")
LIMIT = End(errors.TIME_LIMIT, "script", "scheduler", "the time limit was reached")
ENDED = End(0, "script", "script", "the script ended")


class Broken(Processes):
    """A cluster that is found broken as soon as the script runs."""

    why: End | None = None

    def check(self) -> None:
        if self.why:
            raise RunEndedError(self.why)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broken]:
    settings = settings_of(job__nodes=1, code__script=str(tmp_path / "code/job.py"), code__cwd=str(tmp_path))
    run = RunPaths(tmp_path)
    run.attempt(0).secret.mkdir(parents=True)
    run.logs.mkdir()
    monkeypatch.setenv("HPCML_RUN_DIR", str(tmp_path))
    monkeypatch.delenv("HPCML_STEPS", raising=False)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, contextlib.ExitStack() as folders:
        context = Context(run, run.attempt(0), 0, settings, "n1", ("n1",))
        yield Broken(RunState(context, KIND, EventLog(run.events, 0), Path(folder)), folders)


def end_of(
    cluster: Broken, why: End | None, code: str, monkeypatch: pytest.MonkeyPatch, *, starved: bool = False
) -> End:
    """Return what the supervisor says of a script that ends just after it found the cluster broken."""
    state = cluster.state
    counts = iter([3])  # before the script
    monkeypatch.setattr(scripts, "oom_kills", lambda: next(counts, 4 if starved else 3))
    settings = state.context.settings
    grace = Seconds("0s" if code == BY_SUPERVISOR else "60s")
    settings = settings._replace(deadlines=settings.deadlines._replace(script_grace=grace))
    state.context = state.context._replace(settings=settings)
    path = Path(state.context.settings.code.script)
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    cluster.why = why
    if code != BY_SUPERVISOR:
        monkeypatch.setattr(scripts.Script, "tell_to_end", lambda _: None)  # Slurm has told the script already
    return run_tasks.run_tasks(
        state, cluster, OneTask(state, cluster, {"HPCML_RUN_DIR": str(state.context.run.directory)})
    )


def test_the_script_may_have_as_many_open_files_as_in_its_job(cluster: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor raises its own limit, for connections; select() of the script's libraries knows none beyond 1,023."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(process_helpers, "_raised", [])
    code = "import resource\nopen('limit', 'w').write(str(resource.getrlimit(resource.RLIMIT_NOFILE)))\n"
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        process_helpers.raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
        assert end_of(cluster, None, code, monkeypatch).exit_status == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert (cluster.context.run.directory / "limit").read_text() == str((256, before[1]))


def events_of(cluster: Broken) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cluster.context.run.events.read_text().splitlines()]


def test_memory_is_the_cause_where_the_kernel_took_the_script_and_a_role(
    cluster: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = end_of(cluster, LOST, BY_KERNEL, monkeypatch, starved=True)
    assert (outcome.exit_status, outcome.by) == (KILLED, "script")
    assert "out of memory" in outcome.message
    assert end_of(cluster, LIMIT, BY_KERNEL, monkeypatch, starved=True) == LIMIT, "which is not overruled"


def test_a_kill_for_memory_names_no_limit_where_the_job_has_none(
    cluster: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local site ignores --memory-per-node."""
    for local in (False, True):
        settings = cluster.state.context.settings
        settings = settings._replace(job=settings.job._replace(one_machine=local))
        cluster.state.context = cluster.state.context._replace(settings=settings)
        outcome = end_of(cluster, None, BY_KERNEL, monkeypatch, starved=True)
        assert ("limit" not in outcome.message, "this machine" in outcome.message) == (local, local), outcome


@pytest.mark.parametrize(("code", "starved"), [(BY_SUPERVISOR, True), (BY_KERNEL, False), (BY_ITSELF, True)])
def test_a_script_that_ends_because_of_the_loss_is_not_the_cause(
    code: str, starved: bool, cluster: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert end_of(cluster, LOST, code, monkeypatch, starved=starved) == LOST


def test_a_script_that_ignores_its_end_is_killed(cluster: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = Path(cluster.context.settings.code.cwd, "ready")

    def check() -> None:
        if ready.exists():
            raise RunEndedError(LOST)

    monkeypatch.setattr(cluster, "check", check)
    assert end_of(cluster, None, BY_SUPERVISOR, monkeypatch) == LOST
    assert [event["exit_status"] for event in events_of(cluster) if event["event"] == "script-ended"] == [KILLED]


@pytest.mark.parametrize("by_slurm", [False, True])
def test_a_script_that_dies_of_its_time_limit_has_waited_for_the_file_system(
    by_slurm: bool, cluster: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits no more while it dies, and that is no answer of the file system; Slurm itself may have told it to end."""

    class Hung:
        def __init__(self, _: int) -> None:
            self.looks = iter(["/data/a.npy, request_wait_answer"])

        def look(self, _: float) -> str:
            cluster.state.end_requests.signalled = by_slurm
            return next(self.looks, "")

    monkeypatch.setattr(run_tasks, "FileSystemHang", Hung)
    monkeypatch.setattr(run_tasks, "SLOW_TICK", 0.0)
    if by_slurm:
        monkeypatch.setattr(run_tasks.Tasks, "_asked", lambda _: None)
    end_of(cluster, LIMIT, BY_ITSELF, monkeypatch)
    assert [text for text in cluster.state.warnings if "file system" in text] == [
        says("n1", "has been blocked on a file system for 20", "(/data/a.npy, request_wait_answer)")
    ]


@pytest.mark.parametrize("status", [errors.TIME_LIMIT, errors.CANCELLED])
def test_a_script_that_has_saved_stopped_at_the_time_limit(
    status: int, cluster: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its save ended only then; a run that was cancelled stays so."""
    code = f"import time\ntime.sleep(0.3)\nraise SystemExit({errors.STOPPED})\n"
    outcome = end_of(cluster, LIMIT._replace(exit_status=status), code, monkeypatch)
    stopped = (errors.STOPPED, "script", "TIMEOUT")
    told = (outcome.exit_status, outcome.by, outcome.state)
    assert told == (stopped if status == errors.TIME_LIMIT else (status, "scheduler", "CANCELLED"))


@pytest.mark.parametrize(
    ("note", "end", "status", "state"),
    [
        ("terminate", f"raise SystemExit({errors.STOPPED})", errors.CANCELLED, "CANCELLED"),
        ("terminate", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", errors.CANCELLED, "CANCELLED"),
        ("terminate", "raise SystemExit(1)", errors.CANCELLED, "CANCELLED"),
        ("terminate", "", 0, "CANCELLED"),
        ("time_limit", f"raise SystemExit({errors.STOPPED})", errors.STOPPED, "TIMEOUT"),
        ("time_limit", "raise SystemExit(1)", 1, "FAILED"),
    ],
)
def test_a_script_that_saw_the_end_first_is_told_as_what_it_was(
    note: str, end: str, status: int, state: str, cluster: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended before the supervisor had looked: a run that is cancelled stays so, and no other attempt follows."""
    touched = str(getattr(cluster.context.attempt, note))
    code = f"open({touched!r}, 'w').close()\n{end}\n"
    monkeypatch.setattr(run_tasks.Tasks, "_asked", lambda _: None)
    outcome = end_of(cluster, None, code, monkeypatch)
    assert (outcome.exit_status, outcome.state) == (status, state)


def test_an_end_that_cannot_be_written_is_told_by_the_exit_status(
    cluster: Broken, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is there a reserve: the file system is read-only, or full in spite of it."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    assert tear_down(cluster.state, cluster, ENDED)
    cluster.context.run.status.unlink()
    monkeypatch.setattr(safe_files, "write", refuse)
    assert not tear_down(cluster.state, cluster, ENDED)
    assert "cannot be written (Read-only file system)" in capsys.readouterr().err


@pytest.mark.parametrize("require", ["warn", "rdma"])
def test_a_slow_interconnect_ends_a_run_that_requires_a_fast_one(cluster: Broken, require: str) -> None:
    state = cluster.state
    settings = state.context.settings
    settings = settings._replace(interconnect=settings.interconnect._replace(require=require))
    state.context = state.context._replace(settings=settings)
    found = {"line": "TCP", "problem": "UCX uses TCP across nodes", "remedy": ""}
    with pytest.raises(RunEndedError) if require == "rdma" else contextlib.nullcontext() as ended:
        result.obey(state, found)
    assert "UCX uses TCP across nodes" in state.context.run.job_log.read_text()
    assert ended is None or ended.value.end.exit_status == errors.INTERCONNECT


HEARS = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
pathlib.Path("ready").touch()
time.sleep(20)
"""
DEAF = f"""
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.exit(subprocess.call([sys.executable, "-c", {HEARS!r}]))
"""


def test_what_the_script_started_hears_of_the_end(cluster: Broken) -> None:
    code = cluster.context.settings.code
    Path(code.script).parent.mkdir()
    Path(code.script).write_text(DEAF)
    script = scripts.Script(cluster.context, of_run(cluster.context), dict(os.environ), {})
    try:
        while script.poll() is None and not Path(code.cwd, "ready").exists():
            os.sched_yield()
        script.tell_to_end()
        assert script.process.wait(timeout=60) == 7
    finally:
        script.kill()


@pytest.mark.parametrize(
    ("command", "words"), [("exit 132", "exited with status 132"), ("kill -ILL $$", "killed by SIGILL")]
)
def test_a_program_that_itself_ends_with_a_high_status_was_not_killed(
    cluster: Broken, command: str, words: str
) -> None:
    settings = cluster.context.settings
    code = settings.code._replace(form=Form.PROGRAM, script="/bin/sh", arguments=("-c", command))
    context = cluster.context._replace(settings=settings._replace(code=code))
    script = scripts.Script(context, of_run(context), dict(os.environ), {})
    try:
        script.process.wait(timeout=60)
        assert script.poll() == 132
        assert script.describe_end(132).endswith(words)
    finally:
        script.kill()


OUTLIVES = """
import time
with open("alive", "w") as file:
    time.sleep(20)
    file.write("outlived")
"""


def test_a_program_finds_those_of_the_chosen_environment_first(cluster: Broken) -> None:
    context, task = cluster.context, of_run(cluster.context)
    code = context.settings.code._replace(programs="/own/bin")
    context = context._replace(settings=context.settings._replace(code=code))
    environment = scripts.variables_of_task(context, task, dict(os.environ))
    assert environment["PATH"] == f"/own/bin:{os.environ['PATH']}"


def test_the_script_ends_with_a_supervisor_that_is_killed(cluster: Broken) -> None:
    code = cluster.context.settings.code
    Path(code.script).parent.mkdir()
    Path(code.script).write_text(OUTLIVES)
    os.mkfifo(alive := Path(code.cwd, "alive"))
    if not (killed := os.fork()):
        try:
            scripts.Script(cluster.context, of_run(cluster.context), dict(os.environ), {})
            signal.pause()
        finally:
            os._exit(1)
    with alive.open() as file:  # when the script has opened it too
        os.kill(killed, signal.SIGKILL)
        os.waitpid(killed, 0)
        assert file.read() == ""


def test_a_batch_script_that_was_stopped_is_woken(cluster: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCML_BATCH", str(os.getpid()))
    came: list[int] = []
    before = signal.signal(signal.SIGCONT, lambda number, _: came.append(number))
    try:
        supervisor._wake_batch_script(cluster.context, 3)
    finally:
        signal.signal(signal.SIGCONT, before)
    assert came == [signal.SIGCONT]


def test_the_keys_go_with_the_run(cluster: Broken) -> None:
    attempt = cluster.context.attempt
    keys = [attempt.key, attempt.certificate, attempt.data_key, attempt.jupyter_token, attempt.link_key]
    for path in keys:
        path.touch()
    assert tear_down(cluster.state, cluster, ENDED)
    assert not [path for path in keys if path.exists()]


def test_silent_workers_are_written_down_when_they_change(cluster: Broken) -> None:
    for silent in ({}, {"n4": 31.0}, {"n4": 32.0}, {"n4": 90.0, "n2": 31.0}, {}):
        cluster._take("use", {"connected": True, "idle": 0.0, "waited": 0.0, "stuck": 0, "silent": silent})
    cluster._take("worker-removed", {"worker": "n4-0", "silent": True})
    silences = [sorted(event["since"]) for event in events_of(cluster) if event["event"] == "workers-silent"]
    assert silences == [["n4"], ["n2", "n4"], []]
    assert "Dask removed worker n4-0" in cluster.state.warnings[0]
    cluster._take("ucx-failed", {"problem": "no device"})
    assert "no device" in cluster.state.warnings[1]
    cluster.closing = True
    cluster._take("worker-removed", {"worker": "n1-0", "silent": True})
    assert len(cluster.state.warnings) == 2, "at the end all workers go"


@pytest.mark.parametrize(("by", "status"), [("script", 3), ("hpcml", errors.STORAGE)])
def test_a_full_disk_leaves_a_script_its_status(
    by: str, status: int, cluster: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_disk, "trouble", lambda _: "the disk is full")
    end = or_a_full_disk(End(3, "script", by, "it ended"), cluster.state.context)
    assert (end.exit_status, "the disk is full" in end.message) == (status, True)


@pytest.mark.parametrize(("written", "status"), [(True, 0), (False, errors.STORAGE)])
def test_a_run_whose_end_is_nowhere_written_fails(
    written: bool, status: int, cluster: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.context.run.events.unlink(missing_ok=True)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(supervisor, "_run", lambda *_: ENDED)
    monkeypatch.setattr(supervisor, "tear_down", lambda *_: written)
    assert supervisor._supervise(cluster.context, KIND) == status


def test_a_scheduler_that_dies_while_workers_start_ends_the_wait(
    cluster: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(message: str) -> RunEndedError:
        return RunEndedError(End(errors.ROLE_LOST, "workers", "hpcml", message, ""))

    def check_scheduler() -> None:
        raise ended("the scheduler has died")

    monkeypatch.setattr(cluster, "step", lambda: None)
    monkeypatch.setattr(cluster, "_check_scheduler", check_scheduler)
    cluster.state.phase = "workers"
    with pytest.raises(RunEndedError) as told:
        cluster._until(lambda: False, 0.0, lambda *_: ended("no worker came").end)
    assert told.value.end.message == "the scheduler has died"


def test_the_end_of_a_scheduler_is_judged_when_its_step_has_written_its_log(
    cluster: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit file comes from the step's task; srun, which ends last, writes the role's log."""
    srun = subprocess.Popen(["sleep", "100"])
    cluster.state.steps.processes["scheduler"] = Process.named(srun.pid)
    cluster.context.attempt.exits.mkdir(parents=True, exist_ok=True)
    cluster.context.attempt.exit_of("scheduler", "n1").write_text("1\n")
    assert cluster._scheduler_missing(0.0) is None
    last = "ModuleNotFoundError: No module named 'dask'"
    cluster.context.run.log("scheduler").write_text(f"{last}\n")
    srun.kill()
    srun.wait()
    end = cluster._scheduler_missing(0.0)
    assert end
    assert (end.quote, last in end.message) == ((last,), True)


def test_the_end_of_a_lost_scheduler_quotes_what_its_step_wrote_last(cluster: Broken) -> None:
    lost = LOST._replace(role="scheduler", node="n1", quote=("Traceback (most recent call last):",))
    cluster.context.run.log("scheduler").write_text(f"{lost.quote[0]}\nMemoryError\n")
    for end, quote in (
        (lost, [*lost.quote, "MemoryError"]),
        (lost._replace(quote=()), []),  # one that does not answer
        (lost._replace(role="worker"), [*lost.quote]),
        (lost._replace(exit_status=errors.START_FAILED), [*lost.quote]),  # what followed is its teardown
    ):
        assert tear_down(cluster.state, cluster, end)
        assert json.loads(cluster.context.run.status.read_text())["quote"] == quote


def test_a_step_that_does_not_end_is_not_waited_for(cluster: Broken) -> None:
    cluster.state.steps.processes["scheduler"] = Process.named(os.getpid())
    cluster.context.attempt.exits.mkdir(parents=True, exist_ok=True)
    cluster.context.attempt.exit_of("scheduler", "n1").write_text("1\n")
    assert cluster._scheduler_missing(0.0) is None
    cluster.state.clock.seconds += LAST_WORDS
    assert cluster._scheduler_missing(0.0)


@pytest.mark.parametrize("present", [set(), {"n2-0"}])
def test_a_run_whose_last_worker_cannot_come_back_ends(
    cluster: Broken, present: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = SimpleNamespace(final=True, workers=["n1-0"], quote=(), node="n1", memory_limit="", reason="")
    monkeypatch.setattr(cluster.losses, "look", lambda *_, **__: [lost])
    monkeypatch.setattr(cluster.losses, "tell", lambda _: None)
    monkeypatch.setattr("hpcml.kinds.dask.node.lost_workers.sentences", lambda _: "n1: exit status 137")
    monkeypatch.setattr(cluster.state, "time_to_look", lambda: True)
    cluster.present = present
    with contextlib.nullcontext() if present else pytest.raises(RunEndedError, match="workers were lost") as told:
        cluster._check_workers()
    assert present or (told and told.value.end.node == "n1")


def test_an_address_that_cannot_be_bound_is_no_full_disk(cluster: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(error: int) -> Any:
        def make(*_: Any) -> None:
            raise OSError(error, os.strerror(error))

        return make

    makers = iter([refuse(errno.EADDRNOTAVAIL), refuse(errno.ENOSPC)])
    monkeypatch.setattr("hpcml.kinds.dask.node.supervised.Processes", lambda *_: next(makers)())
    with contextlib.ExitStack() as folders:
        with pytest.raises(RunEndedError) as caught:
            supervisor._processes(cluster.state, folders)
        assert caught.value.end.exit_status == errors.START_FAILED
        assert "hpcml's supervisor cannot listen on n1" in caught.value.end.message
        assert "network.interface" in caught.value.end.hint
        with pytest.raises(OSError, match="No space left"):
            supervisor._processes(cluster.state, folders)


@pytest.mark.parametrize(("noted", "told"), [(True, False), (False, True)])
def test_a_signal_that_only_the_supervisor_got_is_passed_on(cluster: Broken, noted: bool, told: bool) -> None:
    """What Slurm signals has told the script too: step.sh notes it."""
    requests = cluster.state.end_requests
    assert not requests.were_for_the_supervisor_alone()
    requests.signalled, requests.requested_at = True, -1000.0
    if noted:
        cluster.context.attempt.terminate.touch()
    assert requests.were_for_the_supervisor_alone() == told


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"gpus": 1.0, "gpus_unused": 1.0}, "The script did not use the run's GPU."),
        ({"gpus": 4.0, "gpus_unused": 3.0}, says("did not use 3 of the run's 4 GPUs")),
        ({"gpus": 4.0, "gpus_unused": 0.0}, ""),
        ({}, ""),
    ],
)
def test_gpus_that_were_not_used_are_told_at_the_end(
    cluster: Broken, monkeypatch: pytest.MonkeyPatch, facts: dict[str, float], said: str
) -> None:
    """By the figures of the report, which its own process writes during the teardown."""

    class Reported(report_at_end.ReportProcess):
        def __init__(self, context: Context) -> None:
            self.context, self.process = context, None

        def end(self) -> None:
            told = {"attempt": 0, "script_seconds": 21.0, "figures": facts}
            self.context.run.report_facts.write_text(json.dumps(told))
            self._missed("no jinja2")

    monkeypatch.setattr(supervisor, "ReportProcess", Reported)
    assert tear_down(cluster.state, cluster, ENDED)
    missed, *warnings = cluster.state.warnings
    assert missed.startswith("The report was not written (no jinja2)")
    assert [warning.partition(" Request")[0] for warning in warnings] == ([said] if said else [])
    written = json.loads(cluster.state.context.run.status.read_text())
    assert written["warnings"] == cluster.state.warnings


def test_the_process_of_a_pool_is_written_down_for_the_script_s_node(cluster: Broken) -> None:
    for node, pid in (("n1", 1237), ("n2", 99)):
        cluster._take("gpu-pool", {"worker": node, "node": node, "pid": pid, "pool": 1 << 30})
    assert json.loads(cluster.context.attempt.gpu_pools.read_text()) == {"n1": {"pid": 1237, "pool": 1 << 30}}
    assert cluster.state.warnings == []


def test_of_workers_without_gpu_the_first_is_told_and_all_are_events(cluster: Broken) -> None:
    for worker in ("n1-0", "n2-0"):
        cluster._take("worker-without-gpu", {"worker": worker, "node": worker[:2], "error": "cudaErrorAssert"})
    (said,) = cluster.state.warnings
    assert said.startswith("n1: worker n1-0 restarts: a task raised cudaErrorAssert,")
    lines = (cluster.context.run.directory / "events.jsonl").read_text().splitlines()
    facts = [json.loads(line) for line in lines if "worker-without-gpu" in line]
    assert [(one["worker"], one["error"]) for one in facts] == [
        ("n1-0", "cudaErrorAssert"),
        ("n2-0", "cudaErrorAssert"),
    ]


def test_short_scripts_and_other_attempts_tell_nothing_of_gpus(cluster: Broken) -> None:
    context = cluster.state.context
    assert report_at_end.unused_gpus(context) == ""
    for other in ({"script_seconds": 19.0}, {"attempt": 1}):
        told = {"attempt": 0, "script_seconds": 21.0, "figures": {"gpus": 1.0, "gpus_unused": 1.0}} | other
        context.run.report_facts.write_text(json.dumps(told))
        assert report_at_end.unused_gpus(context) == ""


def test_lines_of_the_setup_that_failed_are_told_whatever_else_the_variable_has(
    cluster: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of the setup may change the variable itself."""
    told: list[dict[str, Any]] = []
    monkeypatch.setenv("HPCML_SETUP", "2:7 x 9:1 0:1 1:x")
    monkeypatch.setattr(cluster.state, "warn", lambda _, **facts: told.append(facts))
    cluster.context.run.plan.parent.mkdir(parents=True, exist_ok=True)
    cluster.context.run.plan.write_text(json.dumps({"setup": ["true", "(exit 7)"]}))
    supervisor._warn_of_setup(cluster.state)
    assert told == [{"setup": "(exit 7)", "line": 2, "exit_status": 7}]


def test_the_output_of_an_interpreter_that_started_ahead_is_the_script_s(
    cluster: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an early import says may be the cause of the script's end."""
    context, environment = cluster.context, {"HPCML_RUN_DIR": str(cluster.context.run.directory)}
    monkeypatch.setenv("HPCML_RUN_DIR", environment["HPCML_RUN_DIR"])
    monkeypatch.setenv("HPCML_PYTHONPATH", "")
    log = of_run(context).log
    log.parent.mkdir(parents=True, exist_ok=True)
    for is_of_run, begin in ((True, len("before")), (False, len("beforesaid"))):
        log.write_text("before")
        scripts.start_ahead(context, KIND, is_of_run=is_of_run)
        log.write_text("beforesaid")
        script = scripts.Script(context, of_run(context), {**os.environ}, KIND.programs, waits=True)
        script.end_unbegun()
        assert script.log_begin == begin


@pytest.mark.parametrize(("entries", "count"), [("", 1), ("/nowhere", 1), ("lib", 0), ("/nowhere:", 0)])
def test_no_interpreter_starts_ahead_whose_path_depends_on_its_folder(
    cluster: Broken, monkeypatch: pytest.MonkeyPatch, entries: str, count: int
) -> None:
    monkeypatch.setenv("HPCML_PYTHONPATH", entries)
    monkeypatch.setenv("HPCML_RUN_DIR", str(cluster.context.run.directory))
    scripts.start_ahead(cluster.context, KIND, is_of_run=False)
    waiting = [*prestarted_role.WAITING]
    for one in waiting:
        stdin = Path(f"/proc/{one.process.pid}/fdinfo/0").read_text()
        assert int(stdin.partition("flags:")[2].split()[0], 8) & os.O_RDWR == os.O_RDONLY, "as every script has it"
        assert Path(f"/proc/{one.process.pid}/cwd").samefile(cluster.context.settings.code.cwd), "for sitecustomize"
    prestarted_role.end_waiting()
    assert [one.process.returncode for one in waiting] == [-signal.SIGKILL] * count
