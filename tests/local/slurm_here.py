"""Slurm's commands as far as an elastic cluster uses them, with jobs that really run, as processes of this machine.

``put(FOLDER)`` writes sbatch, squeue and scancel into a folder for PATH; HERE_JOBS names it. A file ``refuse`` there has sbatch say no, with
the text in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = ("sbatch", "squeue", "scancel")


def put(folder: Path) -> None:
    folder.mkdir()
    for name in COMMANDS:
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} {name} "$@"\n')
        (folder / name).chmod(0o755)


def main(name: str, words: list[str]) -> int:
    folder = Path(os.environ["HERE_JOBS"])  # Slurm's own names do not reach its commands
    return {"sbatch": sbatch, "squeue": squeue, "scancel": scancel}[name](folder, words)


def sbatch(folder: Path, words: list[str]) -> int:
    if (folder / "refuse").exists():
        sys.stderr.write((folder / "refuse").read_text())
        return 1
    if "--test-only" in words:
        sys.stderr.write("sbatch: Job 7 to start at 2026-11-21T08:00:00 using 1 processors on nodes n1\n")
        return 0
    script = Path(words[-1]).read_text()
    options = dict(re.findall(r'(?m)^#SBATCH (--[a-z-]+)=?"?(.*?)"?$', script))
    made = Path(tempfile.mkdtemp(prefix="new-", dir=folder))  # squeue sees no half of a job
    (made / "comment").write_text(options["--comment"])
    (made / "script.sh").write_text(script)
    number = 1
    while True:
        job = folder / f"job-{number}"
        try:
            made.rename(job)
            break
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            number += 1
    log = Path(options["--output"].replace("%j", str(number)))
    names = {"SLURM_JOB_ID": str(number), "SLURM_CPUS_PER_TASK": "1", "SLURM_MEM_PER_NODE": "600"}
    with log.open("w") as out:
        process = subprocess.Popen(["bash", str(job / "script.sh")], env={**os.environ, **names}, stdout=out, stderr=out,
                                   stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
    (job / "pid.new").write_text(str(process.pid))
    (job / "pid.new").rename(job / "pid")
    print(number)
    return 0


def alive(job: Path) -> bool:
    if not (job / "pid").exists():
        return True  # it is being started
    try:
        os.killpg(int((job / "pid").read_text()), 0)
    except ProcessLookupError:
        return False
    states = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[2] == (job / "pid").read_text():
            states.append(fields[0])
    return any(state not in "ZX" for state in states)


def squeue(folder: Path, words: list[str]) -> int:
    options = dict(word.partition("=")[::2] for word in words)
    jobs = sorted(folder.glob("job-*"), key=lambda job: int(job.name[4:]))
    if wanted := options.get("--jobs", ""):
        jobs = [job for job in jobs if job.name[4:] in wanted.split(",")]
    for job in jobs:
        state = "RUNNING" if alive(job) else "COMPLETED"
        if state == "RUNNING" or "--states" in options:
            facts = {"i": job.name[4:], "T": state, "k": (job / "comment").read_text()}
            print("|".join(facts.get(word[1], "") for word in options["--format"].split("|")))
    return 0


def scancel(folder: Path, words: list[str]) -> int:
    job = folder / f"job-{words[-1]}"
    deadline = time.monotonic() + 5
    for number in (signal.SIGTERM, signal.SIGKILL):
        while alive(job) and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.killpg(int((job / "pid").read_text()), number)
            time.sleep(0.1)
            if number == signal.SIGKILL:
                break
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
