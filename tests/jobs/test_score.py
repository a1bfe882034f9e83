"""jobs/workloads/score.py and gallery/models.py: models are loaded where nothing of the run is, and hostile ones run nothing."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import shutil
import zipfile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import skops.io
import xgboost
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Lasso, LinearRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import FunctionTransformer

import score
from gallery import job as jobs
from gallery import models
from gallery.job import RefusedError
from tests.jobs.job_tests import Refused, RunJob

RNG = np.random.default_rng(3)
X = RNG.normal(size=(400, 3))
Y = X @ [1.0, -2.0, 0.5] + RNG.normal(size=400) / 10
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y, label=np.where(Y > 0, "up", "down"), sign=(Y > 0) * 1)
FEATURES = dict.fromkeys("abc", "float64")


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for part in range(3):
        FRAME[part * 150 : (part + 1) * 150].to_parquet(folder / f"part-{part}.parquet")
    return folder


def exported(tmp_path: pathlib.Path, model: Any, target: str | None = "y") -> pathlib.Path:
    options = SimpleNamespace(out=tmp_path, rows=1, data=None, seed=0)
    client = SimpleNamespace(nthreads=lambda: {"one": 1})
    return models.export(jobs.Job("a_test", options, client), model, features=FEATURES, target=target, metrics={})  # type: ignore[arg-type]


def doctor(folder: pathlib.Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (LinearRegression(), "y"),
        (RandomForestClassifier(5, random_state=0), "label"),
        (xgboost.XGBClassifier(n_estimators=5), "sign"),
    ],
)
def test_predictions_are_those_of_the_model(
    run_job: RunJob, data: pathlib.Path, tmp_path: pathlib.Path, model: Any, target: str
) -> None:
    model.fit(FRAME[list("abc")], FRAME[target])
    result, out = run_job(score, "--model", exported(tmp_path, model, target), "--data", data)
    scored = pd.read_parquet(out / "predictions")
    pd.testing.assert_frame_equal(scored[[*"abc"]], FRAME[[*"abc"]])
    expected = model.predict(FRAME[list("abc")])
    if target == "y":
        np.testing.assert_allclose(scored["prediction"].to_numpy("float64"), expected, rtol=1e-6)
        assert result["metrics"]["r2"] == pytest.approx(model.score(FRAME[list("abc")], Y), rel=1e-6)
    else:
        assert scored["prediction"].tolist() == expected.tolist()
        assert result["metrics"]["accuracy"] == pytest.approx((expected == FRAME[target]).mean())
    assert result["rows"] == 400
    assert result["notes"] == []


def test_a_booster_says_classes(run_job: RunJob, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    matrix = xgboost.DMatrix(FRAME[list("abc")], FRAME["sign"])
    booster = xgboost.train({"objective": "binary:logistic"}, matrix, num_boost_round=4)
    result, out = run_job(score, "--model", exported(tmp_path, booster, "sign"), "--data", data)
    expected = booster.predict(matrix) > 0.5
    assert pd.read_parquet(out / "predictions")["prediction"].tolist() == (expected * 1).tolist()
    assert result["metrics"]["accuracy"] == pytest.approx((expected == FRAME["sign"]).mean())


def test_rows_that_cannot_be_scored_are_counted_and_versions_compared(run_job: RunJob, tmp_path: pathlib.Path) -> None:
    folder = exported(tmp_path, LinearRegression().fit(FRAME[list("abc")], Y))
    doctor(folder, versions={**jobs.versions(), "scikit-learn": "1.2.3"})
    holes = FRAME[list("abc")].head(9).copy()
    holes.loc[2, "a"], holes.loc[5, "b"] = np.nan, np.inf
    holes.to_csv(tmp_path / "holes.csv", index=False)
    result, out = run_job(score, "--model", folder, "--data", tmp_path / "holes.csv")
    missing = pd.read_parquet(out / "predictions")["prediction"].isna()
    assert missing[missing].index.tolist() == [2, 5]
    assert (result["rows_without_prediction"], result["metrics"]) == (2, {})
    assert any("scikit-learn 1.2.3, here is" in note for note in result["notes"])


def test_data_of_another_shape_is_refused(refused: Refused, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    folder = exported(tmp_path, LinearRegression().fit(FRAME[list("abc")], Y))
    FRAME.drop(columns="b").to_parquet(tmp_path / "lacking.parquet")
    FRAME.assign(b="x").to_parquet(tmp_path / "text.parquet")
    assert "has no column b" in refused(score, "--model", folder, "--data", tmp_path / "lacking.parquet")
    assert "column b is large_string, the model takes float64" in refused(
        score, "--model", folder, "--data", tmp_path / "text.parquet"
    )
    assert "holds no model that can be read" in refused(score, "--model", tmp_path, "--data", data)
    FRAME.head(0).to_parquet(tmp_path / "none.parquet")
    assert "holds no row" in refused(score, "--model", folder, "--data", tmp_path / "none.parquet")


def test_a_damaged_or_exchanged_model_is_refused(refused: Refused, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    whole = exported(tmp_path, LinearRegression().fit(FRAME[list("abc")], Y))
    kept = (whole / "model.skops").read_bytes()

    def broken(name: str, content: bytes, **changes: Any) -> pathlib.Path:
        folder = tmp_path / name
        shutil.copytree(whole, folder)
        (folder / "model.skops").write_bytes(content)
        doctor(folder, **changes)
        return folder

    def digest(content: bytes) -> str:
        return hashlib.sha256(content).hexdigest()

    half = kept[: len(kept) // 2]
    assert "its SHA-256 differs" in refused(score, "--model", broken("changed", kept[:-1] + b"x"), "--data", data)
    cut = broken("cut", half, sha256=digest(half))
    assert "model.skops is damaged" in refused(score, "--model", cut, "--data", data)
    away = broken("away", kept, file="../whole/model.skops")
    assert "holds no model that can be read" in refused(score, "--model", away, "--data", data)
    for number, manifest in enumerate(("[]", "{}", "\0", '{"file": [], "sha256": 3}')):
        folder = broken(f"manifest {number}", kept)
        (folder / "manifest.json").write_text(manifest)
        assert "holds no model that can be read" in refused(score, "--model", folder, "--data", data)
    booster = broken("booster", b"{}", file="model.json", sha256=digest(b"{}"))
    (booster / "model.json").write_bytes(b"{}")
    assert "model.json is damaged" in refused(score, "--model", booster, "--data", data)


@pytest.mark.parametrize("function", [os.system, np.lib.format.open_memmap])
def test_a_hostile_model_is_refused_and_runs_nothing(
    refused: Refused, data: pathlib.Path, tmp_path: pathlib.Path, function: Any
) -> None:
    folder = exported(tmp_path, LinearRegression().fit(FRAME[list("abc")], Y))
    witness = tmp_path / "it ran"
    given = {"command": f"touch '{witness}'"} if function is os.system else {"filename": str(witness), "mode": "w+"}
    skops.io.dump(FunctionTransformer(function, kw_args=given), folder / "model.skops")
    doctor(folder, sha256=hashlib.sha256((folder / "model.skops").read_bytes()).hexdigest())
    assert "what no job exports" in refused(score, "--model", folder, "--data", data)
    assert not witness.exists()


def test_what_cuml_cannot_convert_goes_by_its_attributes() -> None:
    lasso = Lasso(0.1).fit(X, Y)
    solver = type("CDMG", (), {"__module__": "cuml.solvers.cd_mg", "coef_": lasso.coef_, "n_iter_": 3})()
    solver.intercept_ = lasso.intercept_
    dask = type("Lasso", (), {"__module__": "cuml.dask.linear_model.lasso"})()
    dask.solver = type("CD", (), {"__module__": "cuml.dask.solvers.cd", "get_combined_model": lambda _: solver})()
    np.testing.assert_array_equal(models.to_portable(dask).predict(X), lasso.predict(X))
    words = RNG.integers(0, 9, (50, 4))
    bayes = MultinomialNB().fit(words, words[:, 0] > 4)
    twin = type("MultinomialNB", (), {"__module__": "cuml.naive_bayes.naive_bayes", **vars(bayes)})()
    np.testing.assert_array_equal(models.to_portable(twin).predict_proba(words), bayes.predict_proba(words))
    with pytest.raises(TypeError, match="no form without a GPU"):
        models.to_portable(type("UMAP", (), {"__module__": "cuml.manifold"})())


def over_several_gpus(fitted: type) -> Any:
    """Return what a class of cuml.dask looks like when it is fitted: it answers for the model that it holds."""
    held = {"__module__": "cuml.dask.linear_model", "get_combined_model": lambda _: fitted(),
            "__getattr__": lambda _, name: getattr(fitted(), name)}  # fmt: skip
    return type("Held", (), held)()


def test_a_solver_that_is_a_word_is_not_taken_for_the_model() -> None:
    """cuML's logistic regression over several GPUs answers for its fitted model, which says "qn"."""
    model = Lasso().fit([[0.0], [1.0]], [0.0, 1.0])
    known = {"__module__": "cuml.linear_model", "solver": "qn", "as_sklearn": lambda _: model}
    assert models.to_portable(over_several_gpus(type("LogisticRegressionMG", (), known))) is model


def test_ridge_leaves_the_gpus_by_its_coefficients() -> None:
    """cuML's as_sklearn of a Ridge over several GPUs asks for an n_iter_ that it has not (26.10.0)."""
    known = {"__module__": "cuml.linear_model", "solver": "eig", "coef_": np.array([2.0, 3.0]), "intercept_": 1.0}
    portable = models.to_portable(over_several_gpus(type("RidgeMG", (), known | {"as_sklearn": lambda _: 1 / 0})))
    assert portable.predict([[1.0, 1.0]]) == [6.0]


def test_trees_that_came_through_treelite_are_kept(tmp_path: pathlib.Path) -> None:
    """As cuML's as_sklearn makes them: its forest is a treelite model first."""
    treelite = pytest.importorskip("treelite.sklearn", reason="treelite comes with cuML")
    forest = RandomForestClassifier(7, random_state=0).fit(X.astype("float32"), FRAME["sign"])
    kept = exported(tmp_path, treelite.export_model(treelite.import_model(forest)))
    np.testing.assert_allclose(models.load(kept)[0].predict_proba(FRAME[[*"abc"]]), forest.predict_proba(X), rtol=1e-12)


def test_neither_predicts_nor_transforms() -> None:
    with pytest.raises(RefusedError, match="cannot score rows"):
        score.kind_of(NearestNeighbors())


DEEP = "[" * 100_000
NO_MANIFESTS = {
    "deep": DEEP, "deep table": '{"a":' * 100_000, "list": "[]", "number": "5", "nothing": "", "null": "null", "text": '"x"',
}  # fmt: skip
OTHER_KINDS: dict[str, Any] = {
    "file": {"a": 1}, "features": [["a", "float64"]], "versions": {"numpy": {"a": []}}, "times": {"a": 1}, "numbered": "abc", "target": ["y"],
    "estimator": 5, "sha256": None,
}  # fmt: skip


def test_a_model_of_somebody_else_s_making_is_one_sentence(tmp_path: pathlib.Path) -> None:
    folder = exported(tmp_path, LinearRegression().fit(FRAME[["a", "b", "c"]], Y))
    manifest, kept = folder / "manifest.json", folder / "model.skops"
    good, model = manifest.read_text(), kept.read_bytes()
    for text in NO_MANIFESTS.values():
        manifest.write_text(text)
        with pytest.raises(RefusedError, match="holds no model"):
            models.load(folder)
    for name, value in OTHER_KINDS.items():
        manifest.write_text(good)
        doctor(folder, **{name: value})
        with pytest.raises(RefusedError):
            models.load(folder)
    manifest.write_text(good)
    for path in (manifest, kept):
        for make in (os.mkfifo, lambda place: place.symlink_to("/dev/zero"), lambda place: place.mkdir()):
            before = path.read_bytes()
            path.unlink()
            make(path)
            with pytest.raises(RefusedError, match="holds no model"):
                models.load(folder)
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            path.write_bytes(before)
    with zipfile.ZipFile(kept) as archive:
        schema = json.loads(archive.read("schema.json"))
    for text in (
        DEEP,
        json.dumps({**schema, "content": DEEP}),
        json.dumps({**schema, "__loader__": 5}),
        '{"content":' * 20_000,
        "[]",
    ):
        with zipfile.ZipFile(kept, "w") as archive:
            archive.writestr("schema.json", text)
        doctor(folder, sha256=hashlib.sha256(kept.read_bytes()).hexdigest())
        with pytest.raises(RefusedError):
            models.load(folder)
    kept.write_bytes(model)
    manifest.write_text(good)
    assert models.load(folder)[1]["job"] == "a_test"


def test_nested_json_of_xgboost_is_one_sentence(tmp_path: pathlib.Path) -> None:
    folder = exported(tmp_path, xgboost.XGBRegressor(n_estimators=2).fit(FRAME[["a", "b", "c"]], Y))
    for text in ("[" * 1000, '{"a":' * 1000, "[]", "{}", ""):
        (folder / "model.json").write_text(text)
        doctor(folder, sha256=hashlib.sha256(text.encode()).hexdigest())
        with pytest.raises(RefusedError):
            models.load(folder)
