"""A run of one more kind, which docs/kinds.md shows, on this machine: it starts, ends, and a lost process ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from homes import Here, here
from hpcml.errors import ROLE_LOST
from tests import new_kind

MAIN = "import sys; from hpcml.cli.main import main; sys.exit(main(sys.argv[1:]))"

pytestmark = pytest.mark.local

__all__ = ["here"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    new_kind.install(folder)
    return folder


def submit(here: Here, copy: Path, text: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", MAIN, "submit", "--wait", "--echo", here.script(text)]
    return subprocess.Popen(words, cwd=here.folder, env=here.environment | {"PYTHONPATH": str(copy)}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def runs(here: Here) -> list[Path]:
    found = (path.parent for path in (here.folder / ".hpcml/runs").glob("*/plan.json"))
    return [path for path in found if not path.is_symlink()]


def test_its_script_runs_beside_its_processes(here: Here, copy: Path) -> None:
    out, err = submit(here, copy, "print('hello')\n").communicate(timeout=120)
    assert "hello" in out, err
    (run,) = runs(here)
    assert (run / "logs/echo-local.log").read_text().startswith("the echo of ")
    assert [event["count"] for event in here.events(run, "echo-heard")][-1] == 1
    assert here.events(run, "script-ended")[0]["exit_status"] == 0
    here.until(lambda: not here.left())


def test_a_lost_process_ends_it(here: Here, copy: Path) -> None:
    process = submit(here, copy, "import time\nprint('runs', flush=True)\ntime.sleep(600)\n")
    here.until(lambda: [line for line in here.processes().values() if line.endswith("hpcml.kinds echo")], 90)
    here.until(lambda: any(here.events(run, "script-started") for run in runs(here)), 90)
    for pid, line in here.processes().items():
        if line.endswith("hpcml.kinds echo"):
            with contextlib.suppress(ProcessLookupError):  # it ended with one that was killed before
                os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode == ROLE_LOST
