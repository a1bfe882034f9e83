"""A record that this account's hpcml did not make brings no file anywhere."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hpcml import outputs_brought_back
from hpcml.paths import RunPaths
from hpcml.runs import files_of_killed_runs


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "proj").mkdir()
    run = RunPaths(tmp_path / "runs" / "train-20260101-000000-aaaa")
    run.code.mkdir(parents=True)
    files_of_killed_runs.begin(run, run.directory, tmp_path / "proj")
    (run.code / "authorized_keys").write_text("mallory's")
    return run


def test_a_run_of_this_account_is_settled(run: RunPaths, tmp_path: Path) -> None:
    result = files_of_killed_runs.settle(run, 0)
    assert result
    assert not result.left
    assert (tmp_path / "proj" / "authorized_keys").exists()
    key = tmp_path / "home" / ".hpcml" / "record.key"
    assert key.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("what", ["no proof", "another folder", "another directory", "another key", "no key"])
def test_a_record_that_came_from_elsewhere_brings_nothing(run: RunPaths, tmp_path: Path, what: str) -> None:
    key = tmp_path / "home" / ".hpcml" / "record.key"
    if what == "no proof":
        outputs_brought_back.begin(run, tmp_path / "proj")
        (run.code / "authorized_keys").write_text("changed")
    elif what == "another folder":
        (tmp_path / "ssh").mkdir()
        run.copied.write_text(run.copied.read_text().replace("/proj", "/ssh"))
    elif what == "another directory":
        other = RunPaths(run.directory.with_name("train-20260101-000000-bbbb"))
        shutil.copytree(run.directory, other.directory)
        run = other
    elif what == "another key":
        key.write_bytes(bytes(32))
    else:
        key.unlink()
    result = files_of_killed_runs.settle(run, 0)
    assert result
    assert result.left == (outputs_brought_back.Left("authorized_keys", "the run's record was not made here"),)
    assert not list(tmp_path.glob("*/authorized_keys"))


def test_of_two_first_submissions_at_once_each_knows_its_own_record(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one makes the key between this one's look for it and its own."""
    key = tmp_path / "home" / ".hpcml" / "record.key"
    key.unlink()
    other = RunPaths(run.directory.with_name("train-20260101-000000-bbbb"))
    other.code.mkdir(parents=True)
    randoms, urandom = [1], os.urandom

    def slow(count: int) -> bytes:
        if randoms.pop() if randoms else 0:
            files_of_killed_runs.begin(other, other.directory, tmp_path / "proj")
        return urandom(count)

    monkeypatch.setattr(os, "urandom", slow)
    files_of_killed_runs.begin(run, run.directory, tmp_path / "proj")
    (other.code / "r.csv").write_text("1")
    for one in (run, other):
        result = files_of_killed_runs.settle(one, 0)
        assert result
        assert not [left for left in result.left if "not made here" in left.why]
    assert [path.name for path in key.parent.iterdir()] == ["record.key"]
