"""A hold that starts the processes of its next run ahead: what the run has of them, when it has others, and what is left."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from homes import HPCML, Here, here
from hpcml.node.script import launcher
from tests.looks import by_age

pytestmark = pytest.mark.local
__all__ = ["here"]

USES = """
import os, sys, pathlib
from distributed import Client
import helper
if __name__ == "__main__":
    client = Client()
    print(helper.VALUE, client.submit(helper.value).result(), list(client.list_datasets()), os.environ.get("LEFT"),
          client.submit(os.environ.get, "MINE").result(), len(client.scheduler_info()["workers"]), sys.argv[1:])
    client.datasets["left"] = client.submit(int, 1)
    client.run(os.environ.__setitem__, "LEFT", "1")
    sys.exit(int(sys.argv[1]))
"""
HELPER = "VALUE = {0}\n\ndef value():\n    return VALUE\n"


@pytest.fixture
def held(here: Here) -> Iterator[Path]:
    done = here.run("hold", "--json", "--idle", "off", "--keep-cluster")
    assert done.returncode == 0, done.stderr
    directory = Path(json.loads(done.stdout)["directory"])
    here.until(lambda: here.events(directory, "script-started"))
    yield directory
    here.run("cancel", directory.name)
    here.ended(directory)


def run(here: Here, value: int, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a helper module that has a value, with more restarts than a pipe has room for lines."""
    (here.folder / "helper.py").write_text(HELPER.format(value))
    return subprocess.run([HPCML, "run", "--in", "last", "--set", "workers.restarts=2000", here.script(USES), *words],
                          cwd=here.folder, check=False, env=here.environment | variables, capture_output=True,
                          text=True, timeout=120)  # fmt: skip


def newest(here: Here) -> Path:
    return here.folder / ".hpcml/runs" / str(here.json("ls")[-1]["run"])


def environment(pid: int) -> str:
    """Return a process's environment, empty if it has gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_text()
    except OSError:
        return ""


def has_imported(pid: int) -> bool:
    """Whether the script's interpreter has read the byte that was in its pipe from the start."""
    variables = dict(entry.partition("=")[::2] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0"))
    pipe = os.open(f"/proc/{pid}/fd/{variables[launcher.BEGIN]}", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)) == bytes(4)
    finally:
        os.close(pipe)


def waiting(here: Here, hold: Path) -> list[int]:
    """Return the processes that have started ahead, once all three roles and the script's interpreter have."""
    roles = (f"python -P -m hpcml.kinds {role}" for role in ("supervisor", "scheduler", "worker"))
    ends = (*roles, "hpcml.node.script.launcher import main; main()")

    def pids(end: str) -> list[int]:
        lines = here.processes(hold / "hold/ahead").items()
        return [pid for pid, line in lines if line.endswith(end) and "step.sh" not in line]

    # A child of the supervisor has its command line until it has become the interpreter.
    here.until(lambda: all(len(pids(end)) == 1 for end in ends) and all(map(has_imported, pids(ends[-1]))))
    return [pid for end in ends for pid in pids(end)]


def test_a_run_has_processes_that_started_before_it_and_nothing_of_the_last_run(here: Here, held: Path) -> None:
    """The helper was edited meanwhile: tasks use the edited one. Each run has its end, its events and its own keys."""
    first = run(here, 1, "3")
    assert (first.returncode, first.stdout) == (3, "1 1 [] None None 1 ['3']\n"), first.stderr
    pids = waiting(here, held)
    ahead = [*(held / "hold/ahead").rglob("*")]
    assert [path for path in ahead if path.is_file() and "secret" in path.parts] == []
    assert all(path.stat().st_mode & 0o077 == 0 for path in ahead if path.is_dir())
    second = run(here, 2, "0")
    assert (second.returncode, second.stdout) == (0, "2 2 [] None None 1 ['0']\n"), second.stderr
    assert "processes  started before the run" in second.stderr
    directory = newest(here)
    [allocated] = here.events(directory, "allocated")
    assert allocated["not_ahead"] == ""
    marks = json.loads((directory / "attempts/0/nodes/local.json").read_text())
    assert marks["pid"] in pids
    assert {path.name for path in (directory / "logs").iterdir()} >= {"job.log", "script.log", "worker-local.log"}
    assert (directory / "logs/script.log").read_text() == second.stdout
    assert [(row["run"].rsplit("-", 3)[0], row["exit_status"]) for row in here.json("ls")] == [
        ("hold", None), ("my-script", 3), ("my-script", 0),
    ]  # fmt: skip
    assert [*(directory / "attempts/0/secret").iterdir()] == []
    here.run("cancel", held.name)
    here.ended(held)
    assert [*(held / "hold/ahead").iterdir()] == []


def test_a_run_with_other_variables_restarts_the_processes_and_says_so(here: Here, held: Path) -> None:
    run(here, 1, "0")
    waiting(here, held)
    other = run(here, 1, "0", MINE="s3cret")
    assert other.stdout == "1 1 [] None s3cret 1 ['0']\n", other.stderr
    assert "processes  restart: the variable MINE changed since the last run" in other.stderr
    assert "s3cret" not in other.stderr
    waiting(here, held)
    kept = [path for path in held.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    assert kept == []


def test_a_run_starts_without_processes_that_were_killed(here: Here, held: Path) -> None:
    """Their batch script has not seen it when the run comes: it was stopped."""
    run(here, 1, "0")
    pids = waiting(here, held)
    lines = here.processes().items()
    script, *_ = by_age(pid for pid, line in lines if line.startswith("bash /") and "ahead/1/job.sh" in line)
    os.kill(script, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    (here.folder / "helper.py").write_text(HELPER.format(2))
    done = here.run("run", "--in", "last", "--detach", "--json", here.script(USES), "0")
    directory = Path(json.loads(done.stdout)["directory"])
    here.until((held / "hold/runs" / directory.name).exists)
    os.kill(script, signal.SIGCONT)
    assert here.ended(directory)["exit_status"] == 0
    assert (directory / "logs/script.log").read_text() == "2 2 [] None None 1 ['0']\n"


def test_the_processes_end_with_a_killed_supervisor_of_the_hold(here: Here, held: Path) -> None:
    run(here, 1, "0")
    waiting(here, held)
    found = [
        pid
        for pid, line in here.processes(held).items()
        if line.endswith("hpcml.kinds supervisor") and "step.sh" not in line
    ]
    supervisor, *_ = by_age(pid for pid in found if f"HPCML_RUN_DIR={held}\0" in environment(pid))
    os.kill(supervisor, signal.SIGKILL)
    here.until(lambda: not here.processes(held / "hold/ahead"))


STATE = """
from distributed import Client
import fcntl, json, os, re, subprocess, sys
from hpcml.kinds.dask.node.script import state_to_workers
with open("/proc/self/status") as file:
    status = re.findall("^Sig(?:Ign|Cgt|Blk).*|^Umask.*", file.read(), re.MULTILINE)
given = [value for name, value in sorted(os.environ.items()) if not re.match("DASK_|HPCML_(BEGAN|GIVEN)", name)]
changes = str(state_to_workers.collect({}, sys.argv[1:], gpus=False)[0])
child = "" if sys.argv[1:] == ["child"] else subprocess.run(
    [sys.executable, os.path.realpath(__file__), "child"], capture_output=True, text=True, check=True).stdout
if child:
    with open("/proc/self/environ") as file:
        print("HPCML_AHEAD" in file.read(), os.getpid(), file=sys.stderr)
modules = [name for name in sys.modules if not re.match("hpcml.node.(script.)?prestarted_", name)]
print(json.dumps([sys.argv, sys.orig_argv, sys.path, os.getcwd(), fcntl.fcntl(0, fcntl.F_GETFL), status, given, changes, modules, str(sys.flags), child]))
"""


def test_a_script_finds_the_same_in_an_interpreter_that_started_before_it(here: Here, held: Path) -> None:
    """Its arguments, variables, path, signals and modules; and its child knows the same of it."""
    states = []
    for number in range(3):  # the second has its own interpreter, the third one that waited since the second
        late = ("--set", "workers.start=late") if number == 0 else ()
        done = here.run("run", "--in", "last", *late, here.script(STATE), f"number-{number}")
        assert done.returncode == 0, done.stderr
        name = newest(here).name
        errors = (newest(here) / "logs/script.log").read_text().splitlines()
        is_ahead, pid = next(line.split() for line in errors if line.startswith(("True ", "False ")))
        assert is_ahead == str(number > 0)
        [state] = [line for line in done.stdout.splitlines() if line.startswith("[")]
        states.append(json.loads(state.replace(name, "RUN").replace(f"number-{number}", "N")))
        [started] = here.events(newest(here), "script-started")
        assert str(started["pid"]) == pid
        waiting(here, held)
    for first, second, third in zip(*states, strict=True):
        assert first == second == third
    here.run("cancel", held.name)
    here.ended(held)
    here.until(lambda: not here.left())
