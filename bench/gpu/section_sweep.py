"""A sweep of twelve cuML k-means on one warm cluster, against twelve runs one after another; GPU memory at each point."""

from __future__ import annotations

import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

from harness import JOB, SCRIPTS, Case, HarnessError, World
from results import Result, result

KS, SEEDS = (4, 8, 16, 32), (1, 2, 3)
ABOUT, ONE = 200, 30  # seconds of the sweep, and of a run by itself
NEAR = 0.5  # GiB that a point may find less than the first one found


def cases(world: World) -> list[Case]:
    """Return the one case, on all GPUs of one node."""
    return [Case("12 points", ABOUT, partial(_sweep, world))]


def _sweep(world: World) -> list[Result]:
    world.shape(1, world.gpus)
    script, folder = SCRIPTS / "sweep_kmeans.py", world.folder("sweep")
    extra = ["--cpu", "--rows", "20000"] if world.cpu_only else []
    options = [
        "--nodes",
        "1",
        "--time",
        "15",
        "--set",
        f"paths.runs={folder}/runs",
        "--set",
        "interconnect.require=none",
    ]
    options += [] if world.cpu_only else ["--gpus-per-node", str(world.gpus)]
    grid = ["--grid", f"k={','.join(map(str, KS))}", "--grid", f"seed={','.join(map(str, SEEDS))}"]
    words = [
        world.python,
        "-m",
        "hpcml",
        "sweep",
        "--wait",
        "--yes",
        "--name",
        JOB,
        *options,
        *world.options,
        str(script),
    ]
    began = time.monotonic()
    done = world.command([*words, *grid, "--", *extra], timeout=ABOUT, cwd=folder)
    warm = time.monotonic() - began
    world.clear(expect_empty=done.status == 0)
    if done.status:
        raise HarnessError(f"the sweep ended with {done.status}:\n{done.output[-3000:]}")
    points = _points(folder)
    alone: list[float] = []
    for k, seed in ((k, seed) for k in KS for seed in SEEDS):
        if world.left() < 2 * ONE:
            break
        run = world.submit(script, ["--k", str(k), "--seed", str(seed), *extra], nodes=1, gpus=world.gpus,
                           settings=["interconnect.require=none"])  # fmt: skip
        run.must_be(0)
        alone.append(run.seconds)
    if not alone:
        raise HarnessError("no time was left for a run by itself")
    each = [{name: one["metrics"].get(name) for name in sorted(one["metrics"])} for one in points]
    found = [one.get("before_free_gib") for one in each]
    figures: dict[str, Any] = {
        "points": len(points), "sweep_s": warm, "alone_runs": len(alone), "alone_each_s": statistics.median(alone),
        "alone_s": statistics.median(alone) * len(points), "point_s": statistics.median(one["seconds"] for one in each),
        "first_point_s": each[0]["seconds"], "each": each, "alone": alone,
    }  # fmt: skip
    wrong = [] if len(points) == len(KS) * len(SEEDS) else [f"{len(points)} points are in the table"]
    known = [one for one in found if one is not None]
    if known:
        figures |= {"free_first_gib": known[0], "free_least_gib": min(known),
                    "full_gib": known[0] - min(one["full_free_gib"] for one in each),
                    "nvml_first_gib": each[0]["before_nvml_gib"], "nvml_most_gib": max(one["after_nvml_gib"] for one in each)}  # fmt: skip
        if min(known[1:]) < known[1] - NEAR:
            wrong.append(f"a point found {min(known):.1f} GiB free in the pool, the second one {known[1]:.1f}")
    ratio = round(figures["alone_s"] / warm, 3)
    return [result("12 points", ok=not wrong, figures=figures, ratio=ratio, error="; ".join(wrong))]


def _points(folder: Path) -> list[dict[str, Any]]:
    """Return what the points left, in the order in which they ended."""
    found = sorted(folder.glob("runs/*/points/*.json"), key=lambda path: path.stat().st_mtime)
    return [json.loads(path.read_text()) for path in found]
