"""What the fixtures of tests/jobs/conftest.py are, for annotations, the mark of tests that need PyTorch, and tables."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from gallery import split

Made = Callable[..., pathlib.Path]  # made("blobs features=3", rows, partitions, form) -> the data set's folder
RunJob = Callable[
    ..., tuple[dict[str, Any], pathlib.Path]
]  # run_job(module, *arguments) -> result.json, results' folder
Refused = Callable[..., str]  # refused(module, *arguments) -> the sentence


class InARun(NamedTuple):
    """A run whose attempts are the jobs of a test: ``end()`` in a job is its end by the time limit, which ``stops`` runs."""

    end: Callable[[], None]
    stops: Callable[..., None]  # stops(module, *arguments)


needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="PyTorch, of several GB with CUDA, is not in the tests' environment; to run these: .venv/bin/pip install torch",
)


def rows_in(folder: pathlib.Path) -> pd.DataFrame:
    """Return all rows of a folder of Parquet files."""
    return pd.concat(map(pd.read_parquet, sorted(folder.glob("*.parquet"))), ignore_index=True)


def divided(folder: pathlib.Path, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the features to train on and to test, then y, as jobs divide them."""
    rows = rows_in(folder)
    test = split.is_test(0, len(rows), len(rows), seed, 0.2)
    x, y = rows.drop(columns="y").to_numpy(), rows["y"].to_numpy()
    return x[~test], x[test], y[~test], y[test]
