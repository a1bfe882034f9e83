"""What a job does when its workers are short of memory, or lost: it spills and says so, is refused, or goes on."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import dask
import pytest
import zict
from distributed import Client, LocalCluster

import hpcml
import kmeans
from gallery import backend, datasets, inputs, kinds, memory, spill
from gallery.job import Job
from tests.jobs.job_tests import Refused, RunJob

BLOBS = kinds.Blobs(features=8, centres=4)  # 64 bytes a row
ROWS, LIMIT = 120_000, 2_560_000  # of two workers: the data is 1.5 times their memory
# Only Dask's own results count here, so that limits far below what Python and its libraries take can be tried.
BY_RESULTS = {f"distributed.worker.memory.{name}": False for name in ("spill", "pause", "terminate")}
NO_PAGE: dict[str, Any] = {"dashboard_address": "127.0.0.1:0", "scheduler_kwargs": {"dashboard": False}}


@contextlib.contextmanager
def cluster_of(limit: int, *, processes: bool) -> Iterator[Client]:
    with (
        dask.config.set(BY_RESULTS),
        LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=limit, processes=processes, **NO_PAGE) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def processes() -> Iterator[Client]:
    with cluster_of(LIMIT, processes=True) as client:
        yield client


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Two workers of a tenth of the data's size together."""
    with cluster_of(ROWS * 64 // 20, processes=False) as client:
        monkeypatch.setattr(hpcml, "connect", lambda **_: contextlib.nullcontext(client))
        yield client


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("data") / "blobs"
    datasets.write(folder, BLOBS, rows=ROWS, partitions=24)
    return folder


def test_data_of_one_and_a_half_times_the_memory_is_spilled(
    run_job: RunJob, processes: Client, blobs: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hpcml, "connect", lambda **_: contextlib.nullcontext(processes))
    result, _ = run_job(kmeans, "--data", blobs, "--k", "4")
    assert result["rows"] == ROWS
    assert result["memory"] == 2 * LIMIT
    assert result["memory_needed"] > 1.5 * result["memory"]
    assert result["spilled"]["disk"] > ROWS * 64 - 2 * LIMIT  # what has no place in memory, at least once
    assert result["spilled"]["host"] == 0
    assert any("it will spill" in note for note in result["notes"])
    assert any(note.startswith("Memory was short: ") and "to disk were spilled" in note for note in result["notes"])


def test_ten_times_the_memory_is_refused_before_it_is_read(refused: Refused, tiny: Client, blobs: pathlib.Path) -> None:
    sentence = refused(kmeans, "--data", blobs, "--k", "4")
    limit, need = 2 * (ROWS * 64 // 20), kmeans.COPIES * ROWS * 64
    assert f"{need / limit:.1f} times the memory of the workers" in sentence
    assert f"on 1 node). Ask for --nodes {-(-need // int(limit * 0.6)):.0f}, or try it with --any-size." in sentence
    assert not any(spill.counts(tiny)[worker]["disk"] for worker in spill.counts(tiny))


def test_what_a_library_takes_at_once_on_gpus_is_refused_though_there_is_room_to_spill(
    refused: Refused, blobs: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ROWS * 64
    gpus = memory.Capacity(nodes=2, workers=4, memory=data // 2, room=100 * data, fill=data * 4 // 10)
    monkeypatch.setattr(memory, "capacity", lambda _: gpus)
    monkeypatch.setattr(backend, "on_gpu", lambda: True)
    sentence = refused(kmeans, "--data", blobs, "--k", "4")
    assert "of the GPUs at once, 2.0 times their memory" in sentence
    assert (
        "on 2 nodes): the library is given all rows of a GPU in one call, and they cannot be spilled. Ask for --nodes 10,"
        in sentence
    )


def test_any_size_tries_it_all_the_same(run_job: RunJob, tiny: Client, blobs: pathlib.Path) -> None:
    result, _ = run_job(kmeans, "--data", blobs / "part-0000[0-9].parquet", "--k", "4", "--any-size")
    assert result["memory_needed"] > memory.MOST * result["memory"]
    assert result["spilled"]["disk"] > 0


def test_rows_of_text_are_told_from_the_length_of_its_lines(
    refused: Refused, tiny: Client, tmp_path: pathlib.Path
) -> None:
    for form, rows in (("json", 20_000), ("csv", 64_000)):
        datasets.write(tmp_path / form, BLOBS, rows=rows, partitions=3, form=form)
        source = inputs.survey(tiny, str(tmp_path / form), [])
        assert source.rows is None
        assert memory.rows(source) == pytest.approx(rows, rel=0.02)
    assert "Ask for --nodes" in refused(kmeans, "--data", tmp_path / "csv")


class LikeDeviceHostFile:
    """Two of zict's buffers, one on the other, as dask-cuda's DeviceHostFile puts them together."""

    def __init__(self) -> None:
        self.host_buffer: Any = zict.Buffer({}, {}, 30, weight=lambda _, value: len(value))
        down = zict.Func(bytes, bytes, self.host_buffer)
        self.device_buffer = zict.Buffer({}, down, 20, weight=lambda _, value: len(value))


def test_gpu_workers_are_counted_by_their_buffers() -> None:
    class Worker:
        data = LikeDeviceHostFile()

    before = {"w": spill.of_worker(Worker)}
    for number in range(8):  # 80 bytes: 20 stay, 60 go to the host, of which 30 go on to disk
        Worker.data.device_buffer[str(number)] = bytes(10)
    after = {"w": spill.of_worker(Worker)}
    assert spill.since(before, after) == {"host": 60, "disk": 30}
    assert "60 B from the GPUs to host memory and 30 B to disk" in spill.sentence(after["w"])


def test_a_worker_killed_during_the_fit_changes_nothing(
    processes: Client, run_job: RunJob, blobs: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks are read again by others; the result is that of an undisturbed run."""
    monkeypatch.setattr(hpcml, "connect", lambda **_: contextlib.nullcontext(processes))
    few = blobs / "part-0000[0-3].parquet"
    undisturbed, _ = run_job(kmeans, "--data", few, "--k", "4")
    phase, killed = Job.phase, []

    @contextlib.contextmanager
    def phase_with_a_loss(self: Job, name: str, *, last: bool = False) -> Iterator[None]:
        with phase(self, name, last=last):
            if name == "fit":
                killed.append(next(iter(processes.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)
            yield

    monkeypatch.setattr(Job, "phase", phase_with_a_loss)
    result, out = run_job(kmeans, "--data", few, "--k", "4")
    assert killed
    assert killed[0] not in processes.run(os.getpid).values()
    assert result["inertia"] == pytest.approx(undisturbed["inertia"], rel=1e-9)
    assert result["sizes"] == undisturbed["sizes"]
    assert json.loads((out / "result.json").read_text())["rows"] == undisturbed["rows"]
