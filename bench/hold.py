#!/usr/bin/env python3
"""From the command to the first line of a script: in a hold, by hand in the same allocation, and by salloc.

    tests/lab/lab.py exec -- python bench/hold.py [--rounds 5]     on the lab's login node, as alice

The ways take turns, in a hold of two nodes and one of one node with --keep-cluster. Before a run in this one there is a
pause, in which its processes start, as while a user edits. "Dask" is a script that opens a client before its first line. A figure is the time until the script's first line is on this terminal;
`end` is the time until the command returns. The table that is printed has medians, and ratios to srun in the allocation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

WAYS = {  # {job}: the hold's, {script}: a script of one line, {dask}: one that opens a client before
    "hold": "hpcml run --in {hold} --nodes 1 {script}",
    "hold, two nodes": "hpcml run --in {hold} {script}",
    "hold, Dask": "hpcml run --in {hold} --nodes 1 {dask}",
    "kept": "hpcml run --in {kept} {script}",
    "kept, Dask": "hpcml run --in {kept} {dask}",
    "srun in the allocation": "srun --jobid={job} --overlap --nodes=1 --ntasks=1 --mem=0 python {script}",
    "salloc and srun": "salloc --quiet --nodes=1 --time=5 --mem=300M srun --overlap --ntasks=1 python {script}",
    "salloc and hpcml run": "salloc --quiet --nodes=1 --time=5 --mem=300M hpcml run {script}",
    "salloc and hpcml run, Dask": "salloc --quiet --nodes=1 --time=5 --mem=300M hpcml run {dask}",
}
ANCHOR = "srun in the allocation"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=10.0, help="seconds before each run with --keep-cluster")
    options = parser.parse_args()
    asked = "--cpus-per-node 2 --mem 1500M --time 30m --idle off"
    hold = json.loads(said(f"hpcml hold --json --nodes 2 {asked}"))
    kept = json.loads(said(f"hpcml hold --json --nodes 1 {asked} --keep-cluster"))
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        script = Path(folder) / "first.py"
        script.write_text("print('first', flush=True)\n")
        dask = Path(folder) / "first_dask.py"
        dask.write_text("from distributed import Client\nclient = Client()\nprint('first', flush=True)\n")
        words = {"job": hold["job"], "hold": hold["run"], "kept": kept["run"], "script": script, "dask": dask}
        for one in (hold, kept):
            said(f"hpcml run --in {one['run']} {script}")  # it has waited for the nodes
        for _ in range(options.rounds):
            for name, command in WAYS.items():
                if "{kept}" in command:
                    time.sleep(options.pause)
                figures[name].append(timed(command.format(**words)))
    for one in (hold, kept):
        said(f"hpcml cancel {one['run']}")
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in figures.items()
    }
    rows = {
        name: {"first": round(first, 2), "end": round(end, 2), "ratio": round(first / medians[ANCHOR][0], 2)}
        for name, (first, end) in medians.items()
    }
    print(json.dumps({"rounds": options.rounds, "medians": rows, "all": figures}, indent=1))


def said(command: str) -> str:
    return subprocess.run(
        command.split(), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout


def timed(command: str) -> tuple[float, float]:
    began = time.monotonic()
    with subprocess.Popen(command.split(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n", command
        first = time.monotonic() - began
        process.stdout.read()
    return first, time.monotonic() - began


if __name__ == "__main__":
    main()
