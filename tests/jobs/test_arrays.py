"""jobs/workloads/arrays.py: the sum is NumPy's of the same numbers, theory is kept, chunks fit, nothing stays in memory."""

from __future__ import annotations

import argparse
import math
from typing import Any, cast

import dask.array as da
import numpy as np
import pytest

import arrays
from gallery import backend, memory, partitions, picture
from gallery.job import Job
from hpcml.units import format_bytes
from tests.jobs.job_tests import Refused, RunJob


def test_the_sum_is_numpys(run_job: RunJob) -> None:
    shape = rows, columns = 601, 403
    result, _ = run_job(arrays, "--rows", str(rows), "--columns", str(columns), "--chunk", "100kB", "--seed", "3")
    assert (result["shape"], result["bytes"]) == ([rows, columns], rows * columns * 8)
    assert result["chunk_bytes"] <= 110_000
    chunks = arrays.chunks_of(shape, 100_000)
    x = da.random.default_rng(3).standard_normal(shape, chunks=chunks).compute()
    assert result["sum"] == pytest.approx((x + 1)[::2, ::2].sum(), rel=1e-12)
    assert abs(result["sum_sigmas"]) < 5
    assert abs(result["variance_sigmas"]) < 5
    assert result["threads_used"] >= 1
    assert result["largest_result"] < 1_000  # no task gives a chunk away: it is drawn and summed by one


def test_a_wrong_sum_is_far_from_theory() -> None:
    y = da.random.default_rng(0).standard_normal((400, 400), chunks=100) + 1
    off = arrays.check(y.size + 10 * math.sqrt(y.size), y)
    assert off["sum_sigmas"] == pytest.approx(10)
    assert abs(off["variance_sigmas"]) < 5
    assert arrays.check(0.0, 2 * y)["variance_sigmas"] > 100


def test_the_picture_says_what_result_json_says_in_binary_units(
    run_job: RunJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[Any] = []
    real = picture.save

    def save(job: Job, name: str, figure: Any) -> None:
        drawn.append(figure)
        real(job, name, figure)

    monkeypatch.setattr(picture, "save", save)
    result, _ = run_job(arrays, "--size", "8MB")
    size, rate = result["bytes"], result["bytes"] / 1024**3 / result["seconds"]["sum"]
    title = f"{format_bytes(size)} in {result['seconds']['sum']:.4g} s, {rate:.4g} GiB/s"
    assert drawn[0].get_suptitle() == title
    assert title in capsys.readouterr().out
    flow = drawn[0].axes[1]
    assert flow.get_ylabel() == "GiB/s"
    heights, edges, _ = flow.patches[0].get_data()
    assert (heights * np.diff(edges)).sum() == pytest.approx(size / 1024**3, rel=0.01)


@pytest.mark.parametrize("shape", [(500_000, 500_000), (3, 10**9), (10**9, 2), (1, 1), (7, 7)])
def test_chunks_are_as_large_as_asked_and_even(shape: tuple[int, int]) -> None:
    rows, columns = arrays.chunks_of(shape, 10**9)
    assert rows % 2 == columns % 2 == 0
    assert rows * columns * 8 <= 1.05 * 10**9
    if shape[0] * shape[1] > 10**9:
        assert rows * columns * 8 >= 0.5 * 10**9


def test_sizes_and_shapes_of_options() -> None:
    assert arrays.shape_of(arrays.parse(["--size", "2TB"])) == (500_000, 500_000)
    assert arrays.shape_of(arrays.parse(["--size", "8MB", "--rows", "1000"])) == (1000, 1000)
    assert arrays.shape_of(arrays.parse(["--columns", "10", "--size", "800B"])) == (10, 10)
    assert arrays.shape_of(arrays.parse(["--columns", "10", "--rows", "3"])) == (3, 10)
    with pytest.raises(argparse.ArgumentTypeError):
        arrays.sized("big")


def test_a_chunk_that_does_not_fit_is_refused(refused: Refused) -> None:
    assert "Lower --chunk to" in refused(arrays, "--size", "1TB", "--chunk", "200GB")


@pytest.mark.parametrize(
    ("total", "expected"),
    [(2 * 10**9, 10**9), (10**12, 141 * 10**9 // 32), (10**11, 10**11 // 32)],
    ids=["a small array", "a large one", "in between: eight for each of four GPUs"],
)
def test_chunks_on_gpus_are_larger_where_there_are_enough_for_all(
    monkeypatch: pytest.MonkeyPatch, total: int, expected: int
) -> None:
    has = memory.Capacity(nodes=1, workers=4, memory=4 * 141 * 10**9, room=0)
    monkeypatch.setattr(memory, "capacity", lambda _client: has)
    monkeypatch.setattr(partitions, "wanted", lambda _client: 10**9)
    job = cast("Job", argparse.Namespace(client=None, threads=4))
    assert arrays.chunk_bytes(job, None, total) == 10**9, "CPUs"
    monkeypatch.setattr(backend, "on_gpu", lambda: True)
    assert arrays.chunk_bytes(job, None, total) == expected
