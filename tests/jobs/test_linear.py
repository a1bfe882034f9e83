"""jobs/workloads/linear.py: coefficients and metrics are scikit-learn's on the same rows, whatever the partitions."""

from __future__ import annotations

import pathlib
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model
import sklearn.metrics

import linear
from gallery import datasets, kinds, memory, models, split
from gallery.job import LOST
from tests.jobs.job_tests import Refused, RunJob

ROWS = 3_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    folder = tmp_path_factory.mktemp("linear")
    kind = {"regression": kinds.Regression(features=5, noise=2.0), "classification": kinds.Classification(features=2)}
    for name, drawn in kind.items():
        datasets.write(folder / name, drawn, rows=ROWS, partitions=3)
    return {path.name: path for path in folder.iterdir()}


def rows_of(folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    frame = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))])
    x, y = frame.drop(columns="y").to_numpy(), frame["y"].to_numpy()
    test = split.is_test(0, len(y), len(y), 0, 0.2)
    return x[~test], x[test], y[~test], y[test]


@pytest.mark.parametrize(
    ("what", "options", "reference"),
    [
        ("ols", [], sklearn.linear_model.LinearRegression()),
        ("ridge", ["--alpha", "40"], sklearn.linear_model.Ridge(40)),
        ("elasticnet", ["--alpha", "0.3", "--l1-ratio", "0.2"],
         sklearn.linear_model.ElasticNet(alpha=0.3, l1_ratio=0.2, tol=1e-6)),
    ],
)  # fmt: skip
def test_regressions_are_scikit_learns(
    run_job: RunJob, made: dict[str, pathlib.Path], what: str, options: list[str], reference: Any
) -> None:
    result, out = run_job(linear, "--what", what, "--data", made["regression"], *options)
    x_train, x_test, y_train, y_test = rows_of(made["regression"])
    reference.fit(x_train, y_train)
    known = {"alpha", "l1_ratio", "c", "max_iter", "tol"} & result.keys()
    assert known <= reference.get_params().keys()  # no option is told that the model does not have
    assert {name.lstrip("-").replace("-", "_") for name in options[::2]} <= known
    np.testing.assert_allclose(result["coefficients"][0], reference.coef_, rtol=1e-9, atol=1e-9)
    assert result["intercept"][0] == pytest.approx(reference.intercept_, rel=1e-9)
    assert result["metrics"]["r2"] == pytest.approx(reference.score(x_test, y_test), rel=1e-9)
    told = reference.predict(x_test)
    assert result["metrics"]["rmse"] == pytest.approx(sklearn.metrics.root_mean_squared_error(y_test, told), rel=1e-9)
    assert result["metrics"]["mae"] == pytest.approx(sklearn.metrics.mean_absolute_error(y_test, told), rel=1e-9)
    if what == "elasticnet":
        assert result["iterations"] == reference.n_iter_
    model, manifest = models.load(out / "model")
    np.testing.assert_allclose(model.predict(pd.DataFrame(x_test, columns=list(manifest["features"]))), told, rtol=1e-9)
    assert result["portable_agrees"] == 1
    assert result["truth_distance"] < (0.2 if what == "ols" else 3)
    found = pd.read_csv(out / "coefficients.csv", index_col="of")
    np.testing.assert_allclose(found.loc["y"], [*reference.coef_, reference.intercept_], rtol=1e-9, atol=1e-9)


def test_logistic_is_scikit_learns(run_job: RunJob, made: dict[str, pathlib.Path]) -> None:
    result, out = run_job(linear, "--what", "logistic", "--data", made["classification"], "--c", "0.5")
    x_train, x_test, y_train, y_test = rows_of(made["classification"])
    reference = sklearn.linear_model.LogisticRegression(C=0.5, tol=1e-6, max_iter=1000).fit(x_train, y_train)
    np.testing.assert_allclose(result["coefficients"], reference.coef_, rtol=1e-6, atol=1e-9)
    assert result["metrics"]["accuracy"] == pytest.approx(reference.score(x_test, y_test), abs=1e-12)
    area = sklearn.metrics.roc_auc_score(y_test, reference.predict_proba(x_test), multi_class="ovr")
    assert result["metrics"]["roc_auc"] == pytest.approx(area, rel=1e-6)
    assert result["confusion"] == sklearn.metrics.confusion_matrix(y_test, reference.predict(x_test)).tolist()
    model, _ = models.load(out / "model")
    np.testing.assert_array_equal(model.predict(pd.DataFrame(x_test, columns=["x0", "x1"])), reference.predict(x_test))


def test_what_cannot_be_fitted_is_refused(refused: Refused, tmp_path: pathlib.Path) -> None:
    frame = pd.DataFrame({"x": np.arange(30.0), "y": 1, "half": np.arange(30) / 2, "word": "a"})
    frame.to_parquet(tmp_path / "in.parquet")
    frame.head(2).to_parquet(tmp_path / "few.parquet")
    data = ["--data", tmp_path / "in.parquet", "--columns", "x"]
    assert "the target is 1 in all rows" in refused(linear, *data, "--what", "logistic")
    assert "no class labels" in refused(linear, *data, "--what", "logistic", "--target", "half")
    assert "target word is large_string, no number" in refused(linear, *data, "--target", "word")
    assert "has no column z" in refused(linear, *data, "--target", "z")
    assert "leave none for the test" in refused(linear, "--data", tmp_path / "few.parquet", "--columns", "x")
    assert "more than 24 rows to train on" in refused(
        linear, "--data", wide(tmp_path), "--columns", ",".join(f"x{n}" for n in range(24))
    )


def wide(folder: pathlib.Path) -> pathlib.Path:
    rows = np.random.default_rng(0).normal(size=(30, 25))
    pd.DataFrame(rows, columns=[*(f"x{n}" for n in range(24)), "y"]).to_parquet(folder / "wide.parquet")
    return folder / "wide.parquet"


def test_too_much_for_one_worker_is_refused(
    refused: Refused, made: dict[str, pathlib.Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = memory.Capacity(nodes=4, workers=4, memory=400_000, room=10**9)
    monkeypatch.setattr(memory, "capacity", lambda _: small)
    said = refused(linear, "--what", "logistic", "--data", made["classification"], "--columns", "x0,x1")
    assert "on one worker" in said
    assert "more nodes do not help. Give fewer rows" in said


def test_predictions_by_coefficients_are_the_model_s(made: dict[str, pathlib.Path]) -> None:
    x_train, x_test, y_train, _ = rows_of(made["regression"])
    model = sklearn.linear_model.Lasso(0.3).fit(x_train, y_train)
    told = linear.by_coefficients(da.from_array(x_test, chunks=(100, -1)), model.coef_, float(model.intercept_))
    assert told.chunks == ((100,) * 6,)
    np.testing.assert_allclose(told.compute(), model.predict(x_test), rtol=1e-12)


def test_a_model_that_answers_otherwise_than_its_exported_form_ends_the_job(
    made: dict[str, pathlib.Path], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    predict = models.predict
    monkeypatch.setattr(models, "predict", lambda model, x: predict(model, x[:, ::-1]))
    assert linear.main(["--data", str(made["regression"]), "--out", str(tmp_path)]) == LOST
    assert "LinearRegression, answers " in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
