"""jobs/workloads/etl.py: every figure against pandas on the same rows, in two formats; what is refused."""

from __future__ import annotations

import pathlib

import numpy as np
import pandas as pd
import pytest

import etl
from gallery import datasets, kinds, partitions
from tests.jobs.job_tests import Refused, RunJob

ROWS = 6_000
NUMERIC = ["passenger_count", "trip_distance", "pickup_zone", "dropoff_zone", "fare", "tip", "total"]


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a folder with the same trips in two formats."""
    folder = tmp_path_factory.mktemp("trips")
    for form in ("parquet", "csv"):
        datasets.write(folder / form, kinds.Taxi(noise=0.1), rows=ROWS, partitions=3, form=form)
    return folder


def whole(folder: pathlib.Path) -> pd.DataFrame:
    return pd.concat(map(pd.read_parquet, sorted(folder.glob("*.parquet"))), ignore_index=True)


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_all_is_what_pandas_finds(
    run_job: RunJob, trips: pathlib.Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "LEAST", 200_000)  # several partitions of so few rows
    result, out = run_job(etl, "--data", trips / form)
    raw = whole(trips / "parquet")
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
    assert (result["rows_read"], result["rows"]) == (ROWS, len(good))
    assert result["counts"]["payment"] == good["payment"].value_counts().to_dict()
    about = pd.read_csv(out / "describe.csv", index_col="column")
    assert about["count"].to_dict() == raw.count().to_dict()
    expected = raw[NUMERIC].agg(["mean", "std", "min", "max"]).T
    np.testing.assert_allclose(about.loc[NUMERIC, ["mean", "std", "min", "max"]], expected, rtol=1e-9)
    ranks = [(raw[name].dropna() <= about.loc[name, "50%"]).mean() for name in ("trip_distance", "total")]
    assert ranks == pytest.approx([0.5, 0.5], abs=0.03)  # Dask's quantiles over partitions are approximate
    together = pd.read_csv(out / "correlation.csv", index_col="column")
    np.testing.assert_allclose(together, good[NUMERIC].corr(), rtol=1e-8, atol=1e-10)
    kept = whole(out / "clean")
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


@pytest.mark.filterwarnings("ignore:invalid value encountered in divide:RuntimeWarning")  # Dask's, for an empty column
def test_refusals(refused: Refused, trips: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pd.DataFrame({"a": [1.0, 2.0], "b": [np.nan, np.nan]}).to_parquet(tmp_path / "gaps.parquet")
    assert "has no column z" in refused(etl, "--data", trips / "csv", "--by", "z")
    assert "column payment holds no numbers" in refused(etl, "--data", trips / "csv", "--value", "payment")
    assert "no row of 2 breaks no rule" in refused(
        etl, "--data", tmp_path / "gaps.parquet", "--by", "a", "--value", "b"
    )
    torn = tmp_path / "torn"
    datasets.write(torn, kinds.Taxi(), rows=2_000, partitions=20)
    (torn / "part-00007.parquet").write_bytes((torn / "part-00007.parquet").read_bytes()[:-9])
    assert "part-00007.parquet cannot be read" in refused(etl, "--data", torn)
