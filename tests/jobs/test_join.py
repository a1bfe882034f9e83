"""jobs/workloads/join.py: what comes out is pandas' merge, by shuffle and by broadcast, whatever the partitions."""

from __future__ import annotations

import json
import pathlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import join
from gallery import backend, exchange, memory, partitions, picture
from gallery.job import LOST
from tests.jobs.job_tests import RunJob

ROWS, OTHER, KEYS, SEED = 20_000, 400, 300, 5
OPTIONS = ["--rows", str(ROWS), "--right", str(OTHER), "--keys", str(KEYS), "--seed", str(SEED)]


def merged() -> pd.DataFrame:
    left, right = (join.part((0, rows), side, KEYS, SEED) for side, rows in ((join.LEFT, ROWS), (join.RIGHT, OTHER)))
    return left.merge(right, on="key")


@pytest.mark.parametrize(
    "way", [["--how", "shuffle"], ["--shuffle", "tasks"], ["--shuffle", "direct"], ["--how", "broadcast"]]
)
def test_the_result_is_pandas(run_job: RunJob, way: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "LEAST", 30_000)
    monkeypatch.setattr(partitions, "CPU", 30_000)
    result, _ = run_job(join, *OPTIONS, *way)
    if "direct" in way:
        assert result["partitions"] == {"left": 2, "right": 2}  # one for each thread
    else:
        assert result["partitions"]["left"] > 5
        assert result["partitions"]["right"] == (1 if "broadcast" in way else result["partitions"]["left"])
    assert result["sums"] == join.summary(merged()).iloc[0].to_dict()
    assert result["rows_joined"] == len(merged())
    assert result["right_result"] is True
    assert result["bytes"] == 16 * (ROWS + OTHER)
    assert ("shuffle" in result) == ("broadcast" not in way)
    if "broadcast" not in way:  # of two workers' rows half are the other's
        assert result["bytes_moved"] > 0.4 * result["bytes"]


def test_the_picture_has_binary_units(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(picture, "save", lambda _job, _name, figure: drawn.append(figure))
    result = {
        "rows_left": 20,
        "rows_right": 10,
        "bytes": 3 * 1024**3,
        "bytes_moved": 5 * 1024**2,
        "seconds": {"join": 2.0},
    }
    job: Any = SimpleNamespace(result=result, options=SimpleNamespace(how="shuffle"))
    join.draw(job, [], pd.Series([1, 2]))
    assert drawn[0].get_suptitle() == "20 ⋈ 10 rows by shuffle: 2 s, 1.5 GiB/s"
    assert drawn[0].axes[1].get_title() == "5.0 MiB moved"


@pytest.mark.parametrize("count", [1, 3, 50])
def test_rows_are_divided_by_their_keys(count: int) -> None:
    frame = join.part((0, 300), join.LEFT, 40, SEED).set_index(np.full(300, 7))
    pieces = exchange.divided(frame, "key", count)
    assert len(pieces) == count
    pd.testing.assert_frame_equal(pd.concat(pieces).sort_values(["key", "left"]), frame.sort_values(["key", "left"]))
    homes = [set(piece["key"]) for piece in pieces]
    assert sum(map(len, homes)) == 40  # no key is in two
    assert homes == [set(piece["key"]) for piece in exchange.divided(frame[::-1], "key", count)]
    assert [len(piece) for piece in exchange.divided(frame[:0], "key", count)] == [0] * count


def test_few_parts_are_as_large_as_a_worker_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(memory_of_one: int, rows: int, threads: int = 4, limit: int = 0) -> int:
        monkeypatch.setattr(memory, "capacity", lambda _: memory.Capacity(1, threads, threads * memory_of_one, 0))
        limits = {str(number): {"memory_limit": limit} for number in range(threads)}
        client = SimpleNamespace(scheduler_info=lambda **_: {"workers": limits})
        job: Any = SimpleNamespace(client=client, threads=threads, options=SimpleNamespace(keys=rows // 200))
        return join.direct_parts(job, {join.LEFT: rows, join.RIGHT: rows // 100})

    assert parts(141 << 30, 1_000_000_000) == 4  # of 12 GB each
    assert parts(80 << 30, 1_000_000_000) == 8
    assert parts(141 << 30, 1_000_000_000, threads=2) == 4
    assert parts(141 << 30, 1_000_000_000, limit=100 << 30) == 4
    assert (
        parts(141 << 30, 1_000_000_000, limit=6 << 30) == 8
    )  # of the host's memory: Dask counts what lies on GPUs in it
    assert parts(1000 << 30, 10_000_000_000) == 12  # cuDF numbers rows by 32 bits


def test_sums_tell_a_wrong_pairing() -> None:
    right = merged()
    wrong = right.assign(right=right["right"].to_numpy()[::-1])
    sums = [join.summary(frame).iloc[0].to_dict() for frame in (right, wrong)]
    assert sums[0].pop("products") != sums[1].pop("products")
    assert sums[0] == sums[1]


def test_a_wrong_join_ends_the_job(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(join, "expected", lambda *_: dict.fromkeys(join.SUMS, 0))
    assert join.main([*OPTIONS, "--out", str(tmp_path)]) == LOST
    assert "join: the join is wrong: " in capsys.readouterr().err
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["right_result"], result["complete"]) == (False, False)


def test_rows_are_a_function_of_their_numbers() -> None:
    whole = join.part((0, 50_000), join.LEFT, 100, 1)
    parts = pd.concat([join.part(span, join.LEFT, 100, 1) for span in ((0, 7), (7, 20_000), (20_000, 50_000))])
    pd.testing.assert_frame_equal(whole, parts.reset_index(drop=True))
    counts = whole["key"].value_counts()
    assert len(counts) == 100
    expected = 50_000 / 100
    assert ((counts - expected) ** 2 / expected).sum() < 160  # chi-squared of 99 degrees: 1 in 10,000
    assert abs(np.corrcoef(whole["key"], whole["left"])[0, 1]) < 0.02
    assert (join.part((0, 50), join.RIGHT, 100, 1)["key"] != whole["key"][:50]).any()


def test_mixing_is_splitmix64() -> None:
    # Rosetta Code's first outputs for the seed 1234567; its state grows by the golden gamma before each.
    salt = 1234567 * pow(0xD1342543DE82EF95, -1, 2**64) % 2**64
    found = join.mixed(np.arange(1, 4, dtype="uint64"), salt)
    assert found.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_cudf_is_exchanged_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cudf:
        __name__ = "cudf"

    assert join.shuffle_method(None) == "p2p"
    monkeypatch.setattr(backend, "tables", lambda: Cudf)
    Cudf.__name__ = "cudf"
    assert join.shuffle_method(None) == "direct"
