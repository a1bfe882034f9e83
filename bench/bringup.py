#!/usr/bin/env python3
"""Measure the bring-up of four nodes on the lab: hpcml, a hand-written batch script, and dask-jobqueue's two ways.

What is measured, the same for all:

* **job start** is when Slurm's batch bash begins, before the first line of the script: bash itself sources the file
  named in BASH_ENV, which writes ``$EPOCHREALTIME`` (no process is started). No contender's script is edited for it.
  A SLURMCluster has four jobs: the first one's start counts, and ``cluster.scale()`` beside it.
* **registered** is when the scheduler counted the last worker, by the time in the scheduler's own event log
  (``add-worker`` in ``client.get_events("all")``). Dask keeps that log for everybody; no plugin, no polling, one clock.
* **usable** is when the user's script, with its client connected, returned from ``wait_for_workers``. hpcml starts the
  script when all workers are there, the others start it beside them: what hpcml gains by that before ``registered`` it
  pays here. Both are printed.
* **submit** to usable counts from the command on the login node, with Slurm's own wait of up to a second.
* **freed** is from the end of the driver's work to all nodes idle and an empty queue (looked at every 0.1 s).
* **CPU** is what the whole machine was busy from job start to usable, with Slurm's daemons and ``hpcml submit --wait``.
* **processes** are those of the user at that moment, on the login node and all compute nodes (they share one /proc).

The contenders run one at a time on an idle lab, in rounds; the order is rotated each round. All use the lab's one
environment. They run with their defaults and the same nodes and CPUs; only hpcml's has TLS.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import shlex
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lab"))

import contenders
import lab_image
from contenders import Contender
from lab import Lab, LabError
from lab_paths import PROGRAM
from one_run import BenchError, Run, run_patiently

IMAGES = ",".join(contenders.INSIDE)
RUN = ",".join(contenders.RUN)
QUIET = 0.2  # processors that others may keep busy


def main() -> int:
    """Measure, print the table and write the figures."""
    arguments = _parser().parse_args()
    lab = Lab()
    if reason := lab.check():
        print(reason, file=sys.stderr)
        return 3
    try:
        _use(lab)
        if arguments.explain:
            import explain

            explain.explain(lab, [*arguments.source, contenders.ALL[0]][0])
            return 0
        chosen = _chosen(lab, arguments)
        facts = machine_facts(lab, "bench/bringup.py")
        runs = measure(lab, chosen, arguments.repeats)
    except (BenchError, LabError) as error:
        print(f"bringup: {error}", file=sys.stderr)
        return 1
    print("\n" + table(runs, facts))
    if arguments.json:
        summary = {name: {key: _summary(runs, name, key) for key in COLUMNS} for name in _names(runs)}
        arguments.json.write_text(json.dumps({**facts, "summary": summary, "runs": runs}, indent=1) + "\n")
    return 0


def _use(lab: Lab) -> None:
    """Start the lab if none is up; one that is up is taken as it is, since somebody may be using it."""
    try:
        nodes = lab.state().nodes
    except LabError:
        lab.up()
        return
    if nodes != contenders.NODES:
        raise BenchError(f"The lab is up with {nodes} nodes, not {contenders.NODES}. Run: tests/lab/lab.py down")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (default 5)")
    names = ",".join(one.name for one in contenders.ALL)
    parser.add_argument("--only", default="", metavar="NAMES", help=f"some of {names}, and with --image of {IMAGES}")
    parser.add_argument("--image", nargs="?", type=Path, const=Path(), metavar="FILE",
                        help="hpcml and the script by hand inside an image (default: the lab's) beside those outside")  # fmt: skip
    parser.add_argument("--allocation", action="store_true",
                        help=f"hpcml run in an allocation ({RUN}) beside hpcml submit")  # fmt: skip
    parser.add_argument("--source", type=_source, action="append", default=[], metavar="NAME=DIR",
                        help="one more contender: hpcml from another folder (README.md)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure and what it was measured on")
    parser.add_argument("--explain", action="store_true", help="show where the time of one hpcml run goes")
    return parser


def _source(text: str) -> Contender:
    name, equals, folder = text.partition("=")
    if not equals or not (Path(folder) / "hpcml").is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=DIR of a folder that has hpcml in it")
    return contenders.hpcml(name, 32 if name.endswith("-32") else contenders.NODES, str(Path(folder).resolve()))


def _chosen(lab: Lab, arguments: argparse.Namespace) -> list[Contender]:
    known = {one.name: one for one in contenders.ALL}
    usual = ",".join(known)
    if arguments.image is not None:
        path = arguments.image if arguments.image.name else lab_image.image(lab.places)
        if not path.is_file():
            raise BenchError(f"There is no image {path}. Run: {PROGRAM} image, or give --image FILE.")
        known |= {one.name: one for one in contenders.inside(str(path.resolve()))}
        usual = f"hpcml,sbatch,{IMAGES}"
    if arguments.allocation:
        known |= {one.name: one for one in contenders.in_allocation()}
        usual = f"hpcml,{RUN}"
    wanted = [word for word in (arguments.only or usual).split(",") if word]
    if unknown := [word for word in wanted if word not in known]:
        raise BenchError(f"There is no contender {unknown[0]!r}. Use some of: {', '.join(known)}.")
    return [*(known[word] for word in wanted), *arguments.source]


def measure(lab: Lab, chosen: list[Contender], repeats: int) -> list[Run]:
    """Run every contender once a round, each round beginning with another one."""
    runs = []
    for number in range(repeats):
        first = number % len(chosen)
        for contender in chosen[first:] + chosen[:first]:
            run = {"contender": contender.name, "round": number, **run_patiently(lab, contender)}
            runs.append(run)
            times = ", ".join(f"{key} {run[key]:5.2f} s" for key in ("registered", "usable", "freed", "cpu"))
            print(f"round {number + 1}  {contender.name:12} {times}", flush=True)
    return runs


COLUMNS = {"registered": "registered", "usable": "usable", "submit": "submit to usable", "freed": "freed", "cpu": "CPU",
           "processes": "processes"}  # fmt: skip


def _names(runs: list[Run]) -> list[str]:
    return sorted({str(run["contender"]) for run in runs}, key=_place)


def _place(name: str) -> tuple[int, str]:
    order = [*(one.name for one in contenders.ALL), *contenders.INSIDE, *contenders.RUN]
    return (order.index(name) if name in order else len(order)), name


def _values(runs: list[Run], name: str, key: str) -> list[float]:
    return [float(run[key]) for run in runs if run["contender"] == name and key in run]


def _summary(runs: list[Run], name: str, key: str) -> list[float]:
    values = _values(runs, name, key)
    return [round(number, 3) for number in (statistics.median(values), min(values), max(values))]


def table(runs: list[Run], facts: Run) -> str:
    """Return the medians (least to most) and the ratios as Markdown."""
    head = "| " + " | ".join(["contender", "workers", *COLUMNS.values()]) + " |"
    lines = ["Median (least to most) in seconds, from the job's start unless it says otherwise.", "", head,
             "|---" * (len(COLUMNS) + 2) + "|"]  # fmt: skip
    workers = {run["contender"]: run["workers"] for run in runs}
    for name in _names(runs):
        cells = [_cell(_summary(runs, name, key), key) for key in COLUMNS]
        lines.append(f"| {name} | {workers[name]} | " + " | ".join(cells) + " |")
    if scaled := _values(runs, "cluster", "registered_from_scale"):
        numbers = _cell(_summary(runs, "cluster", "registered_from_scale"), "")
        lines += ["", f"cluster, from `scale()` to registered: {numbers} s."]
    failed = sum(len(run["failures"]) for run in runs)
    if others := _others(runs):
        lines += ["", f"Not a quiet lab: {others} job(s) of others in between."]
    if (busy := max(run["busy_before"] for run in runs)) > QUIET:
        lines += ["", f"Not a quiet machine: others kept up to {busy:.1f} processors busy between the runs."]
    if failed:
        lines += ["", f"{failed} run(s) failed and were repeated (the reasons are in the JSON)."]
    machine = facts["machine"]
    lines += ["", *_ratios(runs, bool(scaled)), ""]
    return "\n".join(
        [*lines, f"{facts['date']}, {machine['cores']} cores, {machine['processor']}; `{facts['command']}`"]
    )


def inside_or_outside(document: Run) -> str:
    """Return one line for the user's page: an image's cost for hpcml, and hpcml against the script by hand inside."""
    runs = document["runs"]
    ours, theirs = contenders.INSIDE

    def middle(name: str) -> float:
        return statistics.median(_values(runs, name, "usable"))

    rounds = len(_values(runs, ours, "usable"))
    return "\n".join(
        [
            f"On four nodes, all workers of a run in an image are ready {middle(ours):.1f} s after the job's start. Without an "
            f"image they are ready after {middle('hpcml'):.1f} s.",
            "With a batch script that starts each process with `apptainer exec`, all workers are ready after "
            f"{middle(theirs):.1f} s. "
            f"hpcml needs **{middle(ours) / middle(theirs):.0%}** of this time.",
            f"These are medians of {rounds} rounds on {document['machine']['cores']} cores that all four nodes share.",
        ]
    )


def in_short(document: Run) -> str:
    """Return what hpcml takes of the others' time until the script can use its workers, as Markdown."""
    runs, where = document["runs"], "[startup until the workers are usable](cpu.md#startup-of-a-run)"
    ours, lines = (
        statistics.median(_values(runs, "hpcml", "usable")),
        ["| on CPUs | ratio of times | median |", "|---|---|---|"],
    )
    for name, other in (("sbatch", "a batch script"), ("runner", "`SLURMRunner`"), ("cluster", "`SLURMCluster`")):
        ratio = ours / statistics.median(_values(runs, name, "usable"))
        lines.append(f"| {where} | hpcml / {other} | {ratio:.2f} |")
    return "\n".join(lines)


def _others(runs: list[Run]) -> int:
    """Return how many job numbers between the first and the last were not this program's, failed runs included."""
    jobs: list[int] = [job for run in runs for job in run["jobs"]]
    return max(jobs) - min(jobs) + 1 - len(jobs)


def _cell(numbers: list[float], key: str) -> str:
    form = ".0f" if key == "processes" else ".1f" if key == "cpu" else ".2f"
    middle, least, most = (format(number, form) for number in numbers)
    return f"{middle} ({least} to {most})"


def _ratios(runs: list[Run], scaled: bool) -> list[str]:
    """Return what hpcml takes of each other one's time, from the medians and by round."""
    small, large = ("sbatch", "runner", "cluster"), ("sbatch-32",)
    known = {one.name for one in contenders.ALL} | {*contenders.INSIDE, *contenders.RUN}
    ours, theirs = contenders.INSIDE
    added = [(name, "hpcml-32" if name.endswith("-32") else "hpcml") for name in _names(runs) if name not in known]
    pairs = [(name, "hpcml", "registered", "registered") for name in small]
    pairs += [("cluster", "hpcml", "registered_from_scale", "registered")] if scaled else []
    pairs += [(name, "hpcml-32", "registered", "registered") for name in large]
    pairs += [(name, "hpcml", "usable", "usable") for name in small]
    pairs += [(name, "hpcml-32", "usable", "usable") for name in large]
    pairs += [(theirs, ours, key, key) for key in ("registered", "usable")]
    pairs += [(outside, inside, "usable", "usable") for outside, inside in (("hpcml", ours), ("sbatch", theirs))]
    pairs += [("hpcml", name, key, key) for name in contenders.RUN for key in ("registered", "usable", "submit")]
    pairs += [(name, own, "registered", "registered") for name, own in added]
    lines = []
    for other, own, their_key, our_key in pairs:
        ones, twos = _values(runs, own, our_key), _values(runs, other, their_key)
        if ones and twos:
            each = [one / two for one, two in zip(ones, twos, strict=True)]
            ratio = statistics.median(ones) / statistics.median(twos)
            by_round = f"by round {min(each):.2f} to {max(each):.2f}"
            lines.append(f"* {own} / {other}, {their_key.replace('_', ' ')}: **{ratio:.2f}** ({by_round})")
    return lines


def machine_facts(lab: Lab, program: str) -> Run:
    """Return when, by which command, with which versions and on what is measured."""
    code = "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    versions = json.loads(lab.exec([f"{lab.places.venv}/bin/python", "-c", code]).stdout)
    names = ("hpcml", "dask", "distributed", "dask-jobqueue", "numpy", "tornado", "cryptography")
    processor = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                      if line.startswith("model name")), platform.machine())  # fmt: skip
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python3", program, *sys.argv[1:]]),
        "versions": {**{name: versions.get(name, "") for name in names},
                     "python": lab.exec([f"{lab.places.venv}/bin/python", "-V"]).stdout.strip(),
                     "slurm": lab.exec(["sbatch", "--version"]).stdout.strip(),
                     "apptainer": _apptainer(lab)},
        "machine": {"cores": os.cpu_count(), "processor": processor, "memory_mb": memory, "kernel": platform.release(),
                    "load_before": [round(number, 2) for number in os.getloadavg()]},
        "lab": {"accounting": lab.state().accounting, "nodes": contenders.NODES, "cpus_per_node": contenders.CPUS},
    }  # fmt: skip


def _apptainer(lab: Lab) -> str:
    done = lab.exec(["sh", "-c", "command -v apptainer >/dev/null && apptainer --version"])
    return done.stdout.strip().removeprefix("apptainer version ")


if __name__ == "__main__":
    sys.exit(main())
