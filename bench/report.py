"""How long it takes to make the report of a run, and how large the page is, for runs with made-up samples.

Each report is made by ``python -m hpcml.report`` as a run's supervisor starts it: the process imports, then waits for a
line. Its processor time until that line, and from then to its end, is read from /proc.

``--before`` names a checkout of another version, which takes turns with this one. The figure beside each run is the
median of the ratios of one turn.
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
import time
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from tests import report_samples
from tests.report_samples import Shape

RUNS = {
    "8 GPUs, a minute": Shape(seconds=60),
    "8 GPUs, an hour": Shape(),
    "8 GPUs, a day, a sample each 30 s": Shape(seconds=86400, every=30.0),
    "64 GPUs on 16 nodes, an hour": Shape(nodes=16, gpus=4),
    "64 nodes without GPUs, an hour": Shape(nodes=64, gpus=0),
}
LARGEST, LONGEST = 2 << 20, 3.0  # bytes and processor seconds of an hour on 8 GPUs
TICKS = os.sysconf("SC_CLK_TCK")


def processor(pid: int) -> float:
    """Return the processor time of a process in seconds, which may have ended and not been waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def once(directory: Path, checkout: Path | None = None) -> tuple[float, float]:
    """Make a report, with another version's code if one is given; return the processor time before the line, and after."""
    words = [sys.executable, "-P", "-m", "hpcml.kinds.report_process", str(directory), "0"]
    environment = os.environ | ({"PYTHONPATH": str(checkout.absolute())} if checkout else {})
    process = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment)
    assert process.stdin
    before, end = -1.0, time.monotonic() + 60
    while before != (before := processor(process.pid)) or "S" not in state(process.pid):  # it waits for the line
        assert time.monotonic() < end
        time.sleep(0.2)
    process.stdin.write(b"go\n")
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    after = processor(process.pid)
    assert process.wait() == 0
    return before, after - before


def state(pid: int) -> str:
    """Return a process's state as the kernel names it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def measure(repeats: int, earlier: Path | None) -> dict[str, Any]:
    """Return the figures of each run: medians of processor time in seconds, and the page's bytes.

    ``of_before`` is the time after the line as a multiple of the version's in the checkout ``earlier``.
    """
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in RUNS.items():
            paths = report_samples.write(Path(folder) / name.replace(" ", "-"), shape)
            times, shares = [], []
            for _ in range(repeats):
                times.append(once(paths.directory))
                shares += [times[-1][1] / once(paths.directory, earlier)[1]] if earlier else []
            before, after = (statistics.median(column) for column in zip(*times, strict=True))
            samples = sum(path.stat().st_size for path in (paths.attempt(0).directory / "samples").rglob("*.jsonl"))
            size = paths.report.stat().st_size
            found[name] = {"import": before, "make": after, "page_bytes": size, "sample_bytes": samples}
            found[name]["of_before"] = round(statistics.median(shares), 3) if shares else None
    return found


def table(document: dict[str, Any]) -> str:
    """Return the figures as a table in Markdown."""
    rows = ["| run | importing | after the roles' end | × before | samples | page |", "|---|---|---|---|---|---|"]
    for name, one in document["runs"].items():
        sizes = [f"{one[key] / 1e6:.1f} MB" for key in ("sample_bytes", "page_bytes")]
        earlier = "" if one["of_before"] is None else f"{one['of_before']:.2f}"
        rows.append(f"| {name} | {one['import']:.2f} s | {one['make']:.2f} s | {earlier} | {sizes[0]} | {sizes[1]} |")
    told = f"Processor time, medians of {document['repeats']}; {document['date']}, {document['machine']}"
    return "\n".join([*rows, "", f"{told}; `{document['command']}`"])


def main() -> int:
    """Measure, and show the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="of another version, measured in turns")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    document = {
        "command": shlex.join(["python3", *sys.argv]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "repeats": options.repeats,
        "runs": measure(options.repeats, options.before),
    }
    print(table(document))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    hour = document["runs"]["8 GPUs, an hour"]
    return int(hour["page_bytes"] > LARGEST or hour["import"] + hour["make"] > LONGEST)


if __name__ == "__main__":
    sys.exit(main())
