"""Every workload on GPUs against the same workload on CPUs: the same data must give the same figures.

Each side runs all jobs one after the other on one cluster (workloads/all_jobs.py), both at the same time, and with --rounds
of two or more twice: seconds are then of the second time, since the first one loads libraries and compiles kernels.
200,000 rows are few for a GPU; how fast one is, headlines tell.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

from harness import ROOT, Case, HarnessError, World, last_lines, read_json
from results import Result, failure, result

sys.path.append(str(ROOT / "bench/workloads"))

from job_list import JOBS, VARIANTS, Listed, figure, shape

WORKLOADS = ROOT / "bench/workloads"
ALL = JOBS | VARIANTS

ROWS = 200_000
FEW_ROWS = 4_000  # when CPUs stand in for GPUs
EACH = 60  # seconds of one job, after which it is broken off
TIMES = 2  # all jobs: the first time libraries are loaded and kernels compiled
ON_CPUS, ON_GPUS = 300, 300  # seconds of all jobs
WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": "", "DASK_ARRAY__BACKEND": "numpy", "DASK_DATAFRAME__BACKEND": "pandas"}


def cases(world: World) -> list[Case]:
    """Return one case, with a result for the CPUs, which has what goes wrong there, and one for each job on GPUs."""
    return [Case("jobs", 130 if not world.cpu_only else 30, lambda: _both(world))]


def options(data: Path) -> dict[str, str]:
    """Return each job's options: on made files, where it reads any, else on small data of its own making."""
    return {name: f"--data {data}/{_set_name(listed)} {listed.reads}" if listed.kind else listed.small
            for name, listed in ALL.items()}  # fmt: skip


def makers(rows: int) -> dict[str, str]:
    """Return the options of make_data.py for each set that the jobs read."""
    found = {}
    for listed in {listed.kind: listed for listed in ALL.values() if listed.kind}.values():
        kind, how = shape(listed.kind)
        words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in how.items())
        found[f"make_data/{_set_name(listed)}"] = f"{kind} --rows {rows} --partitions 8 {words}"
    return found


def _set_name(listed: Listed) -> str:
    return listed.kind.replace(" ", "-").replace("=", "-")


def _both(world: World) -> list[Result]:
    """Make the data, run the jobs on CPUs and on GPUs at the same time, and compare."""
    nodes, gpus = world.shapes()[0]
    world.shape(nodes, gpus)
    folder = world.folder("gallery-cpu")
    scripts, out = folder / "jobs", folder / "out"
    shutil.copytree(WORKLOADS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    program, how = str(scripts / "all_jobs.py"), [str(EACH), str(min(world.rounds, TIMES))]
    made = json.dumps(makers(FEW_ROWS if world.cpu_only else ROWS))
    done = world.command([world.python, program, made], timeout=EACH, environment=WITHOUT_GPUS, cwd=folder)
    if done.status:
        raise HarnessError(f"the data was not made: exit status {done.status}\n{last_lines(done.output)}")
    words = options(out / "make_data")
    with world.started([world.python, program, json.dumps(words), *how], environment=WITHOUT_GPUS, cwd=folder) as cpus:
        run = world.submit(scripts / "all_jobs.py", [json.dumps(words), *how], nodes=nodes, gpus=gpus, timeout=ON_GPUS)
        done = cpus.wait(min(ON_CPUS, max(world.left(), 5)))
    on_cpus, on_gpus = read_json(out / "statuses.json"), run.table("out/statuses.json")
    wrong = [f"{name}: {on_cpus.get(name, 'did not run')}" for name in words if on_cpus.get(name) != 0]
    if done.status not in (0, 1):
        wrong.append(f"exit status {done.status}:\n{last_lines(done.output)}")
    found = [
        result("cpu", ok=not wrong, figures={"jobs": len(words), "run_seconds": done.seconds}, error="; ".join(wrong))
    ]
    if run.directory is None or not on_gpus:
        return [*found, failure("gpu", run.why())]
    outs = (out, run.directory / "out")
    for name in words:
        statuses = (on_cpus.get(name), on_gpus.get(name, run.why()))
        failed = f"on CPUs: {statuses[0]}; on GPUs: {statuses[1]}"
        found.append(_compare(world, name, outs) if statuses == (0, 0) else failure(name, failed))
    return found


def _compare(world: World, name: str, outs: tuple[Path, Path]) -> Result:
    """Return whether a job's figures on GPUs are those on CPUs; ``outs`` are both runs' folders, the CPUs' first."""
    listed = ALL[name]
    cpu, gpu = (read_json(folder / name / "result.json") for folder in outs)
    tolerance = listed.tolerance if world.cpu_only else listed.gpu_tolerance
    apart = {dotted: difference(figure(gpu, dotted), figure(cpu, dotted)) for dotted in listed.same}
    wrong = [f"{dotted}: {figure(gpu, dotted)} on GPUs, {figure(cpu, dotted)} on CPUs"
             for dotted, value in apart.items() if not value <= tolerance]  # fmt: skip
    wanted = "numpy" if world.cpu_only else "cupy"
    wrong += [f"the backend is {gpu['backend']}"] if gpu["backend"] != wanted else []
    figures = {
        "apart": max(apart.values(), default=0.0),
        "gpu_first_s": sum(gpu["seconds"].values()),
        "notes": gpu["notes"],
    }
    ratio = None
    again = [folder / "again1" / name / "result.json" for folder in outs]
    if all(path.exists() for path in again):
        figures["cpu_s"], figures["gpu_s"] = (sum(read_json(path)["seconds"].values()) for path in again)
        ratio = round(figures["cpu_s"] / max(figures["gpu_s"], 1e-9), 3)
    return result(name, ok=not wrong, figures=figures, ratio=ratio, error="; ".join(wrong))


def difference(one: Any, other: Any) -> float:
    """Return how far two figures are apart, relative to the other; of lists and tables the most, of words 0 or infinity."""
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) / max(abs(other), 1e-12) if one != other else 0.0
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max((difference(*pair) for pair in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max((difference(one[key], other[key]) for key in one), default=0.0)
    return 0.0 if one == other else math.inf
