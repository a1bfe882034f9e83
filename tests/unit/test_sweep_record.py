"""Who may submit points of a sweep: one command at a time, and none is kept out by one that is gone."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hpcml import leases
from hpcml.errors import StorageError, UsageError
from hpcml.paths import RunPaths
from hpcml.runs import directories, handle
from hpcml.runs.status import Status
from hpcml.schedulers import Submission
from hpcml.sweeps import record


def plant(runs: Path, **facts: Any) -> Path:
    path = runs / "sweeps/job/lock"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(json.dumps(leases.this_process("job-1")._asdict() | {"time": 1.0} | facts))
    return path


def test_who_holds_a_sweep_and_who_no_longer(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: dict[str, tuple[dict[str, Any], bool]] = {
        "a living process": ({}, True),
        "one that has ended": ({"pid": 2**22 + 1}, False),
        "one of another machine": ({"host": "elsewhere"}, True),
        "one of another machine that has submitted": ({"host": "elsewhere"}, False),
    }
    for number, (what, (facts, holds)) in enumerate(cases.items()):
        runs = tmp_path / str(number)
        path = plant(runs, **facts)
        if what.endswith("has submitted"):
            (runs / "job-1").mkdir(mode=0o700)
            (runs / "job-1/submission.json").write_text('{"job": "7", "site": "x"}')
        with subtests.test(what):
            if not holds:
                with record.held(runs, "job", "job-2"):
                    assert json.loads(path.read_text())["run"] == "job-2"
                assert os.listdir(path.parent) == []
                continue
            with pytest.raises(UsageError, match="is submitting points of the sweep 'job'") as raised:
                record.held(runs, "job", "job-2").__enter__()
            assert ("remove" in str(raised.value.hint)) == bool(facts)
            assert os.listdir(path.parent) == ["lock"]


def test_of_many_at_once_one_gets_it(tmp_path: Path) -> None:
    inside, most = [], []

    def take(number: int) -> bool:
        try:
            with record.held(tmp_path, "job", f"job-{number}"):
                inside.append(number)
                most.append(len(inside))
                inside.remove(number)
        except UsageError:
            return False
        return True

    plant(tmp_path, pid=2**22 + 1)  # all find one that is gone
    with ThreadPoolExecutor(8) as pool:
        assert any(pool.map(take, range(64)))
    assert max(most) == 1
    assert os.listdir(tmp_path / "sweeps/job") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to another account")
def test_nothing_is_made_in_a_folder_of_another_account_s(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "sweeps", tmp_path / "elsewhere"
    elsewhere.mkdir()
    for linked in (False, True):
        if linked:
            folder.symlink_to(elsewhere)
        else:
            folder.mkdir()
            os.chown(folder, 65533, 65533)
        with pytest.raises(StorageError, match="not a folder that you own"), record.held(tmp_path, "points", "run"):
            pass
        assert list(folder.iterdir()) == []
        folder.unlink() if linked else folder.rmdir()


def test_leases_of_runs_that_go_on_stay(tmp_path: Path) -> None:
    used, left = record.new_leases(tmp_path, "job"), record.new_leases(tmp_path, "job")
    for folder in (used, left):
        folder.mkdir(parents=True, exist_ok=True)
    record.remove_leases(tmp_path, "job", frozenset({str(used)}))
    assert (used.is_dir(), left.is_dir()) == (True, False)


@pytest.mark.parametrize("restarts", [True, False])
def test_a_run_that_slurm_restarts_keeps_its_points(
    restarts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first attempt has written how it ended."""
    run = directories.Run("job-1", RunPaths(tmp_path / "job-1"), Submission(job="7", requeue=restarts))
    over = Status.of("job-1", phase="ended")
    run.paths.directory.mkdir(mode=0o700)
    monkeypatch.setattr(directories, "load", lambda _: run)
    monkeypatch.setattr(record, "given", lambda _: record.Given(["a"], ""))
    monkeypatch.setattr(handle, "standings", lambda _: [handle.Standing(run, over, alive=True)])
    found = record.progress(tmp_path, record.Sweep("job", runs=("job-1",)))
    assert found.under_way == ({"a": "job-1"} if restarts else {})
