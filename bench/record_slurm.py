#!/usr/bin/env python3
"""Record what a version of Slurm answers, for tests/unit/test_slurm_recorded.py: `apart.py --slurm 26.05 2 bench/record_slurm.py`.

It writes tests/fixtures/slurm/VERSION.json: the words, status, output and errors of each command, and the logs of jobs
that ended in every way. It takes two minutes, Slurm's shortest time limit.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lab"))

from lab_paths import ACCOUNT, USERS, LabError
from lab_state import wait_for
from labs import Lab

FOLDER = Path(__file__).resolve().parents[1] / "tests/fixtures/slurm"
LONGEST_S = 240.0  # a time limit of a minute is noticed up to half a minute late
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
ROW = "--format=%i|%T|%r|%S|%N|%j|%k"
SACCT = ["sacct", "--noheader", "--parsable2", "--allocations"]
OF = "--format=JobID,{},Submit,UID,JobName,Comment"
IN_CONFIG = ("ClusterName", "KillWait", "MaxArraySize", "PriorityFlags", "SchedulerParameters", "SLURM_VERSION")
REFUSED = {
    "account": ["--account=nobody"],
    "qos": ["--qos=nothing"],
    "partition": ["--partition=nothing"],
    "time": ["--time=99-0"],
    "nodes": ["--nodes=99"],
    "nodes of the partition": ["--partition=debug", "--nodes=3"],
    "cpus": ["--nodes=1", "--ntasks=1", "--cpus-per-task=99"],
    "memory": ["--mem=999G"],
    "gpus": ["--gres=gpu:99"],
    "gpu type": ["--gpus-per-node=a100:1"],
    "gres": ["--gres=nothing:1"],
    "dependency": ["--dependency=afterok:999999"],
    "feature": ["--constraint=nothing"],
    "option": ["--no-such-option"],
    "array": ["--array=0-99999"],
}
EXCERPT = 4000  # characters of a log


class Recorder:
    """The lab's Slurm, asked as alice on the login node."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.found: dict[str, dict[str, Any]] = {}
        self.folder = lab.home("alice") / "recorded"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.do("mkdir", str(self.folder))

    def do(self, *words: str, text: str | None = None) -> dict[str, Any]:
        done = self.lab.exec(list(words), cwd=self.folder if self.folder.exists() else None, timeout=120, input=text)
        return {"command": list(words), "code": done.returncode, "out": done.stdout, "err": done.stderr}

    def record(self, name: str, *words: str) -> dict[str, Any]:
        self.found[name] = self.do(*words)
        return self.found[name]

    def submit(self, name: str, text: str, *options: str) -> str:
        """Submit a job; returns its number."""
        words = ["sbatch", "--parsable", f"--account={ACCOUNT}", f"--comment=hpcml:{name}", f"--job-name={name}"]
        log = [f"--output={name}.log", "--time=10"]
        done = self.do(*words, *log, *options, text=f"#!/bin/bash\n{text}\n")
        if done["code"]:
            raise LabError(f"The job {name} was not taken: {done['err'].strip()}")
        return str(done["out"]).strip()

    def state(self, job: str) -> str:
        shown = self.do("scontrol", "--oneliner", "show", "job", job)["out"]
        found = re.search(r"JobState=(\w+)", shown)
        return found[1] if found else ""

    def wait(self, job: str, *states: str) -> None:
        if not wait_for(lambda: self.state(job) in states, LONGEST_S, 0.2):
            raise LabError(f"Job {job} is {self.state(job)}, not {' or '.join(states)}.")


def main() -> int:
    lab = Lab()
    lab.down()
    lab.up(accounting=True)
    try:
        recorder = Recorder(lab)
        version = re.search(r"\d+\.\d+", recorder.record("version", "sbatch", "--version")["out"])
        assert version is not None
        _record_all(recorder)
    finally:
        lab.down()
    FOLDER.mkdir(parents=True, exist_ok=True)
    target = FOLDER / f"{version[0]}.json"
    target.write_text(json.dumps(recorder.found, indent=1) + "\n")
    print(target)
    return 0


def _record_all(recorder: Recorder) -> None:
    lab = recorder.lab
    limited = recorder.submit("time limit", "srun --ntasks=1 sleep 1000", "--time=1")
    lost = recorder.submit("node failure", "srun sleep 1000", "--nodes=2", "--nodelist=n3,n4", "--no-requeue")
    logs = {"time limit": limited, "node failure": lost}
    _refusals(recorder)
    _config(recorder)
    logs |= _endings(recorder)
    _running(recorder)
    recorder.wait(lost, "RUNNING")
    lab.node_down("n4", crash=True, tell=True)
    for job in logs.values():
        recorder.wait(job, *OVER)
    lab.node_up("n4")
    jobs = ",".join(logs.values())
    recorder.record("squeue: ended", "squeue", "--all", "--states=all", f"--jobs={jobs}", ROW)
    recorder.record("squeue: comments", "squeue", "--noheader", "--array", "--states=all", f"--user={USERS['alice']}",
                    "--format=%i|%T|%k")  # fmt: skip
    sacct = [*SACCT, f"--jobs={jobs}", "--duplicates"]

    def accounted() -> bool:
        done = recorder.record("sacct: ended", *sacct, OF.format("State,ExitCode,Start,NodeList"))
        return "RUNNING" not in done["out"] and {row.partition("|")[0] for row in done["out"].splitlines()} == {
            *logs.values()
        }

    wait_for(accounted, LONGEST_S, 0.5)
    recorder.record(
        "sacct: comments", *SACCT, f"--jobs={jobs}", "--format=JobID,State,Comment", "--starttime=now-2days"
    )
    recorder.record("sacct: memory", *SACCT, f"--jobs={logs['completed']}", "--duplicates",
                    OF.format("ReqMem,NNodes,NCPUS"))  # fmt: skip
    recorder.record("sacct: end", *SACCT, f"--jobs={logs['node failure']}", "--duplicates",
                    OF.format("ExitCode,FailedNode"))  # fmt: skip
    recorder.found["ended jobs"] = dict(logs)
    for name, job in logs.items():
        recorder.record(f"job: {name}", "scontrol", "--oneliner", "show", "job", job)
        text = (recorder.folder / f"{name}.log").read_text(errors="replace")
        recorder.found[f"log: {name}"] = {"job": job, "out": text[-EXCERPT:]}
    _silence(recorder)


def _refusals(recorder: Recorder) -> None:
    script = recorder.folder / "job.sh"
    recorder.do("tee", str(script), text="#!/bin/bash\nhostname\n")
    known = [f"--account={ACCOUNT}"]
    for name, options in REFUSED.items():
        recorder.record(f"refused: {name}", "sbatch", "--parsable", *known, *options, str(script))
        recorder.record(f"test only, refused: {name}", "sbatch", "--test-only", *known, *options, str(script))
    recorder.record("test only", "sbatch", "--test-only", *known, str(script))
    recorder.submit("one job", "sleep 1000", "--qos=one_job", "--hold")
    recorder.record("refused: one job", "sbatch", "--parsable", *known, "--qos=one_job", str(script))
    recorder.record("squeue: unknown", "squeue", "--all", "--states=all", "--jobs=999999", ROW)
    recorder.record("squeue: unknown ones", "squeue", "--all", "--states=all", "--jobs=999998,999999", ROW)
    recorder.record("job: unknown", "scontrol", "--oneliner", "show", "job", "999999")
    recorder.record("scancel: unknown", "scancel", "999999")


def _config(recorder: Recorder) -> None:
    config = recorder.record("config", "scontrol", "show", "config")
    config["out"] = "\n".join(line for line in config["out"].splitlines() if line.startswith(IN_CONFIG)) + "\n"
    recorder.record("partition", "scontrol", "show", "partition", "boost")
    tables = {
        "partitions": ["scontrol", "--oneliner", "show", "partition"],
        "sinfo": ["sinfo", "--noheader", "--exact", "--format=%P|%D|%c|%Z|%m|%l|%N|%G"],
        "node": ["scontrol", "--oneliner", "show", "node", "n1"],
        "qos": ["sacctmgr", "--parsable2", "show", "qos"],
        "assoc": ["sacctmgr", "--parsable2", "show", "assoc", "where", f"user={USERS['alice']}"],
        "user": ["sacctmgr", "--parsable2", "show", "user", "where", f"user={USERS['alice']}"],
    }
    for name, words in tables.items():
        table = recorder.record(f"table: {name}", *words)
        table["out"] = table["out"].replace(
            platform.release(), "6.1.0"
        )  # the kernel of whoever records is nobody's business
    show = ["sacctmgr", "--noheader", "--parsable2", "show"]
    where = ["where", f"user={USERS['alice']}", f"account={ACCOUNT}", "format=MaxSubmitJobs,DefaultQOS"]
    recorder.record("sacctmgr: assoc", *show, "assoc", *where)
    where = ["where", "name=one_job", "format=MaxSubmitJobsPerUser,Name"]
    recorder.record("sacctmgr: qos", *show, "qos", *where)


def _endings(recorder: Recorder) -> dict[str, str]:
    """Jobs that end soon, each in a way of its own; returns their numbers."""
    allocation = "srun --mpi=none --overlap"
    logs = {
        "completed": recorder.submit("completed", "env | grep ^SLURM_ | sort"),
        "failed": recorder.submit("failed", "exit 3"),
        "task failed": recorder.submit("task failed", f"{allocation} --ntasks=2 bash -c 'exit 3'", "--ntasks=2"),
        "task killed": recorder.submit("task killed", f"{allocation} bash -c 'kill -9 $$'"),
        "memory": recorder.submit("memory", f"{allocation} python3 -c 'bytearray(300 << 20)'", "--mem=50M"),
        "no program": recorder.submit("no program", f"{allocation} --nodes=2 /no/such/program", "--nodes=2"),
        "no folder": recorder.submit("no folder", f"{allocation} --chdir=/no/such/folder true"),
        "step too large": recorder.submit("step too large", f"timeout --signal=INT 15 {allocation} --mem=100G true"),
        "step too wide": recorder.submit("step too wide", f"{allocation} --ntasks=99 true"),
    }
    for name in ("cancelled", "signalled", "requeued"):
        put_back = "--requeue" if name == "requeued" else "--no-requeue"
        logs[name] = recorder.submit(name, "srun sleep 1000", put_back)
        recorder.wait(logs[name], "RUNNING")
        # the step must be there, or the job ends without a word of it
        step = ["squeue", "--steps", "--noheader", f"--jobs={logs[name]}", "--format=%i|%j|%N"]
        wait_for(lambda step=step: ".0|" in recorder.do(*step)["out"], LONGEST_S, 0.2)  # type: ignore[misc]
    recorder.record("squeue: steps", *step)
    recorder.do("scancel", logs["cancelled"])
    recorder.do("scancel", "--signal=TERM", logs["signalled"])
    recorder.do("scontrol", "requeue", logs["requeued"])
    recorder.wait(logs["requeued"], "PENDING", "REQUEUED")
    recorder.do("scancel", logs["requeued"])
    recorder.wait(logs["cancelled"], "CANCELLED")
    recorder.record("scancel: ended", "scancel", logs["cancelled"])
    return logs


def _running(recorder: Recorder) -> None:
    """What Slurm tells of jobs that wait and run."""
    allocation = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--gpus-per-node=2", "--mem=600M"]
    jobs = [
        recorder.submit("allocation", "sleep 1000", *allocation),
        recorder.submit("array", "sleep 1000", "--array=0-5%2", "--mem=10M"),
        recorder.submit("held", "sleep 1000", "--hold"),
        recorder.submit("dependent", "sleep 1000"),
        recorder.submit("later", "sleep 1000", "--begin=now+1hour"),
    ]
    recorder.do("scontrol", "update", f"jobid={jobs[3]}", f"dependency=afterok:{jobs[2]}")
    jobs.append(recorder.submit("depends", "true", f"--dependency=afterok:{jobs[0]}"))
    jobs.append(recorder.submit("too many", "true", "--qos=boost_qos_dbg", "--nodes=3"))
    recorder.wait(jobs[0], "RUNNING")
    names = ("allocation", "array", "held", "dependent", "later", "depends", "too many")
    recorder.found["jobs"] = dict(zip(names, jobs, strict=True))
    recorder.record("job: allocation", "scontrol", "--details", "--oneliner", "show", "job", jobs[0])
    listed = ["--all", "--states=all", f"--jobs={','.join(jobs)}"]
    recorder.record("squeue: queue", "squeue", *listed, ROW)
    recorder.record("squeue: array", "squeue", "--all", "--array", "--noheader", "--states=all", f"--jobs={jobs[1]}",
                    "--format=%F|%K|%T|%k")  # fmt: skip
    recorder.record("sacct: queue", *SACCT, f"--jobs={','.join(jobs)}", "--duplicates",
                    OF.format("State,ExitCode,Start,NodeList"))  # fmt: skip
    recorder.do("scancel", *jobs)


def _silence(recorder: Recorder) -> None:
    """What the commands say when the controller is gone."""
    controller = recorder.lab.state().daemons["slurmctld"]
    os.kill(controller.pid, signal.SIGKILL)
    wait_for(lambda: not controller.alive, LONGEST_S)
    script = str(recorder.folder / "job.sh")
    recorder.record("gone: squeue", "squeue", "--all", "--states=all", "--jobs=1", ROW)
    recorder.record("gone: sbatch", "sbatch", "--parsable", script)
    recorder.record("gone: scancel", "scancel", "1")
    recorder.record("gone: scontrol", "scontrol", "--oneliner", "show", "job", "1")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
