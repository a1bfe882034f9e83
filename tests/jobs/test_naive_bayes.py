"""jobs/workloads/naive_bayes.py: the model is scikit-learn's of all rows at once, to the last count."""

from __future__ import annotations

import pathlib

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
import sklearn.naive_bayes

import naive_bayes
from gallery import datasets, kinds, models, split
from tests.jobs.job_tests import Refused, RunJob


def test_the_model_is_scikit_learns(run_job: RunJob, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "counts"
    datasets.write(folder, kinds.Counts(words=30, classes=4), rows=2_000, partitions=3)
    result, out = run_job(naive_bayes, "--data", folder, "--alpha", "0.5")
    frame = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))])
    test = split.is_test(0, 2_000, 2_000, 0, 0.2)
    words, y = frame.drop(columns="y"), frame["y"].to_numpy()
    reference = sklearn.naive_bayes.MultinomialNB(alpha=0.5).fit(words[~test].to_numpy(), y[~test])
    model, _ = models.load(out / "model")
    np.testing.assert_array_equal(model.feature_count_, reference.feature_count_)
    np.testing.assert_array_equal(model.class_count_, reference.class_count_)
    np.testing.assert_allclose(model.feature_log_prob_, reference.feature_log_prob_, rtol=1e-14)
    np.testing.assert_allclose(model.class_log_prior_, reference.class_log_prior_, rtol=1e-14)
    told = reference.predict(words[test].to_numpy())
    np.testing.assert_array_equal(model.predict(words[test]), told)
    assert result["metrics"]["accuracy"] == pytest.approx((told == y[test]).mean(), abs=1e-12)
    assert result["metrics"]["accuracy"] > 0.6
    assert result["confusion"] == sklearn.metrics.confusion_matrix(y[test], told).tolist()
    assert result["portable_agrees"] == 1


def test_a_rare_class_and_negative_counts(run_job: RunJob, refused: Refused, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.integers(0, 5, (60, 3)), columns=list("abc")).assign(y=rng.integers(0, 2, 60))
    frame.loc[int(np.flatnonzero(split.is_test(0, 60, 60, 0, 0.2))[0]), "y"] = 7  # only in the test
    frame.to_parquet(tmp_path / "rare.parquet")
    result, out = run_job(naive_bayes, "--data", tmp_path / "rare.parquet")
    assert models.load(out / "model")[0].classes_.tolist() == [0, 1]
    assert len(result["confusion"]) == 3
    frame.assign(b=-1).to_parquet(tmp_path / "below.parquet")
    assert "holds -1; counts start at 0" in refused(naive_bayes, "--data", tmp_path / "below.parquet")
