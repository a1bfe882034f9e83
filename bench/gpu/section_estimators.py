"""The estimators of the examples on GPUs, each beside scikit-learn or plain Dask on this host's CPUs, in one run and in turns.

Linear models with a penalty, nearest neighbours, SVDs, LabelEncoder, the published figures of the hyperparameter search, an array given to
PyTorch and back, and what cuML's KMeans on several GPUs refuses. scripts/estimators.py measures; with ``--cpu`` on few rows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from harness import SCRIPTS, Case, World
from results import Result, failure, result, skipped

MOST_APART = {
    "Lasso": 1e-3,
    "ElasticNet": 1e-3,
    "NearestNeighbors": 1e-3,
    "KNeighborsRegressor": 0.1,  # of two rows that are equally near, either is a neighbour: a tenth of the mean
    "grid": 1e-3,
    "da.linalg.svd_compressed": 1e-4,
}
EXACT = 1e-6  # of the largest value of an answer
ABOUT = {
    "linear": 70,
    "neighbors": 60,
    "svd": 80,
    "encode": 60,
    "search": 100,
    "to_torch": 30,
    "constraints": 25,
}  # seconds of a case
REFUSED = ("k-means++", "oversampling_factor=0", "2,000 clusters")  # by cuML's KMeans
SVD = 60  # seconds of a round of the SVDs: the exact one takes 26 s on 16 cores, twice
DEADLINE = 500
SETTINGS = ["interconnect.require=none"]


def cases(world: World) -> list[Case]:
    """Return a case for each kind of estimator."""
    rounds = max(world.rounds, 1)
    return [
        Case(name, about if name != "svd" else SVD * rounds, partial(_case, world, name))
        for name, about in ABOUT.items()
    ]


def _case(world: World, name: str) -> list[Result]:
    """Run the case on all GPUs of one node; return a result for each of its rows."""
    world.shape(1, world.gpus)
    words = [str(world.rounds), name, *(["--small"] if world.cpu_only else [])]
    memory = (
        [] if world.cpu_only else ["--set", "workers.memory_limit=100G"]
    )  # Dask counts the arrays of a GPU as the host's
    run = world.submit(
        SCRIPTS / "estimators.py", words, nodes=1, gpus=world.gpus, settings=SETTINGS, timeout=DEADLINE, options=memory
    )
    rows = run.table("out/rounds.json").get("rows", [])
    ended = [] if rows and not run.status else [failure(name, run.why())]
    return [*map(_judged, rows), *ended]


def _judged(row: dict[str, Any]) -> Result:
    """Return a result that is right if both sides' answers are the same, and cuML refuses what it is known to refuse."""
    name, wrong = row.pop("name"), []
    if "error" in row:
        return failure(name, row["error"])
    if "skipped" in row:
        return skipped(name, row["skipped"])
    most = next((value for begin, value in MOST_APART.items() if name.startswith(begin)), EXACT)
    if not row.get("apart", 0.0) <= most:
        wrong.append(f"the answers are {row['apart']:.1e} apart")
    if "words" in row and (row["words"] == "accepted") == any(part in name for part in REFUSED):
        wrong.append("cuML accepts it" if row["words"] == "accepted" else "cuML refuses it")
    for way, seconds in row.get("each", {}).items():
        row[f"{way}_spread"] = f"{min(seconds):.4g} to {max(seconds):.4g}" if seconds else None
    ratio = round(row["cpu_s"] / max(row["gpu_s"], 1e-9), 3) if "cpu_s" in row else None
    return result(name, ok=not wrong, figures=row, ratio=ratio, error="; ".join(wrong))
