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
from gallery import models
from gallery.job import LOST
from tests.jobs.job_tests import Made, RunJob, divided

NUMBERS, CLASSES = ("regression features=5 noise=2.0", 3_000), ("classification features=2", 3_000)


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
    run_job: RunJob, made: Made, what: str, options: list[str], reference: Any
) -> None:
    result, out = run_job(linear, "--what", what, "--data", made(*NUMBERS), *options)
    x_train, x_test, y_train, y_test = divided(made(*NUMBERS))
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


def test_logistic_is_scikit_learns(run_job: RunJob, made: Made) -> None:
    result, out = run_job(linear, "--what", "logistic", "--data", made(*CLASSES), "--c", "0.5")
    x_train, x_test, y_train, y_test = divided(made(*CLASSES))
    reference = sklearn.linear_model.LogisticRegression(C=0.5, tol=1e-6, max_iter=1000).fit(x_train, y_train)
    np.testing.assert_allclose(result["coefficients"], reference.coef_, rtol=1e-6, atol=1e-9)
    assert result["metrics"]["accuracy"] == pytest.approx(reference.score(x_test, y_test), abs=1e-12)
    area = sklearn.metrics.roc_auc_score(y_test, reference.predict_proba(x_test), multi_class="ovr")
    assert result["metrics"]["roc_auc"] == pytest.approx(area, rel=1e-6)
    assert result["confusion"] == sklearn.metrics.confusion_matrix(y_test, reference.predict(x_test)).tolist()
    model, _ = models.load(out / "model")
    np.testing.assert_array_equal(model.predict(pd.DataFrame(x_test, columns=["x0", "x1"])), reference.predict(x_test))


def test_predictions_by_coefficients_are_the_model_s(made: Made) -> None:
    x_train, x_test, y_train, _ = divided(made(*NUMBERS))
    model = sklearn.linear_model.Lasso(0.3).fit(x_train, y_train)
    told = linear.by_coefficients(da.from_array(x_test, chunks=(100, -1)), model.coef_, float(model.intercept_))
    assert told.chunks == ((100,) * 6,)
    np.testing.assert_allclose(told.compute(), model.predict(x_test), rtol=1e-12)


def test_a_model_that_answers_otherwise_than_its_exported_form_ends_the_job(
    made: Made, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    predict = models.predict
    monkeypatch.setattr(models, "predict", lambda model, x: predict(model, x[:, ::-1]))
    assert linear.main(["--data", str(made(*NUMBERS)), "--out", str(tmp_path)]) == LOST
    assert "LinearRegression, answers " in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
