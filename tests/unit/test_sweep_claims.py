"""Several runs divide the points of a sweep: each point is of one, and those of a run that died are free again."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcml.node.sweep import claims
from hpcml.node.sweep.claims import Claims, LostError

RUNS = ("a", "b", "c")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes on by looking."""
    monkeypatch.setattr(claims, "RENEW", 0.0)
    monkeypatch.setattr(claims, "OwnTime", Ticks)


class Ticks:
    seconds = 0.0

    def tick(self) -> float:
        self.seconds += 10.0
        return self.seconds


def test_a_point_is_of_one_run_alone(tmp_path: Path) -> None:
    runs = [Claims(tmp_path, run, RUNS) for run in RUNS]
    keys = [f"{number:016x}" for number in range(200)]
    with ThreadPoolExecutor(3) as pool:
        taken = list(pool.map(lambda run: [key for key in keys if run.take(key)], runs))
    assert sorted(key for one in taken for key in one) == keys
    assert not runs[0].any_free(keys)
    first = next(one for one in range(3) if taken[one])
    runs[first].ended(taken[first][0], failed=True)
    runs[first].end()
    again = Claims(tmp_path, "d", RUNS)
    assert [key for key in keys if again.take(key)] == sorted(taken[first][1:])  # what had not ended was given back
    assert again.failures() == 1


@pytest.mark.usefixtures("short")
def test_a_run_that_died_loses_its_points_to_one_other(tmp_path: Path) -> None:
    dead, other, third = (Claims(tmp_path, run, RUNS) for run in RUNS)
    assert dead.take("1" * 16)
    assert dead.take("2" * 16)
    dead.ended("1" * 16, failed=False)
    since = other.clock.seconds
    assert not other.look(often=True)
    assert not other.silent(since - 1)
    assert other.silent(other.roll_call()), "no sign of life after this"
    deadline = time.monotonic() + 120
    while not (other.look(often=True) or third.look(often=True)):
        assert time.monotonic() < deadline
    assert [other.take("2" * 16), third.take("2" * 16), other.take("1" * 16)] == [True, False, False]
    with pytest.raises(LostError):
        dead.take("3" * 16)
    with pytest.raises(LostError):
        dead.look()
    dead.end()
    other.end()
    third.end()
    assert sorted(os.listdir(tmp_path)) == ["1" * 16, f"{'1' * 16}.ended"]


@pytest.mark.usefixtures("short")
def test_a_sign_of_life_that_is_noticed_late_may_be_the_last(tmp_path: Path) -> None:
    other, mine = (Claims(tmp_path, run, RUNS) for run in RUNS[:2])
    assert not mine.look(often=True)
    os.utime(other.mine, (5, 5))
    since = mine.roll_call()
    assert not mine.look(often=True)
    assert mine.silent(since), "it may have died since"
    os.utime(other.mine, (6, 6))
    assert not mine.look(often=True)
    assert not mine.silent(since)
    other.end()
    assert not mine.silent(mine.roll_call()), "it has ended, and gave back what it had not"


@pytest.mark.usefixtures("short")
def test_a_run_that_was_silent_for_long_finds_out(tmp_path: Path) -> None:
    run = Claims(tmp_path, "a", RUNS)
    run.check()
    run.renewed -= claims.LEASE + 1
    with pytest.raises(LostError):
        run.check()


def test_a_run_whose_points_were_given_away_finds_out_before_its_lease_ends(tmp_path: Path) -> None:
    run = Claims(tmp_path, "a", RUNS)
    run.mine.unlink()
    run.renewed -= claims.LEASE / 2 + 1
    with pytest.raises(LostError):
        run.check()


@pytest.mark.usefixtures("short")
def test_a_run_that_gives_signs_of_life_keeps_its_points(tmp_path: Path) -> None:
    living, other = (Claims(tmp_path, run, RUNS) for run in RUNS[:2])
    assert living.take("1" * 16)
    for second in range(20):
        os.utime(living.mine, (second, second))
        assert not other.look(often=True)
    assert other.clock.seconds > 2 * claims.LEASE
    assert not other.take("1" * 16)


def test_a_second_attempt_takes_over_what_the_first_left(tmp_path: Path) -> None:
    Claims(tmp_path, "a", RUNS).take("1" * 16)
    assert Claims(tmp_path, "a", RUNS).take("1" * 16)
