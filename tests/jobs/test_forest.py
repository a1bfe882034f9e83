"""jobs/workloads/forest.py: the very forest that scikit-learn grows on the same rows, and the same one from its exported form."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn.ensemble
import sklearn.metrics

import forest
from gallery import models
from tests.jobs.job_tests import Made, RunJob, divided

CLASSES, NUMBERS = ("classification features=2", 1_500), ("regression features=4", 1_500)


def test_classifier_is_scikit_learns(run_job: RunJob, made: Made) -> None:
    result, out = run_job(forest, "--data", made(*CLASSES), "--trees", "21", "--seed", "5", "--depth", "6")
    x_train, x_test, y_train, y_test = (part.astype("float32") for part in divided(made(*CLASSES), 5))
    reference = sklearn.ensemble.RandomForestClassifier(21, max_depth=6, random_state=5).fit(x_train, y_train)
    model, manifest = models.load(out / "model")
    frame = pd.DataFrame(x_test, columns=list(manifest["features"]))
    np.testing.assert_allclose(model.predict_proba(frame), reference.predict_proba(x_test), rtol=1e-12)
    assert result["metrics"]["accuracy"] == pytest.approx(reference.score(x_test, y_test))
    area = sklearn.metrics.roc_auc_score(y_test, reference.predict_proba(x_test), multi_class="ovr")
    assert result["metrics"]["roc_auc"] == pytest.approx(area, rel=1e-12)
    assert result["confusion"] == sklearn.metrics.confusion_matrix(y_test, reference.predict(x_test)).tolist()
    np.testing.assert_allclose(list(result["importances"].values()), reference.feature_importances_, rtol=1e-12)
    assert result["portable_agrees"] == 1
    assert result["deepest"] == 6
    assert len(model.estimators_) == model.n_estimators == 21


def test_regressor_is_scikit_learns(run_job: RunJob, made: Made) -> None:
    options = ["--what", "regressor", "--trees", "9", "--seed", "5", "--leaf", "3"]
    result, out = run_job(forest, "--data", made(*NUMBERS), *options)
    x_train, x_test, y_train, y_test = (part.astype("float32") for part in divided(made(*NUMBERS), 5))
    reference = sklearn.ensemble.RandomForestRegressor(9, min_samples_leaf=3, random_state=5).fit(x_train, y_train)
    assert result["metrics"]["r2"] == pytest.approx(reference.score(x_test, y_test), rel=1e-6)
    np.testing.assert_allclose(list(result["importances"].values()), reference.feature_importances_, rtol=1e-12)
    frame = pd.DataFrame(x_test, columns=list(result["importances"]))
    np.testing.assert_allclose(models.load(out / "model")[0].predict(frame), reference.predict(x_test), rtol=1e-12)
