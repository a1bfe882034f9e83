#!/usr/bin/env python3
"""What the processes of a start do in each tenth of a second: traces as figures, and as a table.

    BRINGUP_TRACE=FOLDER PYTHONPATH=bench/trace:$PYTHONPATH python3 bench/gpu/run.py --gpus 1 --only startup --case Dask --rounds 1 …
    python3 bench/tenths.py FOLDER RESULTS.json

trace/sitecustomize.py writes the traces. The job's start is that of the event scheduler-up, less its seconds in RESULTS.json.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/lab"))

from explain import STEP, Mark, marks_in, state

FIGURES = Path(__file__).resolve().parents[1] / "docs/benchmarks/startup-tenths.json"
GAP = 3.0  # seconds between two runs in one folder of traces


def runs_in(folder: Path) -> list[list[Mark]]:
    """Return the marks of each run in a folder, in order of time."""
    runs: list[list[Mark]] = []
    for mark in sorted(marks_in(folder, 0.0), key=lambda mark: mark.at):
        if not runs or mark.at - runs[-1][-1].at > GAP:
            runs.append([])
        runs[-1].append(mark)
    return runs


def tenths(marks: list[Mark], start: float, end: float) -> list[dict[str, int]]:
    """Return how many processes are in each state, in the middle of each tenth of a second after ``start``."""
    pids = {mark.pid for mark in marks}
    counts = []
    for number in range(math.ceil(end / STEP)):
        states = Counter(state(marks, pid, start + (number + 0.5) * STEP) for pid in pids)
        counts.append({text: count for text, count in states.items() if text})
    return counts


def table(document: dict[str, Any]) -> str:
    """Return the figures as tables in Markdown: a row for each state, with the tenths in which processes were in it."""
    parts = []
    for run in document["runs"]:
        lines = [
            f"{run['name']}: workers registered after {run['registered']:.2f} s, usable after {run['usable']:.2f} s."
        ]
        lines += ["", "| what a process does | first and last second | most processes |", "|---|---|---|"]
        rows: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number, counts in enumerate(run["tenths"]):
            for text, count in counts.items():
                rows[text].append((number, count))
        for text, row in sorted(rows.items(), key=lambda item: item[1][0][0]):
            span = f"{row[0][0] * STEP:.1f} to {(row[-1][0] + 1) * STEP:.1f}"
            lines.append(f"| {text} | {span} | {max(count for _, count in row)} |")
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, f"{document['date'][:10]}, {document['machine']}; `{document['command']}`"])


def main() -> int:
    """Read a folder of traces and the results of the same runs; write the figures and show the tables."""
    traces, results = map(Path, sys.argv[1:3])
    document = json.loads(results.read_text())
    measured = [one for one in document["results"] if one["name"].endswith(": hpcml")]
    runs = []
    for marks, one in zip(runs_in(traces), measured, strict=True):
        figures = one["figures"]
        start = next(mark.at for mark in marks if mark.what == "listening") - figures["scheduler_up"]
        rows = tenths(marks, start, figures["registered"])
        runs.append({"name": one["name"], **{key: figures[key] for key in ("registered", "usable")}, "tenths": rows})
    command = f"BRINGUP_TRACE=FOLDER PYTHONPATH=bench/trace:$PYTHONPATH {document['command']}"
    facts = {
        "command": command,
        "date": document["date"],
        "machine": f"{document['machine']['cores']} cores, {document['machine']['processor']}",
        "runs": runs,
    }
    FIGURES.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(table(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
