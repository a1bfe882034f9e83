#!/usr/bin/env python3
"""From the command to the first line of a script: in a hold, with --keep-cluster, and by hand in the same allocation.

    tests/lab/lab.py exec -- python bench/hold.py --rounds 5       on the lab's login node, as alice
    python3 bench/hold.py --site local --rounds 5 [--gpus 1]       on any machine, without Slurm and without a network

On 16 cores these two take less than 5 minutes:

    python3 bench/hold.py --site local --pause 5 --minutes 2.4 --out hold-16.json
    python3 bench/hold.py --site local --pause 8 --minutes 2.2 --gpus 1 --rounds 3 --out hold-gpu.json

The ways take turns; each with --keep-cluster has a hold of its own. Before a run in a hold with --keep-cluster there is a pause, in which its
processes start, as while a user edits. "Dask" is a script that opens a client before its first line; by hand it opens a
LocalCluster. "ranks" is a script with --ranks 2. A figure is the time until the script's first line is on this terminal;
`end` is the time until the command returns. `ratio` is to the same script by hand. With --out the file has the figures of
all rounds so far. No round begins that would end after --minutes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from figures import measured

HPCML = f"{shlex.quote(sys.executable)} -m hpcml"
PYTHON = shlex.quote(sys.executable)
PRINTS = "print('first', flush=True)\n"
OPENS = "from distributed import Client\n\nif __name__ == '__main__':\n    client = Client({0})\n    " + PRINTS
CLUSTER = "LocalCluster()"
GPU_CLUSTER = "LocalCUDACluster()"
SCRIPTS = {
    "script": PRINTS,
    "dask": OPENS.format(""),
    "cluster": OPENS.replace("Client\n", "Client, LocalCluster\n").format(CLUSTER),
    "gpu_cluster": OPENS.replace("Client\n", "Client\nfrom dask_cuda import LocalCUDACluster\n").format(GPU_CLUSTER),
}
# By way: the options of its hold (empty: none), its command, and the way that it is compared with. {job}, {hold}: of its
# hold; {run}: hpcml run --in its hold; and the scripts.
Way = tuple[str, str, str]
LOCAL: dict[str, Way] = {
    "by hand": ("", "{python} {script}", "by hand"),
    "hold": ("--nodes 1", "{run} {script}", "by hand"),
    "hold, ranks": ("--nodes 1", "{run} --ranks 2 {script}", "by hand"),
    "kept": ("--nodes 1 --keep-cluster", "{run} {script}", "by hand"),
    "kept, ranks": ("--nodes 1 --keep-cluster", "{run} --ranks 2 {script}", "by hand"),
    "by hand, Dask": ("", "{python} {cluster}", "by hand, Dask"),
    "hold, Dask": ("--nodes 1", "{run} {dask}", "by hand, Dask"),
    "kept, Dask": ("--nodes 1 --keep-cluster", "{run} {dask}", "by hand, Dask"),
}
GPU: dict[str, Way] = {
    "by hand, GPU": ("", "{python} {gpu_cluster}", "by hand, GPU"),
    "hold, GPU": ("--nodes 1 --gpus-per-node {gpus}", "{run} {dask}", "by hand, GPU"),
    "kept, GPU": ("--nodes 1 --gpus-per-node {gpus} --keep-cluster", "{run} {dask}", "by hand, GPU"),
}
BY_HAND = "srun --jobid={job} --overlap --nodes=1 --ntasks=1 --mem=0 {python} "
ANCHOR, ANCHOR_DASK = "srun in the allocation", "srun in the allocation, Dask"
SALLOC = "salloc --quiet --nodes=1 --time=5 --mem=300M "
SLURM: dict[str, Way] = {
    ANCHOR: ("--nodes 2", BY_HAND + "{script}", ANCHOR),
    "hold": ("--nodes 2", "{run} --nodes 1 {script}", ANCHOR),
    "hold, two nodes": ("--nodes 2", "{run} {script}", ANCHOR),
    "hold, ranks": ("--nodes 2", "{run} --nodes 1 --ranks 2 {script}", ANCHOR),
    "kept": ("--nodes 1 --keep-cluster", "{run} {script}", ANCHOR),
    "kept, ranks": ("--nodes 1 --keep-cluster", "{run} --ranks 2 {script}", ANCHOR),
    ANCHOR_DASK: ("--nodes 2", BY_HAND + "{cluster}", ANCHOR_DASK),
    "hold, Dask": ("--nodes 2", "{run} --nodes 1 {dask}", ANCHOR_DASK),
    "kept, Dask": ("--nodes 1 --keep-cluster", "{run} {dask}", ANCHOR_DASK),
    "salloc and srun": ("", SALLOC + "srun --overlap --ntasks=1 {python} {script}", ANCHOR),
    "salloc and hpcml run": ("", SALLOC + "{hpcml} run {script}", ANCHOR),
}
KEEPS = "--keep-cluster"
LONGEST = 120.0  # seconds of a command, which is killed then
Figures = dict[str, list[tuple[float, float]]]


def main() -> int:
    """Measure in turns, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--site", default="", help="local: without Slurm")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs, for the ways with GPUs")
    parser.add_argument("--only", default="", help="only ways whose name has this")
    parser.add_argument("--pause", type=float, default=10.0, help="seconds before each run with --keep-cluster")
    parser.add_argument("--minutes", type=float, default=60.0, help="no round begins that would end later")
    parser.add_argument("--out", type=Path, help="file for the figures, written after each round")
    options = parser.parse_args()
    ways = (GPU if options.gpus else LOCAL) if options.site == "local" else SLURM
    ways = {name: way for name, way in ways.items() if options.only in name}
    size = "" if options.site == "local" else "--cpus-per-node 2 --mem 1400M"
    figures: Figures = {name: [] for name in ways}
    begin, longest = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        words = {"python": PYTHON, "hpcml": HPCML}
        for name, text in SCRIPTS.items():
            place = Path(folder) / name
            place.mkdir()
            (place / "first.py").write_text(text)
            words[name] = str(place / "first.py")
        holds: dict[str, dict[str, str]] = {}
        try:
            for name, (asked, command, _) in ways.items():
                key = name if KEEPS in asked else asked
                if asked and key not in holds:
                    holds[key] = hold(f"{asked.format(gpus=options.gpus)} {size}", options.site)
                    first = command if "{run}" in command else "{run} {script}"
                    timed(first.format(**words, **holds[key]))  # it waits for the nodes
            for number in range(options.rounds):
                start = time.monotonic()
                if number and start - begin + longest > 60 * options.minutes:
                    print(f"{number} of {options.rounds} rounds: another one would end too late", file=sys.stderr)
                    break
                for name, (asked, command, _) in ways.items():
                    if KEEPS in asked:
                        time.sleep(options.pause)
                    key = name if KEEPS in asked else asked
                    figures[name].append(timed(command.format(**words, **holds.get(key, {}))))
                longest = max(longest, time.monotonic() - start)
                document(options.out, ways, figures)
        finally:
            for one in holds.values():
                subprocess.run(shlex.split(f"{HPCML} cancel {one['hold']}"), check=False, stdout=subprocess.DEVNULL)
    return 0


def hold(asked: str, site: str) -> dict[str, str]:
    """Start a hold; return the words that a command in it needs."""
    place = f"--site {site} " if site else ""
    command = f"{HPCML} hold --json {place}{asked} --time 30m --idle off"
    done = subprocess.run(shlex.split(command), check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}\nexit status {done.returncode}\n{done.stderr}")
    answer = json.loads(done.stdout)
    return {"job": str(answer.get("job", "")), "hold": answer["run"], "run": f"{HPCML} run --in {answer['run']}"}


def document(out: Path | None, ways: dict[str, Way], figures: Figures) -> None:
    """Write the medians and all figures so far."""
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in figures.items()
    }
    table = {}
    for name, (first, end) in medians.items():
        firsts, anchor = [row[0] for row in figures[name]], ways[name][2]
        ratio = {"ratio": round(first / medians[anchor][0], 2)} if anchor in medians else {}
        table[name] = {"first": round(first, 2), "least": round(min(firsts), 2), "most": round(max(firsts), 2)}
        table[name] |= {"end": round(end, 2), **ratio}
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    text = {
        "command": shlex.join(["python3", "bench/hold.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "measured": measured("hpcml/kinds/hold/node/holding.py", "hpcml/kinds/hold/node/prestarted_run.py"),
        "machine": f"{cores} cores, load {load:.1f}, {platform.machine()}, Python {platform.python_version()}",
        "rounds": min(map(len, figures.values())),
        "medians": table,
        "all": figures,
    }
    if out:
        out.write_text(json.dumps(text, indent=1) + "\n")
    print(json.dumps({"rounds": text["rounds"], "medians": table}), flush=True)


def table(document: dict[str, Any]) -> str:
    """Return the medians as a table in Markdown."""
    lines = ["| | seconds (least to most) | ratio to the same by hand |", "|---|---|---|"]
    for name, one in document["medians"].items():
        ratio = f"{one['ratio']:.2f}" if one["ratio"] != 1 else ""
        lines.append(f"| {name} | {one['first']:.2f} ({one['least']:.2f} to {one['most']:.2f}) | {ratio} |")
    return "\n".join(lines)


def timed(command: str) -> tuple[float, float]:
    """Return the seconds until the first line of a command's script, and until its end."""
    began = time.monotonic()
    words = shlex.split(command)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        late = threading.Timer(LONGEST, process.kill)
        late.start()
        line = process.stdout.readline()
        first = time.monotonic() - began
        rest, errors = process.communicate()
        late.cancel()
    if line != "first\n" or process.returncode:
        sys.exit(f"{command}\nexit status {process.returncode}\n{line}{rest}{errors}")
    return round(first, 3), round(time.monotonic() - began, 3)


if __name__ == "__main__":
    sys.exit(main())
