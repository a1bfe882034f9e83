#!/usr/bin/env python3
"""How long the test suite takes, tier by tier, on a quiet machine or with busy loops beside; what fails in which round.

    .venv/bin/python bench/suite.py                        every tier, one after the other
    .venv/bin/python bench/suite.py unit+cli+one-run       some beside each other: this is `make quick`
    .venv/bin/python bench/suite.py test rest              what `make test` runs, then `make test-rest`; all: `make test-all`
    .venv/bin/python bench/suite.py unit+local+jobs+docs+cli+lab --rounds 3 --busy 4

The tiers run by tests/run_tiers.py (the tier lab needs root). Processor time is what the whole machine was busy, without the
loops: a run's processes are not all children of the tests. Figures of the same tiers and as many loops are replaced in the
file, others stay in it. `python3 bench/tables.py` then puts the table into docs/benchmarks/cpu.md.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests import run_tiers

ROOT = run_tiers.ROOT
FIGURES = ROOT / "docs/benchmarks/suite.json"
LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10**6): pass\n"
Run = dict[str, Any]


def main() -> int:
    """Run the tiers, print the table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [tier.name for tier in run_tiers.TIERS]
    parser.add_argument(
        "tiers",
        nargs="*",
        metavar="TIERS",
        help=f"of {', '.join([*names, *run_tiers.PARTS])}; with + beside each other",
    )
    parser.add_argument("--rounds", type=int, default=1, metavar="N", help="how often each is run (default 1)")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="busy loops beside (default none)")
    parser.add_argument("--json", type=Path, default=FIGURES, metavar="FILE", help="the figures (default %(default)s)")
    options = parser.parse_args()
    asked = options.tiers or [name for name in names if name not in run_tiers.ONLY_WHEN_NAMED]
    if unknown := sorted(
        {name for each in asked for name in each.split("+") if each not in run_tiers.PARTS} - set(names)
    ):
        parser.error(f"no such tier: {', '.join(unknown)}")
    runs = [measure(each, options.busy) for _ in range(options.rounds) for each in asked]
    old = json.loads(options.json.read_text())["runs"] if options.json.exists() else []
    kept = [run for run in old if run["busy"] != options.busy or run["tiers"] not in asked]
    document = {"runs": kept + runs}
    options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"\n{table(document)}")
    return int(any(run["failed"] for run in runs))


def measure(tiers: str, busy: int) -> Run:
    """Run some tiers once, beside each other; return what came of it."""
    words = ["--part", tiers] if tiers in run_tiers.PARTS else tiers.split("+")
    load = os.getloadavg()[0]
    print(f"\n== {tiers}, {busy} busy loops, load before {load:.1f}", flush=True)
    with loops(busy) as beside:
        busy_before, clock = machine_busy() - seconds_of(beside), time.monotonic()
        run_tiers.RESULTS.unlink(missing_ok=True)
        status = subprocess.run([sys.executable, ROOT / "tests/run_tiers.py", *words], cwd=ROOT, check=False).returncode
        seconds, processor = time.monotonic() - clock, machine_busy() - seconds_of(beside) - busy_before
    found = json.loads(run_tiers.RESULTS.read_text())
    failed = [f"{name}: {case}" for name in found for case in found[name]["failed"]]
    return {
        "tiers": tiers,
        "busy": busy,
        "load_before": round(load, 2),
        "seconds": round(seconds, 1),
        "processor": round(processor, 1),
        "cases": sum(one["passed"] + len(one["failed"]) + one["skipped"] for one in found.values()),
        "skipped": sum(one["skipped"] for one in found.values()),
        "failed": failed or ([f"exit status {status}"] if status else []),
        "lines": 0 if tiers in run_tiers.PARTS else sum(map(lines, tiers.split("+"))),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "bench/suite.py", *without_json(sys.argv[1:])]),
        "machine": {"cores": os.cpu_count(), "processor": processor_name(), "python": platform.python_version()},
    }


def without_json(words: Sequence[str]) -> list[str]:
    """Return a command's words but for the file that the figures go to."""
    behind = {position + 1 for position, word in enumerate(words) if word == "--json"}
    return [word for position, word in enumerate(words) if not word.startswith("--json") and position not in behind]


@contextlib.contextmanager
def loops(number: int) -> Iterator[list[int]]:
    """Keep so many processors busy; a loop ends with this process too, however that ends."""
    started = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(number)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def seconds_of(pids: Sequence[int]) -> float:
    """Return the processor time of processes that run."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(user) + int(system) for *_, user, system in (each[:13] for each in fields)) / os.sysconf(
        "SC_CLK_TCK"
    )


def machine_busy() -> float:
    """Return for how long the machine's processors were busy since its start, in seconds (proc(5), stat)."""
    user, nice, system, _idle, _waiting, irq, softirq = Path("/proc/stat").read_text().split(None, 8)[1:8]
    return sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")


def processor_name() -> str:
    """Return the processor's name as the system has it."""
    named = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return named[0].partition(":")[2].strip() if named else platform.machine()


def lines(tier: str) -> int:
    """Return how many lines of code a tier's folders hold, helpers among them; none for single tests."""
    (paths,) = (each.paths for each in run_tiers.TIERS if each.name == tier)
    places = [ROOT / path for path in paths if "::" not in path]
    files = [file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])]
    return sum(bool(line.strip()) for file in files for line in file.read_text(encoding="utf-8").splitlines())


def table(document: Run) -> str:
    """Return the medians of each group of rounds, and what failed, as Markdown."""
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in document["runs"]:
        groups.setdefault((run["tiers"], run["busy"]), []).append(run)
    rows = ["| tiers | busy loops | cases | lines | minutes | of processors | load before | rounds with a failure |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    notes = []
    for (tiers, busy), runs in groups.items():
        spans = [span([run[key] / 60 for run in runs]) for key in ("seconds", "processor")]
        bad, last = [number for number, run in enumerate(runs, 1) if run["failed"]], runs[-1]
        load = max(run["load_before"] for run in runs)
        rows.append(f"| {tiers.replace('+', ', ')} | {busy or 'none'} | {last['cases']} | {last['lines'] or ''} | {spans[0]} | {spans[1]} | {load:.1f} | {len(bad)} of {len(runs)} |")  # fmt: skip
        notes += [f"* {tiers}, {busy} busy loops, round {number}: {', '.join(runs[number - 1]['failed'])}" for number in bad]  # fmt: skip
        notes.append(f"* {last['date']}, {last['machine']['cores']} cores, {last['machine']['processor']}; `{last['command']}`")  # fmt: skip
    return "\n".join([*rows, "", *dict.fromkeys(notes)])


def span(values: Sequence[float]) -> str:
    """Return the median, and the least and the most where there are more."""
    median = f"{statistics.median(values):.1f}"
    return median if len(values) == 1 else f"{median} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    sys.exit(main())
