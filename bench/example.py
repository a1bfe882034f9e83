#!/usr/bin/env python3
"""The seconds of an example of jobs/, by runs of hpcml on the local site, for a row of docs/seeds.md.

    python3 bench/example.py zarr_svd --rounds 5 --gpus 1 --set workers.threads=16 -- --rows 156250 --columns 20000

It writes docs/benchmarks/example-NAME.json: the result.json of each run, the machine, and the digest of the example.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cpu_rows import machine
from figures import ROOT, measured

DEADLINE = 1_800  # seconds of one run


def gpu_name() -> str:
    """Return the name of the first GPU, as nvidia-smi has it."""
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


def main() -> int:
    """Run the example in rounds, and write its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="for the runs")
    parser.add_argument("--python", type=Path, help="the runs' Python (default: this one)")
    parser.add_argument("--folder", type=Path, help="for data and runs (default: for temporary files)")
    parser.add_argument("--out", type=Path, help="default: docs/benchmarks/example-NAME.json")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)  # what follows is the example's
    options, given = parser.parse_args(words[:end]), words[end + 1 :]
    script = f"jobs/{options.name}.py"
    runs = []
    with tempfile.TemporaryDirectory(prefix="hpcml-example-", dir=options.folder) as folder:
        submit = [sys.executable, "-m", "hpcml", "submit", "--site", "local", "--wait", "--set", f"paths.runs={folder}"]
        submit += ["--gpus-per-node", str(options.gpus)] if options.gpus else []
        submit += ["--python", str(options.python)] if options.python else []
        submit += [word for setting in options.set for word in ("--set", setting)]
        for number in range(options.rounds):
            name = f"round{number}"
            command = [*submit, "--name", name, str(ROOT / script), *given]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=DEADLINE)
            found = list(Path(folder).glob(f"{name}-*/out/result.json"))
            if done.returncode or len(found) != 1:
                sys.exit(f"{shlex.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")
            runs.append(json.loads(found[0].read_text()))
            print(f"round {number}: {runs[-1]['seconds']}", file=sys.stderr, flush=True)
            write(options, script, runs)  # a later round may be ended
    return 0


def write(options: argparse.Namespace, script: str, runs: list[dict[str, Any]]) -> None:
    """Write the figures of the rounds so far."""
    gpus = f"{options.gpus} × {gpu_name()}, " if options.gpus else ""
    document = {
        "command": f"python3 {shlex.join(['bench/example.py', *sys.argv[1:]])}",
        "measured": measured(script),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": gpus + machine(),
        "runs": runs,
    }
    out = options.out or ROOT / "docs" / "benchmarks" / f"example-{options.name}.json"
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
