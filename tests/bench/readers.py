"""What a reader of an example has before them, beside the full job of the same name: lines, imports, and a run's cost.

tests/bench/readers.py [NAME…]         count all, run those that are named, and write docs/benchmarks/examples.json

Lines are those of code, without blank ones, comments and docstrings; of a full job also those of the gallery's modules
that it imports, directly or not. A run is ``python NAME.py`` in an empty folder, which starts workers on this machine; its
processor time is that of all its processes.
"""

from __future__ import annotations

import ast
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "jobs"
FIGURES = ROOT / "docs/benchmarks/examples.json"
LONGEST = 600  # seconds of a run


def lines_of(text: str) -> int:
    """Return the lines of code: those of a statement, without blank lines, comments and docstrings."""
    tree = ast.parse(text)
    said: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            said |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    numbered = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in numbered if number not in said and line.split("#")[0].strip())


def imported(text: str) -> set[str]:
    """Return the modules that a text imports, and names from packages, which may be modules too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def own_modules(path: Path) -> set[Path]:
    """Return the files below jobs/workloads that a full job needs: itself and all that it imports, directly or not."""
    found, todo = set(), [path]
    while todo:
        one = todo.pop()
        found.add(one)
        near = {JOBS / "workloads" / f"{name.replace('.', '/')}.py" for name in imported(one.read_text())}
        todo += [module for module in near if module.exists() and module not in found]
    return found


def read(path: Path, *, full: bool) -> dict[str, int]:
    """Return what there is to read: lines, modules of hpcml that are imported, and other files of this repository."""
    files = own_modules(path) if full else {path}
    names = set().union(*(imported(file.read_text()) for file in files))
    of_hpcml = {".".join(name.split(".")[:2]) for name in names if name.split(".")[0] == "hpcml"}
    modules = {name for name in of_hpcml if name == "hpcml" or (ROOT / f"{name.replace('.', '/')}.py").exists()}
    return {"lines": sum(lines_of(file.read_text()) for file in files), "files": len(files), "hpcml": len(modules)}


def run(path: Path) -> float | None:
    """Return the processor time of a run in seconds, of all its processes; None if a library is not installed here."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, str(path)], cwd=folder, capture_output=True, text=True, check=False,
                              timeout=LONGEST)  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if "is not installed" in done.stderr or "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode:
        raise SystemExit(f"{path}: exit status {done.returncode}\n{done.stderr}")
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)


def table(document: dict[str, Any]) -> str:
    """Return the figures as a table of Markdown."""
    rows = ["| | example: lines | modules of hpcml | processor s | full job: lines | files | modules of hpcml | processor s |",
            "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for name, one in document["examples"].items():
        cells = [one[side].get(part) if one[side] else None
                 for side, parts in (("example", "lines hpcml seconds"), ("full job", "lines files hpcml seconds"))
                 for part in parts.split()]  # fmt: skip
        rows.append(f"| `{name}.py` | {' | '.join('' if cell is None else str(cell) for cell in cells)} |")
    return "\n".join(rows)


def main(timed: list[str]) -> None:
    """Count all, run some, and write the file; the seconds of the others stay as they are."""
    old: dict[str, Any] = json.loads(FIGURES.read_text())["examples"] if FIGURES.exists() else {}
    document: dict[str, Any] = {"command": "tests/bench/readers.py [NAME…]", "cpus": os.cpu_count(), "examples": {}}
    for name in sorted(path.stem for path in JOBS.glob("*.py")):
        one: dict[str, Any] = {"full job": None}
        for side, path in (("example", JOBS / f"{name}.py"), ("full job", JOBS / f"workloads/{name}.py")):
            if path.exists():
                seconds = run(path) if name in timed else ((old.get(name) or {}).get(side) or {}).get("seconds")
                one[side] = {**read(path, full=side == "full job"), "seconds": seconds}
        document["examples"][name] = one
    document |= {"python": platform.python_version(), "when": datetime.datetime.now(datetime.UTC).isoformat()[:16]}
    FIGURES.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
