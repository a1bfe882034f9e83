"""jobs/workloads/neighbors.py: real runs on small data, neighbours and predictions checked against scikit-learn."""

from __future__ import annotations

import pathlib
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
import sklearn.neighbors

import neighbors
from gallery import blocks, models, tables
from tests.jobs.job_tests import Made, RunJob, rows_in

DATA = {"classify": ("classification features=3", 3_000, 5), "regress": ("regression features=3", 3_000, 5)}


def halves(folder: pathlib.Path, held: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = rows_in(folder)
    return rows.drop(index=held), rows.loc[held]


@pytest.mark.parametrize("what", ["classify", "regress"])
def test_predictions_are_scikit_learns(run_job: RunJob, made: Made, what: str) -> None:
    result, out = run_job(neighbors, "--what", what, "--data", made(*DATA[what]), "--k", "7")
    predictions = pd.read_parquet(out / "predictions")
    held = predictions["row"]
    np.testing.assert_array_equal(held, tables.sample_rows(3_000, 600, 0))
    index, asked = halves(made(*DATA[what]), held)
    features = ["x0", "x1", "x2"]
    model = getattr(sklearn.neighbors, neighbors.CLASSES[what])(7).fit(index[features].to_numpy(), index["y"])
    expected = model.predict(asked[features].to_numpy())
    np.testing.assert_allclose(predictions["predicted"], expected, rtol=1e-9)
    np.testing.assert_allclose(predictions["y"], asked["y"])
    measure = sklearn.metrics.accuracy_score if what == "classify" else sklearn.metrics.r2_score
    name = "accuracy" if what == "classify" else "r2"
    assert result[name] == pytest.approx(measure(asked["y"], expected), rel=1e-9)
    assert 0.7 < result[name] < 1
    assert result["recall"] == 1.0
    assert result["by_k"]["rows"] == 600
    by_five = getattr(sklearn.neighbors, neighbors.CLASSES[what])(5).fit(index[features].to_numpy(), index["y"])
    place = result["by_k"]["k"].index(5)
    expected_by_five = measure(asked["y"], by_five.predict(asked[features].to_numpy()))
    assert result["by_k"]["score"][place] == pytest.approx(expected_by_five, rel=1e-9)
    exported, manifest = models.load(out / "model")
    np.testing.assert_allclose(exported.predict(asked[list(manifest["features"])]), expected, rtol=1e-9)
    assert (out / "neighbors.png").exists()


def test_neighbours_are_scikit_learns(run_job: RunJob, made: Made) -> None:
    search = ("--what", "search", "--data", made(*DATA["regress"]), "--k", "4", "--queries", "100")
    result, out = run_job(neighbors, *search)
    found = pd.read_parquet(out / "neighbors")
    index, asked = halves(made(*DATA["regress"]), found["row"])
    features = ["x0", "x1", "x2"]
    distances, places = (
        sklearn.neighbors.NearestNeighbors(n_neighbors=4).fit(index[features]).kneighbors(asked[features])
    )
    rows = found[[f"neighbor_{place}" for place in (1, 2, 3, 4)]].to_numpy()
    np.testing.assert_array_equal(rows, index.index.to_numpy()[places])
    np.testing.assert_allclose(found[[f"distance_{place}" for place in (1, 2, 3, 4)]], distances, rtol=1e-9)
    assert result["features"] == features
    assert (result["recall"], result["searched"], result["index_rows"]) == (1.0, 100, 2_900)


def test_a_wrong_neighbour_lowers_recall() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 2))
    index, queries = da.from_array(rows, chunks=(25, 2)), rows[:5] + 0.01
    found = sklearn.neighbors.NearestNeighbors(n_neighbors=3).fit(rows).kneighbors(queries)[1]
    assert neighbors.recall(index, queries, found, "float64") == 1.0
    farthest = int(((rows - queries[0]) ** 2).sum(axis=1).argmax())
    found[0, 2] = farthest
    assert neighbors.recall(index, queries, found, "float64") == pytest.approx(14 / 15)


def test_blocks_and_ties_do_not_matter() -> None:
    rows = np.repeat(np.arange(10.0), 3)[:, None]
    queries = da.from_array(np.array([[0.2], [4.9]]), chunks=1)
    for size in (2, 30):
        model = blocks.NearestNeighbors(4).fit(da.from_array(rows, chunks=(size, 1)))
        distances, places = (part.compute() for part in model.kneighbors(queries))
        if size < 30:  # within a block scikit-learn chooses among equals
            assert set(places[0][:3]) == {0, 1, 2}
        np.testing.assert_allclose(distances, [[0.2, 0.2, 0.2, 0.8], [0.1, 0.1, 0.1, 0.9]])
