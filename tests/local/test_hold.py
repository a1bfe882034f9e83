"""A kept allocation on this machine: the runs in it, their ends and the hold's, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from homes import HPCML, Here, here
from hpcml import errors
from tests.looks import by_age, without_late_report
from tests.said import says

pytestmark = pytest.mark.local
__all__ = ["here"]

PRINTS = "import os, sys\nprint(os.environ.get('MINE'), sys.argv[1:])\nsys.exit(int(sys.argv[1]))\n"
SAVES = """
import time, hpcml
while not hpcml.run.should_stop():
    time.sleep(0.05)
hpcml.run.stop()
"""
POINT = """
import sys, hpcml
k = int(sys.argv[2])
hpcml.run.report(m=k)
sys.exit(k // 3)
"""
WAITS = """
import signal, sys, time
def end(*_):
    print("told", flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, end)
print("waits", flush=True)
time.sleep(300)
"""


def hold(here: Here, *options: str) -> Path:
    """Start a hold, and return its directory when it takes runs."""
    done = here.run("hold", "--json", *options)
    assert done.returncode == 0, done.stderr
    directory = Path(json.loads(done.stdout)["directory"])
    here.until(lambda: here.events(directory, "script-started"))
    return directory


def start(here: Here, text: str, *options: str) -> Path:
    """Put a script into the hold, and return the run's directory."""
    done = here.run("run", "--in", "last", "--detach", "--json", *options, here.script(text))
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)["directory"])


def run(here: Here, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HPCML, "run", *words], cwd=here.folder, env=here.environment | variables, capture_output=True,
                          text=True, timeout=120, check=False)  # fmt: skip


def script_runs(here: Here, directory: Path) -> bool:
    log = directory / "logs/script.log"
    return log.exists() and "waits" in log.read_text()


@pytest.fixture
def held(here: Here) -> Iterator[Path]:
    directory = hold(here, "--idle", "off")
    yield directory
    here.run("cancel", directory.name)
    here.ended(directory)


def test_runs_are_one_after_another_each_with_its_own_end(here: Here, held: Path) -> None:
    """The variables are those of the command's shell, and none is left for the next run, or lies in the hold's files."""
    script = here.script(PRINTS)
    first, second = run(here, "--in", held.name, script, "3", MINE="s3cret"), run(here, "--in", "last", script, "0")
    assert (first.returncode, first.stdout) == (3, "s3cret ['3']\n"), first.stderr
    assert (second.returncode, second.stdout) == (0, "None ['0']\n"), second.stderr
    assert [(row["run"].rsplit("-", 3)[0], row["exit_status"]) for row in here.json("ls")] == [
        ("hold", None), ("my-script", 3), ("my-script", 0),
    ]  # fmt: skip
    status = here.status(held.name)
    assert (status["runs_ended"], status["runs"], status["state"]) == (2, [], "RUNNING")
    assert 0 < status["idle_seconds"] < status["seconds"]
    assert here.run("ls").stdout.count("waits for runs; idle for") == 1
    assert "idle" in here.run("status", held.name).stdout
    kept = [path for path in held.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    assert kept == []
    assert [path.name for path in (held / "hold").rglob("*") if path.is_file()] == []
    assert all(path.stat().st_mode & 0o077 == 0 for path in (held / "hold").rglob("*"))


def test_cancel_ends_the_run_and_not_the_hold(here: Here, held: Path) -> None:
    first, second = start(here, WAITS), start(here, WAITS)
    here.until(lambda: script_runs(here, first))
    assert here.status(second.name)["message"] == says("waiting", held.name)
    assert (held / "hold/runs" / first.name).read_text() == ""  # the shell's variables are gone
    waited, ran = here.run("cancel", second.name), here.run("cancel", first.name)
    for done in (waited, ran):
        assert " ".join(done.stdout.split()) == says("hold continues", f"hpcml cancel {held.name}")
    assert {here.ended(run)["exit_status"] for run in (first, second)} == {errors.CANCELLED}
    assert "told" in (first / "logs/script.log").read_text()
    assert not (second / "events.jsonl").exists()
    assert here.status(held.name)["state"] == "RUNNING"
    assert run(here, "--in", "last", here.script(PRINTS), "0").returncode == 0


def test_a_cancelled_hold_ends_its_runs_first(here: Here) -> None:
    directory = hold(here)
    first, second = start(here, WAITS), start(here, WAITS)
    here.until(lambda: script_runs(here, first))
    kept = here.run("rm", "--yes", directory.name)
    assert kept.returncode == 1
    assert directory.exists()
    here.run("cancel", directory.name)
    ends = [here.ended(run) for run in (directory, first, second)]
    assert [end["exit_status"] for end in ends] == [errors.CANCELLED] * 3
    assert [end["state"] for end in ends] == ["CANCELLED"] * 3
    assert ends[1]["message"] == "the hold was cancelled"
    assert "told" in (first / "logs/script.log").read_text()
    assert ends[2]["message"] == says("never started", "hold ended")
    assert run(here, "--in", directory.name, here.script(PRINTS), "0").returncode == errors.REFUSED


def test_the_hold_s_time_limit_is_the_runs(here: Here) -> None:
    """A run is warned before, and the hold takes no further one; the note is what job.sh writes on Slurm's signal."""
    directory = hold(here)
    run_of_it = start(here, SAVES)
    here.until(lambda: here.events(run_of_it, "script-started"))
    (directory / "attempts/0/time-limit").touch()
    first, end = here.ended(run_of_it), here.ended(directory)
    assert (first["exit_status"], first["state"]) == (errors.STOPPED, "TIMEOUT"), first
    assert (end["exit_status"], end["state"], end["message"]) == (errors.TIME_LIMIT, "TIMEOUT", says("time limit"))


def test_an_idle_hold_ends(here: Here) -> None:
    directory = hold(here, "--idle", "5s")
    end = here.ended(directory)
    assert (end["exit_status"], end["message"]) == (0, "the hold was idle for 5.0 s (--idle)")
    assert (end["by"], without_late_report(end["warnings"])) == ("hpcml", [says("idle", "ends at")])


def test_runs_end_with_a_killed_supervisor(here: Here) -> None:
    """And nothing keeps the variables of a run that waited."""
    directory = hold(here)
    first, waits = start(here, WAITS), start(here, WAITS)
    here.until(lambda: script_runs(here, first))
    assert (directory / "hold/queue" / waits.name).read_text()
    lines = here.processes(directory).items()
    supervisor, *_ = by_age(
        pid for pid, line in lines if line.endswith("hpcml.kinds supervisor") and "step.sh" not in line
    )
    os.kill(supervisor, signal.SIGKILL)
    assert here.ended(first)["exit_status"] == errors.CANCELLED
    assert here.ended(directory)["exit_status"] == 137
    assert [path for path in (directory / "hold").rglob("*-*") if path.is_file() and path.read_text()] == []
    done = run(here, "--in", "last", here.script(PRINTS), "0")
    assert (done.returncode, "no kept allocation" in done.stderr) == (errors.NOT_FOUND, True), done.stderr


def test_the_summary_of_a_hold_has_no_line_of_a_script(here: Here) -> None:
    done = here.run("hold", "--dry-run")
    titles = [line.split()[0] for line in done.stdout.splitlines()]
    assert ("results" in titles, {"code", "processes"} & {*titles}) == (True, set()), done
    assert here.run("hold", "--dry-run", "--detach").returncode == errors.USAGE


def test_the_dry_run_of_a_run_in_a_hold_starts_nothing(here: Here, held: Path) -> None:
    script = here.script(WAITS)
    done = run(here, "--in", "last", "--dry-run", script)
    assert (done.returncode, "--dry-run=script" in done.stdout) == (0, True), done
    assert run(here, "--in", "last", "--dry-run", "--detach", script).returncode == errors.USAGE
    ranks = run(here, "--in", "last", "--dry-run", "--ranks", "2", script)  # the hold has this machine's CPUs
    assert (ranks.returncode, "2 ranks" in ranks.stdout) == (0, True), ranks
    assert [row["run"] for row in here.json("ls")] == [held.name]


def test_what_a_hold_refuses(here: Here, held: Path) -> None:
    script = here.script(WAITS)
    first = start(here, WAITS)
    plan = json.loads((held / "plan.json").read_text())
    cases = [
        (("--in", first.name, script), errors.USAGE, "The run is not a hold"),
        (("--in", "nothing", script), errors.NOT_FOUND, "There is no run 'nothing'"),
        (("--in", "last", "--no-wait", script), errors.REFUSED, first.name),
        (("--in", "last", "--nodes", "2", script), errors.USAGE, f"hold has 1 ({held.name}). Use --nodes 1"),
        (("--in", "last", "--account", "other", script), errors.USAGE, "other, but the hold has none"),
        (("--in", "last", "--site", "slurm", script), errors.USAGE, "slurm, but the hold is on site local"),
        (("--in", "last", "--image", "a.sif", script), errors.USAGE, "The hold has no image"),
        (("--in", "last", "--until-done", script), errors.USAGE, "--until-done"),
        (("--detach", script), errors.USAGE, "--detach needs --in"),
        (("--no-wait", script), errors.USAGE, "--no-wait needs --in"),
    ]  # fmt: skip
    for words, status, text in cases:
        done = run(here, *words)
        assert (done.returncode, text in " ".join(done.stderr.split())) == (status, True), (words, done.stderr)
    others = [
        (("sweep", "--in", "last", "--jobs", "2", "--grid", "k=1,2", script), "--jobs"),
        (("sweep", "--in", first.name, "--grid", "k=1,2", script), "not a hold"),
        (("sweep", "--no-wait", "--grid", "k=1,2", script), "--no-wait needs --in"),
        (("jupyter", "--no-wait"), "--no-wait needs --in"),
        (("run", "--in", "", script), "--in is empty"),
        (("jupyter", "--in", ""), "--in is empty"),
        (("sweep", "--in", "", "--grid", "a=1", script), "--in is empty"),
        (("jupyter", "--in", "last", "--prepare"), "is not a job"),
        (("jupyter", "--in", "last", "--check"), "requests nothing from Slurm"),
        (("jupyter", "--in", "last", "--nodes", "2"), "hold has 1"),
    ]
    for words, text in others:
        done = here.run(*words)
        assert (done.returncode, text in " ".join(done.stderr.split())) == (errors.USAGE, True), (words, done.stderr)
    (held / "plan.json").write_text(json.dumps(plan | {"version": "0.0.1"}))
    done = run(here, "--in", "last", script)
    assert (done.returncode, "hpcml 0.0.1 started the hold" in " ".join(done.stderr.split())) == (errors.CONFIG, True)
    assert len(here.json("ls")) == 2
    here.run("cancel", first.name)


def test_a_sweep_in_a_hold_is_one_run_of_it(here: Here, held: Path) -> None:
    """Its points are tasks of that run."""
    script = here.script(POINT)
    words = ("sweep", "--in", "last", "--grid", "k=1,2,3", "--at-once", "2", "--set", "workers.per_node=2", "--json")
    done = here.run(*words, "--wait", script)
    assert done.returncode == 1, done.stderr
    table = here.json("sweep", "table", "my-script")
    assert [(row["values"]["k"], row["state"], row["metrics"].get("m")) for row in table] == [
        (1, "ok", 1.0), (2, "ok", 2.0), (3, "failed", 3.0),
    ]  # fmt: skip
    status = here.status(held.name)
    assert (status["state"], status["runs_ended"], status["runs"]) == ("RUNNING", 1, [])


def test_jupyter_in_a_hold_is_a_run_of_it(here: Here, held: Path) -> None:
    done = here.run("jupyter", "--in", "last", "--json")
    assert done.returncode == 0, done.stderr
    directory = Path(json.loads(done.stdout)["directory"])
    here.until((directory / "attempts/0/services/jupyter.json").exists, 90)
    assert here.status(held.name)["runs"] == [directory.name]
    assert here.status(directory.name)["hold"] == held.name
    here.run("cancel", directory.name)
    assert here.ended(directory)["exit_status"] == errors.CANCELLED
    assert here.status(held.name)["state"] == "RUNNING"


def test_a_damaged_entry_ends_nothing(here: Here, held: Path) -> None:
    """Neither a stray file in the queue nor an entry whose run is gone: the next run starts."""
    for name, text in (("stray", ""), ("gone-20260101-000000-0000", "{}"), ("odd-20260101-000000-0001", "[1]")):
        (held / "hold/queue" / name).write_text(text)
    assert run(here, "--in", held.name, here.script(PRINTS), "0").returncode == 0
    status = here.status(held.name)
    assert (status["state"], status["runs_ended"]) == ("RUNNING", 1)
    assert [path.name for path in (held / "hold").rglob("*") if path.is_file()] == []
