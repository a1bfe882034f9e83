"""Why real runs failed that end in every way a script can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.local

HPCML = str(Path(sys.executable).with_name("hpcml"))
CRASH = "import ctypes\ndef crash(x):\n    ctypes.string_at(0)\n"
ON_A_WORKER = "import hpcml\nclient = hpcml.connect()\n"

EITHER = -1  # KilledWorker reaches the script, or hpcml ends it first
# The script, options, the run's exit status, the cause in some words, and what the sentence holds.
ENDS: dict[str, tuple[str, tuple[str, ...], int, str, str]] = {
    "exception": ("def f(x):\n    return 1 / x\nf(0)\n", (), 1, "ZeroDivisionError in job.py:2", "division by zero"),
    "of a task": (f"{ON_A_WORKER}def f(x):\n    return 1 / x\nclient.submit(f, 0).result()\n", (), 1,
                  "ZeroDivisionError in job.py:4", "division by zero"),
    "cleaning up": ("try:\n    raise ValueError('first')\nfinally:\n    raise OSError('closing failed')\n", (), 1,
                    "ValueError in job.py:4", "first"),
    "segfault": (f"{CRASH}crash(0)\n", (), 139, "crashed (SIGSEGV)", "in string_at"),
    "killed worker": (f"{CRASH}{ON_A_WORKER}client.submit(crash, 0).result()\n", (), EITHER, "crashed (SIGSEGV)", "in string_at"),
    "os._exit": ("import os\nprint('out of memory')\nos._exit(5)\n", (), 5, "script chose exit status 5", "exit status 5"),
    "sys.exit": ("import sys\nsys.exit(3)\n", (), 3, "script chose exit status 3", "exit status 3"),
    "assertion": ("import os\nos.write(2, b\"python: solver.c:212: solve: Assertion `n > 0' failed.\\n\")\nos.abort()\n", (), 134,
                  "assertion failed in compiled code", "solver.c:212: solve: Assertion `n > 0' failed"),
    "endless recursion of a task": (f"{ON_A_WORKER}def f(n):\n    return f(n + 1)\nclient.submit(f, 0).result()\n", (), 1,
                                    "endless recursion", "call each other without end"),
    "waits in vain": (f"{ON_A_WORKER}import time\nfrom dask.distributed import wait\nwait(client.submit(time.sleep, 60), timeout=1)\n",
                      (), 1, "TimeoutError in job.py:5", "TimeoutError at job.py:5: wait(client.submit(time.sleep, 60), timeout=1)"),
    "bytes of another encoding in a task": (f"{ON_A_WORKER}client.submit(bytes.decode, b'caf\\xe9!').result()\n", (), 1,
                                            "UnicodeDecodeError in job.py:3", "can't decode byte 0xe9 in position 3"),
    "memory error": ("x = bytearray(1 << 60)\n", (), 1, "out of memory", "more memory than it can have"),
}  # fmt: skip


class Place:
    """A home and a folder with a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "HPCML_SITE": "local", "LANG": "C.UTF-8"}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([HPCML, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                              timeout=240, check=False)  # fmt: skip

    def submit(self, text: str, *options: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "job.py").write_text(text)
        return self.run("submit", "--wait", *options, "job.py")

    def facts(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("name", ENDS)
def test_a_run_that_failed_says_why(place: Place, name: str) -> None:
    script, options, status, short, words = ENDS[name]
    done = place.submit(script, *options)
    assert done.returncode == status or (status == EITHER and done.returncode in (1, 82)), done.stderr
    found = place.facts("why")
    assert (found["failed"], found["known"], found["short"]) == (True, True, short), found
    assert words in found["cause"]
    (row,) = place.facts("ls")
    assert row["cause"] == short
    said = "More: hpcml why" in done.stderr
    assert said is (not short.startswith("script chose")), done.stderr


def test_a_run_that_reached_its_time_limit_says_why(place: Place) -> None:
    """On a busy machine a short limit comes before the script."""
    for seconds in (12, 24, 48, 96):
        done = place.submit("import time\ntime.sleep(600)\n", "--time", f"{seconds}s")
        assert done.returncode == 85, done.stderr
        found = place.facts("why")
        assert (found["failed"], found["known"], found["short"]) == (True, True, "time limit"), found
        assert found["options"] == ["--time", "0:01:00"] or seconds > 12, found
        assert "More: hpcml why" in done.stderr
        if "before all workers were there" not in found["cause"]:
            break
    assert "while the script ran" in found["cause"]
    assert place.facts("ls")[-1]["cause"] == "time limit"


def test_a_module_that_is_missing_where_no_look_at_the_script_finds_it(place: Place) -> None:
    done = place.submit("import importlib\nimportlib.import_module('not_' + 'there')\n")
    assert "cause: The module not_there was not found by a process of the run" in done.stderr
    assert place.facts("why")["rule"] == "no-module"


def test_a_run_that_ended_well_though_it_talked_of_trouble(place: Place) -> None:
    done = place.submit("print('Killed: out of memory')\nprint('OSError: [Errno 28] No space left on device')\n")
    assert done.returncode == 0
    found = place.facts("why")
    assert (found["failed"], found["cause"]) == (False, "the run ended well: there is no failure to explain")


def test_a_signal_of_the_end_shows_no_crash(place: Place) -> None:
    done = place.submit("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    assert done.returncode == 143
    assert "Fatal Python error" not in done.stdout
    found = place.facts("why")
    assert (found["known"], found["short"]) == (False, "killed by SIGTERM")
    assert found["look"]


def test_what_libraries_say_is_set_unless_the_user_did(place: Place) -> None:
    names = ("PYTHONFAULTHANDLER", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "UCX_LOG_LEVEL")
    script = f"import os\nprint(*(os.environ.get(name) for name in {names}))\n"
    first = place.submit(script).stdout.split()
    assert (first[0], first[1], first[3]) == ("1", "WARN", "warn")
    assert first[2].endswith("/logs/nccl-%h.%p.log")
    second = place.submit(
        script, "--env", "NCCL_DEBUG=INFO", "--env", "UCX_LOG_LEVEL=error", "--env", "PYTHONFAULTHANDLER="
    )
    assert second.stdout.split() == ["INFO", "None", "error"]


NESTED = """
def outer(x):
    def inner(y):
        return 1 / y
    from distributed import worker_client
    with worker_client() as client:
        return client.submit(inner, x).result()
client.submit(outer, 0).result()
"""


@pytest.mark.parametrize("connects", ["hpcml.connect()", "distributed.Client()"])
def test_a_task_of_a_task_has_its_line_in_the_traceback(place: Place, connects: str) -> None:
    script = f"import distributed, hpcml\nclient = {connects}{NESTED}"
    done = place.submit(script)
    assert done.returncode == 1
    outer, inner = (f'  File "{place.folder}/job.py", line {at}' for at in (8, 5))
    assert f"{outer}, in outer\n    return client.submit(inner, x).result()\n" in done.stdout
    assert f"{inner}, in inner\n    return 1 / y\n" in done.stdout
    assert place.facts("why")["short"] == "ZeroDivisionError in job.py:5"


def test_a_script_alone_has_the_lines_too(place: Place) -> None:
    (place.folder / "job.py").write_text(f"import hpcml\nclient = hpcml.connect(){NESTED}")
    done = subprocess.run([sys.executable, "job.py"], cwd=place.folder, env=place.environment, capture_output=True,
                          text=True, timeout=240, check=False)  # fmt: skip
    assert done.returncode == 1
    assert f'File "{place.folder}/job.py", line 5, in inner' in done.stderr
    assert "dynamic-code" not in done.stderr
