"""One contender, brought up once on an idle lab, and what was measured of it (bringup.py says what and why)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import contenders
from contenders import Contender
from lab import Lab

USER = "alice"
DEADLINE = 120.0  # seconds from the command to the result
SETTLE = 1.0  # seconds between runs
RETRIES = 2
TICKS = os.sysconf("SC_CLK_TCK")

Run = dict[str, Any]


class BenchError(Exception):
    """A contender did not come up; the sentence says where to look."""


def run_patiently(lab: Lab, contender: Contender) -> Run:
    """Run once; if it fails, say so, count it and try again, twice at most (somebody else may use the lab)."""
    failures: list[str] = []
    while True:
        try:
            return {**run_once(lab, contender), "failures": failures}
        except BenchError as error:
            failures.append(str(error))
            print(f"bringup: {contender.name}: {error}", file=sys.stderr, flush=True)
            lab.exec(["scancel", "--me", "--name", contenders.JOB], user=USER)
            if len(failures) > RETRIES:
                raise


def run_once(lab: Lab, contender: Contender, environment: dict[str, str] | None = None) -> Run:
    """Bring a cluster up once and return the figures, in seconds."""
    lab.wait_idle(300)
    others = _busy_now(SETTLE)
    folder = lab.home(USER) / "bringup" / contender.name
    command, files = contender.laid_out(str(folder), str(lab.places.venv))
    files |= {"start.sh": contenders.START, "report.py": contenders.REPORT}
    prepare(lab, folder, files)
    variables = {
        "BRINGUP": str(folder),
        "BASH_ENV": str(folder / "start.sh"),
        **contender.environment,
        **(environment or {}),
    }
    load = os.getloadavg()[0]
    with (folder / "command.log").open("w") as log:
        submitted = time.time()
        process = lab.popen(command, user=USER, cwd=folder, env=variables, stdout=log, stderr=subprocess.STDOUT)
        try:
            result = _await_result(process, folder)
            lab.wait_idle(DEADLINE)
            idle = time.time()
            process.wait(DEADLINE)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
    return {
        "load_before": round(load, 2),
        "busy_before": others,
        **_figures(contender, folder, result, submitted, idle),
    }


def _busy_now(seconds: float) -> float:
    """Return how many processors others keep busy while nothing of ours runs."""
    stat = Path("/proc/stat")
    before = busy_seconds(stat.read_text().partition("\n")[0].partition(" ")[2])
    time.sleep(seconds)
    return round((busy_seconds(stat.read_text().partition("\n")[0].partition(" ")[2]) - before) / seconds, 2)


def prepare(lab: Lab, folder: Path, files: dict[str, str]) -> None:
    """Lay the files into a fresh folder of the user's."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    owner = lab.home(USER).stat()
    for path in (folder.parent, folder, *folder.iterdir()):
        os.chown(path, owner.st_uid, owner.st_gid)


def _await_result(process: subprocess.Popen[str], folder: Path) -> Run:
    result = folder / "result.json"
    deadline = time.monotonic() + DEADLINE
    while not result.exists():
        if process.poll() not in {None, 0} or time.monotonic() > deadline:
            raise BenchError(f"There is no result. Read {folder}/*.log, then: squeue.")
        time.sleep(0.05)
    facts: Run = json.loads(result.read_text())
    return facts


def _figures(contender: Contender, folder: Path, result: Run, submitted: float, idle: float) -> Run:
    starts = sorted(path.read_text().split(maxsplit=1) for path in folder.glob("start-*"))
    if len(starts) != contender.jobs or len(result["registered"]) != contender.workers:
        raise BenchError(
            f"{len(starts)} job starts and {len(result['registered'])} registrations. Read {folder}/*.log."
        )
    start = float(starts[0][0])
    times = {"registered": result["registered"][-1] - start, "first": result["registered"][0] - start,
             "usable": result["usable"] - start, "queued": start - submitted, "submit": result["usable"] - submitted,
             "freed": idle - result["driver_end"], "total": idle - submitted,
             "cpu": busy_seconds(result["cpu"]) - busy_seconds(starts[0][1])}  # fmt: skip
    if "asked" in result:
        times["registered_from_scale"] = result["registered"][-1] - result["asked"]
    jobs = sorted(int(path.name.removeprefix("start-")) for path in folder.glob("start-*"))
    return {**{key: round(value, 3) for key, value in times.items()}, "start": start, "jobs": jobs,
            "workers": contender.workers, "processes": result["processes"]}  # fmt: skip


def busy_seconds(line: str) -> float:
    """Return the busy seconds in the ``cpu`` line of /proc/stat: all but idle and waiting for disks."""
    user, nice, system, _idle, _wait, irq, softirq = (int(word) for word in line.split()[:7])
    return (user + nice + system + irq + softirq) / TICKS
