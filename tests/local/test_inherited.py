"""Workers of a script that opens a cluster have in a run what those of its LocalCluster have: some 300 probes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import alike
from homes import HPCML, Here, here

pytestmark = pytest.mark.local
__all__ = ["here"]
FILES = Path(__file__).parent


def test_workers_inherit_what_a_local_cluster_s_would(here: Here) -> None:
    """What may differ is in tests/alike.py, and in docs/porting.md and docs/surroundings.md."""
    for name in ("inherited.py", "surroundings.py"):
        (here.folder / name).write_text((FILES / name).read_text())
    facts, printed = [], []
    for words in ([sys.executable], [HPCML, "submit", "--wait", "--nodes", "2"]):
        done = subprocess.run([*words, "inherited.py", "a"], cwd=here.folder, stdin=subprocess.DEVNULL, check=False,
                              env={**here.environment, "GONE": "1", "PWD": str(here.folder)}, capture_output=True, text=True,
                              timeout=240)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        facts.append(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{"))))
        printed.append(done.stdout)
    plain, run = facts
    tasks, of_run = plain.pop("tasks"), run.pop("tasks")
    assert plain == run == {"random": True, "01": [10, 20], "03": [2, 4], "04": [3, 6], "13": [True, [0, 1], 2]}
    assert len(tasks) + len(tasks["environment"]) + len(tasks["dask"]) > 200
    assert not alike.of_a_local_cluster(tasks, of_run)
    plain_path = [entry for entry in tasks["path"] if "dask-scratch-space" not in entry]
    assert of_run["path"][1] == plain_path[0] == str(here.folder / "work/lib")
    assert of_run["path"][4:] == plain_path[2:]  # between them the copy of the script's folder, and hpcml
    lacking = [line for line in printed[1].splitlines() if "the workers do not get" in line]
    assert [line.partition("get ")[2] for line in lacking] == [
        "LC_TIME for libraries that are already loaded (set the variable before you submit)."
    ]
