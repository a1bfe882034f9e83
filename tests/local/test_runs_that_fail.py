"""What is told of runs that fail, in script and tasks, and of one that ends well though much in it did not.

What each rule knows is in tests/unit/test_failures.py, and how scripts without a cluster end in tests/unit/test_script_ends.py.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from homes import CONNECT, Here, here, report
from hpcml import errors
from hpcml.paths import RunPaths
from tests.looks import without_late_report
from tests.said import says

pytestmark = pytest.mark.local

__all__ = ["here"]
DEATHS = "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES"  # of workers, before Dask blames the task
MEMRAY = importlib.util.find_spec("memray") is not None
NESTED = """
def outer(x):
    def inner(y):
        return 1 / y
    from distributed import worker_client
    with worker_client() as client:
        return client.submit(inner, x).result()
client.submit(outer, 0).result()
"""
FAILS = f"""
import os, subprocess, sys
import distributed
print(*(os.environ.get(name) for name in ("PYTHONFAULTHANDLER", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "UCX_LOG_LEVEL")))
client = distributed.Client()
print(sum(client.gather(client.map(lambda x: sum(range(x)), range(100), key="added"))), flush=True)
kept = bytearray(100_000_000)
for trap in ("", "trap '' TERM; "):
    line = trap + "echo $$ >>" + sys.argv[1] + "; while :; do sleep 1; done"
    subprocess.run(["setsid", "-f", "sh", "-c", line], check=True)
while not os.path.exists(sys.argv[1]) or len(open(sys.argv[1]).read().split()) < 2: pass
{NESTED}"""
OWN = ("--env", "NCCL_DEBUG=INFO", "--env", "UCX_LOG_LEVEL=error", "--env", "PYTHONFAULTHANDLER=")
# In the place of NVIDIA's program, which needs no GPU to be started wrongly.
NSYS = """#!/bin/sh
[ "$1" = profile ] || exit 99
shift
for word in "$@"; do case "$word" in
    --output=*) printf '%s\\n' "$@" > "${word#--output=}.nsys-rep" ;;
esac; done
while [ "${1#--}" != "$1" ]; do shift; done
"$@"
"""


def is_dask_s_report(run: Path, tasks: int) -> None:
    page = (run / "profiles/dask.html").read_text()
    assert f"number of tasks: {tasks}" in page
    assert "Workers: 2" in page
    assert "<link" not in page  # nothing is loaded from a network
    assert not re.search(r"<script[^>]+src=", page)
    assert "was not written" not in (run / "logs/scheduler.log").read_text()


def test_a_script_that_fails_in_a_task_of_a_task(here: Here) -> None:
    """And leaves two processes in sessions of their own, one of them deaf to SIGTERM; under three profilers."""
    (here.folder / "bin").mkdir()
    (here.folder / "bin/nsys").write_text(NSYS)
    (here.folder / "bin/nsys").chmod(0o700)
    here.environment["PATH"] = f"{here.folder}/bin:{here.environment['PATH']}"
    (here.folder / "job.py").write_text(FAILS)
    profilers = "dask,memray,nsys" if MEMRAY else "dask,nsys"
    options = ("--nodes", "2", "--profile", profilers, "--set", "deadlines.teardown=120s", *OWN)
    with subprocess.Popen(["sleep", "600"], env={**here.environment, "HPCML_RUN_DIR": "/another/run"}) as other:
        done = here.run("submit", "--wait", *options, "job.py", "pids")
        assert other.poll() is None, "a process of another run is left alone"
        other.kill()
    assert done.returncode == 1
    run = Path(here.status()["directory"])
    pids = (here.folder / "pids").read_text().split()
    assert len(pids) == 2
    here.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    here.until(lambda: "remained and is ended" in (run / "logs/job.log").read_text())

    lines = FAILS.splitlines()
    place = f'  File "{here.folder}/job.py", line'
    for name, text in (("outer", "return client.submit(inner, x).result()"), ("inner", "return 1 / y")):
        assert f"{place} {lines.index(' ' * 8 + text) + 1}, in {name}\n    {text}\n" in done.stdout
    assert done.stdout.splitlines()[0].split() == ["INFO", "None", "error"], "the user's own variables"
    short = f"ZeroDivisionError in job.py:{lines.index('        return 1 / y') + 1}"
    why = here.json("why")
    assert (why["failed"], why["known"], why["short"]) == (True, True, short)
    assert why["cause"] == says("a Dask task", f"(inner at {short.rpartition(' ')[2]})", "division by zero")
    assert here.json("ls")[0]["cause"] == short
    assert "More: hpcml why" in done.stderr
    assert without_late_report(here.status()["warnings"]) == []  # of tasks that failed: the script did too
    ending = report(run)["ending"]
    assert "division by zero" in ending["cause"]
    assert ending["evidence"]

    is_dask_s_report(run, 102)
    assert f"profile    python -m webbrowser {shlex.quote(f'{run}/profiles/dask.html')}\n" in done.stderr
    (written,) = (run / "profiles").glob("nsys-*")
    words = written.read_text().split("\n")
    assert f"--output={run}/profiles/nsys-local.0" in words
    assert words[-4:-1] == ["-m", "hpcml.kinds", "worker"]
    assert f"profile    nsys-ui {shlex.quote(str(written))}\n" in done.stderr
    if MEMRAY:
        assert (run / "logs/script.log").read_text().splitlines()[1] == "161700"
        files = sorted((run / "profiles").glob("memray-*"))
        names = ["memray-script", "memray-worker-local-0", "memray-worker-local-1"]
        assert [path.name.split(".")[0] for path in files] == names
        table = subprocess.run([sys.executable, "-m", "memray", "stats", "--num-largest", "3", files[0]],
                               capture_output=True, text=True, timeout=240, check=True)  # fmt: skip
        assert "job.py" in table.stdout


def test_a_worker_that_crashes_is_the_cause(here: Here) -> None:
    here.environment[DEATHS] = "0"
    crash = "import ctypes\ndef crash(x):\n    ctypes.string_at(0)\n"
    done = here.submit(f"{CONNECT}{crash}client.submit(crash, 0).result()\n")
    assert done.returncode == 1, done.stderr
    assert "KilledWorker" in done.stdout
    found = here.json("why")
    assert (found["failed"], found["known"], found["short"]) == (True, True, "crashed (SIGSEGV)"), found
    assert "in string_at" in found["cause"]
    (row,) = here.json("ls")
    assert row["cause"] == "crashed (SIGSEGV)"


def test_a_worker_that_the_task_ends_is_the_cause_by_any_exit_status(here: Here, subtests: pytest.Subtests) -> None:
    here.environment[DEATHS] = "0"
    for code in (3, 0):
        with subtests.test(str(code)):
            done = here.submit(f"{CONNECT}import os\nclient.submit(os._exit, {code}).result()\n")
            assert done.returncode == 1, done.stderr
            assert "KilledWorker" in done.stdout
            found = here.json("why")
            assert found["known"], found
            assert f"a worker exited with status {code}" in found["cause"].lower(), found


GREEDY = """
def greedy():
    kept = bytearray(b"x") * (300 * 1024**2)
    time.sleep(60)
    return len(kept)
try:
    client.submit(greedy).result()
except Exception as error:
    print(type(error).__name__)
"""
UNHEARD = f"""
import beside
print(beside.NEAR, client.submit(lambda: __import__("beside").NEAR).result())
{GREEDY}
from distributed import wait
wait(client.submit(divmod, 1, 0))
futures = client.map(time.sleep, [1000, 1001, 1002])
print('Killed: out of memory')
"""


def test_a_folder_of_pythonpath_that_hides_dask_is_named(here: Here) -> None:
    """To install Dask, or to share its environment, is no remedy."""
    (here.folder / "pp/dask").mkdir(parents=True)
    (here.folder / "pp/dask/__init__.py").write_text('__version__ = "0.1"\n')
    here.environment["PYTHONPATH"] = str(here.folder / "pp")
    done = here.submit("from distributed import Client\nClient()\n")
    del here.environment["PYTHONPATH"]
    told = f"the module dask comes from {here.folder}/pp/dask, by PYTHONPATH"
    assert (done.returncode, told in done.stderr) == (errors.START_FAILED, True), done.stderr
    why = json.loads(here.run("why", "--json").stdout)
    assert (why["rule"], told in why["cause"]) == ("shadowed-module", True), why
    assert "Remove this folder from PYTHONPATH" in why["next_step"]


def test_what_nobody_waited_for_is_told_of_a_script_that_ended_well(here: Here) -> None:
    """A worker that was ended for its memory is named with the figures; a run that ended well has no cause.

    Without a copy of the code and without samples, as the options say: script and tasks run where the script lies.
    """
    here.environment[DEATHS] = "1"
    (here.folder / "sib").mkdir()
    (here.folder / "near.txt").touch()
    (here.folder / "sib/main.py").write_text(CONNECT + UNHEARD)
    (here.folder / "sib/beside.py").write_text(
        "from pathlib import Path\nNEAR = (Path(__file__).parent.parent / 'near.txt').exists()\n"
    )
    options = ("workers.memory_limit=200MiB", "workers.restarts=9", "report.sample_every=0s", "code.snapshot=none")
    done = here.run("submit", "--wait", *(word for option in options for word in ("--set", option)), "sib/main.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True True\nKilledWorker\nKilled: out of memory\n"
    warning, failed, undone = without_late_report(here.status()["warnings"])
    assert failed.startswith("2 tasks failed, the first with KilledWorker: Attempted to run task"), failed
    assert undone.startswith("3 tasks were not finished when the script ended or deleted the future")
    assert all(words in " ".join(done.stderr.split()) for words in (warning, failed, undone))
    why = here.json("why")
    assert (why["failed"], why["cause"]) == (False, "the run succeeded: there is no failure to explain")
    assert re.search(r"local: hpcml ended worker local, which was over its memory limit: \d+ MiB of 200 MiB", warning)
    assert warning in done.stderr
    assert "killed by SIGKILL" not in here.run("logs", "last", "worker").stdout
    assert not RunPaths(Path(here.status()["directory"])).attempt(0).samples.exists()


def test_the_cause_is_in_the_result_where_no_worker_is_left(here: Here) -> None:
    done = here.submit(CONNECT + GREEDY, "--set", "workers.memory_limit=200MiB", "--set", "workers.restarts=1")
    assert done.returncode == errors.ROLE_LOST, done.stderr
    assert re.search(r"over its memory limit: \d+ MiB of 200 MiB", here.status()["message"])


LOSES_GPU = """
import hpcml, os, time
from cupy_backends.cuda.api.runtime import CUDARuntimeError
def bad():
    raise CUDARuntimeError(700)
client = hpcml.connect()
before = client.run(os.getpid)
where = sorted(before)
kept = client.submit(sum, [1, 2], workers=where[:1], allow_other_workers=True)
kept.result()
beside = [client.submit(time.sleep, 0, pure=False, workers=where[:1], allow_other_workers=True) for _ in range(20)]
error = client.submit(bad, workers=where[:1])
try:
    error.result()
except CUDARuntimeError as caught:
    print(f"caught {caught.status}\\n", end="", flush=True)  # at once: Dask's client writes there too
assert client.gather(beside) == [None] * 20
print(f"after {kept.result() + client.submit(lambda: 42.0, pure=False).result()}\\n", end="", flush=True)
client.wait_for_workers(2)
while len(after := client.run(os.getpid)) < 2: pass
print(f"new {len(set(after.values()) - set(before.values()))}\\n", end="", flush=True)
assert client.submit(sum, [4, 5]).result() == 9
"""
FAKE_CUPY = "class CUDARuntimeError(RuntimeError):\n    def __init__(self, status):\n        self.status = status\n        super().__init__(status)\n"


@pytest.mark.parametrize("restarted", [True, False])
def test_a_worker_restarts_after_a_cuda_error_that_takes_its_gpu(here: Here, restarted: bool) -> None:
    """The error itself reaches the script; a class of CuPy's name raises it, because no GPU is here."""
    package = here.folder / "cupy_backends/cuda/api"
    package.mkdir(parents=True)
    (package / "runtime.py").write_text(FAKE_CUPY)
    (here.folder / "job.py").write_text(LOSES_GPU)
    options = ("--set", "workers.per_node=2", "--set", "workers.threads=1")
    off = () if restarted else ("--set", "workers.restart_on_cuda_error=false")
    done = here.run("submit", "--wait", *options, *off, "job.py")
    assert done.returncode == 0, done.stdout + done.stderr
    status = here.status()
    run = Path(status["directory"])
    printed = [line for line in (run / "logs/script.log").read_text().splitlines() if "distributed.client" not in line]
    assert printed == ["caught 700", "after 45.0", f"new {int(restarted)}"]
    lost = here.events(run, "worker-without-gpu")
    assert [event["error"] for event in lost] == ["cudaErrorIllegalAddress"] * restarted
    told = [warning for warning in status["warnings"] if "cudaErrorIllegalAddress" in warning]
    assert len(told) == restarted
    mark = json.loads(next(RunPaths(run).attempt(0).nodes.glob("*.json")).read_text())
    assert mark["deaths"] == ({lost[0]["worker"]: 1} if restarted else {})
    assert all("CUDA error" in end["what"] and end["reason"] == "worker-" for end in mark["ends"])
