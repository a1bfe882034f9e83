"""Why real runs failed; what each rule knows is in tests/unit/test_failures.py."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from test_local import Here, here

pytestmark = pytest.mark.local

__all__ = ["here"]
CRASH = "import ctypes\ndef crash(x):\n    ctypes.string_at(0)\n"
ON_A_WORKER = "import hpcml\nclient = hpcml.connect()\n"

EITHER = -1  # KilledWorker reaches the script, or hpcml ends it first
# The script, the run's exit status, the cause in some words, and what the sentence holds.
ENDS: dict[str, tuple[str, int, str, str]] = {
    "cleaning up": ("try:\n    raise ValueError('first')\nfinally:\n    raise OSError('closing failed')\n", 1,
                    "ValueError in job.py:4", "first"),
    "segfault": (f"{CRASH}crash(0)\n", 139, "crashed (SIGSEGV)", "in string_at"),
    "killed worker": (f"{CRASH}{ON_A_WORKER}client.submit(crash, 0).result()\n", EITHER, "crashed (SIGSEGV)", "in string_at"),
    "os._exit": ("import os\nprint('out of memory')\nos._exit(5)\n", 5, "script chose exit status 5", "exit status 5"),
    "waits in vain": (f"{ON_A_WORKER}import time\nfrom dask.distributed import wait\nwait(client.submit(time.sleep, 60), timeout=1)\n", 1, "TimeoutError in job.py:5", "TimeoutError at job.py:5: wait(client.submit(time.sleep, 60), timeout=1)"),
}  # fmt: skip


def submit(here: Here, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (here.folder / "job.py").write_text(text)
    return here.run("submit", "--wait", *options, "job.py")


def facts(here: Here, *words: str) -> Any:
    done = here.run(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ENDS)
def test_a_run_that_failed_says_why(here: Here, name: str) -> None:
    script, status, short, words = ENDS[name]
    done = submit(here, script)
    assert done.returncode == status or (status == EITHER and done.returncode in (1, 82)), done.stderr
    found = facts(here, "why")
    assert (found["failed"], found["known"], found["short"]) == (True, True, short), found
    assert words in found["cause"]
    (row,) = facts(here, "ls")
    assert row["cause"] == short
    said = "More: hpcml why" in done.stderr
    assert said is (not short.startswith("script chose")), done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_of_the_end_shows_no_crash(here: Here, number: signal.Signals) -> None:
    done = submit(here, f"import os\nos.kill(os.getpid(), {int(number)})\n")
    assert done.returncode == 128 + number
    assert "Fatal Python error" not in done.stdout
    assert here.status()["message"] == f"the script was killed by {number.name}"
    found = facts(here, "why")
    assert (found["known"], found["short"]) == (False, f"killed by {number.name}")
    assert found["look"]


NESTED = """
def outer(x):
    def inner(y):
        return 1 / y
    from distributed import worker_client
    with worker_client() as client:
        return client.submit(inner, x).result()
client.submit(outer, 0).result()
"""


def test_a_task_of_a_task_has_its_line_in_the_traceback(here: Here) -> None:
    """And a user's own variables stay as they are."""
    names = ("PYTHONFAULTHANDLER", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "UCX_LOG_LEVEL")
    shown = f"import os; print(*(os.environ.get(name) for name in {names}))"
    own = ("--env", "NCCL_DEBUG=INFO", "--env", "UCX_LOG_LEVEL=error", "--env", "PYTHONFAULTHANDLER=")
    done = submit(here, f"import distributed; {shown}\nclient = distributed.Client(){NESTED}", *own)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0].split() == ["INFO", "None", "error"]
    outer, inner = (f'  File "{here.folder}/job.py", line {at}' for at in (8, 5))
    assert f"{outer}, in outer\n    return client.submit(inner, x).result()\n" in done.stdout
    assert f"{inner}, in inner\n    return 1 / y\n" in done.stdout
    assert facts(here, "why")["short"] == "ZeroDivisionError in job.py:5"
    assert here.status()["warnings"] == []  # of tasks that failed: the script did too
    ending = json.loads((Path(here.status()["directory"]) / "report.json").read_text())["ending"]
    assert "division by zero" in ending["cause"]
    assert ending["evidence"]


def test_a_script_alone_has_the_lines_too(here: Here) -> None:
    here.script(f"import hpcml\nclient = hpcml.connect(n_workers=1){NESTED}")
    done = subprocess.run([sys.executable, "my script.py"], cwd=here.folder, env=here.environment, capture_output=True,
                          text=True, timeout=240, check=False)  # fmt: skip
    assert done.returncode == 1
    assert f'File "{here.folder}/my script.py", line 5, in inner' in done.stderr
    assert "dynamic-code" not in done.stderr
