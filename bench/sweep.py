#!/usr/bin/env python3
"""How long a sweep takes beside a plain job array of the same work, and what a short point costs.

    sudo make lab
    sudo python3 bench/sweep.py --rounds 3 --json docs/benchmarks/sweep.json

On the lab, as alice on the login node, the contenders take turns in every round. The work of a point is a sleep, so that the
machine's cores decide nothing: 64 points of 2 s, eight at once. Each point writes down when it ends; what is compared
is the time from the command to the last point's end, with the queue, the bring-up of the cluster and all else. ``array`` is
``sbatch --array=0-63%8`` of `python script.py`; ``at-once`` is ``hpcml sweep --at-once 8`` in one allocation of one node,
``jobs`` is ``--jobs 2 --at-once 4``. The short points run one after another: what each costs beyond its own 0.1 s, and how
much of a core all processes of the run take for one, which is the same on a busy machine. ``--rounds 0`` runs them alone.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/lab"))

from labs import Lab

SCRIPT = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float)
parser.add_argument("--ends")
parser.add_argument("--k")
chosen = parser.parse_args()
time.sleep(chosen.seconds)
with open(chosen.ends, "a") as ends:
    ends.write(f"{time.time()}\\n")
"""
ARRAY = """#!/bin/bash
#SBATCH --array=0-{last}%8 --nodes=1 --ntasks=1 --cpus-per-task=1 --mem=100 --time=10 --output=/dev/null
exec python3 {folder}/point.py --seconds {seconds} --ends "{folder}/$SLURM_ARRAY_JOB_ID.ends" --k "$SLURM_ARRAY_TASK_ID"
"""
PATIENCE = 900.0  # seconds for a contender


class Bench:
    """A folder of alice's in the lab, and how long each contender takes in it."""

    def __init__(self, lab: Lab, options: argparse.Namespace) -> None:
        self.lab, self.options, self.turn = lab, options, 0
        self.folder = lab.home("alice") / "bench-sweep" / time.strftime("%H%M%S")
        lab.exec(["mkdir", "-p", str(self.folder)])
        self._put("point.py", SCRIPT)

    def _put(self, name: str, text: str) -> None:
        self.lab.exec(["tee", str(self.folder / name)], input=text)

    def _submit(self, *words: str) -> str:
        done = self.lab.exec(list(words), cwd=self.folder, timeout=120)
        if done.returncode:
            sys.exit(f"{' '.join(words)}: {done.stderr}")
        return done.stdout.strip()

    def array(self) -> float:
        """Return the seconds of a plain job array."""
        count, seconds = self.options.points, self.options.seconds
        self._put("array.sh", ARRAY.format(last=count - 1, folder=self.folder, seconds=seconds))
        began = time.time()
        job = self._submit("sbatch", "--parsable", "array.sh")
        return self._ended(f"{job}.ends", count) - began

    def sweep(self, *how: str, count: int, seconds: float, processor: list[float] | None = None) -> tuple[float, float]:
        """Return the seconds of a sweep, and how long after its first point's end the last one ended.

        ``processor`` gets the seconds of a core for a point, and those from one point's end to the next, the median.
        """
        self.turn += 1
        name = f"bench{self.folder.name}{self.turn}"
        options = (
            "--name",
            name,
            "--nodes",
            "1",
            "--set",
            "workers.per_node=8",
            "--set",
            "workers.threads=1",
            "--time",
            "10",
        )
        points = (
            "--grid",
            f"k=range({count})",
            "--",
            "--seconds",
            str(seconds),
            "--ends",
            str(self.folder / f"{name}.ends"),
        )
        began = time.time()
        self._submit("hpcml", "sweep", "--detach", *options, *how, "point.py", *points)
        if processor is not None:
            processor.append(self._processor(f"{name}.ends", f"/{name}-", count))
        last = self._ended(f"{name}.ends", count)
        ends = sorted(self._ends(f"{name}.ends"))
        if processor is not None:
            processor.append(statistics.median(after - before for before, after in itertools.pairwise(ends)))
        return last - began, last - ends[0]

    def _processor(self, ends: str, run: str, count: int) -> float:
        """Return the seconds of a core that a run takes for a point, from the first tenth of its points to the last."""
        seen = []
        for share in (0.1, 0.9):
            deadline = time.monotonic() + PATIENCE
            while len(self._ends(ends)) < share * count and time.monotonic() < deadline:
                time.sleep(0.05)
            seen.append((len(self._ends(ends)), processor_seconds(run)))
        (before, earlier), (after, later) = seen
        return sum(later[pid] - earlier.get(pid, 0.0) for pid in later) / (after - before)

    def _ends(self, name: str) -> list[float]:
        path = self.folder / name
        return [float(line) for line in path.read_text().split()] if path.exists() else []

    def _ended(self, name: str, count: int) -> float:
        deadline = time.monotonic() + PATIENCE
        while len(ends := self._ends(name)) < count:
            if time.monotonic() > deadline:
                sys.exit(f"{name}: {len(ends)} of {count} points ended within {PATIENCE:g} s")
            time.sleep(0.05)
        while self._submit("squeue", "--noheader"):
            time.sleep(0.2)
        return max(ends)


def processor_seconds(run: str) -> dict[int, float]:
    """Return what the processes of a run, and those that they have waited for, have used of a core, by process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if run.encode() in (folder / "environ").read_bytes():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                found[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


def measure(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Return all figures."""
    contenders: dict[str, Callable[[], float]] = {
        "array": bench.array,
        "at-once": lambda: bench.sweep("--at-once", "8", count=options.points, seconds=options.seconds)[0],
        "jobs": lambda: bench.sweep("--jobs", "2", "--at-once", "4", count=options.points, seconds=options.seconds)[0],
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    loads = []
    for _ in range(options.rounds):
        for name, contender in contenders.items():
            loads.append(round(os.getloadavg()[0], 1))
            times[name].append(round(contender(), 2))
            print(name, times[name][-1], f"load {loads[-1]}", flush=True)
    processor: list[float] = []
    loads.append(round(os.getloadavg()[0], 1))
    alone = ("--set", "workers.per_node=1")  # an idle worker takes time of a core too
    _, span = bench.sweep(*alone, count=options.short, seconds=0.1, processor=processor)
    loads.append(round(os.getloadavg()[0], 1))
    each = 1000 * (span / (options.short - 1) - 0.1)
    middle = {name: statistics.median(found) for name, found in times.items() if found}
    ratios = {name: round(middle[name] / middle["array"], 3) for name in middle if name != "array"}
    return {
        "points": options.points, "seconds_each": options.seconds, "times": times, "ratios": ratios, "loads": loads,
        "short_points": options.short, "ms_for_each_short_point": round(each, 1),
        "median_ms_for_each_short_point": round(1000 * (processor[1] - 0.1), 1),
        "processor_ms_for_each_short_point": round(1000 * processor[0], 1),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}", "command": " ".join(sys.argv),
    }  # fmt: skip


def main() -> int:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--points", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a point")
    parser.add_argument("--short", type=int, default=1000, help="how many short points")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lab = Lab()
    started = lab.up()
    try:
        figures = measure(Bench(lab, options), options)
    finally:
        if started:
            lab.down()
    text = json.dumps(figures, indent=1)
    print(text)
    if options.json:
        options.json.write_text(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
