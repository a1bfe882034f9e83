"""jobs/workloads/preprocess.py: prepared rows are those of scikit-learn's own transformers, fitted on all rows at once."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import LabelEncoder, MinMaxScaler, OneHotEncoder, StandardScaler

import preprocess
import score
from gallery import models
from tests.jobs.job_tests import Made, Refused, RunJob, rows_in


@pytest.fixture(name="made")
def a_table(made: Made) -> pathlib.Path:
    return made("table cities=12", 3_000)


@pytest.mark.parametrize(("scale", "scaler"), [("standard", StandardScaler()), ("minmax", MinMaxScaler())])
def test_prepared_rows_are_scikit_learns(run_job: RunJob, made: pathlib.Path, scale: str, scaler: Any) -> None:
    result, out = run_job(preprocess, "--data", made, "--target", "label", "--scale", scale, "--rare", "25")
    prepared, table = pd.read_parquet(out / "prepared"), rows_in(made)
    numbers = scaler.fit_transform(SimpleImputer().fit_transform(table[["amount", "age"]]))
    np.testing.assert_allclose(prepared[["amount", "age"]], numbers, rtol=1e-9, atol=1e-12)
    encoder = OneHotEncoder(min_frequency=25, sparse_output=False)
    texts = table[["city", "colour"]].astype(object).fillna("(missing)")
    encoded = encoder.fit_transform(texts)
    names = [str(name) for name in encoder.get_feature_names_out()]
    assert [name for name in prepared if name.startswith(("city", "colour"))] == names
    np.testing.assert_array_equal(prepared[names], encoded)
    np.testing.assert_array_equal(prepared["label"], LabelEncoder().fit_transform(table["label"]))
    assert models.load(out / "labels")[0].classes_.tolist() == ["high", "low", "middle"] == result["labels"]
    assert result["portable_agrees"] == 1
    assert result["rare_categories"]["city"] > 1
    assert "city_infrequent_sklearn" in result["columns"]


def test_new_rows_are_prepared_elsewhere(
    run_job: RunJob, refused: Refused, made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    table = rows_in(made).drop(columns="label").head(40).reset_index(drop=True)
    table.loc[3, "city"] = "a new one"
    table.to_parquet(tmp_path / "new.parquet")
    gaps = table.drop(3).assign(city=[None, *table["city"].drop([0, 3])])
    gaps.to_csv(tmp_path / "new.csv", index=False)
    gaps.to_parquet(tmp_path / "gaps.parquet")
    _, out = run_job(preprocess, "--data", made, "--columns", "amount,age,city,colour")
    _, scored = run_job(score, "--model", out / "model", "--data", tmp_path / "new.parquet")
    again, before = pd.read_parquet(scored / "predictions"), pd.read_parquet(out / "prepared").head(40)
    cities = [name for name in before if name.startswith("city")]
    assert again.loc[3, cities].sum() == 0
    assert (again[cities].sum(axis=1).drop(3) == 1).all()
    known = again.index != 3
    np.testing.assert_allclose(again.loc[known, list(before)], before[known], rtol=1e-9, atol=1e-12)
    for file in ("new.csv", "gaps.parquet"):  # a gap in a text, as every format tells it
        _, scored = run_job(score, "--model", out / "model", "--data", tmp_path / file)
        told = pd.read_parquet(scored / "predictions")
        assert told.loc[0, cities].sum() == told.loc[0, "city_(missing)"] == 1
        np.testing.assert_allclose(told.loc[1:, list(before)], before[known][1:], rtol=1e-9, atol=1e-12)
    _, strict = run_job(preprocess, "--data", made, "--columns", "amount,city", "--unknown", "error")
    assert "unknown categories ['a new one']" in refused(
        score, "--model", strict / "model", "--data", tmp_path / "new.parquet"
    )


def test_gaps_constants_and_numbers_as_categories(run_job: RunJob, tmp_path: pathlib.Path) -> None:
    frame = pd.DataFrame({"a": [1.0, np.nan, 3.0, np.inf, 5.0], "b": 2.5, "zip": [7, 7, 8, 9, 7], "c": [*"xxyy", None]})
    frame.to_parquet(tmp_path / "in.parquet")
    result, out = run_job(preprocess, "--data", tmp_path / "in.parquet", "--nulls", "drop", "--categories", "zip")
    prepared = pd.read_parquet(out / "prepared")
    assert (result["rows_read"], result["rows"]) == (5, 2)
    assert prepared.to_dict("list") == {"a": [-1, 1], "b": [0, 0], "zip_7": [1, 0], "zip_8": [0, 1], "c_x": [1, 0],
                                        "c_y": [0, 1]}  # fmt: skip
    result, out = run_job(preprocess, "--data", tmp_path / "in.parquet", "--scale", "none", "--categories", "zip")
    prepared = pd.read_parquet(out / "prepared")
    assert prepared["a"].tolist() == [1, 3, 3, 3, 5]
    assert prepared["c_(missing)"].tolist() == [0, 0, 0, 0, 1]
    assert result["missing"] == {"a": 2, "b": 0, "zip": 0, "c": 1}
    assert result["portable_agrees"] == 1


def test_numbers_as_categories_are_the_same_with_gaps_and_in_new_data(
    run_job: RunJob, refused: Refused, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "in").mkdir()
    whole = pd.DataFrame({"zip": [7, 8, 9, 7], "label": [1, 2, 1, 2], "a": 1.0})
    whole.to_parquet(tmp_path / "in/0.parquet")
    gaps = whole.assign(zip=pd.array([7, None, 8, 8], dtype="Int64"), label=pd.array([None, 2, 1, 1], dtype="Int64"))
    gaps.to_parquet(tmp_path / "in/1.parquet")
    result, out = run_job(preprocess, "--data", tmp_path / "in", "--categories", "zip", "--target", "label")
    assert result["columns"] == ["a", "zip_(missing)", "zip_7", "zip_8", "zip_9", "label"]
    assert result["labels"] == ["1", "2"]
    assert result["portable_agrees"] == 1
    before = pd.read_parquet(out / "prepared")
    columns = [name for name in before if name.startswith("zip")]
    new = {
        "ints": whole,
        "floats": whole.assign(zip=whole["zip"].astype("float64")),
        "texts": whole.astype({"zip": "str"}),
    }
    for name, frame in new.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
        _, scored = run_job(score, "--model", out / "model", "--data", tmp_path / f"{name}.parquet")
        told = pd.read_parquet(scored / "predictions")
        np.testing.assert_array_equal(told[columns], before[columns][:4])
    _, scored = run_job(score, "--model", out / "model", "--data", tmp_path / "in/1.parquet")
    assert pd.read_parquet(scored / "predictions")["zip_(missing)"].tolist() == [0, 1, 0, 0]
    assert "LabelEncoder neither predicts nor makes columns" in refused(
        score, "--model", out / "labels", "--data", tmp_path / "ints.parquet"
    )
    whole.astype({"a": "str"}).to_parquet(tmp_path / "wrong.parquet")
    assert "column a is" in refused(score, "--model", out / "model", "--data", tmp_path / "wrong.parquet")
