"""The gallery's jobs on two workers of this process: how every job's tests run it, read its result and see it refuse."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from distributed import Client, LocalCluster

import hpcml
from gallery import datasets
from gallery.kinds import KINDS
from tests.jobs.job_list import shape
from tests.jobs.job_tests import InARun, Made, Refused, RunJob


@pytest.fixture(scope="module")  # tests of another tier, in the same process, close Dask's event loop
def client() -> Iterator[Client]:
    no_page: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, **no_page)
    with cluster, Client(cluster) as client:
        yield client


@pytest.fixture(autouse=True)
def connected(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hpcml, "connect", lambda **_: contextlib.nullcontext(client))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Return a function that writes a data set, at the first call for it, and returns its folder."""

    @functools.cache
    def made(kind: str, rows: int, partitions: int = 3, form: str = "parquet") -> pathlib.Path:
        name, how = shape(kind)
        folder = tmp_path_factory.mktemp("data") / f"made {name}"
        datasets.write(folder, KINDS[name](**how), rows=rows, partitions=partitions, form=form)
        return folder

    return made


@pytest.fixture
def run_job(tmp_path: pathlib.Path) -> RunJob:
    """Return a function that runs a job's module with options, and returns result.json and the results' folder."""
    numbers = itertools.count()

    def run_job(job: ModuleType, *arguments: str | pathlib.Path) -> tuple[dict[str, Any], pathlib.Path]:
        out = tmp_path / f"out {next(numbers)}"
        assert job.main([*map(str, arguments), "--out", str(out)]) == 0
        result = json.loads((out / "result.json").read_text())
        assert result["complete"] is True
        assert result["job"] == job.__name__
        for path in out.glob("*.png"):
            assert path.read_bytes().startswith(b"\x89PNG")
        assert not [
            path for path in out.iterdir() if path.name.startswith(".")
        ]  # unfinished, or data for the job alone
        return result, out

    return run_job


@pytest.fixture
def in_a_run(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> InARun:
    """Have the jobs of this test take themselves for attempts of one run, which a test can end."""
    saves: list[Callable[[], object]] = []
    (tmp_path / "a run").mkdir()
    monkeypatch.setattr(type(hpcml.run), "directory", tmp_path / "a run")
    monkeypatch.setattr(type(hpcml.run), "on_stop", lambda _, save, **__: saves.append(save))

    def end() -> None:
        saves[-1]()
        hpcml.run.stop()

    def stops(job: ModuleType, *arguments: str | pathlib.Path) -> None:
        out = tmp_path / "stopped"
        assert job.main([*map(str, arguments), "--out", str(out)]) == 92
        assert json.loads((out / "result.json").read_text())["complete"] is False

    return InARun(end, stops)


@pytest.fixture
def refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return a function that runs a job that must refuse: status 2, one sentence, nothing left; returns the sentence."""

    def refused(job: ModuleType, *arguments: str | pathlib.Path) -> str:
        out = tmp_path / "refused"
        assert job.main([*map(str, arguments), "--out", str(out)]) == 2
        sentence = capsys.readouterr().err
        assert sentence.startswith(f"{job.__name__}: ")
        assert sentence.count("\n") == 1
        left = [path.name for path in out.iterdir()] if out.exists() else []
        assert not left, left
        return sentence

    return refused
