"""The same batch script under plain bash, with real Dask: phases, deadlines, exit status, and no process left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpcml import errors

pytestmark = pytest.mark.local

HPCML = str(Path(sys.executable).with_name("hpcml"))
CONNECT = "import hpcml, sys, os, time, signal\nclient = hpcml.connect()\n"


@dataclass
class Here:
    """A home, a working folder and the command, on this machine."""

    folder: Path
    environment: dict[str, str]

    def run(self, *words: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [HPCML, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=timeout,
            check=False)  # fmt: skip

    def script(self, text: str) -> str:
        path = self.folder / "my script.py"
        path.write_text(text)
        return path.name

    def submit(self, text: str, *options: str) -> subprocess.CompletedProcess[str]:
        return self.run("submit", "--wait", *options, self.script(text))

    def detach(self, text: str, *options: str) -> tuple[int, Path]:
        done = self.run("submit", "--json", *options, self.script(text))
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        return facts["pid"], Path(facts["directory"])

    def status(self, run: str = "last") -> dict[str, Any]:
        done = self.run("status", run, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def until(self, condition: Callable[[], object], seconds: float = 30) -> None:
        """Wait for an event; a busy machine gets three times as long as a quiet one is given."""
        deadline = time.monotonic() + 3 * seconds
        while not condition():
            assert time.monotonic() < deadline, self.run("status").stdout
            time.sleep(0.05)

    def left(self) -> list[str]:
        """Return the command lines of processes that belong to this home's runs."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if str(self.folder) in (path / "environ").read_text(errors="replace"):
                    found.append((path / "cmdline").read_text(errors="replace").replace("\0", " "))
            except OSError:
                continue  # it ended while we looked, or is not ours to read
        return [line for line in found if "hpcml.node" in line or "/code/" in line or "job.sh" in line]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    """A home whose path holds a space, a quote and a dollar; afterwards nothing of its runs is left running."""
    folder = tmp_path / "it's a home"
    folder.mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HPCML_", "SLURM_", "DASK_"))}
    place = Here(folder, {**kept, "HOME": str(folder), "HPCML_SITE": "local"})
    yield place
    place.until(lambda: not place.left(), 10)


@pytest.mark.parametrize("status", [0, 3])
def test_the_script_s_own_status(here: Here, status: int) -> None:
    done = here.submit(CONNECT + f"print(client.submit(lambda: 6 * 7).result())\nsys.exit({status})")
    assert done.returncode == status, done.stderr
    assert done.stdout == "42\n"
    assert here.status()["by"] == "script"


def test_a_script_that_shuts_its_cluster_down(here: Here) -> None:
    """client.shutdown() is the script's right: its exit status counts, also for what it does afterwards."""
    done = here.submit(CONNECT + "client.shutdown()\ntime.sleep(1.5)\nprint('afterwards')\nsys.exit(4)")
    assert done.returncode == 4, done.stderr
    assert done.stdout.endswith("afterwards\n")


FOLDERS = (
    CONNECT
    + """
import dask, json
from distributed import LocalCluster, Scheduler
seen = lambda: [entry for entry in __import__("sys").path if __import__("os").environ["TMPDIR"] in entry]
with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as mine:
    own = [mine.scheduler.local_directory, mine.workers[0].local_directory]
in_task = lambda: __import__("dask").config.get("temporary-directory")
first = client.run_on_scheduler(lambda: __import__("sys").path[0])
print(json.dumps([first, *sum(client.run(seen).values(), []), *client.run(in_task).values(), *own]))
"""
)


@pytest.mark.parametrize("asked", ["", "nowhere", "mine"])
def test_no_folder_that_others_can_plant_is_used(here: Here, asked: str) -> None:
    """Dask's own is $TMPDIR/dask-scratch-space, whoever it belongs to; code in it would be imported first."""
    common = here.folder / "tmp"
    common.mkdir()
    common.chmod(0o1777)
    (common / "mine").mkdir(mode=0o700)
    planted = common / "dask-scratch-space"
    planted.mkdir()
    planted.chmod(0o777)
    here.environment["TMPDIR"] = str(common)
    if asked:
        here.environment["DASK_TEMPORARY_DIRECTORY"] = str(common / asked)
    done = here.submit(FOLDERS, "--nodes", "2", "--own-clusters")
    assert done.returncode == 0, done.stderr
    scheduler, *others = json.loads(done.stdout.splitlines()[-1])
    assert scheduler.startswith("/tmp/hpcml_")  # a socket lies beside it, and the test's path is too long for one
    place = common / asked if asked == "mine" else common
    assert len(others) == 6
    assert not [path for path in others if not path.startswith(f"{place}/hpcml_")]
    assert list(planted.iterdir()) == []
    assert list(common.glob("**/hpcml_*")) == []


def test_a_place_that_others_may_change_is_refused(here: Here) -> None:
    common = here.folder / "tmp"
    common.mkdir()
    common.chmod(0o777)
    here.environment["TMPDIR"] = str(common)
    done = here.submit(CONNECT)
    assert done.returncode == errors.START_FAILED, done.stderr
    assert "others may replace what lies in" in done.stderr
    assert "Set paths.scratch in the profile, or TMPDIR" in done.stderr


def test_too_few_open_files_for_the_workers_end_a_run_at_once(here: Here) -> None:
    done = here.submit("print(1)", "--set", 'runtime.setup=["ulimit -n 100"]', "--set", "workers.per_node=16")
    assert done.returncode == errors.START_FAILED, done.stderr
    assert "may open 100 files (ulimit -Hn), and 16 workers take 112: have 12 workers at most" in done.stderr


def test_what_killed_roles_left_is_swept(here: Here) -> None:
    """By the user's next run; the folders of a run that goes on stay."""
    common = here.folder / "tmp"
    common.mkdir()
    common.chmod(0o1777)
    here.environment["TMPDIR"] = str(common)
    pid, _ = here.detach(CONNECT + "time.sleep(600)")
    here.until(lambda: here.status()["message"].startswith("the script runs"))
    left = set(common.glob("hpcml_*"))
    assert len(left) == 2
    os.killpg(pid, signal.SIGKILL)
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(common) in (path / "environ").read_text(errors="replace"):
                os.kill(int(path.name), signal.SIGKILL)
    here.until(lambda: not here.left())
    assert set(common.glob("hpcml_*")) == left
    _, living = here.detach(CONNECT + "time.sleep(600)")
    here.until(lambda: not left & set(common.glob("hpcml_*")))
    here.until(lambda: here.status()["message"].startswith("the script runs"))
    alive = set(common.glob("hpcml_*"))
    assert len(alive) == 2
    done = here.submit(CONNECT + "print(client.submit(abs, -1).result())\nclient.submit(print, 'of a task').result()")
    assert done.stdout == "1\n"
    assert "  tasks      printed lines: hpcml logs " in done.stderr
    assert set(common.glob("hpcml_*")) == alive
    assert here.run("cancel", living.name).returncode == 0
    here.until(lambda: not list(common.glob("hpcml_*")))


def test_four_nodes_on_one_machine(here: Here) -> None:
    done = here.submit(
        CONNECT + "print(sorted(client.run(lambda dask_worker: dask_worker.name).values()))", "--nodes", "4"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['local-0', 'local-1', 'local-2', 'local-3']\n"


def test_the_script_is_killed(here: Here) -> None:
    done = here.submit(CONNECT + "os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == 137
    assert here.status()["message"] == "the script was killed by SIGKILL"


def test_the_time_limit(here: Here) -> None:
    script = (
        CONNECT + "while not hpcml.run.should_stop(): time.sleep(0.1)\nprint('told', flush=True)\ntime.sleep(600)\n"
    )
    done = here.submit(script, "--time", "30s", "--set", "slurm.signal_lead=8s")
    assert done.returncode == errors.TIME_LIMIT, done.stderr
    assert "told" in done.stdout


@pytest.mark.parametrize("stubborn", [False, True])
def test_cancel(here: Here, stubborn: bool) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else ""
    _, directory = here.detach(CONNECT + deaf + "print('waiting', flush=True)\ntime.sleep(600)\n",
                               "--set", "deadlines.driver_grace=2s")  # fmt: skip
    log = directory / "logs/driver.log"
    here.until(lambda: log.exists() and "waiting" in log.read_text())
    assert here.run("cancel", "last").returncode == 0
    here.until(lambda: here.status()["phase"] == "ended", 15)
    assert here.status()["exit_status"] == errors.CANCELLED


def test_the_scheduler_is_killed(here: Here) -> None:
    _, directory = here.detach(CONNECT + "time.sleep(600)\n", "--set", "deadlines.driver_grace=2s")
    here.until(
        lambda: (directory / "events.jsonl").exists() and "driver-started" in (directory / "events.jsonl").read_text()
    )
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    os.kill(next(event["pid"] for event in events if event["event"] == "scheduler-up"), signal.SIGKILL)
    here.until(lambda: here.status()["phase"] == "ended", 15)
    assert here.status()["exit_status"] == errors.ROLE_LOST
    assert "the Dask scheduler on local was lost" in here.status()["message"]


@pytest.mark.parametrize("role", ["job.sh", "hpcml.node driver", "hpcml.node worker"])
def test_a_part_of_hpcml_is_killed(here: Here, role: str) -> None:
    """Whichever process dies, nothing of the run survives it for long, and the run is not left open."""
    _, directory = here.detach(
        CONNECT + "time.sleep(600)\n",
        "--set",
        "workers.on_loss=fail",
        "--set",
        "workers.restarts=0",
        "--set",
        "deadlines.driver_grace=1s",
    )
    here.until(
        lambda: (directory / "events.jsonl").exists() and "driver-started" in (directory / "events.jsonl").read_text()
    )
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
            mine = str(directory) in (path / "environ").read_text(errors="replace") or str(directory) in line
        except OSError:
            continue
        if mine and line.endswith(role) and "step.sh" not in line:
            os.kill(int(path.name), signal.SIGKILL)
    here.until(lambda: here.status()["phase"] == "ended", 20)
    assert here.status()["exit_status"] != 0
    here.until(lambda: not here.left(), 20)


def test_an_interpreter_that_hangs(here: Here) -> None:
    """Also what never became a role is gone in the end."""
    slow = here.folder / "python"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *worker) echo thinking; sleep 1000;; esac\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    done = here.submit(CONNECT, "--set", f"runtime.python='''{slow}'''", "--set", "deadlines.workers=3s")
    assert done.returncode == errors.WORKERS_NEVER_CAME, done.stderr
    assert "local: the worker task did not start" in done.stderr
    assert "thinking" in done.stderr


def test_connect_outside_a_run(here: Here) -> None:
    """On a laptop without hpcml submit: a local cluster, closed by TLS."""
    text = ("import hpcml\nif __name__ == '__main__':\n    client = hpcml.connect(n_workers=1, threads_per_worker=1)\n"
            "    print(client.scheduler.address.split(':')[0], client.submit(sum, [1, 2]).result(), hpcml.run.id)\n")  # fmt: skip
    here.script(text)
    done = subprocess.run([sys.executable, "my script.py"], cwd=here.folder, env=here.environment, capture_output=True,
                          text=True, timeout=240, check=False)  # fmt: skip
    assert done.stdout.split() == ["tls", "3"], done.stderr


def test_hpcml_inside_tasks(here: Here) -> None:
    """In a task hpcml.run is the run's, and hpcml.connect() is its cluster."""
    text = CONNECT + (
        "def look():\n    import hpcml\n    return str(hpcml.run.out), hpcml.run.nodes, hpcml.connect().scheduler.address\n"
        "out, nodes, address = client.submit(look).result()\n"
        "print(out == str(hpcml.run.out), nodes, address == client.scheduler.address)\n"
    )
    done = here.submit(text, "--nodes", "2")
    assert done.stdout == "True 2 True\n", done.stderr


EARLY = """
import json, sys
from distributed import Client
def never():
    import dask.dataframe  # no graph of this script needs it: what is there, came early
def there():
    return hasattr(sys.modules.get("dask.dataframe"), "from_delayed")
if __name__ == "__main__":
    client = Client()
    print(json.dumps([there(), client.run_on_scheduler(there), *client.run(there).values()]))
"""


def test_workers_have_what_the_script_imports_before_its_first_graph(here: Here) -> None:
    """Script and scheduler, whose cores the script may need, import for themselves."""
    done = here.submit(EARLY, "--nodes", "2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [False, False, True, True]
    assert "  tasks  " not in done.stderr  # Dask and hpcml alone wrote into the workers' logs


def test_a_nanny_plugin_is_refused_in_words(here: Here) -> None:
    text = CONNECT + "from distributed.diagnostics.plugin import Environ\nclient.register_plugin(Environ({'A': '1'}))\n"
    done = here.submit(text)
    assert done.returncode == 1
    assert "have no Nanny" in done.stdout


def test_a_failed_script_s_last_line_is_the_next_step(here: Here) -> None:
    done = here.submit("def f():\n    input()\nf()\n")
    assert (done.returncode, done.stdout.count("EOFError")) == (1, 1)
    assert done.stderr.splitlines()[-1].startswith("hpcml: A batch job has no keyboard")
    assert "no keyboard" in here.status()["hint"]


def test_output_passes_byte_for_byte(here: Here) -> None:
    """Bytes that are no text, long lines, progress bars, no line break at the end; hpcml's lines are elsewhere."""
    text = "import sys\nsys.stdout.buffer.write(bytes(range(256)) * 4000 + b'\\xff\\0\\r 50%\\r 99%')\n"
    command = [HPCML, "submit", "--wait", here.script(text)]
    done = subprocess.run(command, cwd=here.folder, env=here.environment, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == bytes(range(256)) * 4000 + b"\xff\0\r 50%\r 99%"


def test_the_reason_of_an_end_is_not_in_the_script_s_output(here: Here) -> None:
    done = here.submit("print('never')", "--set", "deadlines.scheduler=0.01s")
    assert done.returncode != 0
    assert done.stdout == ""
    assert "was not up within" in done.stderr
    said = here.run("logs")
    assert said.stdout == ""
    assert "was not up within" in said.stderr
    assert "hpcml: the Dask scheduler" in here.run("logs", "last", "job").stdout


DAEMON = """
import os, subprocess, sys
def daemon(deaf):
    trap = "trap '' TERM; " if deaf else ""
    return subprocess.Popen(["setsid", "-f", "sh", "-c", f"{trap}echo $$ >>{sys.argv[1]!r}; while :; do sleep 1; done"])
daemon(False).wait(), daemon(True).wait()
while not os.path.exists(sys.argv[1]) or len(open(sys.argv[1]).read().split()) < 2: pass
"""


@pytest.mark.parametrize("ends", ["by itself", "supervisor killed"])
def test_nothing_that_the_script_leaves_behind_outlives_the_run(here: Here, tmp_path: Path, ends: str) -> None:
    """Daemons in sessions of their own, one of them deaf to SIGTERM; another run's are left alone."""
    pids = tmp_path / "pids"
    other = subprocess.Popen(["sleep", "300"], env={**here.environment, "HPCML_RUN_DIR": "/another/run"})
    try:
        wait = "" if ends == "by itself" else "import time\ntime.sleep(300)\n"
        done = here.run("submit", "--json", here.script(DAEMON + wait), str(pids))
        directory = Path(json.loads(done.stdout)["directory"])
        here.until(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60)
        if wait:
            events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
            script = next(event["pid"] for event in events if event["event"] == "driver-started")
            os.kill(int(Path(f"/proc/{script}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
        here.until(lambda: here.status()["phase"] == "ended", 30)
        here.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.read_text().split()), 30)
        assert other.poll() is None
        assert "was left behind and is ended" in (directory / "logs/job.log").read_text()
    finally:
        other.kill()
        other.wait()


def test_workers_whose_share_is_too_small_are_refused_before(here: Here) -> None:
    done = here.submit("print('never')", "--set", "workers.memory_limit=27MiB")
    assert done.returncode == errors.REFUSED
    assert "workers.memory_limit is 27 MiB, and a worker needs more than 80 MiB to start" in done.stderr


def test_a_share_that_turns_out_too_small_on_the_node_ends_the_run_at_once(here: Here) -> None:
    """What a worker needs is measured there: Dask gives it no task above a fraction of its limit, here 1 %."""
    here.environment["DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE"] = "0.01"
    done = here.submit("print('never')", "--set", "workers.memory_limit=1GiB")
    assert done.returncode == errors.WORKERS_NEVER_CAME, done.stderr
    assert "workers.memory_limit is 1024 MiB, and a worker needs" in done.stderr
    assert "times" not in done.stderr  # no worker was started to die of it


GREEDY = (
    CONNECT
    + """
def greedy():
    kept = bytearray(b"x") * (300 * 1024**2)
    time.sleep(60)
    return len(kept)
try:
    client.submit(greedy).result()
except Exception as error:
    print(type(error).__name__)
"""
)


def test_a_worker_that_is_ended_for_its_memory_is_named_with_the_figures(here: Here) -> None:
    done = here.submit(GREEDY, "--set", "workers.memory_limit=200MiB", "--set", "workers.restarts=9")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "KilledWorker\n"
    warning, of_tasks = here.status()["warnings"]
    assert of_tasks.startswith("a task failed with KilledWorker: Attempted to run task"), of_tasks
    assert re.search(r"local: worker local was ended, over its memory limit: \d+ MiB of 200 MiB", warning)
    assert warning in done.stderr
    assert "killed by SIGKILL" not in here.run("logs", "last", "worker").stdout


def test_the_cause_is_in_the_result_where_no_worker_is_left(here: Here) -> None:
    done = here.submit(GREEDY, "--set", "workers.memory_limit=200MiB", "--set", "workers.restarts=1")
    assert done.returncode == errors.ROLE_LOST, done.stderr
    assert re.search(r"over its memory limit: \d+ MiB of 200 MiB", here.status()["message"])


def test_an_import_that_fails_is_told_by_its_own_words(here: Here) -> None:
    """Not by a question for the interpreter, which is there."""
    broken = here.folder / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text("")
    (broken / "cryptography.py").write_text("")
    (broken / "importlib_metadata.py").write_text("")
    (broken / "tempfile.py").write_text("raise ImportError('tempfile is broken here')\n")
    here.environment["PYTHONPATH"] = str(broken)
    done = here.run("submit", "--wait", "--set", f"environment.PYTHONPATH={broken}", here.script("print(1)"))
    assert done.returncode != 0
    assert "tempfile is broken here" in done.stderr
    assert "Does the interpreter exist" not in done.stderr


def test_an_interpreter_for_another_processor_is_told(here: Here) -> None:
    program = bytearray(Path("/bin/true").read_bytes())
    other, kind = ("x86_64", 62) if os.uname().machine == "aarch64" else ("aarch64", 183)
    program[18:20] = kind.to_bytes(2, "little")
    python = here.folder / "python"
    python.write_bytes(program)
    python.chmod(0o755)
    done = here.submit("print(1)", "--set", f"runtime.python={python}")
    assert done.returncode == errors.START_FAILED, done.stderr
    note, _, end = done.stderr.partition("\n  run ")
    assert f"runtime.python ({python}) is for {other}, and this machine is {os.uname().machine}" in note
    assert f"its interpreter {python} is for {other}, local is {os.uname().machine}" in end


def test_a_module_that_cannot_be_loaded_is_told(here: Here) -> None:
    done = here.submit("print(1)", "--set", 'runtime.modules=["nope/1"]')
    assert done.returncode == errors.START_FAILED, done.stderr
    assert "Cannot be loaded: module nope/1" in done.stderr
    assert "left no word" not in done.stderr


@pytest.mark.parametrize("protocol", ["tls", "ucx"])
def test_hpcml_fabric_measures_writes_and_draws(here: Here, protocol: str) -> None:
    (here.folder / "json.py").write_text("raise RuntimeError('a module of the user')\n")
    done = here.run("fabric", "--nodes", "1", "--set", "workers.per_node=2", "--protocol", protocol)
    assert done.returncode == 0, done.stderr
    run = here.status()
    facts = json.loads((Path(run["directory"]) / "out/fabric.json").read_text())
    assert facts["measurement"]["protocol"] == protocol
    assert all(pair["seconds"] > 0 and not pair["error"] for pair in facts["measurement"]["pairs"])
    assert (Path(run["directory"]) / "out/fabric.svg").read_text().startswith("<svg")
    assert facts["verdict"]["line"] in done.stdout
    assert "GiB/s from row to column" in done.stdout
    assert not list((Path(run["directory"]) / "code").glob("**/*.py"))
