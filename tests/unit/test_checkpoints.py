"""Checkpoints are whole or not there, whenever the process is killed; and the script is told once before its end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcml import errors
from hpcml.node import end_cause
from hpcml.node.events_and_end import EventLog
from hpcml.node.script import checkpoints
from hpcml.paths import RunPaths
from hpcml.safe_files import ForeignError
from hpcml.script_api import Run
from node_settings import settings as settings_of
from tests.said import in_order

KILL = "os.kill(os.getpid(), signal.SIGKILL)"
IMPORTS = "import os, pathlib, signal, subprocess, sys, time\nimport hpcml\nrun = hpcml.run\n"
SAVES = (
    "run.on_stop(lambda: run.save('state', lambda path: path.write_text('stopped')){})\nprint('ready', flush=True)\n"
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    for name in ("HPCML_BATCH", "SLURM_JOB_END_TIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HPCML_RUN_DIR", str(tmp_path))
    monkeypatch.delenv("HPCML_ATTEMPT", raising=False)
    paths = RunPaths(tmp_path)
    paths.attempt(0).directory.mkdir(parents=True)
    return paths


def started(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", IMPORTS + text], stdout=subprocess.PIPE, text=True)


def status_of(text: str) -> int:
    with started(text) as process:
        return process.wait(60)


def test_a_checkpoint_replaces_the_one_before(run: RunPaths) -> None:
    here = Run()
    assert here.saved("model.json") is None
    for text in ("old", "new"):  # numpy, torch and XGBoost look at the end of a name
        here.save("model.json", lambda path, text=text: path.write_text(text + path.suffix))  # type: ignore[misc]
    found = here.saved("model.json")
    assert found == run.checkpoints / "model.json"
    assert found.read_text() == "new.json"
    assert os.listdir(run.checkpoints) == ["model.json"]
    saves = json.loads(run.attempt(0).saves.read_text())
    assert (saves["last"]["name"], saves["last"]["bytes"]) == ("model.json", 8)


def test_killed_between_write_and_rename(run: RunPaths) -> None:
    here = Run()
    here.save("state", lambda path: path.write_text("whole"))
    assert status_of(f"run.save('state', lambda path: (path.write_text('half'), {KILL}))") == -signal.SIGKILL
    assert len(os.listdir(run.checkpoints)) == 2  # what was being written is there
    found = here.saved("state")
    assert found
    assert found.read_text() == "whole"
    here.save("state", lambda path: path.write_text("newer"))
    assert os.listdir(run.checkpoints) == ["state"]


def test_killed_between_the_two_renames_of_a_folder(run: RunPaths) -> None:
    def table(text: str) -> object:
        return lambda path: (path.mkdir(), (path / "part").write_text(text))

    here = Run()
    here.save("table", table("first"))  # type: ignore[arg-type]
    here.save("table", table("whole"))  # type: ignore[arg-type]
    kill = "rename = pathlib.Path.rename\npathlib.Path.rename = lambda a, b: "
    kill += f"{KILL} if a.name.startswith('.new') else rename(a, b)\n"
    assert status_of(f"{kill}run.save('table', lambda path: path.mkdir())") == -signal.SIGKILL
    assert not (run.checkpoints / "table").exists()
    found = here.saved("table")
    assert found
    assert (found / "part").read_text() == "whole"
    with pytest.raises(FileNotFoundError):
        here.save("table", lambda path: path.exists())  # it writes nothing: what was put aside has its place again
    assert os.listdir(run.checkpoints) == ["table"]
    assert (run.checkpoints / "table" / "part").read_text() == "whole"


def test_a_writer_that_fails_leaves_what_was_there(run: RunPaths) -> None:
    here = Run()
    here.save("state", lambda path: path.write_text("whole"))
    with pytest.raises(ZeroDivisionError):
        here.save("state", lambda path: (path.write_text("half"), 1 / 0))
    assert os.listdir(run.checkpoints) == ["state"]
    assert (run.checkpoints / "state").read_text() == "whole"


def test_names_that_no_checkpoint_can_have(run: RunPaths, subtests: pytest.Subtests) -> None:
    for name in ("", "a/b", "..", ".hidden", "x" * 201, "a\0b"):
        with subtests.test(name=name), pytest.raises(ValueError, match="is not a valid name"):
            Run().save(name, lambda path: path.write_text(""))


def test_outside_a_run_the_folder_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCML_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    state = Run().save("state", lambda path: path.write_text(""))
    assert state == tmp_path / "checkpoints" / "state"
    assert Run().saved("state") == state


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another account")
def test_outside_a_run_another_account_s_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many scripts unpickle what saved() gives them, and the working folder may be everybody's."""
    monkeypatch.delenv("HPCML_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "state").write_text("hers")
    (folder / "link").symlink_to(folder / "mine")
    (folder / "mine").write_text("")
    os.chown(folder / "link", 65533, 65533, follow_symlinks=False)
    os.chown(folder / "state", 65533, 65533)
    for name in ("state", "link"):
        with pytest.raises(ForeignError, match="this file or folder belongs to"):
            Run().saved(name)
    os.chown(folder, 65533, 65533)
    with pytest.raises(ForeignError, match="this file or folder belongs to"):
        Run().saved("none")
    with pytest.raises(ForeignError, match="this file or folder belongs to"):
        Run().save("new", lambda path: path.write_text(""))


def test_the_script_is_told_before_the_time_limit(run: RunPaths) -> None:
    with started(SAVES.format("") + "time.sleep(100)") as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        run.attempt(0).time_limit.touch()
        assert process.wait(60) == errors.STOPPED
    assert (run.checkpoints / "state").read_text() == "stopped"


def test_sigterm_saves_once_and_ends_what_was_forked(run: RunPaths) -> None:
    """A preempted job gets SIGTERM twice, and its processes all of it."""
    text = SAVES.format("") + (
        "child = os.fork()\nif not child:\n    time.sleep(100)\n"
        "os.kill(child, signal.SIGTERM)\nprint(os.waitpid(child, 0)[1], flush=True)\ntime.sleep(100)"
    )
    text = f"import atexit\natexit.register(os.kill, os.getpid(), signal.SIGTERM)\n{text}"
    with started(text) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        assert process.stdout.readline() == f"{int(signal.SIGTERM)}\n"
        assert not (run.checkpoints / "state").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == errors.STOPPED
    assert json.loads(run.attempt(0).saves.read_text())["count"] == 1


def test_sigterm_while_python_ends(run: RunPaths) -> None:
    """Python takes its handlers away at its end, which may take seconds: what it ignores stays ignored."""
    text = (
        "import atexit\n"
        "atexit.register(lambda: print(signal.getsignal(signal.SIGTERM) == signal.SIG_IGN, flush=True))\n"
        "run.on_stop(lambda: None)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(100)"
    )
    with started(text) as process:
        assert process.wait(60) == errors.STOPPED
        assert process.stdout
        assert process.stdout.read() == "True\n"


def test_a_save_that_is_under_way_is_not_cut_short(run: RunPaths) -> None:
    text = (
        "def write(path):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(0.1)\n"
        "    path.write_text('whole')\n"
        "run.save('state', write)\n"
        "time.sleep(100)"
    )
    stop = "run.on_stop(lambda: run.saved('state').rename(run.out / 'seen'))\n"
    assert status_of(stop + text) == errors.STOPPED
    assert (run.out / "seen").read_text() == "whole"


def test_saves_now_and_then(run: RunPaths) -> None:
    """An error of one is printed, and the script goes on; a period without a stop ends nothing."""
    text = (
        "count = 0\n"
        "def save():\n"
        "    global count\n"
        "    count += 1\n"
        "    if count == 1:\n"
        "        raise ValueError\n"
        "run.on_stop(save, every='0.1s')\n"
        "while count < 3:\n"
        "    time.sleep(0.01)\n"
        "run.stop()"
    )
    assert status_of(text) == errors.STOPPED


def test_a_failing_last_save_is_the_script_s_error(run: RunPaths) -> None:
    assert status_of("run.on_stop(lambda: 1 / 0)\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(100)") == 1


def test_on_stop_elsewhere_than_in_the_main_thread(run: RunPaths) -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError):
        pool.submit(Run().on_stop, print).result()
    with pytest.raises(ValueError, match="not a duration"):
        checkpoints.on_stop(print, "soon", lambda: False)


def requests(run: RunPaths, **changes: object) -> end_cause.EndRequests:
    settings = settings_of(**{"job__one_machine": False, "deadlines__script_grace": 20.0, **changes})
    context = SimpleNamespace(settings=settings, attempt=run.attempt(0), run=run)
    return end_cause.EndRequests(context, EventLog(run.events, 0))  # type: ignore[arg-type]


def test_the_margin_grows_with_the_cost_of_a_save(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 90))
    short = requests(run)
    short.check("script")
    assert not short.time_limit_near  # 90 s are left
    run.attempt(0).saves.write_text('{"longest": 50.0}')
    long = requests(run)
    long.check("script")
    assert (long.lead, long.time_limit_near) == (100.0, True)
    assert run.attempt(0).time_limit.exists()
    assert "deadlines.script_grace" in long.slow_save()
    assert requests(run, job__time_limit=120).lead == 60.0


@pytest.mark.parametrize(("limit", "near"), [(60, True), (3600, False)])
def test_a_short_job_knows_its_limit_though_slurm_s_signal_came_before_it(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, limit: int, near: bool
) -> None:
    """Slurm sends it once, and up to a minute early; in a long job a limit that was moved counts, which only Slurm knows."""
    monkeypatch.delenv("HPCML_ALLOCATION", raising=False)
    monkeypatch.setenv("HPCML_BEGAN", str(int(time.time()) - limit + 20))
    found = requests(run, job__time_limit=limit, job__signal_lead=30.0)
    found.check("script")
    assert found.time_limit_near == near
    assert run.attempt(0).time_limit.exists() == near


def test_an_early_signal_is_told_with_the_time_that_is_left(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 3600))
    run.attempt(0).time_limit.write_text("{}")
    requests(run, job__signal_lead=30.0).check("script")
    (event,) = (json.loads(line) for line in run.events.read_text().splitlines())
    assert (event["event"], event["seconds"] > 1800) == ("time-limit-near", True)


def test_a_cancellation_counts_though_the_time_limit_is_near(run: RunPaths) -> None:
    """On one machine, where nothing else ends a run before its limit; and though the script has seen it first."""
    found = requests(run, job__one_machine=True, job__signal_lead=3600.0, job__time_limit=3600)
    found.check("script")
    assert (found.time_limit_near, found.asked("script")) == (True, None)
    run.attempt(0).terminate.touch()
    found.look_again()
    told = found.asked("script")
    assert told
    assert (told.exit_status, told.by) == (errors.CANCELLED, "user")
    found.started -= 4000
    told = found.asked("script")
    assert told
    assert told.exit_status == errors.TIME_LIMIT


def test_a_script_that_saw_first_that_the_time_limit_is_near(run: RunPaths) -> None:
    found = requests(run)
    found.check("script")
    run.attempt(0).time_limit.touch()
    found.look_again()
    assert (found.time_limit_near, found.asked("script")) == (True, None)


def test_a_margin_that_cannot_grow_is_told(run: RunPaths) -> None:
    run.attempt(0).saves.write_text('{"longest": 50.0}')
    found = requests(run, deadlines__script_grace=200.0)
    found.check("script")
    assert not found.time_limit_near
    assert re.search(in_order("the 60", "limit (slurm.signal_lead)"), found.slow_save())
