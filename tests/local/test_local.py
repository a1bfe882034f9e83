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

from hpcml import errors, samples
from hpcml.paths import RunPaths

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


@contextlib.contextmanager
def home(parent: Path) -> Iterator[Here]:
    """Make a home whose path holds spaces and a quote; afterwards wait until nothing of its runs is left running."""
    folder = parent / "it's a home"
    folder.mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HPCML_", "SLURM_", "DASK_"))}
    place = Here(folder, {**kept, "HOME": str(folder), "HPCML_SITE": "local"})
    yield place
    place.until(lambda: not place.left(), 10)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    with home(tmp_path) as place:
        yield place


def test_the_script_s_own_status(here: Here) -> None:
    done = here.submit(CONNECT + "print(client.submit(lambda: 6 * 7).result())\nsys.exit(3)")
    assert done.returncode == 3, done.stderr
    assert done.stdout == "42\n"
    assert here.status()["by"] == "script"


WELL = (
    CONNECT
    + """
import json, pathlib
def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
def burn(seconds):
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass
    return seconds
def look():
    import hpcml
    return str(hpcml.run.out), hpcml.run.nodes, hpcml.connect().scheduler.address
def retired():
    (mark,) = pathlib.Path(os.environ["HPCML_RUN_DIR"]).glob("attempts/0/nodes/*.json")
    return sorted(json.loads(mark.read_text())["retired"])
client.wait_for_workers(4, timeout=120)
names = client.run(lambda dask_worker: dask_worker.name)
one, other, *rest = sorted(names)
data = client.submit(lambda: b"x" * (200 << 20), workers=[one])
part = client.submit(lambda whole: whole[: 30 << 20], data, workers=[one])
facts = {"names": sorted(names.values()), "moved": client.submit(len, part, workers=[other]).result()}
facts["burnt"] = sum(client.gather(client.map(burn, [1.0, 1.1, 1.2, 1.3])))
facts["inside"] = client.submit(look).result() == (str(hpcml.run.out), 2, client.scheduler.address)
print(sum(client.gather(client.map(lambda number: number, range(40)))), flush=True)
until(pathlib.Path("seen").exists)
del data, part
client.retire_workers([one])
until(lambda: retired() == [names[one]])
facts["afterwards"] = client.submit(sum, [1, 2]).result()
# Again where one still holds a result that is being released.
until(lambda: client.retire_workers([other, *rest], remove=False) is not None and retired() == facts["names"])
client.shutdown()
time.sleep(1.5)
(hpcml.run.out / "facts.json").write_text(json.dumps(facts))
sys.stdout.buffer.write(bytes(range(256)) * 4000 + b"\\xff\\0\\r 50%\\r 99%")
"""
)
MIB = 1 << 20


@dataclass
class Well:
    """A run that ended well, what its script found, and the views of hpcml top beside it."""

    here: Here
    done: subprocess.CompletedProcess[bytes]
    directory: Path
    facts: Any
    views: list[dict[str, Any]]


def is_whole(view: dict[str, Any]) -> bool:
    """Whether a view has all that the run tells of itself while the script waits."""
    nodes, work = view["nodes"], view["work"] or {}
    return bool(
        view["output"] == ["780"]
        and (work.get("done") or 0) >= 48
        and nodes
        and all(node["sampled"] and node["cpu"] is not None and node["workers"] == 4 for node in nodes)
    )


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Well]:
    with home(tmp_path_factory.mktemp("well")) as here:
        options = ("--nodes", "2", "--set", "workers.per_node=2", "--set", "workers.on_loss=fail",
                   "--set", "report.sample_every=1s")  # fmt: skip
        command = [HPCML, "submit", "--wait", *options, here.script(WELL)]
        started: dict[str, Any] = {"cwd": here.folder, "env": here.environment, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, **started, stderr=subprocess.PIPE) as run:
            here.until(lambda: run.poll() is not None or here.run("status", "last").returncode == 0, 60)
            views = []
            with subprocess.Popen([HPCML, "top", "--json", "--interval", "0.5s", "last"], **started, text=True) as top:
                assert top.stdout is not None
                for line in top.stdout:
                    views.append(json.loads(line))
                    if is_whole(views[-1]):
                        (here.folder / "seen").touch()
            assert top.returncode == 0
            stdout, stderr = run.communicate(timeout=240)
        done = subprocess.CompletedProcess(command, run.returncode, stdout, stderr)
        assert done.returncode == 0, stderr
        directory = Path(here.status()["directory"])
        yield Well(here, done, directory, json.loads((directory / "out/facts.json").read_text()), views)


def test_a_script_that_shuts_its_cluster_down(well: Well) -> None:
    """client.shutdown() is the script's right: its exit status counts, and what it prints afterwards comes."""
    assert well.here.status()["by"] == "script"


def test_nodes_on_one_machine(well: Well) -> None:
    assert well.facts["names"] == ["local-0", "local-1", "local-2", "local-3"]


def test_hpcml_inside_tasks(well: Well) -> None:
    """In a task hpcml.run is the run's, and hpcml.connect() is its cluster."""
    assert well.facts["inside"]


def test_workers_that_the_script_retires_are_no_loss(well: Well) -> None:
    """How hpcml judges what they leave is in tests/unit/test_losses.py."""
    assert well.facts["afterwards"] == 3
    assert b"lost" not in well.done.stderr


def test_output_passes_byte_for_byte(well: Well) -> None:
    """Bytes that are no text, long lines, progress bars, no line break at the end; hpcml's lines are elsewhere."""
    assert well.done.stdout == b"780\n" + bytes(range(256)) * 4000 + b"\xff\0\r 50%\r 99%"


def test_samples_of_processors_memory_tasks_and_bytes_add_up(well: Well) -> None:
    attempt = RunPaths(well.directory).attempt(0)
    (node,) = samples.nodes(attempt).values()
    dask = samples.dask(attempt)
    assert dask is not None
    assert node.header.every == 1.0
    times = [sample.t for sample in node.samples]
    assert times == sorted(times)
    used = sum(
        sample.cpu * (sample.t - before.t)
        for before, sample in zip(node.samples, node.samples[1:], strict=False)
        if sample.cpu is not None
    )
    assert used > well.facts["burnt"] == pytest.approx(4.6)
    done = max(dask.samples, key=lambda sample: sample.tasks.done or 0)
    assert (done.tasks.known, done.tasks.done, done.tasks.erred) == (49, 49, 0)
    assert max(sample.tasks.processing or 0 for sample in dask.samples) > 0
    assert 4.6 < done.metrics["execute"] <= 4 * (times[-1] - times[0] + 2 * node.header.every)  # of four workers
    assert max(worker.memory or 0 for sample in dask.samples for worker in sample.workers.values()) > 200 * MIB
    assert 30 * MIB <= done.metrics["transfer_bytes"] < 35 * MIB
    assert well.facts["moved"] == 30 * MIB
    assert done.metrics["transfer"] > 0


def test_the_report_of_a_run_that_ended_well(well: Well) -> None:
    assert f"report     {well.directory}/report.html" in well.done.stderr.decode()
    found = report(well.directory)
    assert (found["ending"]["state"], found["ending"]["cause"], found["advice"]) == ("COMPLETED", "", [])
    assert [phase["title"] for phase in found["phases"]] == ["Starting", "Importing", "Interconnect", "Script", "End"]
    assert str(well.directory / "report.html") in well.here.run("status").stdout
    log = well.directory / "logs/job.log"
    assert not log.exists() or "report" not in log.read_text()


def test_hpcml_top_until_the_end(well: Well) -> None:
    """What the run writes of itself is what is shown."""
    assert any(map(is_whole, well.views)), well.views[-1]
    (node,) = next(view for view in well.views if is_whole(view))["nodes"]
    assert 0 < node["memory"] < node["memory_size"]
    last = well.views[-1]
    assert (last["over"], last["state"], last["exit_status"], last["work"]["done"]) == (True, "COMPLETED", 0, 49)
    shown = well.here.run("top", "--once").stdout.splitlines()
    assert shown[0].startswith(well.directory.name)
    assert shown[1].startswith("COMPLETED the script ended with exit status 0, after ")
    assert any(line.startswith("tasks ") and " of " in line for line in shown)


def report(directory: Path) -> Any:
    """Return report.json, whose ledger adds up."""
    found = json.loads((directory / "report.json").read_text())
    ledger = found["ledger"]
    assert sum(ledger["parts"].values()) == pytest.approx(ledger["paid"], rel=0.01)
    assert ledger["paid"] == pytest.approx(ledger["number"] * (found["end"] - found["began"]) / 3600)
    return found


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


def test_no_folder_that_others_can_plant_is_used(here: Here) -> None:
    """Dask's own is $TMPDIR/dask-scratch-space, whoever it belongs to; code in it would be imported first."""
    common = here.folder / "tmp"
    common.mkdir()
    common.chmod(0o1777)
    planted = common / "dask-scratch-space"
    planted.mkdir()
    planted.chmod(0o777)
    here.environment["TMPDIR"] = str(common)
    done = here.submit(FOLDERS, "--nodes", "2", "--own-clusters")
    assert done.returncode == 0, done.stderr
    scheduler, *others = json.loads(done.stdout.splitlines()[-1])
    assert scheduler.startswith("/tmp/hpcml_")  # a socket lies beside it, and the test's path is too long for one
    assert len(others) == 6
    assert not [path for path in others if not path.startswith(f"{common}/hpcml_")]
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


def test_the_time_limit(here: Here) -> None:
    """A busy machine may need more time until the script runs: then it gets twice as much."""
    script = (
        CONNECT + "while not hpcml.run.should_stop(): time.sleep(0.1)\nprint('told', flush=True)\ntime.sleep(600)\n"
    )
    for seconds in (15, 30, 60, 120):
        done = here.submit(script, "--time", f"{seconds}s", "--set", "slurm.signal_lead=5s",
                           "--set", "deadlines.driver_grace=1s")  # fmt: skip
        assert done.returncode == errors.TIME_LIMIT, done.stderr
        why = json.loads(here.run("why", "--json").stdout)
        assert (why["failed"], why["known"], why["short"]) == (True, True, "time limit"), why
        assert "More: hpcml why" in done.stderr
        if done.stdout:
            break
    assert done.stdout == "told\n"
    assert "while the script ran" in why["cause"]
    assert json.loads(here.run("ls", "--json").stdout)[-1]["cause"] == "time limit"
    assert report(Path(here.status()["directory"]))["ending"]["state"] == "TIMEOUT"


def test_cancel(here: Here) -> None:
    """Also of a script that is deaf to SIGTERM."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('waiting', flush=True)\ntime.sleep(600)\n"
    _, directory = here.detach(CONNECT + deaf, "--set", "deadlines.driver_grace=2s")
    log = directory / "logs/driver.log"
    here.until(lambda: log.exists() and "waiting" in log.read_text())
    assert here.run("cancel", "last").returncode == 0
    assert here.run("wait", "last").returncode == errors.CANCELLED
    assert here.status()["exit_status"] == errors.CANCELLED
    found = report(directory)
    assert found["ending"]["state"] == "CANCELLED"
    assert [phase["kind"] for phase in found["phases"]][-2:] == ["script", "tail"]


@pytest.mark.parametrize("role", ["job.sh", "hpcml.node driver", "hpcml.node worker", "hpcml.node scheduler"])
def test_a_part_of_hpcml_is_killed(here: Here, role: str) -> None:
    """Whichever process dies, nothing of the run survives it for long, and the run is not left open."""
    _, directory = here.detach(CONNECT + "time.sleep(600)\n", "--set", "workers.on_loss=fail",
                               "--set", "workers.restarts=0", "--set", "deadlines.driver_grace=1s")  # fmt: skip
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
    if "scheduler" in role:
        assert here.status()["exit_status"] == errors.ROLE_LOST
        assert "the Dask scheduler on local was lost" in here.status()["message"]
    assert here.status()["exit_status"] != 0
    here.until(lambda: not here.left(), 20)
    if role == "hpcml.node driver":  # the report that no supervisor made
        assert not (directory / "report.html").exists()
        assert here.run("report").stdout.strip() == str(directory / "report.html")
        found = report(directory)
        assert found["ending"]["exit_status"] != 0
        assert found["ending"]["cause"]


def test_an_interpreter_that_hangs(here: Here) -> None:
    """Also what never became a role is gone in the end."""
    slow = here.folder / "python"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *worker) echo thinking; sleep 1000;; esac\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    done = here.submit(CONNECT, "--set", f"runtime.python='''{slow}'''", "--set", "deadlines.workers=3s")
    assert done.returncode == errors.WORKERS_NEVER_CAME, done.stderr
    assert "local: the worker task did not start" in done.stderr
    assert "thinking" in done.stderr


def test_a_nanny_plugin_is_refused_in_words(here: Here) -> None:
    text = CONNECT + "from distributed.diagnostics.plugin import Environ\nclient.register_plugin(Environ({'A': '1'}))\n"
    done = here.submit(text)
    assert done.returncode == 1
    assert "have no Nanny" in done.stdout


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


UNHEARD = """
from distributed import wait
wait(client.submit(divmod, 1, 0))
futures = client.map(time.sleep, [1000, 1001, 1002])
print('Killed: out of memory')
"""


def test_what_nobody_waited_for_is_told_of_a_script_that_ended_well(here: Here) -> None:
    """A worker that was ended for its memory is named with the figures; a run that ended well has no cause."""
    done = here.submit(GREEDY + UNHEARD, "--set", "workers.memory_limit=200MiB", "--set", "workers.restarts=9")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "KilledWorker\nKilled: out of memory\n"
    warning, failed, undone = here.status()["warnings"]
    assert failed.startswith("2 tasks failed, the first with KilledWorker: Attempted to run task"), failed
    assert undone.startswith("3 tasks were not done when the script ended or dropped the future")
    assert all(words in " ".join(done.stderr.split()) for words in (warning, failed, undone))
    why = json.loads(here.run("why", "--json").stdout)
    assert (why["failed"], why["cause"]) == (False, "the run ended well: there is no failure to explain")
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
    assert here.run("report").returncode == 0
    ending = report(Path(here.status()["directory"]))["ending"]
    assert (ending["state"], ending["exit_status"]) == ("FAILED", errors.START_FAILED)
    assert ending["cause"]


def test_a_module_that_cannot_be_loaded_is_told(here: Here) -> None:
    done = here.submit("print(1)", "--set", 'runtime.modules=["nope/1"]')
    assert done.returncode == errors.START_FAILED, done.stderr
    assert "Cannot be loaded: module nope/1" in done.stderr
    assert "left no word" not in done.stderr


def test_hpcml_fabric_measures_writes_and_draws(here: Here) -> None:
    (here.folder / "json.py").write_text("raise RuntimeError('a module of the user')\n")
    done = here.run("fabric", "--nodes", "1", "--set", "workers.per_node=2", "--protocol", "ucx")
    assert done.returncode == 0, done.stderr
    run = here.status()
    facts = json.loads((Path(run["directory"]) / "out/fabric.json").read_text())
    assert facts["measurement"]["protocol"] == "ucx"
    assert all(pair["seconds"] > 0 and not pair["error"] for pair in facts["measurement"]["pairs"])
    assert (Path(run["directory"]) / "out/fabric.svg").read_text().startswith("<svg")
    assert facts["verdict"]["line"] in done.stdout
    assert "GiB/s from row to column" in done.stdout
    assert not list((Path(run["directory"]) / "code").glob("**/*.py"))
