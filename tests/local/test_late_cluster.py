"""Runs whose script does not name Dask: no cluster starts before the first client, and a client that hides starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from homes import Here, here
from hpcml import errors
from tests.looks import whole_lines, without_late_report

pytestmark = pytest.mark.local

__all__ = ["here"]
PLAIN = """
import os, sys, time
from pathlib import Path
attempt = Path(os.environ["HPCML_RUN_DIR"], "attempts", os.environ["HPCML_ATTEMPT"])
print("keys", (attempt / "secret/tls-key.pem").exists())
print("loaded", sorted({"da" + "sk", "dis" + "tributed"} & set(sys.modules)))
time.sleep(1)
"""
# As a library does that has Dask as one of its ways to work in parallel.
HIDDEN = """
import importlib
words = ["dis", "tri", "buted"]
module = importlib.import_module("".join(words))
if __name__ == "__main__":
    with module.Client() as client:
        print("sum", sum(client.gather(client.map(lambda x: x * x, range(10)))), len(client.scheduler_info()["workers"]))
    with module.LocalCluster(n_workers=1) as cluster, module.Client(cluster) as client:
        print("again", client.submit(sum, (1, 2)).result())
"""


def test_a_plain_script_runs_without_a_cluster(here: Here) -> None:
    done = here.submit(PLAIN)
    assert done.returncode == 0, done.stderr
    status = here.status()
    assert "loaded []" in done.stdout
    assert "keys False" in done.stdout, "the keys of a cluster were made"
    assert not here.events(Path(status["directory"]), "scheduler-up")
    assert status["has_cluster"] is False
    assert without_late_report(status["warnings"]) == []
    assert "worker" not in (Path(status["directory"]) / "logs/job.log").read_text()
    assert "starts when the script opens a Dask client" in done.stderr


def test_a_hidden_client_starts_the_cluster(here: Here) -> None:
    done = here.submit(HIDDEN, "--nodes", "2", "--set", "workers.per_node=2")
    assert done.returncode == 0, done.stderr
    assert "sum 285 4" in done.stdout
    assert "again 3" in done.stdout
    assert "the run's Dask cluster starts now" in done.stdout + done.stderr
    status = here.status()
    assert (status["has_cluster"], without_late_report(status["warnings"])) == (True, [])
    names = [json.loads(line)["event"] for line in whole_lines(Path(status["directory"]) / "events.jsonl")]
    order = ["cluster-waits", "script-started", "cluster-wanted", "scheduler-up", "workers-ready", "script-ended"]
    assert [name for name in names if name in order] == order


def test_a_late_cluster_that_cannot_start_ends_the_run_as_an_early_one_does(here: Here) -> None:
    done = here.submit(HIDDEN, "--set", "deadlines.workers=1s", "--set", "workers.per_node=2",
                       "--env", "DASK_DISTRIBUTED__WORKER__PRELOAD=no_such_module", "--set", "workers.start=late")  # fmt: skip
    assert done.returncode == errors.WORKERS_NEVER_CAME, done.stdout + done.stderr


def test_a_python_without_hpcml_fails_at_its_client(here: Here) -> None:
    """It would open a cluster of its own on one node, and end with less than the run has."""
    code = "import " + "dis" + "tributed; " + "dis" + "tributed.Client(timeout=5)"
    script = here.folder / "other.py"
    script.write_text(
        f"import subprocess, sys\nsys.exit(subprocess.run([sys.executable, '-S', '-E', '-c', 'import sys; sys.path += ' + repr(sys.path) + '; ' + {code!r}]).returncode)\n"
    )
    done = here.run("submit", "--wait", "--set", "workers.start=late", script.name)
    assert done.returncode == 1
    assert "unknown address scheme 'hpcml-late'" in done.stdout


def test_a_plain_script_needs_no_dask(here: Here) -> None:
    """Nor any other package: neither it nor the roles that wait import one."""
    bare = here.folder / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    done = here.submit("import sys\nprint(sys.prefix)\n", "--set", f"runtime.python='''{bare}/bin/python'''")
    assert (done.returncode, done.stdout) == (0, f"{bare}\n"), done.stderr
