"""K-means on GPUs against the same script on CPUs: the same data must give the same clusters."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

from harness import ROOT, Case, HarnessError, World, last_lines, read_json
from results import Result, result

ROWS, FEATURES, K = 4_000_000, 16, 8
FEW_ROWS = 200_000  # when CPUs stand in for GPUs
INERTIA_TOLERANCE = 1e-6  # relative difference
CENTRE_TOLERANCE = 1e-2  # greatest distance of a centre from its twin; centres lie within ±10, spreads are about 1
DEADLINE = 300


def cases(world: World) -> list[Case]:
    """Return a case for every way to divide the machine's GPUs, after the one on CPUs."""
    shared: dict[str, Any] = {}
    first = Case("cpu", 60, lambda: [_on_cpus(world, shared)])
    rest = [Case(f"{nodes}x{gpus}", 45, lambda nodes=nodes, gpus=gpus: [_on_gpus(world, shared, nodes, gpus)])  # type: ignore[misc]
            for nodes, gpus in world.shapes()]  # fmt: skip
    return [first, *rest]


def _on_cpus(world: World, shared: dict[str, Any]) -> Result:
    folder = world.folder("kmeans-cpu")
    rows = FEW_ROWS if world.cpu_only else ROWS
    data, out = folder / "blobs", folder / "out"
    without = {"CUDA_VISIBLE_DEVICES": "", "DASK_ARRAY__BACKEND": "numpy", "DASK_DATAFRAME__BACKEND": "pandas"}
    make = ["bench/workloads/make_data.py", "blobs", "--rows", str(rows), "--features", str(FEATURES), "--centres", str(K),
            "--partitions", "32", "--out", str(data)]  # fmt: skip
    fit = ["bench/workloads/kmeans.py", "--data", str(data), "--k", str(K), "--out", str(out)]
    for words in (make, fit):
        done = world.command([world.python, *words], timeout=DEADLINE, environment=without, cwd=ROOT)
        if done.status:
            raise HarnessError(f"{words[0]}: exit status {done.status}:\n{last_lines(done.output)}")
    shared |= {"data": data, "metrics": read_json(out / "result.json"), "out": out}
    return result("cpu", ok=True, figures=_figures(shared["metrics"]))


def _on_gpus(world: World, shared: dict[str, Any], nodes: int, gpus: int) -> Result:
    if not shared:
        raise HarnessError("the run on CPUs failed, so there is nothing to compare with")
    world.shape(nodes, gpus)
    words = ["--data", str(shared["data"]), "--k", str(K)]
    run = world.submit(ROOT / "bench/workloads/kmeans.py", words, nodes=nodes, gpus=gpus, timeout=DEADLINE)
    run.must_be(0)
    metrics = run.table("out/result.json")
    assert run.directory is not None
    found = compare(metrics, shared["metrics"], run.directory / "out", shared["out"])
    fast = "numpy" if world.cpu_only else "cupy"
    wrong = [f"the backend is {metrics['backend']}"] if metrics["backend"] != fast else []
    if metrics["workers"] != nodes * (1 if world.cpu_only else gpus):
        wrong.append(f"{metrics['workers']} workers")
    wrong += [f"{key} is {found[key]:.3g}, more than {most:g}" for key, most in (
        ("inertia_difference", INERTIA_TOLERANCE), ("centre_distance", CENTRE_TOLERANCE)) if not found[key] <= most]  # fmt: skip
    figures = {**_figures(metrics), **found, "run_seconds": run.seconds}
    ratio = shared["metrics"]["seconds"]["fit"] / max(metrics["seconds"]["fit"], 1e-9)
    return result(f"{nodes}x{gpus}", ok=not wrong, figures=figures, ratio=round(ratio, 3), error="; ".join(wrong))


def compare(one: dict[str, Any], other: dict[str, Any], out: Path, other_out: Path) -> dict[str, float]:
    """Return how far two results are apart: relative difference of inertia, greatest distance of twin centres."""
    centres, others = read_centres(out / "centres.csv"), read_centres(other_out / "centres.csv")
    if len(centres) != len(others):
        raise HarnessError(f"{len(centres)} centres and {len(others)}")
    difference = abs(one["inertia"] - other["inertia"]) / abs(other["inertia"])
    distance = max(math.dist(a, b) for a, b in zip(centres, others, strict=True))
    moved = sum(abs(a - b) for a, b in zip(one["sizes"], other["sizes"], strict=True)) // 2
    return {"inertia_difference": difference, "centre_distance": distance, "rows_in_other_clusters": moved}


def read_centres(path: Path) -> list[list[float]]:
    """Return the centres of a k-means job, in its own order: the same for the same clusters."""
    with path.open(newline="") as file:
        return [[float(value) for value in row[1:]] for row in list(csv.reader(file))[1:]]


def _figures(metrics: dict[str, Any]) -> dict[str, Any]:
    keep = ("workers", "rows", "iterations", "inertia", "backend")
    seconds = {f"{name}_s": value for name, value in metrics["seconds"].items()}
    return {**{key: metrics[key] for key in keep}, "features": FEATURES, "k": K, **seconds}
