"""How long ``hpcml ls`` takes with many runs, as multiples of a bare ``python -c pass``, and its system calls.

It needs neither Slurm nor root. A run is submitted to the tests' Slurm (tests/cli/fakes) and its files are written
10,000 times over, with the ends that runs have; every hundredth failed, the four newest wait. hpcml is the one
beside the interpreter that ``--python`` names. All contenders take turns in every round; processor time is counted beside
the time on the clock, which other processes lengthen. System calls are those that ``strace -f -c`` counts; the calls of a
listing of four runs are taken off, and the rest is divided by the runs that were added.

``--before`` names a checkout of another version. Its views take turns with the others, and the figure beside each view is
the median of the ratios of one round.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import startup

ROOT = Path(__file__).resolve().parents[1]
PYTHON = "python -c pass"
FIRST = ", the first time"  # no ends of runs are kept yet
VIEWS = {
    "ls": [],
    f"ls --all{FIRST}": ["--all"],
    "ls --failed": ["--failed"],
    "ls --since 7d": ["--since", "7d"],
    "ls --name 'train*'": ["--name", "train*"],
    "ls --all": ["--all"],
    f"ls --all --json{FIRST}": ["--all", "--json"],
    "ls --all --json": ["--all", "--json"],
}
BEFORE = " (before)"
DEFAULT_WITHIN = 0.3  # seconds of processor time
ENDS = (  # state, exit status, cause
    ("FAILED", 1, "script raised ValueError"),
    ("OUT_OF_MEMORY", 137, "Slurm killed it: memory was full"),
    ("TIMEOUT", 89, "time limit reached"),
    ("NODE_FAIL", 87, "a node of the allocation failed"),
)
NAMES = ("train", "prepare", "kmeans", "score-all")


def template(python: Path, folder: Path, environment: dict[str, str]) -> dict[str, bytes]:
    """Return the files of a submitted run that ``ls`` may read, by name."""
    (folder / "job.py").write_text("print('hello')\n")
    command = [str(python.with_name("hpcml")), "submit", "--detach", "--site", "slurm", "--nodes", "4", "job.py"]
    startup.run(command, environment, folder)
    (run,) = (path for path in (folder / ".hpcml" / "runs").iterdir() if path.is_dir())
    return {name: (run / name).read_bytes() for name in ("submission.json", "plan.json", "request.json", "job.sh")}


def plant(runs: Path, files: dict[str, bytes], count: int) -> None:
    """Write so many runs, a quarter of an hour apart, the newest last."""
    runs.mkdir(parents=True, mode=0o700, exist_ok=True)
    now = int(time.time())
    for number in range(count):
        begin = now - 900 * (count - number)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(begin))
        run = runs / f"{NAMES[number % len(NAMES)]}-{stamp}-{number % 65536:04x}"
        run.mkdir(mode=0o700)
        for folder in ("logs", "out", "code", "attempts"):
            (run / folder).mkdir()
        submission = json.loads(files["submission.json"]) | {"job": str(5_000_000 + number), "time": begin}
        (run / "submission.json").write_text(json.dumps(submission, indent=1))
        for name in ("plan.json", "request.json", "job.sh"):
            (run / name).write_bytes(files[name])
        if number < count - 4:
            (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events(begin + 60)))
            (run / "status.json").write_text(json.dumps(end(number, begin + 700), indent=1))
            os.utime(run, (begin + 700,) * 2)


def events(begin: int) -> list[dict[str, Any]]:
    """Return the events of a run on four nodes with eight workers."""
    nodes = ["n1", "n2", "n3", "n4"]
    found: list[dict[str, Any]] = [{"event": "allocated", "nodes": nodes}]
    found.append({"event": "scheduler-up", "protocol": "tls", "because": "no GPUs are asked for", "security": "TLS"})
    found += [{"event": "worker-added", "address": f"tls://10.0.0.{one}:40000", "count": one} for one in range(1, 9)]
    found.append({"event": "workers-ready", "count": 8})
    found.append({"event": "environment-ready", "words": "Python 3.12.3, dask 2026.7.1", "differences": []})
    found += [{"event": name} for name in ("script-started", "script-ended", "ending", "torn-down")]
    return [{"time": begin + place * 3.5, "attempt": 0, **event} for place, event in enumerate(found)]


def end(number: int, moment: int) -> dict[str, Any]:
    """Return the end of a run; each hundredth failed."""
    state, exit_status, cause = ENDS[number // 100 % len(ENDS)] if number % 100 == 50 else ("COMPLETED", 0, "")
    facts = {"over": True, "state": state, "time": moment, "attempt": 0, "exit_status": exit_status, "phase": "script"}
    words = f"the script exited with status {exit_status}"
    return {
        **facts,
        "by": "script",
        "reason": "exit",
        "message": words,
        "hint": "",
        "cause": cause,
        "quote": [],
        "warnings": [],
    }


def system_calls(command: list[str], environment: dict[str, str], folder: Path) -> int:
    """Return how many system calls a command and what it starts make."""
    traced = ["strace", "-f", "-c", "-o", str(folder / "calls"), *command]
    subprocess.run(traced, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    found = re.search(r"^100\.00\s.*?(\d+)(?:\s+\d+)?\s+total$", (folder / "calls").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"strace gave no total: {(folder / 'calls').read_text()}")
    return int(found[1])


def measure(python: Path, count: int, rounds: int, place: Path | None, before: Path | None) -> dict[str, Any]:
    """Return the seconds of each view in each round, and its system calls; of the checkout ``before`` too."""
    with tempfile.TemporaryDirectory(prefix="hpcml-listing-", dir=place) as name:
        folder = Path(name).absolute()
        (folder / "python3").symlink_to(python)  # of the fakes
        (folder / "state").mkdir()
        environment = {"HOME": str(folder), "PATH": f"{ROOT / 'tests/cli/fakes'}:{folder}:/usr/bin:/bin"}
        environment["FAKE_STATE"] = str(folder / "state")
        files = template(python, folder, environment)
        (folder / "state" / "jobs").unlink()
        many, one = folder / "many", folder / "one"
        plant(many, files, count)
        plant(one, files, 4)
        hpcml = [str(python.with_name("hpcml")), "ls", "--site", "slurm"]
        commands = {view: [*hpcml, "--set", f"paths.runs={many}", *words] for view, words in VIEWS.items()}
        commands |= {PYTHON: [str(python), "-c", "pass"], "ls, 4 runs": [*hpcml, "--set", f"paths.runs={one}"]}
        if before:
            other = ["env", f"PYTHONPATH={before.absolute()}"]
            commands |= {f"{view}{BEFORE}": [*other, *commands[view]] for view in VIEWS}
        times: dict[str, list[startup.Took]] = {command: [] for command in commands}
        for turn in range(rounds + 1):
            for command, words in commands.items():
                forget(many, command)
                took = startup.run(words, environment, folder)
                if turn:
                    times[command].append(took)
        calls = {}
        for command, words in commands.items():
            forget(many, command)
            calls[command] = system_calls(words, environment, folder)
    return {"times": times, "calls": calls}


def forget(runs: Path, command: str) -> None:
    """Before a command that is measured as the first of its kind: remove the ends that an earlier one kept.

    Those of another version are not used either, so a view that is not the first is measured after one that is.
    """
    for path in runs.glob(".ends.*") if command.removesuffix(BEFORE).endswith(FIRST) else ():
        path.unlink()


def of_before(times: dict[str, list[startup.Took]], view: str) -> float | None:
    """Return the median of a view's processor time as a multiple of the other version's in the same round."""
    pairs = zip(times[view], times.get(f"{view}{BEFORE}", ()), strict=False)
    shares = [own.processor / other.processor for own, other in pairs]
    return round(statistics.median(shares), 3) if shares else None


def table(document: dict[str, Any]) -> str:
    """Return the figures as a table in Markdown."""
    lines = [
        "| view | processor time, ms | × python | × before | system calls | for each of the runs |",
        "|---|---|---|---|---|---|",
    ]
    for view, facts in document["views"].items():
        if view.endswith(BEFORE):
            continue
        each = "" if facts["calls_per_run"] is None else f"{facts['calls_per_run']:.2f}"
        seconds, ratio = facts["processor"], facts["ratio"]
        earlier = "" if facts["of_before"] is None else f"{facts['of_before']:.2f}"
        lines.append(f"| `{view}` | {seconds * 1000:.0f} | {ratio:.1f} | {earlier} | {facts['calls']} | {each} |")
    machine = f"{document['machine']['cores']} cores, {document['machine']['python']}"
    return "\n".join([*lines, "", f"{document['runs']} runs; {document['date']}, {machine}; `{document['command']}`"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of the environment with hpcml")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="of another version, measured in turns")
    parser.add_argument("--folder", type=Path, help="where the runs are written (default: for temporary files)")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    load = os.getloadavg()
    version = subprocess.run([options.python, "--version"], capture_output=True, text=True, check=True)
    found = measure(options.python.absolute(), options.runs, options.rounds, options.folder, options.before)
    views = {}
    base = found["calls"]["ls, 4 runs"]
    for view in found["times"]:
        seconds = statistics.median(took.processor for took in found["times"][view])
        calls = found["calls"][view]
        views[view] = {
            "processor": round(seconds, 4),
            "clock": round(statistics.median(took.clock for took in found["times"][view]), 4),
            "ratio": round(statistics.median(startup.ratios(found["times"], view, "processor")), 2),
            "of_before": of_before(found["times"], view),
            "calls": calls,
            "calls_per_run": round((calls - base) / (options.runs - 4), 3) if view in VIEWS and calls > base else None,
        }
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python3 {shlex.join(['bench/listing.py', *sys.argv[1:]])}",
        "runs": options.runs,
        "machine": {"cores": os.cpu_count(), "python": version.stdout.strip(), "load_before": load},
        "views": views,
        "seconds": {view: [took._asdict() for took in rounds] for view, rounds in found["times"].items()},
    }
    print(table(document))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(views["ls"]["processor"] > DEFAULT_WITHIN)


if __name__ == "__main__":
    sys.exit(main())
