"""jobs/workloads/to_torch.py: memory that is shared, a network that learns, and what is said where torch is missing."""

from __future__ import annotations

import importlib.util
import pathlib

import numpy as np
import pandas as pd
import pytest

import to_torch
from tests.jobs.job_tests import Made, Refused, RunJob, needs_torch


@pytest.fixture
def data(made: Made) -> pathlib.Path:
    return made("classification features=4", 3_000)


def test_without_torch_it_says_so_and_how_to_get_it(
    refused: Refused, data: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else real(name))
    sentence = refused(to_torch, "--data", data)
    assert "torch is not installed here" in sentence
    assert "2 of 2 workers" in sentence
    assert "Install it into the run's environment" in sentence


@needs_torch
def test_a_tensor_is_the_arrays_own_memory() -> None:
    array = np.arange(12.0, dtype="float32").reshape(4, 3)
    assert to_torch.same_memory(array)
    tensor = to_torch.tensor(array)
    assert tensor.data_ptr() == array.ctypes.data
    tensor[2, 1] = -5
    assert array[2, 1] == -5
    array.flags.writeable = False
    copied = to_torch.ready(array)
    assert copied is not array
    assert copied.flags.writeable
    assert to_torch.ready(copied) is copied


@needs_torch
def test_it_learns_and_its_network_predicts_the_same_in_numpy(run_job: RunJob, data: pathlib.Path) -> None:
    result, out = run_job(to_torch, "--data", data, "--rounds", "6")
    assert result["without_copy"] == result["handed_over"] == 12  # within one process nothing is copied
    assert result["blocks"] == 2  # one for each thread, of rows that would fit one
    assert result["rows_test"] == 600
    assert result["loss_last"] < result["loss_first"] / 2
    assert result["metrics"]["accuracy"] > 0.9 > 2 * result["metrics"]["baseline_accuracy"]
    assert pd.read_parquet(out / "history.parquet")["loss"].to_list()[-1] == result["loss_last"]
    table, kept = pd.read_parquet(out / "predictions"), np.load(out / "network.npz")
    rows = (table[list(kept["features"])].to_numpy() - kept["middle"]) / kept["spread"]
    scores = np.maximum(rows @ kept["w1"] + kept["b1"], 0) @ kept["w2"] + kept["b2"]
    assert (kept["labels"][scores.argmax(axis=1)] == table["prediction"]).mean() > 0.995  # float32 there, float64 here
    assert (table["prediction"] == table["y"]).mean() == pytest.approx(result["metrics"]["accuracy"])
    again, _ = run_job(to_torch, "--data", data, "--rounds", "6")
    assert again["loss_last"] == pytest.approx(result["loss_last"], rel=1e-4)


@needs_torch
def test_refusals_of_data(refused: Refused, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pd.DataFrame({"a": np.arange(30.0), "y": 1, "half": np.arange(30) / 2}).to_parquet(tmp_path / "one.parquet")
    one = ["--data", tmp_path / "one.parquet", "--columns", "a"]
    assert "two classes are needed" in refused(to_torch, *one)
    assert "no class labels" in refused(to_torch, *one, "--target", "half")
    assert "no column late" in refused(to_torch, "--data", data, "--target", "late")
