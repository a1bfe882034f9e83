"""jobs/workloads/dbscan.py: real runs on small data, labels checked against scikit-learn on the same rows."""

from __future__ import annotations

import pathlib

import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
import sklearn.neighbors

import dbscan
from tests.jobs.job_tests import Made, RunJob, rows_in


@pytest.fixture
def moons(made: Made) -> pathlib.Path:
    return made("moons pairs=2", 3_000)


def test_labels_are_scikit_learns_and_moons_are_found(run_job: RunJob, moons: pathlib.Path) -> None:
    result, out = run_job(dbscan, "--data", moons)
    rows = rows_in(moons)
    x = rows[["x0", "x1"]].to_numpy()
    reference = sklearn.cluster.DBSCAN(eps=result["eps"], min_samples=10).fit(x)
    assignments = pd.read_parquet(out / "assignments")
    assert assignments["cluster"].dtype == np.int32
    np.testing.assert_array_equal(assignments[["x0", "x1"]], x)
    np.testing.assert_array_equal(assignments["cluster"], dbscan.number(reference.labels_))
    assert result["noise"] == (reference.labels_ < 0).sum()
    assert result["core_rows"] == len(reference.core_sample_indices_)
    assert result["sizes"] == np.bincount(assignments["cluster"][assignments["cluster"] >= 0]).tolist()
    assert result["clusters"] == len(result["sizes"]) == 4
    assert result["adjusted_rand_index"] > 0.95
    assert result["features"] == ["x0", "x1"]
    assert "runs on one worker of 2" in result["notes"][0]
    distances = np.sort(sklearn.neighbors.NearestNeighbors(n_neighbors=10).fit(x).kneighbors(x)[0][:, -1])
    assert distances[0] < result["eps"] < distances[-1]
    assert np.isclose(distances, result["eps"], rtol=1e-12).any()
    assert (out / "kdistance.png").exists()
    assert (out / "dbscan.png").exists()


def test_a_given_radius_needs_no_curve_and_partitions_do_not_matter(
    run_job: RunJob, moons: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    whole = tmp_path / "whole.csv"
    rows_in(moons).drop(columns="label").to_csv(whole, index=False)
    result, out = run_job(dbscan, "--data", whole, "--eps", "0.2", "--min-samples", "4")
    expected = sklearn.cluster.DBSCAN(eps=0.2, min_samples=4).fit_predict(rows_in(moons)[["x0", "x1"]])
    np.testing.assert_array_equal(pd.read_parquet(out / "assignments")["cluster"], dbscan.number(expected))
    assert "adjusted_rand_index" not in result
    assert not (out / "kdistance.png").exists()


def test_all_rows_may_be_noise(run_job: RunJob, moons: pathlib.Path) -> None:
    result, _ = run_job(dbscan, "--data", moons, "--eps", "1e-9")
    assert (result["clusters"], result["noise"], result["sizes"]) == (0, 3_000, [])
    assert "all rows are noise" in result["notes"][-1]


def test_clusters_are_numbered_by_their_first_row() -> None:
    assert dbscan.number(np.array([-1, 2, 0, 2, 5, -1, 0])).tolist() == [-1, 0, 1, 0, 2, -1, 1]
    assert dbscan.number(np.array([-1, -1])).tolist() == [-1, -1]
