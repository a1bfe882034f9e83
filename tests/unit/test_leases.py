"""One holder of each thing among processes that share a folder; what a holder that has ended held is free again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcml import leases
from hpcml.leases import Leases, LostError

RUNS = ("a", "b", "c")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every look be due."""
    monkeypatch.setattr(leases, "RENEW", 0.0)


class Ticks:
    """A clock that goes on by looking."""

    seconds = 0.0

    def tick(self) -> float:
        self.seconds += 10.0
        return self.seconds


def seconds(run: Leases) -> float:
    assert isinstance(run.clock, Ticks)
    return run.clock.seconds


def joined(folder: Path, run: str) -> Leases:
    return Leases(folder, run, RUNS, Ticks())


def test_a_point_is_of_one_run_alone(tmp_path: Path) -> None:
    runs = [joined(tmp_path, run) for run in RUNS]
    keys = [f"{number:016x}" for number in range(200)]
    with ThreadPoolExecutor(3) as pool:
        taken = list(pool.map(lambda run: [key for key in keys if run.take(key)], runs))
    assert sorted(key for one in taken for key in one) == keys
    assert not runs[0].free(keys)
    first = next(one for one in range(3) if taken[one])
    assert runs[(first + 1) % 3].take("f" * 16)  # of a run that goes on, however the threads raced
    runs[first].done(taken[first][0], failed=True)
    runs[first].end()
    again = joined(tmp_path, "d")
    given_back = [key for key in [*keys, "f" * 16] if again.take(key)]
    assert given_back == sorted(taken[first][1:])  # what had not ended
    assert again.count("failed") == 1


@pytest.mark.usefixtures("short")
def test_a_run_that_died_loses_its_points_to_one_other(tmp_path: Path) -> None:
    dead, other, third = (joined(tmp_path, run) for run in RUNS)
    assert dead.take("1" * 16)
    assert dead.take("2" * 16)
    dead.done("1" * 16, failed=False)
    since = seconds(other)
    assert not other.renew(often=True)
    assert not other.silent(since - 1)
    assert other.silent(other.scan()), "no sign of life after this"
    deadline = time.monotonic() + 120
    while not (other.renew(often=True) or third.renew(often=True)):
        assert time.monotonic() < deadline
    assert [other.take("2" * 16), third.take("2" * 16), other.take("1" * 16)] == [True, False, False]
    with pytest.raises(LostError):
        dead.take("3" * 16)
    with pytest.raises(LostError):
        dead.renew()
    dead.end()
    other.end()
    third.end()
    assert sorted(os.listdir(tmp_path)) == ["1" * 16, f"{'1' * 16}.ended"]


@pytest.mark.usefixtures("short")
def test_a_sign_of_life_that_is_noticed_late_may_be_the_last(tmp_path: Path) -> None:
    other, mine = (joined(tmp_path, run) for run in RUNS[:2])
    assert not mine.renew(often=True)
    os.utime(other.mine, (5, 5))
    since = mine.scan()
    assert not mine.renew(often=True)
    assert mine.silent(since), "it may have died since"
    os.utime(other.mine, (6, 6))
    assert not mine.renew(often=True)
    assert not mine.silent(since)
    other.end()
    assert not mine.silent(mine.scan()), "it has ended, and gave back what it had not"


@pytest.mark.usefixtures("short")
def test_a_run_that_was_silent_for_long_finds_out(tmp_path: Path) -> None:
    run = joined(tmp_path, "a")
    run.check()
    run.renewed -= leases.LEASE + 1
    with pytest.raises(LostError):
        run.check()


def test_a_run_whose_points_were_given_away_finds_out_before_its_lease_ends(tmp_path: Path) -> None:
    run = joined(tmp_path, "a")
    run.mine.unlink()
    run.renewed -= leases.LEASE / 2 + 1
    with pytest.raises(LostError):
        run.check()


@pytest.mark.usefixtures("short")
def test_a_run_that_gives_signs_of_life_keeps_its_points(tmp_path: Path) -> None:
    living, other = (joined(tmp_path, run) for run in RUNS[:2])
    assert living.take("1" * 16)
    for second in range(20):
        os.utime(living.mine, (second, second))
        assert not other.renew(often=True)
    assert seconds(other) > 2 * leases.LEASE
    assert not other.take("1" * 16)


def test_a_second_attempt_takes_over_what_the_first_left(tmp_path: Path) -> None:
    joined(tmp_path, "a").take("1" * 16)
    assert joined(tmp_path, "a").take("1" * 16)


# A process that takes what it can of some keys, says what, and waits.
TAKES = """
import sys
from pathlib import Path
from hpcml.leases import Leases
from hpcml.node.process_helpers import OwnTime

run = Leases(Path(sys.argv[1]), "a", ("a", "b", "c"), OwnTime())
print(*(key for key in sys.argv[2:] if run.take(key)), flush=True)
sys.stdin.readline()
"""


@pytest.mark.usefixtures("short")
def test_what_a_killed_process_held_is_free_at_once(tmp_path: Path) -> None:
    key, of_another = "1" * 16, "2" * 16
    words = [sys.executable, "-c", TAKES, str(tmp_path), key, of_another]
    living, third = joined(tmp_path, "b"), joined(tmp_path, "c")
    assert living.take(of_another)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == f"{key}\n"
        assert not third.renew(often=True)
        assert third.free([key, of_another]) == [], "both live"
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
        assert third.renew(often=True)
        assert third.free([key, of_another]) == [key]


@pytest.mark.usefixtures("short")
def test_a_link_or_a_damaged_file_in_place_of_a_run_is_no_run(tmp_path: Path) -> None:
    folder, target = tmp_path / "leases", tmp_path / "target"
    folder.mkdir()
    target.write_text(json.dumps(leases.this_process("b")._asdict()))
    before = target.stat()
    mine = joined(folder, "a")
    (folder / "alive-b").symlink_to(target)
    (folder / "alive-c").write_text('{"pid": -1}')
    for _ in range(20):
        assert not mine.renew(often=True)
    assert not mine.silent(mine.scan())
    holder = leases.read(target)
    assert holder
    with pytest.raises(OSError, match="the path is a link"):
        leases.read(folder / "alive-b")
    with pytest.raises(OSError, match="the path is a link"):
        leases.remove(folder / "alive-b", holder)
    assert not leases.place(folder / "alive-b", holder)
    (folder / ("1" * 16)).symlink_to(target)
    assert not mine.take("1" * 16)
    mine.end()
    assert sorted(os.listdir(folder)) == ["1" * 16, "alive-b", "alive-c"]
    assert (target.stat().st_mtime_ns, target.stat().st_nlink) == (before.st_mtime_ns, 1)


def test_the_file_of_a_holder_names_a_process(tmp_path: Path) -> None:
    path, me = tmp_path / "lock", leases.this_process("a")
    assert leases.read(path) is None
    records = [me._asdict() | {"pid": 0}, me._asdict() | {"pid": 1 << 40}, me._asdict() | {"time": None}]
    for wrong in (*records, []):
        path.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match="process"):
            leases.read(path)


def test_a_process_is_judged_where_its_number_is_known(subtests: pytest.Subtests) -> None:
    me = leases.this_process("a")
    ended = me._replace(pid=(1 << 22) + 1)
    for holder, has_ended in (
        (me, False), (ended, True), (me._replace(began="1"), True), (ended._replace(host="elsewhere"), False),
        (ended._replace(processes="pid:[1]"), False),
    ):  # fmt: skip
        with subtests.test(str(holder)):
            assert leases.has_ended(holder) == has_ended
