"""The examples of jobs/: each as a user runs it, against scikit-learn, pandas and NumPy on the same rows.

All run on two workers of this process. What is compared with is computed here, on whole tables and arrays, without Dask.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import sklearn.base
import sklearn.cluster
import sklearn.decomposition
import sklearn.ensemble
import sklearn.linear_model
import sklearn.metrics
import sklearn.model_selection
import sklearn.naive_bayes
import sklearn.neighbors
import sklearn.preprocessing
import threadpoolctl
import xgboost
from distributed import Client

import hpcml
from tests.jobs import all_examples
from tests.jobs.example_list import EXAMPLES, RANKS

JOBS = Path(__file__).resolve().parent.parent.parent / "jobs"
assert {path.stem for path in JOBS.glob("*.py")} == {*EXAMPLES, *RANKS}, (
    "give each example its line in tests/jobs/example_list.py"
)


class Ran(NamedTuple):
    """What an example left: result.json, its out/, its variables and the lines that it printed."""

    result: dict[str, Any]
    out: Path
    variables: dict[str, Any]
    lines: list[str]


RunExample = Callable[..., Ran]


@pytest.fixture
def run_example(
    client: Client, connected: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[RunExample]:
    """Return a function that runs an example by its name, and looks at what all of them must leave."""

    def run_example(name: str, *words: str) -> Ran:
        monkeypatch.setattr(hpcml, "connect", lambda **_: client)
        monkeypatch.setattr(sys, "argv", [name, *words])
        monkeypatch.syspath_prepend(JOBS)
        monkeypatch.chdir(tmp_path)
        capsys.readouterr()
        variables = runpy.run_path(str(JOBS / f"{name}.py"), run_name="__main__")
        lines = capsys.readouterr().out.splitlines()
        out = tmp_path / "out"
        result = json.loads((out / "result.json").read_text())
        assert result.keys() >= {*EXAMPLES[name], "seconds"}
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert lines[-1] == f"picture: {out / f'{name}.png'}"
        assert " s" in lines[-2]
        assert len(lines) <= 5
        return Ran(result, out, variables, lines)

    with threadpoolctl.threadpool_limits(1):
        yield run_example
    plt.close("all")
    gc.collect()
    assert {*os.listdir(tmp_path)} - {"checkpoints"} == {"out"}  # data that was made is gone


NO_TORCH = "PyTorch is not in this environment; to run this: pip install torch"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason=NO_TORCH)
OWN = ["linear", "logistic", "forest", "neighbors", "naive_bayes", "xgboost_train", "search", "dbscan", "pca_svd", "preprocess",
       "encode", "nearest", "regularized", "svd", pytest.param("to_torch", marks=needs_torch)]  # fmt: skip
STAYS = {"k", "min_samples", "words"}  # what the example itself works with


@pytest.mark.parametrize("name", OWN)
def test_one_s_own_rows_as_the_first_lines_say(
    name: str, run_example: RunExample, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines of the docstring stand in the place of those that make rows, in a folder with files of such columns."""
    folder = tmp_path_factory.mktemp("zu Hause in Köln")
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(2_000, 2)), columns=["width", "height"])
    table["price"] = 3 * table["width"] - table["height"]
    table["broken"], table["kind"] = (
        (table["width"] + rng.normal(size=2_000) > 0.3).astype(int),
        (table["height"] > 0).astype(int),
    )
    table["age"], table["income"] = rng.normal(size=(2, 2_000))
    table["city"], table["payment"] = rng.choice(["Köln", "Roma"], 2_000), ["card", None] * 1_000
    about = rng.integers(0, 6, len(table))
    counts = pd.DataFrame(rng.poisson(1 + 4 * (np.arange(12) % 6 == about[:, None])), columns=list("abcdefghijkl"))
    many = ["width", "height", "price", "broken", "kind"]
    measured = {"dbscan": ["width", "height"], "pca_svd": many, "svd": many}.get(name)
    table = table[measured] if measured else table
    tables = {"measured": table, "counts": counts.assign(**{"class": about})}
    table.to_parquet(folder / "measured.parquet")
    for data, rows in tables.items():
        (folder / data).mkdir()
        for number in range(4):  # more than workers: Dask puts small files together
            rows[number * 500 :][:500].to_parquet(folder / data / f"{number}.parquet", index=False)
    tree = ast.parse((JOBS / f"{name}.py").read_text())
    said = (ast.get_docstring(tree, clean=False) or "").splitlines()
    own = "\n".join(line[4:] for line in said if line.startswith("    "))
    own = re.sub(r'(?<=read_parquet\()(f?)"', rf'\1"{folder}/', own)
    body = tree.body
    begin = next(place for place, one in enumerate(body) if "client" in stored(one))
    end = next(place for place, one in enumerate(body) if stored(one) & {"number", "start"})
    made = [one for one in body[begin + 1 : end] if isinstance(one, ast.Assign) and not stored(one) & STAYS]
    place = body.index(made[0])
    body[place : place + len(made)] = ast.parse(own).body
    (folder / f"{name}.py").write_text(ast.unparse(tree))
    monkeypatch.setattr("tests.jobs.test_examples.JOBS", folder)
    result, _, variables, _ = run_example(name)
    if name == "preprocess":
        assert result["categories"] == {
            "city": dict(table["city"].value_counts()),
            "payment": {"card": 1_000, "missing": 1_000},
        }
    elif name == "encode":
        assert sum(result["counts"]) == result["back"] == 2_000
    else:
        rows = next(variables[name] for name in ("x", "points") if name in variables)
        assert rows.shape == (2_000, 12 if name == "naive_bayes" else len(measured or ["width", "height"]))
    assert result["seconds"]


def stored(statement: ast.stmt) -> set[str]:
    """Return the names that a statement assigns."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def parts(variables: dict[str, Any], x: Any, y: Any) -> tuple[Any, Any, Any, Any]:
    """Return rows to train on, their target, and those kept apart: every fifth."""
    test = np.arange(len(x)) % 5 == 0
    return x[~test], y[~test], x[test], y[test]


def test_kmeans(run_example: RunExample) -> None:
    result, out, variables, _ = run_example("kmeans")
    points, start = variables["points"], variables["first"].cluster_centers_
    model = sklearn.cluster.KMeans(5, init=start, n_init=1).fit(points)
    assert np.allclose(result["centres"], model.cluster_centers_, rtol=1e-3)
    labels = np.load(out / "labels.npy")
    nearest = sklearn.metrics.pairwise_distances_argmin(points, np.array(result["centres"]))
    assert (labels == nearest).all()
    assert result["sizes"] == np.bincount(labels).tolist()


def test_kmeans_reads_files(run_example: RunExample, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("measured")
    table = pd.DataFrame({"a": [0.0, 0.1, 9.0, 9.1] * 50, "b": [1.0] * 200})
    table[:80].to_parquet(folder / "one.parquet")
    table[80:].to_parquet(folder / "two.parquet")
    result = run_example("kmeans", "--data", f"{folder}/*.parquet", "--k", "2").result
    assert sorted(result["centres"]) == [pytest.approx([0.05, 1]), pytest.approx([9.05, 1])]
    assert result["sizes"] == [100, 100]


def test_kmeans_of_the_columns_of_a_csv_file_that_the_page_chooses(
    run_example: RunExample, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("measured")
    shutil.copytree(JOBS, folder / "jobs")
    command = re.search(r"^    (sed -i .*) groups\.py$", (JOBS / "README.md").read_text(), re.MULTILINE)
    assert command, "the page has the command"
    subprocess.run(["bash", "-c", f"{command[1]} kmeans.py"], cwd=folder / "jobs", check=True)
    monkeypatch.setitem(globals(), "JOBS", folder / "jobs")
    table = pd.DataFrame({"id": range(200), "x": [0.0, 0.1, 9.0, 9.1] * 50, "y": 1.0, "name": "S0"})
    table.to_csv(folder / "one.csv", index=False)
    result = run_example("kmeans", "--data", f"{folder}/*.csv", "--k", "2").result
    assert sorted(result["centres"]) == [pytest.approx([0.05, 1]), pytest.approx([9.05, 1])]


def test_kmeans_of_too_few_rows(
    run_example: RunExample,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "out").mkdir()
    folder = tmp_path_factory.mktemp("measured")
    pd.DataFrame({"a": [0.0, 1.0]}).to_parquet(folder / "one.parquet")
    with pytest.raises(SystemExit):
        run_example("kmeans", "--data", f"{folder}/*.parquet", "--k", "3")
    assert "--k 3: the data have only 2 rows" in capsys.readouterr().err


def test_resume(run_example: RunExample, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in its middle and continued it ends as in one go, to the last digit."""
    saves: list[Callable[[], object]] = []
    monkeypatch.setattr(type(hpcml.run), "on_stop", lambda _, save, **__: saves.append(save))
    whole, _, variables, _ = run_example("resume")
    model = sklearn.cluster.KMeans(5, init=variables["points"][:5], n_init=1, tol=0).fit(variables["points"])
    assert np.allclose(whole["centres"], model.cluster_centers_, rtol=1e-4)
    assert whole["inertia"][-1] == pytest.approx(model.inertia_, rel=1e-6)
    steps, compute = iter(range(7)), dask.compute

    def stopping(*parts: Any) -> Any:
        if next(steps, None) is None:
            saves[-1]()
            hpcml.run.stop()
        return compute(*parts)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(dask, "compute", stopping)
        run_example("resume")
    result, _, _, lines = run_example("resume")
    assert lines[0] == "continues after step 7"
    assert {**result, "seconds": 0} == {**whole, "seconds": 0}


def test_linear(run_example: RunExample) -> None:
    result, _, variables, _ = run_example("linear")
    x, y, x_test, y_test = parts(variables, variables["features"], variables["target"])
    model = sklearn.linear_model.LinearRegression().fit(x, y)
    assert np.allclose(result["coefficients"], model.coef_, rtol=1e-6, atol=1e-6)
    assert result["intercept"] == pytest.approx(model.intercept_, rel=1e-6)
    assert result["r2"] == pytest.approx(model.score(x_test, y_test), rel=1e-9)


def test_logistic(run_example: RunExample) -> None:
    result, _, variables, _ = run_example("logistic")
    x, y, x_test, y_test = parts(variables, variables["features"], variables["classes"])
    model = sklearn.linear_model.LogisticRegression(tol=1e-8).fit(x, y)  # its penalty hardly counts against 80,000 rows
    assert np.allclose(result["coefficients"], model.coef_[0], rtol=2e-3)
    assert result["intercept"] == pytest.approx(model.intercept_[0], rel=2e-3)
    assert result["accuracy"] == pytest.approx(model.score(x_test, y_test), abs=1e-3)
    area = sklearn.metrics.roc_auc_score(y_test, model.predict_proba(x_test)[:, 1])
    assert result["roc_auc"] == pytest.approx(area, abs=1e-4)


def test_forest(run_example: RunExample) -> None:
    result, _, variables, _ = run_example("forest")
    x, y, x_test, y_test = parts(variables, variables["features"].astype("float32"), variables["classes"])
    model = sklearn.ensemble.RandomForestClassifier(n_estimators=60, max_depth=12, random_state=0).fit(x, y)
    assert result["accuracy"] == model.score(x_test, y_test)  # the very same trees
    assert np.allclose(result["importances"], model.feature_importances_, rtol=1e-9)


def test_pca_svd(run_example: RunExample) -> None:
    result, out, variables, _ = run_example("pca_svd")
    model = sklearn.decomposition.PCA(5, svd_solver="full").fit(variables["values"])
    assert np.allclose(result["shares"], model.explained_variance_ratio_, rtol=1e-6)
    assert np.allclose(abs(np.load(out / "components.npy")[:3]), abs(model.components_[:3]), atol=1e-6)
    assert np.allclose(result["singular_values"][:3], model.singular_values_[:3], rtol=1e-3)
    assert np.allclose(result["singular_values"], model.singular_values_, rtol=0.05)  # the last two are noise


def test_neighbors(run_example: RunExample) -> None:
    result, out, variables, _ = run_example("neighbors")
    x, y, x_test, y_test = parts(variables, variables["features"], variables["classes"])
    model = sklearn.neighbors.KNeighborsClassifier(15).fit(x, y)
    assert (np.load(out / "predicted.npy") == model.predict(x_test)).all()
    assert result["accuracy"] == model.score(x_test, y_test)


def test_nearest(run_example: RunExample) -> None:
    result, out, variables, _ = run_example("nearest")
    x, y, x_test, y_test = parts(variables, variables["places"], variables["heights"])
    model = sklearn.neighbors.KNeighborsRegressor(10).fit(x, y)
    left = np.load(out / "nearest.npz")
    distances, rows = model.kneighbors(x_test)
    assert np.allclose(left["distances"], distances)
    assert (left["rows"] == rows).mean() > 0.999  # of equally near rows, either is right
    assert np.allclose(left["predicted"], model.predict(x_test), rtol=1e-5, atol=1e-5)
    assert result["r2"] == pytest.approx(model.score(x_test, y_test), rel=1e-5)
    assert result["mean_distance"] == pytest.approx(distances.mean())


def test_regularized(run_example: RunExample) -> None:
    result, _, variables, _ = run_example("regularized")
    x, y, x_test, y_test = parts(variables, variables["features"], variables["target"])
    for name, model in variables["MODELS"].items():
        other = sklearn.base.clone(model).set_params(fit_intercept=True).fit(x, y)
        assert np.allclose(result["coefficients"][name], other.coef_, rtol=1e-5, atol=1e-4)
        assert result["r2"][name] == pytest.approx(other.score(x_test, y_test), rel=1e-6)
        assert result["zeros"][name] == (abs(other.coef_) < 1e-3).sum()
    assert result["zeros"]["Lasso"] > result["zeros"]["Ridge"] == 0


def test_svd(run_example: RunExample) -> None:
    result, _, variables, _ = run_example("svd")
    singular = np.linalg.svd(variables["values"], compute_uv=False)[:4]
    for found in result["singular_values"].values():
        assert np.allclose(found, singular, rtol=1e-8)


def test_encode(run_example: RunExample) -> None:
    result, out, variables, _ = run_example("encode")
    texts = variables["made"]["city"].to_numpy(dtype=object)
    encoder = sklearn.preprocessing.LabelEncoder().fit(texts)
    assert result["classes"] == encoder.classes_.tolist()
    assert (np.load(out / "numbers.npy") == encoder.transform(texts)).all()
    assert result["back"] == result["rows"] == len(texts)


@needs_torch
def test_to_torch(run_example: RunExample) -> None:
    """The network is trained here again, on the same sample, and predicts the same."""
    import torch

    result, _, variables, _ = run_example("to_torch")
    assert result["without_copy"] == result["blocks"] == 8
    x, y = (variables[name].compute() for name in "xy")
    parameters = variables["train"](np.column_stack([x, y])[::20])
    model = variables["network"](4, "cpu")
    model.load_state_dict(parameters)
    with torch.no_grad():
        told = model(torch.from_numpy(x)).numpy()
    assert result["r2"] == pytest.approx(sklearn.metrics.r2_score(y, told), abs=0.01)
    assert result["r2"] > 0.9
    read_only = np.ones((3, 4), dtype="float32")
    read_only.flags.writeable = False
    assert not variables["shared"](read_only)


def test_dbscan(run_example: RunExample) -> None:
    result, out, variables, _ = run_example("dbscan")
    labels = np.load(out / "labels.npy")
    moon = np.append(variables["moon"], np.full(2_000, -1))
    assert result["clusters"] == 2
    assert sklearn.metrics.adjusted_rand_score(moon, labels) > 0.95
    again = sklearn.cluster.DBSCAN(eps=result["eps"], min_samples=20).fit_predict(variables["points"])
    assert sklearn.metrics.adjusted_rand_score(again, labels) == 1
    assert result["noise"] == (again < 0).sum()


def test_naive_bayes(run_example: RunExample) -> None:
    result, out, variables, _ = run_example("naive_bayes")
    x, y, x_test, y_test = parts(variables, variables["counts"], variables["about"])
    model = sklearn.naive_bayes.MultinomialNB().fit(x, y)
    assert (np.load(out / "predicted.npy") == model.predict(x_test)).all()
    assert result["accuracy"] == model.score(x_test, y_test)


def test_query(run_example: RunExample) -> None:
    polars = pytest.importorskip("polars", reason="Polars is not in this environment; to run this: pip install polars")
    seen: dict[str, Any] = {}
    scan = polars.scan_parquet
    with pytest.MonkeyPatch.context() as patch:  # what it made is gone afterwards
        patch.setattr(polars, "scan_parquet", lambda files: seen.setdefault(files, scan(files).collect()).lazy())
        result = run_example("query").result
    orders, customers = (pd.DataFrame(table.to_dict(as_series=False)) for table in seen.values())
    joined = orders[orders["cents"] >= 500].merge(customers, on="customer")
    assert len(joined) < (orders["cents"] >= 500).sum() < len(orders)
    sums = joined.groupby("region")["cents"].agg(["count", "sum"])
    assert result["regions"] == [[region, *row] for region, *row in sums.itertuples()]
    sums = joined.groupby("customer")["cents"].agg(["count", "sum"]).reset_index()
    best = sums.sort_values(["sum", "customer"], ascending=False).head(10)
    assert result["best"] == best.to_numpy().tolist()


def test_preprocess(run_example: RunExample) -> None:
    result, out, variables, _ = run_example("preprocess")
    raw, prepared = variables["table"].compute(), pd.read_parquet(out / "prepared")
    assert raw.isna().any().all()
    numbers, texts = raw[["age", "income"]], raw[["city", "payment"]].fillna("missing")
    scaled = (numbers.fillna(numbers.mean()) - numbers.mean()) / numbers.std()
    assert np.allclose(prepared[["age", "income"]], scaled, rtol=1e-9, atol=1e-9)
    columns = pd.get_dummies(texts).astype("int8")
    assert (prepared[columns.columns].to_numpy() == columns.to_numpy()).all()
    assert sorted(prepared) == sorted([*numbers, *columns]) == sorted(result["columns"])
    assert result["categories"]["city"] == texts["city"].value_counts().to_dict()


def test_search(run_example: RunExample) -> None:
    result, _, variables, _ = run_example("search")
    folds = sklearn.model_selection.KFold(5, shuffle=True, random_state=0)
    grid = {"alpha": variables["GRID"]}
    search = sklearn.model_selection.GridSearchCV(sklearn.linear_model.Ridge(), grid, cv=folds)
    search.fit(variables["x"], variables["y"])
    assert np.allclose(result["r2"], search.cv_results_["mean_test_score"], rtol=1e-9)
    assert result["best_alpha"] == search.best_params_["alpha"]


def test_xgboost_train(run_example: RunExample) -> None:
    result, out, variables, _ = run_example("xgboost_train")
    x, y, x_test, y_test = parts(variables, variables["features"], variables["target"])
    fitted, tested = xgboost.DMatrix(x, y), xgboost.DMatrix(x_test, y_test)
    alone = xgboost.train(
        variables["PARAMETERS"], fitted, 300, evals=[(tested, "test")], early_stopping_rounds=10, verbose_eval=False
    )
    reached = sklearn.metrics.r2_score(y_test, alone.predict(tested))
    assert result["r2"] == pytest.approx(reached, abs=0.005)  # where trees are cut depends on how rows lie
    kept = xgboost.Booster(model_file=str(out / "model.json"))
    assert sklearn.metrics.r2_score(y_test, kept.predict(tested)) == pytest.approx(result["r2"], abs=1e-9)
    assert sorted(result["gain"])[:5] == ["f0", "f1", "f2", "f3", "f4"]  # the others are noise


@pytest.fixture(params=["dask", "polars"])
def tables_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an example take its way for CPUs, or the one for GPUs, here by Polars' own engine."""
    if request.param == "polars":
        pytest.importorskip("polars", reason="Polars is not in this environment; to run this: pip install polars")
        monkeypatch.setattr(type(hpcml.run), "gpus", property(lambda _: 1))
        monkeypatch.setattr(hpcml, "polars_engine", lambda _: contextlib.nullcontext("streaming"))


@pytest.mark.usefixtures("tables_by")
def test_etl(run_example: RunExample, tmp_path_factory: pytest.TempPathFactory) -> None:
    result, out, variables, _ = run_example("etl")
    folder = tmp_path_factory.mktemp("trips")
    variables["made"](folder)
    trips = pd.concat([pd.read_csv(path, parse_dates=["pickup"]) for path in folder.glob("*.csv")])
    good = trips[(trips["miles"] > 0) & (trips["miles"] < 200) & (trips["fare"] > 0)]
    assert result["read"] == len(trips) > result["kept"] == len(good)
    hours = good.groupby(good["pickup"].dt.hour)["fare"].agg(["count", "mean"])
    assert result["hours"] == hours["count"].tolist()
    assert np.allclose(result["mean_fare"], hours["mean"], rtol=1e-9)
    clean = pd.read_parquet(out / "clean")
    assert len(clean) == len(good)
    assert clean["fare"].sum() == pytest.approx(good["fare"].sum())


@pytest.mark.usefixtures("tables_by")
def test_join(run_example: RunExample, tmp_path_factory: pytest.TempPathFactory) -> None:
    result, _, variables, _ = run_example("join")
    folder = tmp_path_factory.mktemp("orders")
    orders, customers = (
        pd.concat(map(pd.read_parquet, folder.glob(Path(files).name))) for files in variables["made"](folder)
    )
    joined = orders.merge(customers, on="customer")
    assert result["rows"] == {"orders": len(orders), "customers": len(customers), "joined": len(joined)}
    assert len(joined) < len(orders)
    assert result["sums"] == joined.groupby("region")["cents"].sum().to_dict()


def test_dask_dataframe(run_example: RunExample) -> None:
    result, _, variables, _ = run_example("dask_dataframe", "--rows", "60000")
    table = pd.concat([variables["made"](number, 5_000) for number in range(12)], ignore_index=True)
    table = table.sort_values(["station", "hour"])
    stations = table.groupby("station")["level"]
    assert result["rows"] == len(table)
    assert result["sum"] == pytest.approx(table["level"].sum())
    rivers = table["level"].groupby(np.where(table["station"] % 2, "Adige", "Po")).agg(["count", "mean"])
    assert result["counts"] == rivers["count"].tolist()
    assert result["rivers"] == pytest.approx(rivers["mean"].tolist())
    assert np.allclose(result["mean"], stations.mean(), rtol=1e-9)
    assert np.allclose(result["rise"], stations.diff().groupby(table["station"]).max(), rtol=1e-9)


def test_arrays(run_example: RunExample) -> None:
    result, out, variables, _ = run_example("arrays")
    frames = variables["frames"].compute()
    assert np.allclose(np.load(out / "mean.npy"), frames.mean(axis=0), rtol=1e-12, atol=1e-12)
    assert result["noise"] == pytest.approx(frames.std(axis=0).mean(), rel=1e-9)
    assert result["error"] == pytest.approx(result["expected_error"], rel=0.02)  # 65,536 pixels: five sigmas are 1.4 %


def test_pipeline(run_example: RunExample) -> None:
    result, _, variables, _ = run_example("pipeline")
    table = variables["features"](variables["trips"].compute().dropna()).to_numpy()
    test = np.arange(len(table)) % 5 == 0
    model = sklearn.linear_model.LinearRegression().fit(table[~test, :-1], table[~test, -1])
    found = [result["model"][name] for name in ("miles", "night", "airport")]
    assert np.allclose(found, model.coef_, rtol=1e-6, atol=1e-9)
    error = np.sqrt(np.mean((table[test, -1] - model.predict(table[test, :-1])) ** 2))
    assert result["error"] == pytest.approx(error, rel=1e-6)
    assert result["error"] < result["error_of_the_mean"] / 5
    assert result["used"] == len(table) < result["read"] == 100_000
    raw = variables["trips"].compute()
    assert {name: facts["missing"] for name, facts in result["data"].items()} == raw.isna().sum().to_dict()
    assert result["data"]["fare"]["deviation"] == pytest.approx(raw["fare"].std())
    assert result["good_enough"]


def test_score(run_example: RunExample, tmp_path_factory: pytest.TempPathFactory) -> None:
    import joblib

    result, out, variables, _ = run_example("score")
    model_file, files = variables["made"](tmp_path_factory.mktemp("score"))
    table = pd.concat(map(pd.read_parquet, files), ignore_index=True)
    told = joblib.load(model_file).predict(table[["width", "height"]])
    assert np.allclose(pd.read_parquet(out / "scored")["prediction"], told, rtol=1e-12)
    assert result["rows"] == len(table)
    assert result["error"] == pytest.approx(np.sqrt(np.mean((told - table["price"]) ** 2)), rel=1e-9)


@pytest.mark.parametrize(("name", "package"), RANKS.items())
def test_an_example_of_ranks(name: str, package: str, tmp_path: Path) -> None:
    """Two ranks of this machine have all rows between them, and lower the loss."""
    python = os.environ.get("HPCML_TEST_RANKS", sys.executable)  # PyTorch and JAX are too large for the tests' own
    found = subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False, timeout=300)
    if found.returncode:
        pytest.skip(f"{python} has no {package}; to run this: HPCML_TEST_RANKS=PYTHON")
    own = {key: value for key, value in os.environ.items() if not key.startswith(("HPCML_", "SLURM_"))}
    settings = ["--set", f"runtime.python={python}", "--set", "report.sample_every=0"]
    words = ["submit", "--site", "local", "--wait", "--ranks", "2", *settings, str(JOBS / f"{name}.py")]
    done = subprocess.run(
        [sys.executable, "-m", "hpcml", *words], cwd=tmp_path, env={**own, "HOME": str(tmp_path)}, capture_output=True,
        text=True, check=False, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    losses = re.search(r"^loss ([\d.]+), then ([\d.]+) after \d+ steps on 2 ranks$", done.stdout, re.MULTILINE)
    assert losses, done.stdout
    assert float(losses[2]) < 0.2 * float(losses[1])


def test_zarr_svd(run_example: RunExample) -> None:
    """All three formats give the singular values of the whole matrix; two bits take a quarter of the bytes."""
    result, _, variables, lines = run_example("zarr_svd", "--rows", "4000", "--columns", "200")
    values = variables["plain"].compute(scheduler="synchronous").astype("float64")
    expected = np.linalg.svd(values - values.mean(axis=0), compute_uv=False)[:4]
    assert set(values.ravel()) == {0, 1, 2}
    block = values.astype("uint8")
    assert (variables["unpacked"](variables["packed"](block)) == block).all()
    for name in ("plain", "Blosc", "packed"):
        assert np.allclose(variables["values"][name], expected, rtol=3e-3)
    sizes = result["disk_bytes"]
    assert sizes["plain"] == values.size == 4 * sizes["packed"]
    assert sizes["Blosc"] < 0.3 * sizes["plain"]
    assert "packed: load" in lines[-2]


def test_the_steps_of_a_chunk_are_one_task_whatever_the_width_of_fusion() -> None:
    """docs/how-it-works.md says that optimization.fuse.ave-width changes nothing for arrays."""
    x = da.ones((8_000, 4), chunks=(1_000, 4)).map_blocks(np.cumsum, axis=1, dtype="float64")
    counts = set()
    for width in (0, 1, 5, 20):
        with dask.config.set({"optimization.fuse.ave-width": width}):
            centred = x.astype("float32") - x.astype("float32").mean(axis=0)
            counts.add(len(dict(dask.optimize(da.linalg.svd_compressed(centred, k=2, seed=0)[1])[0].__dask_graph__())))
    assert len(counts) == 1


@pytest.mark.parametrize("count", [8, 16])
def test_a_join_by_tasks_has_two_tasks_for_each_pair_of_partitions(count: int) -> None:
    """docs/choosing.md says so of this shuffle method; p2p needs far fewer tasks."""
    tables = [dd.from_pandas(pd.DataFrame({"key": range(100), name: 1}), npartitions=count) for name in "ab"]
    tasks = {
        method: len(dict(tables[0].merge(tables[1], on="key", shuffle_method=method).optimize().__dask_graph__()))
        for method in ("tasks", "p2p")
    }
    assert 2 * count**2 <= tasks["tasks"] < 2 * count**2 + 16 * count
    assert tasks["p2p"] < 8 * count


def test_a_parquet_file_has_at_most_one_partition_for_each_row_group(tmp_path: Path) -> None:
    """docs/choosing.md says so."""
    path = tmp_path / "rows.parquet"
    pd.DataFrame({"a": np.arange(1000)}).to_parquet(path, row_group_size=300)
    assert dd.read_parquet(path, split_row_groups=True).npartitions == 4
    assert dd.read_parquet(path, split_row_groups="adaptive", blocksize=1).npartitions == 4


def test_the_distances_of_column_major_rows_take_memory(tmp_path: Path) -> None:
    """docs/choosing.md says so of pandas' arrays and scikit-learn's pairwise_distances_argmin_min."""
    path = tmp_path / "rows.parquet"
    pd.DataFrame(np.random.default_rng(0).normal(size=(4_000, 4)), columns=list("abcd")).to_parquet(path)
    rows = pd.read_parquet(path).to_numpy()
    assert not rows.flags.c_contiguous
    peaks = []
    for each in (rows, np.ascontiguousarray(rows)):
        tracemalloc.start()
        try:
            sklearn.metrics.pairwise_distances_argmin_min(each, each)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    distances = 4_000 * 4_000 * 8
    assert peaks[0] >= distances > 10 * peaks[1]


WAITS = """
import time
def wait():
    while True:
        try:
            time.sleep(300)
        except Exception:
            pass
wait()
"""


def test_an_example_at_its_limit_leaves_its_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As bench/worker_shapes.py and bench/gpu run the examples; a library that catches errors does not catch the limit."""
    monkeypatch.setattr(type(hpcml.run), "out", hpcml.run.out)
    monkeypatch.setattr(sys, "argv", [])
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    with pytest.raises(all_examples.LimitReachedError, match="not done after 3 s"):
        all_examples.run(script, tmp_path / "out", 3)
    assert 'waits.py", line 6 in wait' in (tmp_path / "out/stacks.txt").read_text()


def test_minimal(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hpcml, "connect", lambda **_: client)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    runpy.run_path(str(JOBS / "minimal.py"), run_name="__main__")
    assert float(capsys.readouterr().out) == pytest.approx(0.5, abs=2e-4)  # of 100 million: seven sigmas
    assert os.listdir(tmp_path) == []
