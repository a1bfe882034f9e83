"""jobs/workloads/forest.py: the very forest that scikit-learn grows on the same rows, and the same one from its exported form."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.ensemble
import sklearn.metrics

import forest
from gallery import datasets, kinds, memory, models, split
from tests.jobs.job_tests import Refused, RunJob

ROWS = 1_500


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    folder = tmp_path_factory.mktemp("forest")
    kind = {"classification": kinds.Classification(features=2), "regression": kinds.Regression(features=4)}
    for name, drawn in kind.items():
        datasets.write(folder / name, drawn, rows=ROWS, partitions=3)
    return {path.name: path for path in folder.iterdir()}


def rows_of(folder: pathlib.Path) -> tuple[Any, ...]:
    frame = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))]).astype("float32")
    test = split.is_test(0, len(frame), len(frame), 5, 0.2)
    x, y = frame.drop(columns="y").to_numpy(), frame["y"].to_numpy()
    return x[~test], x[test], y[~test], y[test]


def test_classifier_is_scikit_learns(run_job: RunJob, made: dict[str, pathlib.Path]) -> None:
    result, out = run_job(forest, "--data", made["classification"], "--trees", "21", "--seed", "5", "--depth", "6")
    x_train, x_test, y_train, y_test = rows_of(made["classification"])
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


def test_regressor_is_scikit_learns(run_job: RunJob, made: dict[str, pathlib.Path]) -> None:
    options = ["--what", "regressor", "--trees", "9", "--seed", "5", "--leaf", "3"]
    result, out = run_job(forest, "--data", made["regression"], *options)
    x_train, x_test, y_train, y_test = rows_of(made["regression"])
    reference = sklearn.ensemble.RandomForestRegressor(9, min_samples_leaf=3, random_state=5).fit(x_train, y_train)
    assert result["metrics"]["r2"] == pytest.approx(reference.score(x_test, y_test), rel=1e-6)
    np.testing.assert_allclose(list(result["importances"].values()), reference.feature_importances_, rtol=1e-12)
    frame = pd.DataFrame(x_test, columns=list(result["importances"]))
    np.testing.assert_allclose(models.load(out / "model")[0].predict(frame), reference.predict(x_test), rtol=1e-12)


def test_refusals(refused: Refused, made: dict[str, pathlib.Path], tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    pd.DataFrame({"x": np.arange(30.0), "y": 1}).to_parquet(tmp_path / "one.parquet")
    assert "the target is 1 in all rows" in refused(forest, "--data", tmp_path / "one.parquet")
    assert "no class labels" in refused(forest, "--data", made["regression"])
    small = memory.Capacity(nodes=4, workers=4, memory=80_000, room=10**9)
    monkeypatch.setattr(memory, "capacity", lambda _: small)
    said = refused(forest, "--data", made["classification"])
    assert "A forest's training data needs 28 KiB on one worker, 1.4 times its memory (20 KiB)" in said
