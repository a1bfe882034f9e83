"""K-means of jobs/kmeans.py: jobs/lloyd beside cuML in one run, each beside the bound; and the example as it is.

The bound of an iteration is the larger of two: ROWS × FEATURES × 4 bytes, read once, over the rate of a copy in the GPU's memory (bytes read
and written, median of five, in the same run); 2 × ROWS × FEATURES × CLUSTERS operations over the peak in float32
(multiprocessors × 128 × 2 × the highest clock). A fit's bound is that of its iterations; what a fit does besides is not in it.
"""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from harness import ROOT, SCRIPTS, Case, HarnessError, World, last_lines, read_json
from results import Result, result
from section_gallery import WITHOUT_GPUS

MOST = 3.0  # times the bound
INERTIA_APART = 1e-5  # relative
RELATIVE_APART = (
    1e-3  # root mean square of how far rows' centres are apart, over the rows' distances: cuML's after one iteration
)
# By case: its rows, features, clusters and iterations, and about how many seconds it takes.
SHAPES = {"50M × 32 × 16": ("50000000:32:16:20", 70), "8M × 128 × 1024": ("8000000:128:1024:20", 70), "30M × 768 × 1000": ("30000000:768:1000:4", 170),
          "scikit-learn": ("", 40)}  # fmt: skip
DEADLINE = 400
SETTINGS = ["interconnect.require=none"]


def cases(world: World) -> list[Case]:
    """Return a case for each shape on one GPU, one beside scikit-learn, and the example."""
    rounds = [Case(name, about, partial(_rounds, world, name, shape)) for name, (shape, about) in SHAPES.items()]
    return [*rounds, Case("jobs/kmeans.py", 40, partial(_example, world))]


def _rounds(world: World, name: str, shape: str) -> list[Result]:
    world.shape(1, 1)
    folder = world.folder("lloyd")
    shutil.copytree(ROOT / "jobs/lloyd", folder / "lloyd")
    script = Path(shutil.copy(SCRIPTS / "lloyd_rounds.py", folder))
    words = [str(world.rounds), *filter(None, [shape])]
    memory = ["--set", "workers.memory_limit=120G"]  # Dask counts the arrays of a GPU as memory of the host
    run = world.submit(script, words, nodes=1, gpus=1, settings=SETTINGS, timeout=DEADLINE, options=memory)
    run.must_be(0)
    return [_judged(name, run.table("out/rounds.json"))]


def _judged(name: str, figures: dict[str, Any]) -> Result:
    """Return a result that is right if the seconds are within the bound, and the answers near those of the other libraries."""
    wrong = []
    if "bound_s" in figures:
        figures["times_bound"] = round(figures["lloyd_s"] / figures["bound_s"], 3)
        wrong += [f"{figures['times_bound']} times the bound"] if figures["times_bound"] > MOST else []
    wrong += [f"{way}: {text}" for way, text in figures.get("errors", {}).items()]
    if figures["library"] != "CUDA kernels":
        wrong.append(f"by {figures['library']}")
    figures["inertia_apart"] = max(value for key, value in figures.items() if key.endswith("_inertia_apart"))
    for kind, most in (("inertia_apart", INERTIA_APART), ("relative_apart", RELATIVE_APART)):
        wrong += [f"{kind}: {figures.get(kind, math.inf):.1e}"] if not figures.get(kind, math.inf) <= most else []
    ratio = round(figures["cuml_dask_s"] / figures["lloyd_s"], 3) if "cuml_dask_s" in figures else None
    return result(name, ok=not wrong, figures=figures, ratio=ratio, error="; ".join(wrong))


def _example(world: World) -> list[Result]:
    """Run the example on GPUs and on CPUs: the same centres and sizes."""
    nodes, count = world.shapes()[0]
    world.shape(nodes, count)
    script = ROOT / "jobs/kmeans.py"
    run = world.submit(script, ["--k", "5"], nodes=nodes, gpus=count, settings=SETTINGS, timeout=180)
    run.must_be(0)
    folder = world.folder("kmeans-cpu")
    done = world.command([world.python, str(script), "--k", "5"], timeout=180, environment=WITHOUT_GPUS, cwd=folder)
    if done.status:
        raise HarnessError(last_lines(done.output))
    gpu, cpu = run.table("out/result.json"), read_json(folder / "out/result.json")
    far = max(
        abs(a - b)
        for one, other in zip(gpu["centres"], cpu["centres"], strict=True)
        for a, b in zip(one, other, strict=True)
    )
    wrong = (
        []
        if far < 1e-3 and gpu["sizes"] == cpu["sizes"]
        else [f"centres {far:.1e} apart, sizes {gpu['sizes']} and {cpu['sizes']}"]
    )
    library = next((line.rpartition(" by ")[2] for line in run.output.splitlines() if " clusters of " in line), "")
    wrong += [] if library == "CUDA kernels" or world.cpu_only else [f"by {library!r}"]
    figures = {"rows": gpu["rows"], "clusters": 5, "library": library, "lloyd_s": gpu["seconds"], "centres_apart": far}
    return [result("jobs/kmeans.py", ok=not wrong, figures=figures, error="; ".join(wrong))]
