"""jobs/workloads/gallery/moments.py: the same figures as pandas, with gaps, infinite values and columns without spread."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from gallery import moments

ROWS = 1_000


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    shared = rng.normal(size=ROWS)
    frame = pd.DataFrame({
        "a": 1e8 + shared, "b": shared * 3 + rng.normal(size=ROWS), "whole": rng.integers(9, size=ROWS),
        "same": 2.3, "yes": rng.random(ROWS) < 0.3, "gone": np.nan, "late": rng.normal(size=ROWS),
    })  # fmt: skip
    for name, share in {"a": 0.1, "b": 0.3, "late": 0.5}.items():
        frame.loc[rng.random(ROWS) < share, name] = np.nan
    frame.loc[: ROWS // 2, "late"] = np.nan  # the first partitions have no value at all
    return frame


def test_all_is_what_pandas_finds(client: Any, table: pd.DataFrame) -> None:
    names = list(table.columns)
    frame = dd.from_pandas(table, npartitions=4)
    found = moments.of(frame[frame["whole"] >= 0], names)
    expected = table.astype("float64").agg(["count", "mean", "std", "min", "max"]).T
    np.testing.assert_allclose(found.table(), expected, rtol=1e-12)
    np.testing.assert_allclose(found.correlation(), table.corr(), rtol=1e-7, atol=1e-9)  # of 1e8 ± 1: 8 digits are left
    about = moments.described(frame, found)
    assert list(about.columns) == ["count", "mean", "std", "min", "25%", "50%", "75%", "max"]
    assert (table["b"].dropna() < about.loc["b", "50%"]).mean() == pytest.approx(0.5, abs=0.05)  # approximate


def test_partitions_without_rows_and_infinite_values(client: Any, table: pd.DataFrame) -> None:
    table = table.assign(b=table["b"].where(table.index != 7, np.inf))
    frame = dd.from_pandas(table, npartitions=4)
    found = moments.of(frame[frame["whole"] < 0], ["a", "b"])
    assert found.table()["count"].tolist() == [0, 0]
    assert found.table().drop(columns="count").isna().all(axis=None)
    assert found.correlation().isna().all(axis=None)
    found = moments.of(frame, ["a", "b", "late"])
    assert found.table().loc["b", ["mean", "max"]].tolist() == [np.inf, np.inf]
    assert np.isnan(found.table().loc["b", "std"])
    np.testing.assert_allclose(found.correlation(), table[["a", "b", "late"]].corr(), rtol=1e-7)  # pandas: finite pairs
