"""Where the time of one hpcml bring-up goes: what every process does in each tenth of a second."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import contenders
from contenders import Contender
from lab import Lab
from one_run import USER, busy_seconds, prepare, run_once

HERE = Path(__file__).resolve().parent
STEP = 0.1
# What a process does after a mark of trace/sitecustomize.py, an empty text for waiting.
DOING = {
    "made": "start the shell and the interpreter",
    "hpcml": "import hpcml's own modules",
    "dask": "import dask and distributed",
    "distributed": "import dask and distributed",
    "imported": "all imported: start up, or wait for another role",
    "cryptography": "import cryptography, make the key and certificate",
    "keys": "",
    "listening": "",
    "forked": "",
    "connecting": "make the Dask worker, TLS handshakes, register",
}


@dataclass(frozen=True)
class Mark:
    """One line of a process's trace; ``at`` in seconds after the job's start, ``cpu`` in seconds of that process."""

    at: float
    cpu: float
    pid: int
    role: str
    what: str


class Load(threading.Thread):
    """How busy the machine's processors are, sampled ten times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, float]] = []
        self.wanted = True

    def run(self) -> None:
        """Sample until nobody wants more."""
        while self.wanted:
            line = Path("/proc/stat").read_text().partition("\n")[0].partition(" ")[2]
            self.samples.append((time.time(), busy_seconds(line)))
            time.sleep(STEP / 2)

    def between(self, begin: float, end: float) -> float:
        """Return the busy processor seconds between two moments."""
        return self._at(end) - self._at(begin)

    def _at(self, moment: float) -> float:
        before = [sample for sample in self.samples if sample[0] <= moment] or self.samples[:1]
        after = [sample for sample in self.samples if sample[0] > moment] or self.samples[-1:]
        (left, low), (right, high) = before[-1], after[0]
        return low + (high - low) * ((moment - left) / (right - left) if right > left else 0.0)


def explain(lab: Lab, contender: Contender) -> None:
    """Run hpcml once with the trace on, and print its timeline, its tenths of a second and its processor time."""
    traces = lab.home(USER) / "bringup" / "trace"
    tool = {"sitecustomize.py": (HERE / "trace" / "sitecustomize.py").read_text()}
    prepare(lab, traces, tool)
    load = Load()
    load.start()
    path = ":".join(word for word in (contender.environment.get("PYTHONPATH"), str(traces)) if word)
    run = run_once(lab, contender, {"PYTHONPATH": path, "BRINGUP_TRACE": str(traces)})
    load.wanted = False
    start = run["start"]
    events = _events(_run_directory(lab), start)
    marks = sorted(marks_in(traces, start), key=lambda mark: mark.at)
    ready = next(at for at, event in events if event.startswith("workers-ready"))
    print(f"hpcml, traced (it costs a little): workers after {ready:.2f} s, usable after {run['usable']:.2f} s.\n")
    _timeline(marks, events)
    _tenths(marks, load, start, ready)
    _cost(marks, load.between(start, start + ready), ready)


def _run_directory(lab: Lab) -> Path:
    return max((lab.home(USER) / ".hpcml" / "runs").glob(f"{contenders.JOB}-*"), key=lambda path: path.stat().st_mtime)


def _events(directory: Path, start: float) -> list[tuple[float, str]]:
    facts: list[dict[str, Any]] = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return [(fact["time"] - start, f"{fact['event']} {fact.get('worker', '')}".strip()) for fact in facts]


def marks_in(traces: Path, start: float) -> list[Mark]:
    found = []
    for file in traces.glob("*-[0-9]*"):
        for line in file.read_text().splitlines():
            at, cpu, pid, role, what = line.split("\t")
            found.append(Mark(float(at) - start, float(cpu), int(pid), role, what))
    return found


def _timeline(marks: list[Mark], events: list[tuple[float, str]]) -> None:
    """Print each kind of mark once, with the first and last process that made it."""
    groups: dict[tuple[str, str], list[Mark]] = {}
    for mark in marks:
        groups.setdefault((mark.role, mark.what), []).append(mark)
    rows = []
    for (role, what), group in groups.items():
        firsts = list({mark.pid: mark for mark in reversed(group)}.values())
        times = sorted(mark.at for mark in firsts)
        span = f"to {times[-1]:5.2f}" if len(times) > 1 else ""
        rows.append(
            (times[0], f"{times[0]:6.2f} {span:9} {role:10} {what}{f' (x{len(times)})' if len(times) > 1 else ''}")
        )
    rows += [(at, f"{at:6.2f} {'':9} {'event':10} {event}") for at, event in events]
    print("Seconds after the batch script's bash began (first to last of several processes):\n")
    print("\n".join(text for _, text in sorted(rows)) + "\n")


def _tenths(marks: list[Mark], load: Load, start: float, ready: float) -> None:
    """Print for each tenth of a second how busy the machine was and in what the processes were."""
    print(f"Each {STEP} s: processors busy (of {os.cpu_count()}), and what the processes were in at its middle:\n")
    begin = 0.0
    while begin < ready:
        end = min(begin + STEP, ready)
        busy = load.between(start + begin, start + end) / (end - begin)
        states = Counter(state(marks, pid, (begin + end) / 2) for pid in {mark.pid for mark in marks})
        states.pop("", None)
        words = "; ".join(f"{text} ({count})" if count > 1 else text for text, count in sorted(states.items()))
        print(
            f"{begin:5.1f}  busy {busy:3.1f}  {words or 'srun starts the steps; later: the roles wait for each other'}"
        )
        begin = end
    print()


def state(marks: list[Mark], pid: int, moment: float) -> str:
    past = [mark for mark in marks if mark.pid == pid and mark.at <= moment]
    if not past:
        return ""
    if past[0].what == "made" and "imported" not in [mark.what for mark in past]:  # it connects to the supervisor
        past = [mark for mark in past if mark.what != "connecting"]
    doing = next((DOING[mark.what] for mark in reversed(past) if mark.what in DOING), "")
    return f"{past[-1].role}: {doing}" if doing else ""


def _cost(marks: list[Mark], total: float, ready: float) -> None:
    """Print the processor seconds of each process until its last mark before the workers were ready."""
    there = ready * (os.cpu_count() or 1)
    print(
        f"Processor seconds until the workers were ready: {total:.2f} on the whole machine, of {there:.2f} there were."
    )
    last = {mark.pid: mark for mark in marks if mark.at <= ready}
    for mark in sorted(last.values(), key=lambda mark: (mark.role, mark.pid)):
        print(f"  {mark.role:10} pid {mark.pid:<7} {mark.cpu:5.2f}  by {mark.what}")
    known = sum(mark.cpu for mark in last.values())
    print(
        f"  {'the rest':22} {total - known:5.2f}  Slurm, shells, `hpcml submit --wait`, and what came after those marks"
    )
