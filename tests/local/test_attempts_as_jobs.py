"""The batch script of a run that goes on, as jobs after one another, with commands in the place of Slurm's.

What Slurm itself does is not tried here; what the script asks of it, and which job is the run's, is.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from homes import CONNECT, Here, here
from hpcml import errors

pytestmark = pytest.mark.local

__all__ = ["here"]

# Job ids count from 101; each request is noted. srun runs its command, with the log that it was told.
COMMANDS = {
    "sbatch": 'echo "sbatch $*" >>"$CALLS"; echo "$(env | grep ^SLURM_ | sort | tr "\\n" " ")" >>"$CALLS.env"\n'
    'echo "$((100 + $(grep -c ^sbatch "$CALLS")))"',
    "scancel": 'echo "scancel $*" >>"$CALLS"',
    "srun": "out=\nwhile :; do case $1 in --output=*) out=${1#--output=}; shift;; --*) shift;; *) break;; esac; done\n"
    'exec "$@" >>"${out//%N/n1}" 2>&1',
    "squeue": "exit 1",
    "sacct": "exit 1",
    "scontrol": "exit 1",
}
SCRIPT = (
    CONNECT
    + """
import json
done = []
if path := hpcml.run.saved("done.json"):
    done = json.loads(path.read_text())
done.append(hpcml.run.attempt)
hpcml.run.save("done.json", lambda path: path.write_text(json.dumps(done)))
print("done", done, flush=True)
if len(done) == 2:
    time.sleep(600)
if len(done) < 3:
    hpcml.run.stop()
"""
)


@pytest.fixture
def calls(here: Here) -> Path:
    """The file in which the commands that stand for Slurm's note what they are asked."""
    commands = here.folder / "commands"
    commands.mkdir()
    for name, text in COMMANDS.items():
        (commands / name).write_text(f"#!/bin/bash\n{text}\n")
        (commands / name).chmod(0o755)
    path = here.folder / "calls"
    here.environment |= {"PATH": f"{commands}:{here.environment['PATH']}", "CALLS": str(path)}
    return path


def start(here: Here, directory: Path, job: str, **more: str) -> subprocess.Popen[bytes]:
    variables = {
        **more,
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_JOB_NODELIST": "n1",
        "SLURMD_NODENAME": "n1",
    }
    variables |= {"SLURM_CPUS_ON_NODE": "2", "SLURM_MEM_PER_NODE": "2000", "SLURM_CONF": "/etc/slurm.conf"}
    log = (directory / "logs/job.log").open("ab")
    environment = {**here.environment, **variables}
    with log:
        return subprocess.Popen(
            ["bash", directory / "job.sh"], env=environment, stdout=log, stderr=log, start_new_session=True
        )


def job_of(directory: Path, name: str = "job") -> str:
    return str((directory / name).readlink())


def test_jobs_after_one_another(here: Here, calls: Path) -> None:
    """The first one stops to be continued; the second is killed with all its processes, put back, and ends the run."""
    script = here.script(SCRIPT)
    asked = here.run(
        "submit", "--site", "slurm", "--json", "--until-done", "--max-restarts", "2", "--time", "30", script
    )
    assert asked.returncode == 0, asked.stderr
    directory = Path(json.loads(asked.stdout)["directory"])
    log = directory / "logs/script.log"

    assert start(here, directory, "101").wait(120) == errors.STOPPED, log.read_text()
    assert (job_of(directory), job_of(directory, "next-job")) == ("101", "102")

    second = start(here, directory, "102")
    try:
        here.until(lambda: "done [0, 1]" in log.read_text())
        assert (job_of(directory), job_of(directory, "next-job")) == ("102", "103")
    finally:
        os.kill(second.pid, signal.SIGKILL)  # the batch script; its steps end with it on a node that fails
        second.wait()
        for pid in here.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    here.until(lambda: not here.left())
    assert (job_of(directory), job_of(directory, "next-job")) == ("102", "103")

    assert start(here, directory, "104").wait(120) == 64  # a job that is no attempt changes nothing
    assert sorted(os.listdir(directory / "attempts")) == ["0", "1"]

    assert start(here, directory, "102", SLURM_RESTART_COUNT="1").wait(120) == 0, log.read_text()
    assert "done [0, 1, 2]" in log.read_text()
    assert job_of(directory) == "102"
    assert not (directory / "next-job").is_symlink()
    assert json.loads((directory / "status.json").read_text())["attempt"] == 2
    first, *later = calls.read_text().splitlines()
    line = f"--parsable --begin=now --dependency=afterany:{{}} {directory}/job.sh"
    assert first == f"sbatch --parsable {directory}/job.sh"
    assert later == [*(f"sbatch {line.format(job)}" for job in ("101", "102")), "scancel 103"]
    assert (calls.parent / "calls.env").read_text().split()[-2:] == ["SLURM_CONF=/etc/slurm.conf"] * 2


def test_a_follow_up_that_is_not_wanted_is_cancelled(here: Here, calls: Path) -> None:
    """Also where the batch script ends before there is a supervisor."""
    modules = ("--set", 'runtime.modules=["not there"]')
    script = here.script("print('runs')\n")
    asked = here.run("submit", "--site", "slurm", "--json", "--until-done", "--time", "30", *modules, script)
    assert asked.returncode == 0, asked.stderr
    directory = Path(json.loads(asked.stdout)["directory"])
    assert start(here, directory, "101").wait(60) == errors.START_FAILED
    assert calls.read_text().splitlines()[-1] == "scancel 102"
    assert not (directory / "next-job").is_symlink()
