"""jobs/workloads/etl.py: every figure against pandas on the same rows, what is refused."""

from __future__ import annotations

import pathlib

import numpy as np
import pandas as pd
import pytest

import etl
from gallery import partitions
from tests.jobs.job_tests import Made, RunJob, rows_in

TRIPS = "taxi noise=0.1", 6_000, 3
NUMERIC = ["passenger_count", "trip_distance", "pickup_zone", "dropoff_zone", "fare", "tip", "total"]


@pytest.fixture
def trips(made: Made) -> pathlib.Path:
    """Return a folder of CSV files; those of Parquet hold the same."""
    return made(*TRIPS, "csv")


def test_all_is_what_pandas_finds(
    run_job: RunJob, trips: pathlib.Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "LEAST", 200_000)  # several partitions of so few rows
    result, out = run_job(etl, "--data", trips)
    raw = rows_in(made(*TRIPS))
    means = raw.groupby("passenger_count")["trip_distance"].mean()
    assert result["means"] == pytest.approx({f"{group:g}": mean for group, mean in means.items()}, rel=1e-9)
    broken = {
        "passenger_count missing": raw["passenger_count"].isna(), "fare missing": raw["fare"].isna(),
        "total missing": raw["total"].isna(), "dropoff not after pickup": raw["dropoff"] <= raw["pickup"],
        "no distance": raw["trip_distance"] <= 0, "distance above 200 miles": raw["trip_distance"] > 200,
        "fare not above 0": raw["fare"] <= 0,
    }  # fmt: skip
    assert result["broken"] == {name: bad.sum() for name, bad in broken.items()}
    good = raw[~np.logical_or.reduce([bad.to_numpy() for bad in broken.values()])].reset_index(drop=True)
    assert (result["rows_read"], result["rows"]) == (6_000, len(good))
    assert result["counts"]["payment"] == good["payment"].value_counts().to_dict()
    about = pd.read_csv(out / "describe.csv", index_col="column")
    assert about["count"].to_dict() == raw.count().to_dict()
    expected = raw[NUMERIC].agg(["mean", "std", "min", "max"]).T
    np.testing.assert_allclose(about.loc[NUMERIC, ["mean", "std", "min", "max"]], expected, rtol=1e-9)
    ranks = [(raw[name].dropna() <= about.loc[name, "50%"]).mean() for name in ("trip_distance", "total")]
    assert ranks == pytest.approx([0.5, 0.5], abs=0.03)  # Dask's quantiles over partitions are approximate
    together = pd.read_csv(out / "correlation.csv", index_col="column")
    np.testing.assert_allclose(together, good[NUMERIC].corr(), rtol=1e-8, atol=1e-10)
    kept = rows_in(out / "clean")
    np.testing.assert_allclose(kept[NUMERIC], good[NUMERIC])
    names = np.array(result["categories"]["payment"])
    np.testing.assert_array_equal(names[kept["payment"]], good["payment"])
    np.testing.assert_array_equal(kept["hour"], good["pickup"].dt.hour)
    np.testing.assert_allclose(kept["minutes"], (good["dropoff"] - good["pickup"]).dt.total_seconds() / 60)
    groups = pd.read_csv(out / "groups.csv", index_col="hour")
    np.testing.assert_allclose(groups, good.groupby(good["pickup"].dt.hour)["trip_distance"].agg(list(groups.columns)))
    assert result["gigabytes_per_second"]["aggregate"] > 0


def test_other_data_has_no_rules_of_trips(run_job: RunJob, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"kind": rng.choice(["a", "b"], 500), "size": rng.normal(size=500), "flat": 2.5})
    frame.loc[:9, "size"] = np.nan
    frame.to_parquet(tmp_path / "other.parquet")
    result, _ = run_job(etl, "--data", tmp_path / "other.parquet", "--by", "kind", "--value", "size")
    assert result["means"] == pytest.approx(frame.groupby("kind")["size"].mean().to_dict())
    assert result["broken"] == {"size missing": 10}
    assert result["rows"] == 490
