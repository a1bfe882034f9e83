"""jobs/workloads/search.py: scores against scikit-learn's GridSearchCV, what moves, and what a lost worker costs."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import sklearn.linear_model
import sklearn.model_selection
from distributed import Client, LocalCluster, as_completed

import search
from gallery import models, trials
from tests.jobs.job_tests import InARun, Made, RunJob, rows_in


@pytest.fixture
def data(made: Made) -> pathlib.Path:
    return made("regression features=5 noise=3.0", 600)


def rows_of(folder: pathlib.Path) -> tuple[Any, Any]:
    frame = rows_in(folder)
    return frame.drop(columns="y").to_numpy(), frame["y"].to_numpy()


def reference(data: pathlib.Path, model: Any, tried: list[dict[str, Any]], k: int) -> dict[str, Any]:
    x, y = rows_of(data)
    folds = sklearn.model_selection.KFold(k, shuffle=True, random_state=0)
    grid = [{name: [value] for name, value in one.items()} for one in tried]
    results: dict[str, Any] = sklearn.model_selection.GridSearchCV(model, grid, cv=folds).fit(x, y).cv_results_
    return results


@pytest.mark.parametrize(("model", "how"), [("ridge", "grid"), ("forest", "random")])
def test_scores_are_grid_search_cvs(run_job: RunJob, data: pathlib.Path, model: str, how: str) -> None:
    more = ["--search", "random", "--tries", "3", "--trees", "4"] if how == "random" else ["--compare"]
    arguments = ["--data", data, "--model", model, "--folds", "3", *more]
    result, out = run_job(search, *arguments)
    table = pd.read_parquet(out / "candidates.parquet")
    options = search.parse(list(map(str, arguments)))
    theirs = reference(data, search.estimator(options), search.candidates(options), 3)
    for ours, key in (("mean_score", "mean_test_score"), ("std_score", "std_test_score"), ("rank", "rank_test_score"),
                      ("fold2_score", "split2_test_score")):  # fmt: skip
        np.testing.assert_allclose(table[ours], theirs[key], rtol=0, atol=1e-10)
    assert result["best"] == theirs["params"][int(np.argmax(theirs["mean_test_score"]))]
    if how == "grid":
        assert result["scikit_learn"]["largest_difference"] < 1e-10
        assert result["scikit_learn"]["ratio"] > 0
    fitted, manifest = models.load(out / "model")
    x, y = rows_of(data)
    expected = search.estimator(options).set_params(**result["best"]).fit(x, y).predict(x)
    np.testing.assert_allclose(
        fitted.predict(pd.DataFrame(x, columns=list(manifest["features"]))), expected, rtol=1e-12
    )


def test_a_search_goes_on_where_it_was_stopped(
    run_job: RunJob, client: Client, data: pathlib.Path, in_a_run: InARun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fits that are done are not done again, and the table is that of one go."""
    arguments = ["--data", data, "--folds", "3"]
    whole = pd.read_parquet(run_job(search, *arguments)[1] / "candidates.parquet")
    submit, fits = client.submit, 0

    def until_the_limit(tasks: Any, **how: Any) -> Any:
        for number, done in enumerate(as_completed(tasks, **how)):
            if number == 7:
                in_a_run.end()
            yield done

    def counting(function: Any, *given: Any, **how: Any) -> Any:
        nonlocal fits
        fits += len(given[2]) if function is trials.score else 0
        return submit(function, *given, **how)

    with monkeypatch.context() as patch:
        patch.setattr(trials, "as_completed", until_the_limit)
        in_a_run.stops(search, *arguments)
    monkeypatch.setattr(client, "submit", counting)
    result, out = run_job(search, *arguments)
    assert 0 < fits < result["fits"] == 75
    known = re.search(r"(\d+) fits were done by an earlier attempt", " ".join(result["notes"]))
    assert known
    assert int(known[1]) == 75 - fits
    again = pd.read_parquet(out / "candidates.parquet")
    pd.testing.assert_frame_equal(again.drop(columns="fit_seconds"), whole.drop(columns="fit_seconds"))


def test_data_moves_once_and_not_for_fits(run_job: RunJob, data: pathlib.Path) -> None:
    result, _ = run_job(search, "--data", data, "--folds", "4")
    assert result["fits"] == 100
    assert result["data_bytes"] == 600 * (6 * 8 + 1)
    assert result["data_bytes"] <= result["bytes_moved_to_place"] <= 3 * result["data_bytes"]
    assert result["bytes_moved_by_fits"] < 100 * 200  # a score each, far less than a copy of the rows for each
    assert sum(result["fits_by_worker"].values()) == 100
    assert len(result["fits_by_worker"]) == 2


def test_lost_workers_cost_a_copy_not_the_search() -> None:
    x = np.random.default_rng(1).normal(size=(200, 3))
    y, fold = x @ [1.0, 2.0, 3.0], trials.folds(200, 3, 0)
    tried, model = [{"alpha": alpha} for alpha in (0.1, 1.0, 10.0)], sklearn.linear_model.Ridge()
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0") as cluster:
        with Client(cluster) as client, trials.placed(
            client, da.from_array(x, chunks=50), da.from_array(y, chunks=50), fold
        ) as rows:  # fmt: skip
            assert {len(held) for held in client.who_has([rows]).values()} == {2}
            first = trials.run(client, rows, model, tried, 3)
            cluster.sync(cluster.workers[0].close)  # a copy is left
            second = trials.run(client, rows, model, tried, 3)
            cluster.scale(3)
            client.wait_for_workers(2, timeout=30)
            cluster.sync(cluster.workers[1].close)  # and now none: it is made again from its inputs
            third = trials.run(client, rows, model, tried, 3)
        assert cluster.scheduler.extensions["amm"].running
    scores = [[trial.score for trial in found] for found in (first, second, third)]
    assert scores[0] == scores[1] == scores[2]
