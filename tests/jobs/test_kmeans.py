"""jobs/workloads/kmeans.py and jobs/workloads/make_data.py: real runs on small data, numbers checked against scikit-learn."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn.cluster
from distributed import Client

import hpcml
import kmeans
import make_data
from gallery import datasets, kinds, knee, models
from tests.jobs.job_tests import InARun, Made, RunJob, rows_in

Result = tuple[dict[str, Any], np.ndarray, pd.DataFrame]
Run = Callable[..., Result]
BLOBS = kinds.Blobs(features=3, centres=5)


@pytest.fixture
def run(run_job: RunJob) -> Run:
    def run(data: pathlib.Path | str | None, *arguments: str) -> Result:
        metrics, out = run_job(kmeans, *(["--data", str(data)] if data else []), *arguments)
        centres = pd.read_csv(out / "centres.csv", index_col="cluster").to_numpy()
        assignments = pd.read_parquet(out / "assignments")
        assert assignments["cluster"].dtype == np.int32
        assert len(assignments) == metrics["rows"] == sum(metrics["sizes"])
        model, manifest = models.load(out / "model")
        np.testing.assert_array_equal(model.predict(assignments[list(manifest["features"])]), assignments["cluster"])
        return metrics, centres, assignments

    return run


@pytest.fixture
def blobs(made: Made) -> pathlib.Path:
    return made("blobs features=3 centres=5", 6_000, 4)


def by_row(rows: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame({"a": rng.normal(size=rows), "b": rng.normal(size=rows)})


def test_numbers_are_scikit_learns_from_the_same_start(run: Run, blobs: pathlib.Path) -> None:
    k = 9
    metrics, centres, assignments = run(blobs, "--k", str(k))
    rows = rows_in(blobs).to_numpy()
    start = kmeans.starting_centres(rows, k, 0)  # fewer rows than SAMPLE: the sample is all of them
    reference = sklearn.cluster.KMeans(k, init=start, n_init=1, tol=1e-8, max_iter=300).fit(rows)
    assert metrics["inertia"] == pytest.approx(reference.inertia_, rel=1e-4)
    np.testing.assert_array_equal(assignments[["x0", "x1", "x2"]], rows)
    distances = ((rows[:, None, :] - centres[None]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(assignments["cluster"], distances.argmin(axis=1))
    assert metrics["inertia"] == pytest.approx(distances.min(axis=1).sum(), rel=1e-12)
    assert metrics["sizes"] == np.bincount(assignments["cluster"], minlength=k).tolist()
    assert 0 < metrics["silhouette"] < 1
    assert list(centres[:, 0]) == sorted(centres[:, 0])


def test_made_blobs_are_found_again(run: Run) -> None:
    metrics, _, _ = run(None, "--rows", "4000", "--k", "6")
    assert metrics["truth_distance"] < 0.2
    assert metrics["silhouette"] > 0.5
    assert metrics["spilled"] == {"host": 0, "disk": 0}
    assert metrics["notes"] == []


def test_the_elbow_is_scikit_learns_inertia_of_the_sample(run_job: RunJob, blobs: pathlib.Path) -> None:
    result, out = run_job(kmeans, "--data", blobs, "--k", "5", "--elbow", "2-9")
    elbow, rows = result["elbow"], rows_in(blobs).to_numpy()
    assert (elbow["rows"], elbow["k"], elbow["suggested_k"]) == (6_000, list(range(2, 10)), 5)
    expected = [sklearn.cluster.KMeans(k, n_init=5, random_state=0).fit(rows).inertia_ for k in (2, 9)]
    np.testing.assert_allclose([elbow["inertia"][0], elbow["inertia"][-1]], expected, rtol=1e-9)
    np.testing.assert_allclose(pd.read_csv(out / "elbow.csv")["inertia"], elbow["inertia"])
    assert (out / "elbow.png").exists()


def test_the_libraries_own_start_reaches_the_same_inertia(run: Run, blobs: pathlib.Path) -> None:
    metrics = run(blobs, "--k", "5", "--init", "k-means||")[0]
    reference = sklearn.cluster.KMeans(5, n_init=5, random_state=0).fit(rows_in(blobs).to_numpy())
    assert metrics["inertia"] == pytest.approx(reference.inertia_, rel=1e-3)


def test_the_knee_is_where_the_curve_is_farthest_from_its_chord() -> None:
    assert knee.farthest([1, 2, 3, 4, 10], [100, 60, 10, 9, 0]) == 3
    assert knee.farthest([0, 1, 2, 3], [0, 0, 0, 9]) == 2
    assert knee.farthest([5, 6, 7], [3, 2, 1]) == 5
    with pytest.raises(ValueError, match="three points"):
        knee.farthest([1, 2], [2, 1])


def test_centres_do_not_depend_on_partitions_or_format(
    run: Run, blobs: pathlib.Path, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample that they start from is chosen by the rows' numbers."""
    monkeypatch.setattr(kmeans, "SAMPLE", 500)
    _, expected, assigned = run(blobs, "--k", "7", "--max-iter", "25")
    csv = made("blobs features=3 centres=5", 6_000, 3, "csv")
    _, centres, assignments = run(csv, "--k", "7", "--max-iter", "25")
    np.testing.assert_allclose(centres, expected, rtol=1e-6)
    np.testing.assert_array_equal(assignments["cluster"], assigned["cluster"])


def test_made_data_is_the_same_for_any_partitions(tmp_path: pathlib.Path, client: Client) -> None:
    rows = datasets.BLOCK + 1_000
    for partitions, with_client in ((1, None), (3, client)):
        datasets.write(tmp_path / str(partitions), BLOBS, rows=rows, partitions=partitions, client=with_client)
    assert len(rows_in(tmp_path / "1")) == rows
    pd.testing.assert_frame_equal(rows_in(tmp_path / "1"), rows_in(tmp_path / "3"))


def test_rows_with_missing_or_infinite_values_are_left_out(run: Run, tmp_path: pathlib.Path, capsys: Any) -> None:
    frame = by_row()
    frame.loc[3, "a"], frame.loc[7, "b"], frame.loc[8, "a"] = np.nan, np.nan, np.inf
    frame["c"] = pd.array([None, *range(39)], dtype="Int64")
    frame.to_parquet(tmp_path / "gaps.parquet")
    metrics, _, assignments = run(tmp_path / "gaps.parquet", "--k", "2")
    assert (metrics["rows_read"], metrics["rows_dropped"], metrics["rows"]) == (40, 4, 36)
    assert "4 of 40 rows" in capsys.readouterr().out
    np.testing.assert_array_equal(assignments["a"], frame.drop([0, 3, 7, 8])["a"])


def test_an_empty_partition_is_passed_over(run: Run, tmp_path: pathlib.Path) -> None:
    for number, part in enumerate((by_row().head(0), by_row(), by_row().head(0), by_row(30))):
        part.to_parquet(tmp_path / f"part-{number}.parquet")
    metrics, _, _ = run(tmp_path / "*.parquet", "--k", "3")
    assert metrics["rows"] == 70


def test_unusual_shapes(run: Run, tmp_path: pathlib.Path) -> None:
    """A constant column of float32, as many clusters as rows, and a single row."""
    for columns, k, rows, dtype in (("a,flat", 3, 40, "float32"), ("a,b", 40, 40, "float64"), ("a,b", 1, 1, "float64")):
        by_row(rows).assign(flat=2.5).astype(dtype).assign(name="n").to_parquet(tmp_path / "in.parquet")
        metrics, centres, assignments = run(tmp_path / "in.parquet", "--k", str(k), "--columns", columns)
        assert centres.shape == (k, 2)
        assert (metrics["silhouette"] is None) == (k in (1, rows))
        assert metrics["dtype"] == assignments["a"].dtype == dtype
    np.testing.assert_allclose(centres[0], by_row(1).to_numpy()[0], rtol=1e-9)


def test_results_of_an_earlier_run_are_replaced(blobs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for k in ("4", "2"):
        assert kmeans.main(["--data", str(blobs), "--out", str(tmp_path), "--k", k]) == 0
    assert set(pd.read_parquet(tmp_path / "assignments")["cluster"]) == {0, 1}


def test_told_to_stop_it_ends_after_the_phase(
    blobs: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([False, False, True])
    monkeypatch.setattr(hpcml.run, "should_stop", lambda: next(answers))
    (tmp_path / "result.json").write_text('{"complete": true}')
    assert kmeans.main(["--data", str(blobs), "--out", str(tmp_path), "--k", "5"]) == 3
    metrics = json.loads((tmp_path / "result.json").read_text())
    assert metrics["complete"] is False
    assert list(metrics["seconds"]) == ["read", "start", "fit"]
    assert len(pd.read_csv(tmp_path / "centres.csv")) == 5
    assert "'fit'" in capsys.readouterr().err


def test_a_fit_goes_on_where_it_was_stopped(
    run_job: RunJob, tmp_path: pathlib.Path, in_a_run: InARun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in its second share and continued it finds the centres of one go, after as many iterations."""
    by_row(3_000).to_parquet(tmp_path / "rows.parquet")
    monkeypatch.setattr(kmeans, "SAMPLE", 60)  # no clusters, and a bad start: many iterations
    arguments = ["--data", tmp_path / "rows.parquet", "--k", "7"]
    directory = type(hpcml.run).directory
    monkeypatch.setattr(type(hpcml.run), "directory", None)  # in one go
    whole, _ = run_job(kmeans, *arguments)
    assert whole["iterations"] > 2 * kmeans.FIRST
    monkeypatch.setattr(type(hpcml.run), "directory", directory)
    monkeypatch.setattr(kmeans, "SHARE", 0.0)
    real, asked = kmeans.estimator, []

    def estimator(*given: Any) -> Any:
        asked.append(given[-1])
        if len(asked) == 3:  # the first is only looked at
            in_a_run.end()
        return real(*given)

    monkeypatch.setattr(kmeans, "estimator", estimator)
    in_a_run.stops(kmeans, *arguments)
    result, _ = run_job(kmeans, *arguments)
    assert "10 iterations were done by an earlier attempt of this run." in result["notes"]
    assert set(asked) == {1, 10}
    np.testing.assert_allclose(result["centres"], whole["centres"], rtol=1e-9)
    assert result["sizes"] == whole["sizes"]
    assert result["converged"]
    assert result["iterations"] in (whole["iterations"], whole["iterations"] + 1)


def test_clusters_are_numbered_by_coordinates_despite_rounding() -> None:
    centres = np.array([[2.5 + 1e-13, 9.0], [2.5, 1.0], [-1.0, 4.0]])
    assert kmeans.canonical_order(centres).tolist() == [2, 1, 0]


def test_the_script_runs_by_itself(tmp_path: pathlib.Path) -> None:
    folder, out = tmp_path / "made here", tmp_path / "its results"
    make_data.main(["blobs", "--rows", "3000", "--features", "4", "--partitions", "3", "--out", str(folder)])
    done = subprocess.run([sys.executable, kmeans.__file__, "--data", folder, "--k", "4", "--out", out],
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rows" in done.stdout
    assert json.loads((out / "result.json").read_text())["rows"] == 3000
    assert len(json.loads((folder / "truth.json").read_text())["centres"]) == 8
