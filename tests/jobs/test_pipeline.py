"""jobs/workloads/pipeline.py: a whole pass, its report, and the exported pipeline on columns as they are."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pandas as pd
import pytest

import pipeline
import score
from gallery import models, split
from tests.jobs.job_tests import Made, RunJob, rows_in


@pytest.fixture
def trips(made: Made) -> pathlib.Path:
    return made("trips", 900)


def test_a_whole_pass(run_job: RunJob, trips: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "TUNED", {"ridge": {"alpha": [1.0, 10.0]}, "forest": {"max_depth": [4]}})
    result, out = run_job(pipeline, "--data", trips, "--trees", "3")
    table = rows_in(trips)
    assert result["missing"] == table.isna().sum().to_dict()
    assert result["missing"]["tolls"] > 50
    assert result["metrics"]["rmse"] < result["baseline"]["rmse"] / 2
    test = split.is_test(0, 900, 900, 0, pipeline.TEST)
    assert result["rows_test"] == test.sum()
    baseline = np.sqrt(((table["fare"][test] - table["fare"][~test].mean()) ** 2).mean())
    assert result["baseline"]["rmse"] == pytest.approx(baseline, rel=1e-9)
    assert result["export_difference"] < 1e-9
    model, manifest = models.load(out / "model")
    rows = table.assign(pickup=(table["pickup"] - pd.Timestamp(0)).dt.total_seconds())[list(manifest["features"])]
    predictions = pd.read_parquet(out / "predictions")
    np.testing.assert_allclose(model.predict(rows), predictions["prediction"], rtol=1e-9)
    rmse = np.sqrt(((predictions["prediction"] - table["fare"])[test] ** 2).mean())
    assert result["metrics"]["rmse"] == pytest.approx(rmse, rel=1e-9)
    other = rows.head(2).assign(borough="Hoboken", payment=np.array([np.nan, "cash"], dtype=object), passengers=np.nan)
    assert np.isfinite(model.predict(other)).all()  # a new category and gaps are taken
    scored, there = run_job(score, "--model", out / "model", "--data", trips)  # elsewhere, from the files as they are
    again = rows_in(there / "predictions")
    np.testing.assert_allclose(again["prediction"].astype("float64"), predictions["prediction"], rtol=1e-9)
    assert scored["rows_without_prediction"] == 0
    pd.testing.assert_series_equal(again["pickup"], table["pickup"], check_dtype=False)
    page = (out / "report.html").read_text()
    assert page.count("<img") == 2
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", page)  # it fetches nothing
    for phase in ("Understand", "Prepare", "Model", "Tune", "Evaluate", "Export and score"):
        assert f">{phase}</h2>" in page


def test_times_repeat_daily(trips: pathlib.Path) -> None:
    frame = pd.DataFrame({"t": [1.0e9, 1.2e9, 1.7e9]})
    steps = pipeline.preparation({"number": [], "category": [], "time": ["t"]}).fit(frame)
    first, week_later = (steps.transform(frame + shift) for shift in (0, pipeline.WEEK))
    np.testing.assert_allclose(first, week_later, atol=1e-6)
    assert abs(first - steps.transform(frame + 6 * 3_600)).max() > 0.1


def test_a_time_is_the_same_second_in_every_zone() -> None:
    times = pd.Series(pd.to_datetime(["1970-01-01 00:01:30", None]))
    for zoned in (times, times.dt.tz_localize("UTC").dt.tz_convert("Europe/Rome")):
        np.testing.assert_array_equal(models.seconds(zoned), [90.0, np.nan])
