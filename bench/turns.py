"""Two versions of hpcml in turns: from ``hpcml submit`` to the first line, a usable cluster, and the end.

    python3 bench/turns.py OLD NEW                      two checkouts, on this machine, with the Python that runs this
    python3 bench/turns.py OLD NEW --lab                on the lab that is up (root), as its user
    python3 bench/turns.py OLD NEW --only gpu -- --gpus-per-node 1      on a machine with a GPU

Each round submits each shape once with each version, the first of them in turn. What is shown is each round's ratio of
the new to the old: median, least and most. What follows ``--`` are options for ``hpcml submit`` of shapes with Dask.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DEADLINE = 180  # seconds of one run
PLAIN = """\
import json, os, time
first = time.time()
if os.environ.get("RANK", "0") == "0":
    open("turn.json", "w").write(json.dumps({"first": first, "usable": first}))
"""
DASK = """\
import json, time
first = time.time()
from dask.distributed import Client
client = Client()
client.wait_for_workers(int(__import__("os").environ["WORKERS"]))
assert client.submit(sum, [1, 2]).result() == 3
open("turn.json", "w").write(json.dumps({"first": first, "usable": time.time()}))
"""
TRAVELS = ("hpcml", "templates", "containers", "jobs")  # what a version needs of its checkout


class Shape(NamedTuple):
    """What a run is made of."""

    script: str
    options: tuple[str, ...] = ()
    workers: int = 0


SHAPES = {
    "plain": Shape(PLAIN),
    "dask": Shape(DASK, ("--nodes", "2", "--set", "workers.per_node=1"), 2),
    "gpu": Shape(DASK, ("--nodes", "1"), 1),
    "ranks": Shape(PLAIN, ("--nodes", "2", "--ranks", "2")),
}
Command = Callable[[Sequence[str], Path, Mapping[str, str]], None]


def main() -> int:
    """Measure, print the table, and write the JSON."""
    options = arguments()
    place = Path(options.folder or tempfile.mkdtemp(prefix="hpcml-turns-"))
    python = sys.executable
    run: Command = here
    lab_options: tuple[str, ...] = ()
    if options.lab:
        place, python, run, lab_options = of_lab()
    versions = {"old": keep(options.old, place / "old"), "new": keep(options.new, place / "new")}
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for name in options.only.split(","):
        shape, rounds = SHAPES[name], {"old": list[dict[str, float]](), "new": list[dict[str, float]]()}
        given = [*(lab_options or ("--site", "local")), *shape.options, *(options.submit if shape.workers else ())]
        for number in range(-1, options.rounds):  # the first round fills caches
            for version in ("old", "new") if number % 2 else ("new", "old"):
                took = turn(versions[version], place / f"{name}-{version}", python, given, shape, run)
                if number >= 0:
                    rounds[version].append(took)
        found[name] = rounds
        print(row(name, rounds), flush=True)
    if options.json:
        command = f"python3 bench/turns.py OLD NEW --rounds {options.rounds} --only {options.only}"
        figures = {"command": command + " --lab" * options.lab, "cores": os.cpu_count(), "shapes": found}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def arguments() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="checkout of the one version")
    parser.add_argument("new", type=Path, help="checkout of the other version")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="plain,dask,ranks", help=f"some of {','.join(SHAPES)}")
    parser.add_argument("--lab", action="store_true", help="on the lab that is up")
    parser.add_argument("--folder", help="for the runs (default: a temporary folder)")
    parser.add_argument("--json", type=Path)
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:end])
    options.submit = tuple(words[end + 1 :])
    return options


def keep(checkout: Path, place: Path) -> Path:
    """Return a copy of a version without its tests, which the lab's users can read."""
    shutil.rmtree(place, ignore_errors=True)
    for name in TRAVELS:
        shutil.copytree(checkout / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def here(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
    """Run a command on this machine."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    end_if_failed(command, done)


def end_if_failed(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> None:
    """End with what a command wrote, if it failed."""
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}")


def of_lab() -> tuple[Path, str, Command, tuple[str, ...]]:
    """Return the folder, the interpreter, the way to run a command, and the options of the lab's user."""
    sys.path.insert(0, str(ROOT / "tests" / "lab"))
    from labs import Lab

    lab = Lab()
    lab.up()

    def run(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
        lab.wait_idle(60)
        end_if_failed(command, lab.exec(list(command), cwd=folder, env=dict(variables), timeout=DEADLINE))

    place = Path(lab.home("alice")) / "turns"
    place.mkdir(exist_ok=True)
    shutil.chown(place, place.parent.stat().st_uid, place.parent.stat().st_gid)
    python = "/var/lib/hpcml-lab/venv/bin/python"
    return place, python, run, ("--cpus-per-node", "2", "--memory-per-node", "900M")


def turn(
    version: Path, folder: Path, python: str, given: Sequence[str], shape: Shape, run: Command
) -> dict[str, float]:
    """Submit a run and wait for its end; return the seconds to the first line, to a usable cluster, and to the end."""
    folder.mkdir(parents=True, exist_ok=True)
    owner = folder.parent.stat()
    (folder / "script.py").write_text(shape.script)
    (folder / "turn.json").unlink(missing_ok=True)
    for path in (folder, folder / "script.py"):
        os.chown(path, owner.st_uid, owner.st_gid)
    variables = {"PYTHONPATH": str(version), "WORKERS": str(shape.workers)}
    began = time.time()
    run([python, "-P", "-m", "hpcml", "submit", "--wait", *given, "script.py"], folder, variables)
    ended = time.time()
    times = json.loads((folder / "turn.json").read_text())
    return {name: round(when - began, 3) for name, when in {**times, "end": ended}.items()}


def row(name: str, rounds: Mapping[str, list[dict[str, float]]]) -> str:
    """Return a line of the table: the ratios of the rounds, median, least and most."""
    parts = []
    for key in rounds["old"][0]:
        ratios = [new[key] / old[key] for old, new in zip(rounds["old"], rounds["new"], strict=True)]
        seconds = {version: statistics.median(one[key] for one in rounds[version]) for version in rounds}
        parts.append(
            f"{key} {statistics.median(ratios):.3f} ({min(ratios):.2f} to {max(ratios):.2f}; "
            f"{seconds['old']:.2f} s, {seconds['new']:.2f} s)"
        )
    return f"{name:6} {'  '.join(parts)}"


if __name__ == "__main__":
    raise SystemExit(main())
