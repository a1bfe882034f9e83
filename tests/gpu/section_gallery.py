"""Every job of the gallery on GPUs against the same job on CPUs: the same data must give the same figures.

Each side runs all jobs one after the other (tests/jobs/all_jobs.py), so that what takes long, to start, is paid once.
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

sys.path.insert(0, str(ROOT))

from tests.jobs.job_list import JOBS, Listed, figure, shape

ROWS = 200_000
FEW_ROWS = 4_000  # when CPUs stand in for GPUs
EACH = 90  # seconds of one job, after which it is broken off
ON_CPUS, ON_GPUS = 240, 300  # seconds of all jobs
WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": "", "DASK_ARRAY__BACKEND": "numpy", "DASK_DATAFRAME__BACKEND": "pandas"}


def cases(world: World) -> list[Case]:
    """Return a case for the CPUs, which has what goes wrong there, and one for the GPUs with a result for each job."""
    shared: dict[str, Any] = {}
    return [
        Case("cpu", ON_CPUS if not world.cpu_only else 30, lambda: [_on_cpus(world, shared)]),
        Case("gpu", 60 if not world.cpu_only else 30, lambda: _on_gpus(world, shared)),
    ]


def options(world: World, data: Path) -> dict[str, str]:
    """Return each job's options: on made files, where it reads any, else on small data of its own making."""
    return {name: f"--data {data}/{_set_name(listed)} {listed.reads}" if listed.kind else listed.small
            for name, listed in JOBS.items()}  # fmt: skip


def _set_name(listed: Listed) -> str:
    return listed.kind.replace(" ", "-").replace("=", "-")


def _make(world: World, data: Path) -> None:
    for listed in {listed.kind: listed for listed in JOBS.values() if listed.kind}.values():
        kind, how = shape(listed.kind)
        words = [word for name, value in how.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        rows = FEW_ROWS if world.cpu_only else ROWS
        made = world.command(
            [world.python, "jobs/make_data.py", kind, "--rows", str(rows), "--partitions", "8", *words,
             "--out", str(data / _set_name(listed))], timeout=EACH, environment=WITHOUT_GPUS, cwd=ROOT)  # fmt: skip
        if made.status:
            raise HarnessError(f"make_data.py {kind}: exit status {made.status}:\n{last_lines(made.output)}")


def _on_cpus(world: World, shared: dict[str, Any]) -> Result:
    folder = world.folder("gallery-cpu")
    scripts = folder / "jobs"
    shutil.copytree(ROOT / "jobs", scripts, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "tests/jobs/all_jobs.py", scripts)
    _make(world, folder / "data")
    words = json.dumps(options(world, folder / "data"))
    done = world.command([world.python, str(scripts / "all_jobs.py"), words, str(EACH)], timeout=ON_CPUS,
                         environment=WITHOUT_GPUS, cwd=folder)  # fmt: skip
    statuses = read_json(folder / "out/statuses.json")
    shared |= {"scripts": scripts, "options": words, "out": folder / "out", "statuses": statuses}
    wrong = [f"{name}: {status}" for name, status in statuses.items() if status != 0]
    if done.status not in (0, 1):
        wrong.append(f"exit status {done.status}:\n{last_lines(done.output)}")
    return result(
        "cpu", ok=not wrong, figures={"jobs": len(statuses), "run_seconds": done.seconds}, error="; ".join(wrong)
    )


def _on_gpus(world: World, shared: dict[str, Any]) -> list[Result]:
    if not shared:
        raise HarnessError("the run on CPUs left nothing to compare with")
    nodes, gpus = world.shapes()[0]
    world.shape(nodes, gpus)
    run = world.submit(shared["scripts"] / "all_jobs.py", [shared["options"], str(EACH)], nodes=nodes, gpus=gpus,
                       timeout=ON_GPUS)  # fmt: skip
    statuses = run.table("out/statuses.json")
    if run.directory is None or not statuses:
        raise HarnessError(run.why())
    return [_compare(world, name, shared, run.directory / "out", statuses.get(name, run.why())) for name in JOBS]


def _compare(world: World, name: str, shared: dict[str, Any], out: Path, status: int | str) -> Result:
    if shared["statuses"].get(name) != 0 or status != 0:
        return failure(name, f"on CPUs: {shared['statuses'].get(name)}; on GPUs: {status}")
    listed = JOBS[name]
    cpu, gpu = (read_json(folder / name / "result.json") for folder in (shared["out"], out))
    tolerance = listed.tolerance if world.cpu_only else listed.gpu_tolerance
    apart = {dotted: difference(figure(gpu, dotted), figure(cpu, dotted)) for dotted in listed.same}
    wrong = [f"{dotted}: {figure(gpu, dotted)} on GPUs, {figure(cpu, dotted)} on CPUs"
             for dotted, value in apart.items() if not value <= tolerance]  # fmt: skip
    wanted = "numpy" if world.cpu_only else "cupy"
    wrong += [f"the backend is {gpu['backend']}"] if gpu["backend"] != wanted else []
    seconds = [sum(one["seconds"].values()) for one in (cpu, gpu)]
    figures = {
        "apart": max(apart.values(), default=0.0),
        "cpu_s": seconds[0],
        "gpu_s": seconds[1],
        "notes": gpu["notes"],
    }
    return result(name, ok=not wrong, figures=figures, ratio=round(seconds[0] / max(seconds[1], 1e-9), 3),
                  error="; ".join(wrong))  # fmt: skip


def difference(one: Any, other: Any) -> float:
    """Return how far two figures are apart, relative to the other; of lists the most, of words 0 or infinity."""
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) / max(abs(other), 1e-12) if one != other else 0.0
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max((difference(*pair) for pair in zip(one, other, strict=True)), default=0.0)
    return 0.0 if one == other else math.inf
