"""Profiles of real runs: of a script that failed, and of one that was cancelled."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.local

BIN = Path(sys.executable).parent
SCRIPT = """
import subprocess, sys, time
import hpcml
client = hpcml.connect()
print(sum(client.gather(client.map(lambda x: sum(range(x)), range(100), key="added"))), flush=True)
kept = bytearray(100_000_000)
if sys.argv[1:]:
    subprocess.run([*sys.argv[1:], hpcml.run.id], check=True, capture_output=True)
    time.sleep(600)
raise SystemExit(3)
"""

PATIENT = ("--set", "deadlines.teardown=120s")  # profiles are finished meanwhile

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


def submit(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    (folder / "job.py").write_text(SCRIPT)
    environment = {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "HOME": str(folder),
        "HPCML_SITE": "local",
        "LANG": "C.UTF-8",
    }
    done = subprocess.run([BIN / "hpcml", "submit", "--wait", *words], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=240, check=False)  # fmt: skip
    (run,) = (folder / ".hpcml/runs").glob("job-*")
    return done, run


@pytest.mark.parametrize(("words", "status"), [((), 3), ((str(BIN / "hpcml"), "cancel"), 86)])
def test_dask_s_report(tmp_path: Path, words: tuple[str, ...], status: int) -> None:
    done, run = submit(tmp_path, "--nodes", "2", "--profile", "dask", *PATIENT, "job.py", *words)
    assert done.returncode == status, done.stderr
    assert done.stdout == "161700\n"
    page = (run / "profiles/dask.html").read_text()
    assert "number of tasks: 100" in page
    assert "Workers: 2" in page
    assert "<link" not in page  # nothing is loaded from a network
    assert not re.search(r"<script[^>]+src=", page)
    assert f"profile    python -m webbrowser {run}/profiles/dask.html" in done.stderr
    assert "was not made" not in (run / "logs/scheduler.log").read_text()


@pytest.mark.skipif(importlib.util.find_spec("memray") is None, reason="memray is not installed")
def test_memray(tmp_path: Path) -> None:
    done, run = submit(tmp_path, "--nodes", "2", "--profile", "memray", *PATIENT, "job.py")
    assert (done.returncode, done.stdout) == (3, "161700\n"), done.stderr
    assert (run / "logs/driver.log").read_text() == "161700\n"  # no word of memray's
    files = sorted((run / "profiles").iterdir())
    assert [path.name.split(".")[0] for path in files] == [
        "memray-script",
        "memray-worker-local-0",
        "memray-worker-local-1",
    ]
    for path in files:
        table = subprocess.run([sys.executable, "-m", "memray", "stats", "--num-largest", "3", path],
                               capture_output=True, text=True, timeout=120, check=True)  # fmt: skip
        assert ("job.py" in table.stdout) == (path == files[0])


def test_nsys_around_the_workers_of_a_node(tmp_path: Path) -> None:
    """A program in its place is started as NVIDIA's would be, and the run is as without."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/nsys"
    program.write_text(NSYS)
    program.chmod(0o700)
    done, run = submit(tmp_path, "--nodes", "2", "--profile", "nsys", "job.py")
    assert (done.returncode, done.stdout) == (3, "161700\n"), done.stderr
    (report,) = (run / "profiles").iterdir()
    words = report.read_text().split("\n")
    assert words[0] == f"--output={run}/profiles/nsys-local.0"
    assert "--trace-fork-before-exec=true" in words
    assert words[-4:-1] == ["-m", "hpcml.node", "worker"]
    assert f"profile    nsys-ui {report}" in done.stderr


@pytest.mark.skipif(shutil.which("nsys") is not None, reason="nsys is installed")
def test_a_profiler_that_is_not_there(tmp_path: Path) -> None:
    done, run = submit(tmp_path, "--profile", "nsys", "job.py")
    assert (done.returncode, done.stdout) == (81, "")
    assert "needs NVIDIA's program nsys, which is not on PATH here" in done.stderr
    assert "driver-started" not in (run / "events.jsonl").read_text()
