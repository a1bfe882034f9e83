"""jobs/workloads/xgboost_train.py: metrics against XGBoost on one machine, the export, and the ports that it opens."""

from __future__ import annotations

import json
import pathlib
import threading
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
import xgboost
import xgboost.dask

import hpcml
import xgboost_train
from gallery import datasets, kinds, models, split, supervised
from tests.jobs.job_tests import InARun, RunJob


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_metrics_are_those_of_one_machine(run_job: RunJob, tmp_path: pathlib.Path, task: str) -> None:
    datasets.write(tmp_path / task, kinds.KINDS[task](features=4), rows=2_000, partitions=3)
    result, out = run_job(xgboost_train, "--data", tmp_path / task, "--task", task, "--rounds", "40", "--depth", "4")
    frame = pd.concat([pd.read_parquet(path) for path in sorted((tmp_path / task).glob("*.parquet"))])
    names = list(result["features"])
    chosen = split.is_test(0, 2_000, 2_000, 0, supervised.TEST)
    rest, test = frame[~chosen], frame[chosen]
    valid = split.is_test(0, len(rest), len(rest), 1, xgboost_train.VALIDATION)
    fitted = xgboost.QuantileDMatrix(rest[~valid][names], rest[~valid]["y"])
    checked = xgboost.QuantileDMatrix(rest[valid][names], rest[valid]["y"], ref=fitted)
    alone = xgboost.train(
        xgboost_train.parameters(xgboost_train.parse(["--task", task, "--depth", "4"]), result.get("classes", [])),
        fitted, 40, evals=[(checked, "validation")], early_stopping_rounds=10, verbose_eval=False,
    )  # fmt: skip
    found = alone[: alone.best_iteration + 1].predict(xgboost.DMatrix(test[names]))
    if task == "regression":
        expected = {"rmse": float(np.sqrt(((found - test["y"]) ** 2).mean()))}
    else:
        expected = {"accuracy": float((found.argmax(axis=1) == test["y"]).mean())}
    for name, value in expected.items():
        assert result["metrics"][name] == pytest.approx(value, rel=0.03)
        better, worse = sorted((result["metrics"][name], result["metrics"][f"baseline_{name}"]))[
            :: -1 if name == "accuracy" else 1
        ]
        assert better == result["metrics"][name] != worse
    assert result["rows_test"] == len(test) == 400
    predictions = pd.read_parquet(out / "predictions")
    np.testing.assert_array_equal(predictions[names], test[names])
    np.testing.assert_array_equal(predictions["y"], test["y"])
    booster, manifest = models.load(out / "model")
    assert list(manifest["features"]) == names == booster.feature_names
    again = booster.predict(xgboost.DMatrix(predictions[names]))
    again = np.array(result["classes"])[again.argmax(axis=1)] if task == "classification" else again
    np.testing.assert_array_equal(again, predictions["prediction"])
    assert result["export_difference"] == 0
    history = pd.read_parquet(out / "history.parquet")
    assert len(history) == result["rounds"]
    assert (
        history.filter(like="validation").iloc[:, 0].argmin() + 1
        == result["rounds_kept"]
        == booster.num_boosted_rounds()
    )


def test_a_training_goes_on_where_it_was_stopped(
    run_job: RunJob, tmp_path: pathlib.Path, in_a_run: InARun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in its second share and continued it ends with the model of one go, and stops as early."""
    datasets.write(tmp_path / "rows", kinds.KINDS["regression"](features=4), rows=1_000, partitions=2)
    arguments = ["--data", tmp_path / "rows", "--rounds", "40", "--depth", "3", "--rate", "0.6", "--patience", "4"]
    directory = type(hpcml.run).directory
    monkeypatch.setattr(type(hpcml.run), "directory", None)  # in one go
    whole, first = run_job(xgboost_train, *arguments)
    monkeypatch.setattr(type(hpcml.run), "directory", directory)
    monkeypatch.setattr(xgboost_train, "SHARE", 0.0)
    real, calls = xgboost.dask.train, []

    def train(*given: Any, **how: Any) -> Any:
        calls.append(how["num_boost_round"])
        if len(calls) == 2:
            in_a_run.end()
        return real(*given, **how)

    monkeypatch.setattr(xgboost.dask, "train", train)
    in_a_run.stops(xgboost_train, *arguments)
    result, out = run_job(xgboost_train, *arguments)
    assert "10 rounds were trained by an earlier attempt of this run." in result["notes"]
    assert calls[:3] == [10, 10, 10]
    assert (result["stopped_early"], result["rounds"]) == (True, whole["rounds"])
    assert whole["stopped_early"]
    assert result["metrics"] == whole["metrics"]
    texts = [(folder / "model/model.json").read_text() for folder in (first, out)]
    assert texts[0] == texts[1]


def listening() -> set[tuple[str, int]]:
    return {(one.laddr.ip, one.laddr.port) for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"}


def test_ports_are_what_the_documentation_says(run_job: RunJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker keeps to the scheduler's address; each worker's port for news of errors does not; all go at the end."""
    before, during, real = listening(), set(), xgboost.dask.train
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            during.update(listening() - before)

    def train(*arguments: Any, **options: Any) -> Any:
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            return real(*arguments, **options)
        finally:
            over.set()
            watcher.join()

    monkeypatch.setattr(xgboost.dask, "train", train)
    result, _ = run_job(xgboost_train, "--rows", "2000", "--rounds", "100", "--patience", "100")
    assert result["tracker_host"] == "127.0.0.1"
    assert sorted({address for address, _ in during}) == ["0.0.0.0", "127.0.0.1"]
    assert len([address for address, _ in during if address == "127.0.0.1"]) == 1
    assert not listening() - before


def test_a_training_that_xgboost_ends_is_said_in_a_sentence(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(*_: Any, **__: Any) -> Any:
        raise xgboost.core.XGBoostError("[23:10:01] comm.cc:12: Failed to connect to the error socket.\nStack trace: …")

    monkeypatch.setattr(xgboost.dask, "train", train)
    assert xgboost_train.main(["--rows", "500", "--out", str(tmp_path)]) == 4
    said = capsys.readouterr().err
    assert "Failed to connect to the error socket. A worker was lost, or somebody else reached its ports" in said
    assert said.count("\n") == 1
    assert json.loads((tmp_path / "result.json").read_text())["complete"] is False
