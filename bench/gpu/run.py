#!/usr/bin/env python3
"""The GPU tier in one command: unpack, start Slurm, run the sections, write JSON, print a table, end Slurm.

    python3 bench/gpu/run.py --pack DIR --gpus 2                 a GPU machine without RAPIDS and Slurm (root): pack.py's parts
    python3 bench/gpu/run.py --gpus 4 --own-slurm -- --site mysite --account me    RAPIDS and Slurm are here
    python3 bench/gpu/run.py --cpu                               no GPU: CPU workers, to try the tier itself
    python3 bench/gpu/run.py --pack DIR --eight 1                eight GPUs in two calls of ten minutes: the first (eight.py)

What follows ``--`` are options for every ``hpcml submit``. Each section runs in a process of its own under a deadline; one
that fails or hangs is written down, with where it hung, and the next one runs. See README.md for the sections.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "tests/lab"))

import machine
import pack
import table
from eight import CALLS, GPUS, Step
from figures import measured
from harness import HUNG, ROOT, SECTION, World, end_marked, last_lines
from results import MEASURED, SCHEMA, SECTIONS, Document, failure, passed, write
from slurm import TOP, Lab, SlurmError, gpu_count
from slurm_text import Shape

BUDGET = 540.0  # seconds for all sections
RESERVE = 15.0  # seconds kept for the table and for ending Slurm
LIMITS = {  # seconds
    "smoke": 180,
    "kernels": 240,
    "topology": 90,
    "verdict": 240,
    "kmeans": 420,
    "auth": 420,
    "bringup": 540,
    "merge": 900,
    "image": 420,
    "gallery": 540,
    "headlines": 900,
    "memory": 540,
    "killed": 420,
    "tasks": 420,
    "idioms": 560,
    "examples": 420,
    "sweep": 500,
    "polars": 500,
    "samples": 1800,
    "rates": 150,
    "chunks": 300,
    "jobs": 300,
    "lloyd": 600,
    "estimators": 600,
    "first": 500,
    "startup": 560,
    "failures": 480,
}
HOST_MEMORY = "16G"  # for each worker: the machine's own figure grows as it is used


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, rest = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, metavar="DIR", help="folder with the parts of pack.py")
    parser.add_argument("--gpus", type=int, default=0, help="how many GPUs to use (default: all)")
    parser.add_argument("--eight", type=int, choices=sorted(CALLS), metavar="CALL",
        help=f"the steps of call {' or '.join(map(str, CALLS))} on {GPUS} GPUs (--gpus N or --cpu: the same steps, to try them)")  # fmt: skip
    parser.add_argument("--only", default="", metavar="SECTIONS", help=f"some of {','.join(SECTIONS)}")
    parser.add_argument(
        "--case",
        default="",
        metavar="TEXT",
        help="in each section, only cases that have it in their name; a,b: one of them",
    )
    parser.add_argument(
        "--budget", type=float, default=BUDGET, metavar="SECONDS", help=f"for all sections (default {BUDGET:g})"
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="repeats of what is compared (default 3; --eight has its own)"
    )
    parser.add_argument("--image", type=Path, metavar="FILE", help="for the section image: what pack_image.py made")
    parser.add_argument("--out", type=Path, help="folder for the JSON (default: $OUT, else docs/benchmarks)")
    parser.add_argument("--top", type=Path, default=TOP, help=f"folder for all else, seen by all nodes (default {TOP})")
    parser.add_argument("--own-slurm", action="store_true", help="use the Slurm that is here")
    parser.add_argument("--keep", action="store_true", help="leave Slurm up for the next call")
    parser.add_argument("--prepare", action="store_true", help="unpack and start Slurm, and no more")
    parser.add_argument("--cpu", action="store_true", help="CPU workers in place of GPUs; the JSON goes to TOP/out")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has RAPIDS, or gets the pack")
    options = parser.parse_args(own)
    options.submit = rest
    options.steps = CALLS[options.eight] if options.eight else [
        Step(name, options.case, options.rounds, LIMITS[name]) for name in SECTIONS if not options.only or name in options.only.split(",")]  # fmt: skip
    options.gpus = options.gpus or (GPUS if options.eight and not options.cpu else 0)
    if options.eight and (options.only or options.case):
        parser.error("--eight has its own sections and cases: leave --only and --case out")
    if unknown := set(filter(None, options.only.split(","))) - set(SECTIONS):
        parser.error(f"there is no section {min(unknown)!r}: {', '.join(SECTIONS)}")
    options.command = shlex.join(["python3", "bench/gpu/run.py", *words])
    return options


def prepare(options: argparse.Namespace) -> World:
    """Unpack, put the environment together and start Slurm; return where the sections run."""
    entered = time.time()
    top = options.top.resolve()
    top.mkdir(parents=True, exist_ok=True)
    top.chmod(0o755)  # the intruder of the auth section reads what is below it
    environment = dict(os.environ)
    slurm = ""
    if options.pack:
        began = time.monotonic()
        unpacked = pack.unpack(options.pack.resolve(), top / "pack")
        facts = machine.python_facts(options.python)
        environment |= machine.pack_environment(unpacked / "site", Path(facts["purelib"]), environment)
        slurm = str(unpacked / "slurm") if (unpacked / "slurm").is_dir() else ""
        print(f"run: the pack {unpacked.name} is there after {time.monotonic() - began:.0f} s", flush=True)
    path = environment.get("PYTHONPATH", "")
    environment |= {
        "PYTHONPATH": f"{ROOT}:{path}" if path else str(ROOT),
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        "HPCML_SYSTEM_CONFIG": str(top / "no-configuration"),
    }
    gpus = options.gpus or (2 if options.cpu else gpu_count())
    known = machine.gpus()
    if not options.cpu and (not gpus or len(known) < gpus):
        raise SlurmError(
            f"{gpus or 'no'} GPUs are to be used, nvidia-smi shows {len(known)}. Give --gpus N, or --cpu to try."
        )
    submit = list(options.submit)
    if not options.own_slurm:
        lab = Lab(top)
        nodes, each = World(top, "", gpus, 0, {}).shapes()[0]
        lab.up(
            Shape(nodes, each, max(1, (os.cpu_count() or 1) // nodes)), Path(slurm) if slurm else None, fake=options.cpu
        )
        environment |= lab.environment()
        memory = "1500M" if options.cpu else HOST_MEMORY
        submit = [
            "--site",
            "slurm",
            "--set",
            "network.interface=eth0",
            "--set",
            f"workers.memory_limit={memory}",
            *submit,
        ]
    return World(
        top=top, python=options.python, gpus=gpus, memory_mib=min((gpu["memory_mib"] for gpu in known), default=0),
        environment=environment, options=submit, lab=not options.own_slurm, slurm=slurm, cpu_only=options.cpu,
        ends=(entered if options.eight else time.time()) + options.budget, rounds=options.rounds,
        image=str(options.image.resolve()) if options.image else "",
    )  # fmt: skip


def run_section(world: World, step: Step, log: Path) -> tuple[list[dict[str, Any]], str]:
    """Run a section in its own process; return its results and what went wrong with the section itself."""
    folder = world.folder(f"section-{step.section}")
    mark = secrets.token_hex(8)
    limited = World(**vars(world) | {"ends": min(world.ends, time.time() + step.seconds), "rounds": step.rounds})
    limited.save(folder / "world.json")
    words = [sys.executable, str(Path(__file__).with_name("section.py")), step.section, str(folder / "world.json"),
             str(folder / "results.json"), step.case]  # fmt: skip
    error = ""
    with log.open("a") as file:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                   env={**os.environ, SECTION: mark}, start_new_session=True)  # fmt: skip
        try:
            status = process.wait(limited.left() + 2 * RESERVE)
        except subprocess.TimeoutExpired:
            end_marked(SECTION, mark)
            process.wait()
            status = HUNG
    if status not in (0, 1):
        error = f"the section ended with status {status}:\n{last_lines(log.read_text(errors='replace'), 40)}"
    saved = folder / "results.json"
    results = json.loads(saved.read_text()) if saved.exists() else []
    if not results and not error:
        error = f"the section left no result:\n{last_lines(log.read_text(errors='replace'), 40)}"
    return results, error


def run_all(world: World, options: argparse.Namespace, out: Path) -> list[Document]:
    """Run the steps in order; write and return a document for each."""
    logs = world.top / "logs"
    logs.mkdir(exist_ok=True)
    common = {"schema": SCHEMA, "gpus": world.gpus, "cpu_only": world.cpu_only, "command": options.command,
              "versions": machine.versions(world.python, world.environment), "machine": machine.facts()}  # fmt: skip
    documents: list[Document] = []
    broken = ""
    for step in options.steps:
        name = step.section
        began = time.monotonic()
        log = logs / f"{name}.log"
        log.unlink(missing_ok=True)
        if broken or world.left() < RESERVE:
            results: list[dict[str, Any]]
            results, error = [], broken or f"skipped: the budget of {options.budget:g} s is spent"
        else:
            print(f"run: {name} ({world.left():.0f} s left)", flush=True)
            try:
                results, error = run_section(world, step, log)
            except Exception as trouble:  # noqa: BLE001 - the next section is tried whatever happens
                traceback.print_exc()
                results, error = [failure(name, f"{type(trouble).__name__}: {trouble}")], ""
        if name == "smoke" and (error or not passed(results)):
            broken = "skipped: RAPIDS does not work here, see smoke"
        document = {**common, "measured": measured(*MEASURED.get(name, ())), "section": name, "case": step.case,
                    "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
                    "seconds": round(time.monotonic() - began, 1), "error": error, "results": results}  # fmt: skip
        write(out, document)
        documents.append(document)
        for line in [error, *(f"{one['name']}: {one['error']}" for one in results if one["error"])]:
            if line:
                print(f"run:   {line}", flush=True)
    return documents


def keep_logs(world: World, out: Path) -> None:
    """Pack the sections' and Slurm's logs and the small files of the runs beside the JSON."""
    with tarfile.open(out / "logs.tgz", "w:gz") as archive:
        for folder in (world.top / "logs", world.top / "log"):
            if folder.is_dir():
                archive.add(folder, folder.name)
        for path in sorted((world.top / "work").glob("*/**/*")):
            wanted = path.suffix in (".log", ".jsonl", ".json", ".sh") and path.is_file()
            if wanted and path.stat().st_size < 300_000:
                archive.add(path, str(path.relative_to(world.top)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Do it all; return 0 if everything that was tried is as expected."""
    options = parse(arguments)
    default = options.top / "out" if options.cpu else Path(os.environ.get("OUT") or ROOT / "docs/benchmarks")
    out = (options.out or default).resolve()
    documents: list[Document] = []
    try:
        world = prepare(options)
        if options.prepare:
            print(json.dumps({name: world.environment[name] for name in sorted(world.environment)
                              if name in {"PATH", "SLURM_CONF"} or name.endswith(("PYTHONPATH", "PRELOAD", "LIBRARY_PATH"))}, indent=1))  # fmt: skip
            return 0
        shutil.rmtree(world.top / "work", ignore_errors=True)
        documents = run_all(world, options, out)
        if out != ROOT / "docs/benchmarks":
            keep_logs(world, out)
    except (SlurmError, pack.PackError, OSError, subprocess.SubprocessError) as error:
        print(f"run: {error}", file=sys.stderr)
        return 3
    finally:
        if not (options.keep or options.prepare or options.own_slurm):
            Lab(options.top).down()
    print("\n" + table.render(documents))
    return 0 if all(not document["error"] and passed(document["results"]) for document in documents) else 1


if __name__ == "__main__":
    sys.exit(main())
