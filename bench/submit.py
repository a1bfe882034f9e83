"""How long the submitting side takes, as ratios to what cannot be less: bare ``sbatch`` and ``python -c pass``.

On the lab (``make lab``), as alice on the login node, with the lab's own hpcml; all contenders take turns in every round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/lab"))

from labs import Lab

SCRIPT = """#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --time=10 --begin=now+1hour --output=/dev/null
true
"""
# Runs in the lab: the lab's own entry into its namespaces is not to be measured. `--begin` lets every job wait.
INSIDE = """
import json, os, subprocess, sys, time
rounds, folder = int(sys.argv[1]), sys.argv[2]
python = sys.executable
hpcml = os.path.join(os.path.dirname(python), "hpcml")
submit = [hpcml, "submit", "--detach", "--nodes", "4", "--set", f"paths.runs={folder}/runs"]
submit += ["--set", 'slurm.extra=["--begin=now+1hour"]']
commands = {
    "python -c pass": [python, "-c", "pass"],
    "sbatch": ["sbatch", "--parsable", f"{folder}/bare.sh"],
    "hpcml --help": [hpcml, "--help"],
    "hpcml submit": [*submit, f"{folder}/job.py"],
    "hpcml submit --dry-run": [*submit[:2], *submit[3:], "--dry-run", f"{folder}/job.py"],
    "hpcml ls": [hpcml, "ls", "--set", f"paths.runs={folder}/none"],
    "python -c 'import jinja2'": [python, "-c", "import jinja2"],
}
times = {name: [] for name in commands}
for turn in range(rounds + 1):
    for name, command in commands.items():
        begin = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        took = time.perf_counter() - begin
        if done.returncode:
            sys.exit(f"{name}: {done.stderr}")
        if turn:
            times[name].append(took)
print(json.dumps(times))
"""


def measure(lab: Lab, rounds: int) -> dict[str, list[float]]:
    """Return each command's times in seconds; the first round is not counted."""
    folder = lab.home("alice") / "bench-submit"
    lab.exec(["mkdir", "-p", str(folder)])
    try:
        for name, text in (("bare.sh", SCRIPT), ("job.py", "print('hello')\n"), ("inside.py", INSIDE)):
            lab.exec(["tee", str(folder / name)], input=text)
        command = [
            "bash",
            "-c",
            'exec "$(dirname "$(command -v hpcml)")/python" "$@"',
            "bash",
            str(folder / "inside.py"),
        ]
        done = lab.exec([*command, str(rounds), str(folder)], cwd=folder, timeout=600)
        if done.returncode != 0:
            sys.exit(done.stderr)
        return dict(json.loads(done.stdout))
    finally:
        lab.exec(["scancel", "--me", "--state=PENDING"])
        lab.exec(["rm", "-rf", str(folder)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    lab = Lab()
    if reason := lab.check():
        print(f"The lab cannot run here: {reason}")
        return 3
    times = measure(lab, options.rounds)
    middle = {name: statistics.median(values) * 1000 for name, values in times.items()}
    print(f"{'median of ' + str(options.rounds):<26} {'ms':>7} {'least':>7}   ratio")
    python, sbatch = middle["python -c pass"], middle["sbatch"]
    bounds = {"hpcml --help": (python, "python"), "hpcml submit": (sbatch + python, "(sbatch + python)")}
    for name, value in middle.items():
        unit, words = bounds.get(name, (0.0, ""))
        ratio = f"{value / unit:.2f} × {words}, to be at most 3" if unit else ""
        print(f"{name:<26} {value:7.1f} {min(times[name]) * 1000:7.1f}   {ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
