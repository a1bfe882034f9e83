"""The examples of jobs/ on one machine with its cores divided in other ways among Dask workers, in turns.

    python3 bench/worker_shapes.py --rounds 3 --out docs/benchmarks/worker_shapes.json
    python3 bench/worker_shapes.py --rounds 1 --cores 4 minimal forest xgboost_train

It needs no network and no Slurm: only this checkout and the Python that runs it. Each round runs all examples one after
the other in one run of hpcml for each shape: a worker with all cores, 2, 4, and a worker per core. Each round begins with
another shape. No round begins that would end after ``--minutes``. After each run it prints the seconds of every example.
An example that takes longer than ``--limit`` is ended and named, with the stacks of all processes, and is not in the
table. ``--cores`` makes the shapes of another machine: a smaller one shows what hangs there, but not how long it takes.
The table has the medians of the rounds in seconds. Its last lines are each shape's sum, and its geometric mean relative
to one worker with all cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = Path(sys.executable)
START = 60  # seconds until the first example begins
ENDS = 30  # seconds for the end of a run that is cancelled
Seconds = dict[str, dict[str, list[float]]]  # of each round, by example and shape


def shapes(cores: int) -> list[tuple[int, int]]:
    """Return the shapes: workers, and threads of each."""
    counts = [count for count in (1, 2, 4) if count < cores] + [cores]
    return [(count, cores // count) for count in counts]


def once(folder: Path, workers: int, threads: int, names: list[str], limit: int) -> tuple[dict[str, Any], float]:
    """Run the examples in one run; return what each took, and seconds from the submission to the end.

    A run that lasts too long is cancelled; what its examples took until then is returned.
    """
    environment = {**os.environ, "HOME": str(folder), "MPLBACKEND": "Agg"}
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "HPCML_SITE"):
        environment.pop(name, None)
    size = ["--set", f"workers.per_node={workers}", "--set", f"workers.threads={threads}"]
    words = [str(PYTHON), "-m", "hpcml", "submit", "--site", "local", "--nodes", "1", *size]
    words += ["--set", f"paths.runs={folder / 'runs'}", "--wait", "all_examples.py", str(limit), *names]
    began = time.monotonic()
    with (folder / "submit.txt").open("w+") as output:
        submitted = subprocess.Popen(words, cwd=folder / "jobs", env=environment, stdout=output, stderr=output)
        try:
            submitted.wait(START + 4 * limit)
        except subprocess.TimeoutExpired:
            print(f"{workers} x {threads}: not done after {START + 4 * limit} s: cancelled", flush=True)
            submitted.send_signal(signal.SIGINT)
            submitted.wait(ENDS)
        seconds = time.monotonic() - began
        output.seek(0)
        said = output.read()
    files = list(folder.glob("runs/*/out/statuses.json"))
    if len(files) != 1:
        raise SystemExit(f"{workers} x {threads}: no example began\n{said[-4000:]}")
    statuses: dict[str, Any] = json.loads(files[0].read_text())
    for name, status in statuses.items():
        if status["limit"]:
            stacks = (files[0].parent / name / "stacks.txt").read_text()
            print(f"{workers} x {threads}: {name} reached its limit of {limit} s. Its stacks:\n{stacks}", flush=True)
    shutil.rmtree(folder / "runs", ignore_errors=True)
    return statuses, seconds


def measure(options: argparse.Namespace) -> tuple[Seconds, dict[str, list[float]], dict[str, str]]:
    """Return the seconds of each example and of each whole run, by shape, and the errors by shape and example."""
    by_example, whole, failed = Seconds(), dict[str, list[float]](), dict[str, str]()
    rounds, minutes = options.rounds, options.minutes
    begin, longest = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory(prefix="hpcml-shapes-") as place:
        folder = Path(place)
        shutil.copytree(ROOT / "jobs", folder / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "tests/jobs/all_examples.py", folder / "jobs")
        every = shapes(options.cores)
        for number in range(rounds):
            start = time.monotonic()
            if number and start - begin + longest > 60 * minutes:
                print(f"{number} of {rounds} rounds: another one would end after {minutes:g} minutes", flush=True)
                break
            for workers, threads in every[number % len(every) :] + every[: number % len(every)]:
                shape = f"{workers}x{threads}"
                statuses, seconds = once(folder, workers, threads, options.names, options.limit)
                whole.setdefault(shape, []).append(round(seconds, 2))
                for name, status in statuses.items():
                    if status["error"]:
                        failed[f"{shape} {name}"] = status["error"]
                    else:
                        by_example.setdefault(name, {}).setdefault(shape, []).append(status["seconds"])
                each = ", ".join(f"{name} {status['seconds']:.1f}" for name, status in statuses.items())
                print(f"round {number + 1}: {shape} in {seconds:.1f} s: {each}", flush=True)
            longest = max(longest, time.monotonic() - start)
    return by_example, dict(sorted(whole.items(), key=lambda pair: int(pair[0].partition("x")[0]))), failed


def table(by_example: Seconds, whole: dict[str, list[float]]) -> list[str]:
    """Return the medians as a table, with each shape's sum and its mean ratio to the first shape."""
    medians = {
        name: {shape: statistics.median(values) for shape, values in row.items()}
        for name, row in sorted(by_example.items())
        if row.keys() == whole.keys()
    }
    if not medians:
        return ["no example ended in all shapes"]
    first = next(iter(whole))
    lines = [f"{'seconds':<16}{''.join(f'{shape:>9}' for shape in whole)}"]
    lines += [f"{name:<16}{''.join(f'{row[shape]:>9.2f}' for shape in whole)}" for name, row in medians.items()]
    sums = {shape: sum(row[shape] for row in medians.values()) for shape in whole}
    ratios = {
        shape: math.exp(statistics.fmean(math.log(row[shape] / row[first]) for row in medians.values()))
        for shape in whole
    }
    lines.append(f"{'sum':<16}{''.join(f'{seconds:>9.2f}' for seconds in sums.values())}")
    lines.append(f"{'mean ratio':<16}{''.join(f'{ratio:>9.2f}' for ratio in ratios.values())}")
    return lines


def page(document: dict[str, Any]) -> str:
    """Return the table of a file of figures in Markdown."""
    rows = [
        line.rsplit(maxsplit=len(document["whole_run"])) for line in table(document["seconds"], document["whole_run"])
    ]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def main() -> int:
    """Measure, write the JSON and print the table; return 1 if an example failed in some shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=5.5, help="no round begins that would end later")
    parser.add_argument("--limit", type=int, default=60, help="seconds of one example, after which it is ended")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="cores that the shapes divide")
    parser.add_argument("--out", type=Path, help="file for the figures")
    parser.add_argument("names", nargs="*", help="examples (default: all)")
    options = parser.parse_args()
    by_example, whole, failed = measure(options)
    if options.out:
        figures = {
            "command": shlex.join(["python3", "bench/worker_shapes.py", *sys.argv[1:]]),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "cores": options.cores,
            "cores_of_machine": len(os.sched_getaffinity(0)),
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
            "seconds": by_example,
            "whole_run": whole,
            "failed": failed,
        }
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join([*(f"failed: {name}: {error}" for name, error in failed.items()), *table(by_example, whole)]))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
