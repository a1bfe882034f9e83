"""How long the command line takes to start, as multiples of a bare ``python -c pass``; it needs neither Slurm nor root.

hpcml is the one installed beside the interpreter that ``--python`` names; it should have what the base install has alone.
``sbatch`` is the tests' (tests/cli/fake_slurm.py), which accepts at once. All contenders take turns in every round, and a ratio is
that of two figures of one round. Processor time is counted beside the time on the clock, which other processes lengthen.

`submit` makes some 20 files: what a new file costs differs between file systems, and in a crowded /tmp it is much.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HELP, DRY_RUN, SUBMIT, PYTHON, SBATCH = "--help", "submit --dry-run", "submit", "python -c pass", "sbatch"
BOUNDS = {HELP: 2.0, DRY_RUN: 8.0, SUBMIT: 3.0}


class Took(NamedTuple):
    """Seconds on the clock and of processors, of one process and those that it started."""

    clock: float
    processor: float


def run(command: list[str], environment: dict[str, str], folder: Path) -> Took:
    """Run a command to its end."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    clock, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}: {done.stderr}")
    return Took(clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(python: Path, rounds: int, place: Path | None) -> dict[str, list[Took]]:
    """Return what each command took in each round; the first round, which fills caches, is not counted."""
    hpcml = str(python.with_name("hpcml"))
    with tempfile.TemporaryDirectory(prefix="hpcml-startup-", dir=place) as name:
        folder = Path(name).absolute()
        (folder / "job.py").write_text("print('hello')\n")
        (folder / "bare.sh").write_text(
            "#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH --comment=bare\n#SBATCH --job-name=bare\ntrue\n"
        )
        (folder / "python3").symlink_to(python)  # of the fakes
        (folder / "sbatch").write_text(f'#!/bin/sh\nexec python3 "{ROOT}/tests/cli/fake_slurm.py" sbatch "$@"\n')
        (folder / "sbatch").chmod(0o755)
        environment = {"HOME": str(folder), "PATH": f"{folder}:{ROOT}/tests/cli/fakes:/usr/bin:/bin"}
        submit = [hpcml, "submit", "--detach", "--site", "slurm", "--nodes", "2", "job.py"]
        commands = {
            PYTHON: [str(python), "-c", "pass"],
            SBATCH: ["sbatch", "--parsable", "bare.sh"],
            HELP: [hpcml, "--help"],
            "submit --help": [hpcml, "submit", "--help"],
            DRY_RUN: [*submit[:2], "--dry-run", *submit[3:]],
            SUBMIT: submit,
            "ls, no runs": [hpcml, "ls", "--set", f"paths.runs={folder}/none"],
        }
        times: dict[str, list[Took]] = {command: [] for command in commands}
        for turn in range(rounds + 1):
            for command, words in commands.items():
                environment["FAKE_STATE"] = tempfile.mkdtemp(dir=folder)  # what was submitted before costs nothing
                took = run(words, environment, folder)
                if turn:
                    times[command].append(took)
    return times


def ratios(times: dict[str, list[Took]], command: str, figure: str) -> list[float]:
    """Return how many times the bound's unit a command took, round by round."""
    units = (PYTHON, SBATCH) if command == SUBMIT else (PYTHON,)
    each = zip(times[command], *(times[unit] for unit in units), strict=True)
    return [getattr(own, figure) / sum(getattr(unit, figure) for unit in others) for own, *others in each]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="of the environment with hpcml")
    parser.add_argument("--folder", type=Path, help="where runs are written meanwhile (default: for temporary files)")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    load = os.getloadavg()
    version = subprocess.run([options.python, "--version"], capture_output=True, text=True, check=True)
    times = measure(options.python.absolute(), options.rounds, options.folder)
    summary = {}
    print(f"{'ratio, quartiles of ' + str(options.rounds):<26} {'processor':>18} {'clock':>18}  at most")
    for command in times:
        quartiles = {
            figure: [round(value, 2) for value in statistics.quantiles(ratios(times, command, figure), n=4)]
            for figure in ("processor", "clock")
        }
        summary[command] = {**quartiles, "at_most": BOUNDS.get(command)}
        shown = ["{1:.2f} ({0:.2f} {2:.2f})".format(*values) for values in quartiles.values()]
        unit = " × (python + sbatch)" if command == SUBMIT else " × python"
        print(
            f"{command:<26} {shown[0]:>18} {shown[1]:>18}  {f'{BOUNDS[command]:g}{unit}' if command in BOUNDS else ''}"
        )
    if options.json:
        facts = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": f"python3 {shlex.join(['bench/startup.py', *sys.argv[1:]])}",
            "machine": {"cores": os.cpu_count(), "python": version.stdout.strip(), "load_before": load},
            "ratios": summary,
            "seconds": {command: [took._asdict() for took in rounds] for command, rounds in times.items()},
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
