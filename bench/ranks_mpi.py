#!/usr/bin/env python3
"""mpi4py's own programs by `hpcml submit --ranks --mpi` beside srun by hand: the same exit status and the same lines.

    python3 tests/lab/lab.py exec -- bench/ranks_mpi.py DEMO --python /env/bin/python --json ranks-mpi.json

DEMO is the folder `demo` of mpi4py's repository; the Python has mpi4py. Each program runs unchanged on four nodes, with
Open MPI (PMIx) and with MPICH (PMI-2).
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NODES, LONGEST = 4, 120.0
# What mpi4py calls the MPI that speaks each, the name of its library, and Debian's name for that.
MPIS = {
    "pmix": ("openmpi", "libmpi.so.40", "/usr/lib/x86_64-linux-gnu/libmpi.so.40"),
    "pmi2": ("mpich", "libmpi.so.12", "/usr/lib/x86_64-linux-gnu/libmpich.so.12"),
}
FILES = ["helloworld.py", "mandelbrot/mandelbrot.py", "nxtval/nxtval-mpi3.py", "nxtval/nxtval-threads.py"]
REFERENCE = ["2.08", "2.29", "2.32", "3.01", "3.02", "3.03", "3.04", "3.05", "3.06", "3.07", "3.08", "3.09"]
PROGRAMS = [*FILES, *(f"mpi-ref-v1/ex-{number}.py" for number in REFERENCE), "-m mpi4py.bench helloworld"]


def output_of(command: list[str], folder: str) -> tuple[int, list[str]]:
    """Run a command; return its exit status and its lines without the numbers of those that give seconds, sorted."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LONGEST, cwd=folder)
    lines = [line.partition(" | ")[2] if re.match(r"rank +\d+ \|", line) else line for line in done.stdout.splitlines()]
    return done.returncode, sorted(re.sub(r"\d", "", one) if "seconds" in one else one for one in lines if one.strip())


def main() -> int:
    """Run all programs by both, write the figures; return 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path)
    parser.add_argument("--python", required=True, help="a Python with mpi4py")
    parser.add_argument("--hpcml", default="hpcml", help="the hpcml to run")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        shutil.copytree(options.demo, f"{folder}/demo")
        for kind, (mpi, library, debians) in MPIS.items():
            libraries = Path(folder, kind)
            libraries.mkdir()
            (libraries / library).symlink_to(debians)
            variables = [f"MPI4PY_MPIABI={mpi}", f"LD_LIBRARY_PATH={libraries}"]
            for number, program in enumerate(PROGRAMS):
                of_file = program.endswith(".py")
                words = [Path(program).name] if of_file else program.split()
                where = str(Path(folder, "demo", program).parent) if of_file else folder
                name = f"{kind}-{number}"
                submit = [options.hpcml, "submit", "--wait", "--nodes", str(NODES), "--time", "5", "--name", name]
                submit += ["--set", f"runtime.python={options.python}", "--ranks", "1", "--mpi", kind]
                submit += [word for one in variables for word in ("--env", one)]
                status, _ = output_of([*submit, *words], where)
                _, lines = output_of([options.hpcml, "logs", name, "rank"], where)
                by_hand = ["srun", f"-N{NODES}", "--ntasks-per-node=1", "-t5", f"--mpi={kind}"]
                hand, hand_lines = output_of(["env", *variables, *by_hand, options.python, *words], where)
                # The lines of an error come from as many ranks as had time.
                same = lines == hand_lines if not status else None
                rows.append({"program": program, "mpi": mpi, "status": status, "by_hand": hand, "same_lines": same})
                print(json.dumps(rows[-1]), flush=True)
    wrong = [one for one in rows if one["status"] != one["by_hand"] or one["same_lines"] is False]
    code = "import mpi4py; print(mpi4py.__version__)"
    version = subprocess.run([options.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    command = shlex.join(["bench/ranks_mpi.py", "DEMO", "--python", "PYTHON"])
    document = {"command": command, "mpi4py": version, "nodes": NODES, "programs": rows}
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{len(rows)} programs, {len(wrong)} of them differ")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
