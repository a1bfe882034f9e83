"""jobs/workloads/dbscan.py: real runs on small data, labels checked against scikit-learn on the same rows."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
import sklearn.neighbors

import dbscan
from gallery import datasets, kinds, memory
from tests.jobs.job_tests import Refused, RunJob

MOONS = kinds.Moons(pairs=2)


@pytest.fixture(scope="module")
def moons(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("data") / "moons"
    datasets.write(folder, MOONS, rows=3_000, partitions=3)
    return folder


def table(folder: pathlib.Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))], ignore_index=True)


def test_labels_are_scikit_learns_and_moons_are_found(run_job: RunJob, moons: pathlib.Path) -> None:
    result, out = run_job(dbscan, "--data", moons)
    rows = table(moons)
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


def test_a_given_radius_needs_no_curve_and_partitions_do_not_matter(run_job: RunJob, moons: pathlib.Path) -> None:
    whole = moons.parent / "whole.csv"
    table(moons).drop(columns="label").to_csv(whole, index=False)
    result, out = run_job(dbscan, "--data", whole, "--eps", "0.2", "--min-samples", "4")
    expected = sklearn.cluster.DBSCAN(eps=0.2, min_samples=4).fit_predict(table(moons)[["x0", "x1"]])
    np.testing.assert_array_equal(pd.read_parquet(out / "assignments")["cluster"], dbscan.number(expected))
    assert "adjusted_rand_index" not in result
    assert not (out / "kdistance.png").exists()


def test_all_rows_may_be_noise(run_job: RunJob, moons: pathlib.Path) -> None:
    result, _ = run_job(dbscan, "--data", moons, "--eps", "1e-9")
    assert (result["clusters"], result["noise"], result["sizes"]) == (0, 3_000, [])
    assert "all rows are noise" in result["notes"][-1]


def test_refusals(refused: Refused, moons: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    pd.DataFrame({"a": [1.0] * 50}).to_parquet(tmp_path / "same.parquet")
    pd.DataFrame({"a": [1.0, 2.0]}).to_parquet(tmp_path / "few.parquet")
    pd.DataFrame({"cluster": [1.0, 2.0]}).to_parquet(tmp_path / "named.parquet")
    assert "Give --eps" in refused(dbscan, "--data", tmp_path / "same.parquet")
    assert "2 usable rows are fewer than --min-samples 10" in refused(dbscan, "--data", tmp_path / "few.parquet")
    assert "'cluster' would collide" in refused(dbscan, "--data", tmp_path / "named.parquet")
    assert "no column z of true clusters" in refused(dbscan, "--data", moons, "--label", "z")
    small = memory.Capacity(2, 2, 2 * 200_000, 0)
    monkeypatch.setattr(memory, "capacity", lambda _: small)
    assert "with eps 5 needs" in (sentence := refused(dbscan, "--data", moons, "--eps", "5"))
    assert "on one worker" in sentence
    assert "more nodes do not help. Lower --eps" in sentence
    monkeypatch.setattr(memory, "capacity", lambda _: memory.Capacity(2, 2, 2 * 150_000, 10**9))
    assert "Lower --eps or give fewer rows" in refused(dbscan, "--data", moons)  # and no picture of the curve is left
    monkeypatch.setattr(memory, "capacity", lambda _: memory.Capacity(2, 2, 2 * 10_000, 10**9))
    assert "needs 141 KiB on one worker, 14.4 times its memory (9.8 KiB)" in refused(dbscan, "--data", moons)


def test_clusters_are_numbered_by_their_first_row() -> None:
    assert dbscan.number(np.array([-1, 2, 0, 2, 5, -1, 0])).tolist() == [-1, 0, 1, 0, 2, -1, 1]
    assert dbscan.number(np.array([-1, -1])).tolist() == [-1, -1]
