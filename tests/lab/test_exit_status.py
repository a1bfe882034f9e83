"""The job's exit status is the script's, whatever ends it; and whoever else ends it says so with a status of its own.

The time limit has a file of its own, because of the minute that it takes.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from beside import PART, SMALL
from conftest import Cluster
from lab_state import wait_for
from tests.looks import without_late_report

pytestmark = pytest.mark.lab

CONNECT = "import hpcml, sys, os, time, signal\nclient = hpcml.connect()\n"
WAIT = "print('waiting', flush=True)\ntime.sleep(600)\n"
SAVES = (
    CONNECT
    + """def save(*_):
    print('saved', client.submit(lambda: 'with the cluster').result(), flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
"""
)


def log(directory: Path) -> str:
    path = directory / "logs/script.log"
    return path.read_text() if path.exists() else ""


def why(cluster: Cluster, run: Path) -> dict[str, Any]:
    done = cluster.run("hpcml", "why", run.name, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def slurm_exit(cluster: Cluster, directory: Path) -> str:
    job = json.loads((directory / "submission.json").read_text())["job"]
    going_on = ("RUNNING", "COMPLETING")  # the run's own word comes first
    assert wait_for(lambda: cluster.job(job)["JobState"] not in going_on, 40, 0.1), cluster.job(job)
    facts = cluster.job(job)
    return f"{facts['JobState']} {facts['ExitCode']}"


@pytest.mark.beside
def test_the_script_s_own_status(cluster: Cluster) -> None:
    """Also after a teardown that was cut short: who follows the run is told the end, and does not wait for ever."""
    ended = cluster.submit(CONNECT + "sys.exit(3)", *SMALL)
    assert ended.code == 3, ended.err
    assert ended.status["by"] == "script"
    cluster.wait_gone(ended.directory)
    assert slurm_exit(cluster, ended.directory) == "FAILED 3:0"
    (ended.directory / "status.json").write_text(json.dumps({**ended.status, "over": False}))
    assert cluster.run("hpcml", "logs", "-f", ended.directory.name, timeout=240).returncode == 0
    facts = json.loads(cluster.run("hpcml", "status", ended.directory.name, "--json").stdout)
    assert (facts["state"], facts["exit_status"], facts["by"]) == ("FAILED", 3, "script")


@pytest.mark.beside
def test_the_script_runs_out_of_memory(cluster: Cluster) -> None:
    if "cgroup" not in str(cluster.lab.state()):
        pytest.skip("the lab cannot enforce memory limits through cgroup v1 on this machine")
    hog = "parts = []\nwhile True:\n    parts.append(bytearray(b'x' * (50 << 20)))\n"
    ended = cluster.submit(CONNECT + hog, "--nodes", "1", *PART, "--set", "workers.memory_limit=300M")
    assert ended.code == 128 + signal.SIGKILL, ended.err
    assert "out of memory" in ended.status["message"]
    # Slurm itself marks a job in which something was killed for memory; the batch script's status is kept beside.
    assert slurm_exit(cluster, ended.directory) in ("OUT_OF_MEMORY 0:125", "FAILED 137:0")
    found = why(cluster, ended.directory)
    assert (found["known"], found["options"]) == (True, ["--memory-per-node", "1350M"]), found
    assert found["short"].startswith("out of memory")


@pytest.mark.beside
def test_the_job_is_cancelled(cluster: Cluster) -> None:
    """The driver gets SIGTERM while scheduler and workers still serve it, so that it can save what it has."""
    job, directory = cluster.detach(SAVES + WAIT, *SMALL, "--name", "tocancel")
    assert wait_for(lambda: "waiting" in log(directory), 60)
    assert cluster.run("hpcml", "cancel", "tocancel").returncode == 0
    status = cluster.wait_status(directory)
    cluster.wait_gone(directory)
    assert "saved with the cluster" in log(directory)
    assert (status["exit_status"], status["by"], status["state"]) == (0, "script", "CANCELLED")
    assert cluster.job(job)["JobState"] == "CANCELLED"


@pytest.mark.beside
def test_a_line_of_the_setup_that_lacks_a_command(cluster: Cluster) -> None:
    """A failure of another kind is a warning; a variable that is not set is none."""
    lines = json.dumps(["export X=$NO_SUCH_VARIABLE", "nowhere_activate ml"])
    ended = cluster.submit("print(1)", *SMALL, "--set", f"runtime.setup={lines}")
    assert (ended.code, ended.out) == (80, ""), ended.err
    cause = "line 2 of runtime.setup (nowhere_activate ml) exited with status 127: a command was not found"
    assert why(cluster, ended.directory)["cause"].lower() == cause
    assert slurm_exit(cluster, ended.directory) == "FAILED 80:0"
    ended = cluster.submit("print(1)", *SMALL, "--set", 'runtime.setup=["(exit 7)"]')
    assert (ended.code, ended.out) == (0, "1\n"), ended.err
    warned = (
        "Line 1 of runtime.setup ((exit 7)) exited with status 7. Correct this line. If it may fail, append '|| true'."
    )
    assert without_late_report(ended.status["warnings"]) == [warned]
    assert without_late_report(line["text"] for line in why(cluster, ended.directory)["warnings"]) == [warned]


@pytest.mark.beside
def test_a_cancel_during_the_setup_is_no_failure_of_its_line(cluster: Cluster) -> None:
    job, directory = cluster.detach(
        "print(1)", *SMALL, "--set", 'runtime.setup=["touch $HPCML_RUN_DIR/begun-setup; sleep 600"]'
    )
    assert wait_for((directory / "begun-setup").exists, 60, 0.1)
    cluster.run("scancel", job)
    assert wait_for(lambda: cluster.job(job)["JobState"] == "CANCELLED", 60, 0.1), cluster.job(job)
    assert not (directory / "status.json").exists()
    facts = json.loads(cluster.run("hpcml", "status", directory.name, "--json").stdout)
    assert facts["state"] == "CANCELLED"


def test_all_memory_of_a_node(cluster: Cluster) -> None:
    """``#SBATCH --mem=0``, as many centres' examples have it."""
    script = cluster.write("all.sh", "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --mem=0\npython3 -c 'print(1)'\n")
    done = cluster.run("hpcml", "submit", "--wait", "--", "bash", str(script))
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    directory = Path(json.loads(cluster.run("hpcml", "status", "--json").stdout)["directory"])
    (memory,) = (
        value for name, value in json.loads((directory / "plan.json").read_text())["directives"] if name == "--mem"
    )
    assert memory == "0"
    job = json.loads((directory / "submission.json").read_text())["job"]
    assert "mem=4000M" in cluster.job(job)["TRES"], cluster.job(job)
