"""The GPU tier's workloads on CPUs, each once on a few rows: what they find must agree with what is known of the data."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import threadpoolctl

from job_list import JOBS, TOOLS, figure

WORKLOADS = Path(__file__).resolve().parents[1] / "bench/workloads"
assert {path.stem for path in WORKLOADS.glob("*.py")} == {*JOBS, *TOOLS, "all_jobs", "job_list"}, (
    "give each workload its line in tests/bench/workloads/job_list.py"
)
# What is true of the data that each makes: a figure of result.json, its value, and how far it may be from it.
TRUTH: dict[str, tuple[str, float, float]] = {
    "kmeans": ("truth_distance", 0, 0.2),
    "dbscan": ("adjusted_rand_index", 1, 0.2),
    "linear": ("truth_distance", 0, 0.1),
    "forest": ("metrics.accuracy", 1, 0.1),
    "etl": ("rows_read", 20_000, 0),
    "join": ("rows_joined", 79_800, 1_000),
    "arrays": ("sum_sigmas", 0, 5),
    "naive_bayes": ("metrics.accuracy", 1, 0.2),
    "pca_svd": ("missing_elements", 1_500, 200),
    "preprocess": ("rows", 2_000, 0),
    "xgboost_train": ("metrics.r2", 1, 0.2),
    "neighbors": ("recall", 1, 0),
    "pipeline": ("metrics.r2", 1, 0.2),
    "search": ("best_score", 1, 0.25),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_workload(name: str, tmp_path: Path) -> None:
    with threadpoolctl.threadpool_limits(1):
        status = importlib.import_module(name).main([*JOBS[name].small.split(), "--out", str(tmp_path)])
    assert status == 0
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    for dotted in JOBS[name].same:
        assert figure(result, dotted) is not None
    dotted, truth, tolerance = TRUTH[name]
    assert math.isclose(float(str(figure(result, dotted))), truth, rel_tol=0, abs_tol=tolerance)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]  # no data of the job's own is left
