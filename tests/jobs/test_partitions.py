"""gallery/partitions.py and gallery/tables.py: sizes of partitions, what is said of unsuitable files, rows that stay."""

from __future__ import annotations

import argparse
import pathlib

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client

from gallery import datasets, inputs, kinds, partitions, tables
from gallery.job import Job

ROWS = 30_000
TAXI = kinds.Taxi(zones=40)
NUMBERS = ["passenger_count", "trip_distance", "fare"]


@pytest.fixture
def job(client: Client, tmp_path: pathlib.Path) -> Job:
    return Job("test", argparse.Namespace(out=tmp_path, data=None, rows=None, seed=0), client)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """Partitions of 200 kB, so that little data makes many."""
    monkeypatch.setattr(partitions, "LEAST", 10_000)
    monkeypatch.setattr(partitions, "CPU", 200_000)
    return 200_000


def test_a_worker_of_much_memory_gets_the_most_and_one_of_little_a_share(job: Job, monkeypatch: object) -> None:
    class Scheduler:
        def scheduler_info(self, n_workers: int) -> dict[str, object]:
            assert n_workers == -1  # by default it tells of five workers only
            return {"workers": {"a": {"memory_limit": 512 * 10**9, "nthreads": 8}, "b": self.little}}

        little = {"memory_limit": 4 * 10**9, "nthreads": 4}

    scheduler = Scheduler()
    assert partitions.wanted(scheduler) == 10**9 // partitions.CPU_SHARE
    scheduler.little = {"memory_limit": 0, "nthreads": 4}  # no limit
    assert partitions.wanted(scheduler) == partitions.CPU
    scheduler.little = {"memory_limit": 10**8, "nthreads": 4}
    assert partitions.wanted(scheduler) == partitions.LEAST


def test_row_groups_are_put_together_up_to_the_size(job: Job, small: int, tmp_path: pathlib.Path) -> None:
    frame = pd.DataFrame({"a": np.arange(ROWS * 4.0), "b": np.arange(ROWS * 4) % 7})
    frame.to_parquet(tmp_path / "one.parquet", row_group_size=2_000)  # 32 kB in memory, b by a dictionary
    source = inputs.survey(job.client, str(tmp_path / "one.parquet"), [])
    read = tables.read(source, ["a", "b"], job=job)
    sizes = read.map_partitions(lambda part: pd.Series([part.memory_usage(index=False).sum()])).compute()
    assert sizes.max() <= 1.3 * small
    assert sizes[:-1].min() >= 0.5 * small
    assert not job.result["notes"]
    pd.testing.assert_frame_equal(read.compute().reset_index(drop=True), frame)


def test_a_wide_column_read_alone_does_not_make_partitions_too_large(
    job: Job, small: int, tmp_path: pathlib.Path
) -> None:
    rng = np.random.default_rng(0)
    narrow = {f"n{number}": np.zeros(20_000, "int8") for number in range(9)}
    frame = pd.DataFrame({**narrow, "wide": [f"{value:040.30f}" for value in rng.random(20_000)]})
    frame.to_parquet(tmp_path / "wide.parquet", row_group_size=500)
    source = inputs.survey(job.client, str(tmp_path), [])
    read = tables.read(source, ["wide"], job=job).optimize()
    sizes = read.map_partitions(lambda part: pd.Series([part["wide"].str.len().sum()])).compute()
    assert sizes.sum() == 40 * 20_000
    assert sizes.max() <= 1.5 * small


def test_tiny_files_are_read_together_and_a_large_row_group_is_named(
    job: Job, small: int, tmp_path: pathlib.Path
) -> None:
    frame = pd.DataFrame({"a": np.arange(30_000.0)})
    for number in range(100):
        frame[number * 300 :][:300].to_parquet(tmp_path / f"part-{number}.parquet")
    read = tables.read(inputs.survey(job.client, str(tmp_path), []), ["a"], job=job)
    assert 2 <= read.npartitions <= 6
    assert "100 files of about 2.3 KiB each: several make a partition" in job.result["notes"][0]
    np.testing.assert_array_equal(read["a"].compute(), frame["a"])
    pd.DataFrame({"a": np.arange(90_000.0)}).to_parquet(tmp_path / "large.parquet")
    tables.read(inputs.survey(job.client, str(tmp_path / "large.parquet"), []), ["a"], job=job)
    assert "a row group of 703 KiB is larger than the partition of 195 KiB" in job.result["notes"][-1]


@pytest.mark.parametrize("form", ["parquet", "csv", "json", "orc"])
def test_rows_and_their_order_are_the_same_for_any_size(
    job: Job, small: int, tmp_path: pathlib.Path, form: str
) -> None:
    datasets.write(tmp_path / form, TAXI, rows=5_000, partitions=3, form=form)
    datasets.write(tmp_path / "truth", TAXI, rows=5_000, partitions=1)
    expected = pd.read_parquet(tmp_path / "truth/part-00000.parquet")[NUMBERS]
    source = inputs.survey(job.client, str(tmp_path / form), NUMBERS)
    read = tables.read(source, NUMBERS, job=job)
    if form in ("csv", "json"):
        assert read.npartitions > 1
    pd.testing.assert_frame_equal(read.compute().reset_index(drop=True), expected)


def test_generated_taxi_trips_have_the_shape_and_the_faults(tmp_path: pathlib.Path) -> None:
    datasets.write(tmp_path / "taxi", kinds.Taxi(noise=0.1), rows=60_000, partitions=1)
    trips = pd.read_parquet(tmp_path / "taxi/part-00000.parquet")
    found = {
        "negative fare": trips["fare"] < 0, "no distance": trips["trip_distance"] == 0, "no fare": trips["fare"].isna(),
        "dropoff before pickup": trips["dropoff"] < trips["pickup"], "absurd distance": trips["trip_distance"] > 500,
    }  # fmt: skip
    for name in kinds.Taxi.FAULTS:
        assert found[name].mean() == pytest.approx(0.02, abs=0.003), name
    assert trips["passenger_count"].isna().mean() == pytest.approx(0.03, abs=0.003)
    share = trips["pickup_zone"].value_counts(normalize=True)
    assert share[1] / share[10] == pytest.approx(10, rel=0.15)
    assert trips["trip_distance"].clip(upper=100).skew() > 2


def test_many_small_chunks_become_files_of_the_size_and_keep_their_rows(
    job: Job, small: int, tmp_path: pathlib.Path
) -> None:
    rows = np.arange(120_000.0).reshape(-1, 2)  # 960 kB
    x = tables.gathered(job, da.from_array(rows, chunks=(500, 2)))
    assert max(np.prod(chunk) for chunk in zip(x.chunks[0], [2 * 8] * x.numblocks[0], strict=True)) <= small
    assert -(-rows.nbytes // small) <= x.numblocks[0] <= job.threads + rows.nbytes // small
    tables.write_parquet(job, tables.frame_of({("a", "b"): x}), "rows")
    files = sorted((tmp_path / "rows").glob("*.parquet"))
    assert len(files) == x.numblocks[0] < 120
    np.testing.assert_array_equal(np.concatenate([pd.read_parquet(file).to_numpy() for file in files]), rows)


def test_little_data_is_one_chunk_and_few_chunks_stay(job: Job, small: int) -> None:
    assert tables.gathered(job, da.ones((900, 1), chunks=(10, 1))).numblocks == (1, 1)  # 7 kB: less than the least
    few = da.ones((90_000, 2), chunks=(80_000, 2))
    assert tables.gathered(job, few) is few
