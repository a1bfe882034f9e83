"""The samples of a run, read back: whole files, their ends, and what others or a full disk made of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcml import kinds, samples
from hpcml.kinds.dask.samples import SCHEMA, DaskSample, FunctionSample, Moved, Tasks, ThreadSeconds, WorkerSample
from hpcml.paths import AttemptPaths
from hpcml.samples import DiskTraffic, Gpu, GpuSample, NodeHeader, NodeSample, Pressure, Scope, Traffic
from tests.said import says

KIND = kinds.get("dask")
HEADER = NodeHeader("n1", 1000.25, 5.0, 48, 1 << 38, Scope("cgroup", "cgroup", "host"),
                    (Gpu(2, "GPU-1", "NVIDIA H200", 1 << 37, 700.0),), ("eth0",), ("mlx5_0/1",))  # fmt: skip
GPU = GpuSample(97, 1 << 36, 512.5, 61, 1980, 4, Traffic(10, 20), Traffic(30, 40), 123456.8)
SAMPLE = NodeSample(
    1001.25, 1.5, 1 << 30, 0, Pressure(0.5, None, 1.25), Traffic(1, 2), Traffic(3, 4), DiskTraffic(5, 6), (GPU,)
)
WORKER = WorkerSample(2, 1 << 29, 7, 99.5, 8, 1)
FUNCTION = FunctionSample(4, 2.5, 1.25)
DASK = DaskSample(
    1002.0, Tasks(9, 4, 2, 1, 1, 1), ThreadSeconds(execute=3.5), Moved(spill=7), {"n1-0": WORKER}, {"sum": FUNCTION}
)
HEADERS = {"node": HEADER.as_json(), "dask": samples.header(SCHEMA, t=1000.0, every=5.0)}


def at(t: float) -> NodeSample:
    return SAMPLE._replace(t=t)


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    paths = AttemptPaths(tmp_path)
    paths.samples_of("n1").parent.mkdir(parents=True)
    return paths


def test_of_large_files_some_samples_are_taken(attempt: AttemptPaths) -> None:
    """Each header and each event stays, and so does the last sample."""
    xid = {"t": 1500.0, "event": "xid", "gpu": 0, "xid": 79}
    rows = [at(1001.0 + number) for number in range(1000)]
    for name in ("n1", "n2"):
        attempt.samples_of(name).write_text(lines(HEADERS["node"], *rows[:500], xid, *rows[500:]))
    size = attempt.samples_of("n1").stat().st_size
    assert samples.step(attempt, 2 * size) == 1
    assert samples.step(attempt, size) == 2
    assert samples.nodes(attempt, 2 * size)["n1"] == samples.nodes(attempt)["n1"]
    for series in samples.nodes(attempt, size // 5 + 1).values():
        assert len(series.samples) == 100
        assert series.samples[-1].t == 2000.0
        assert series.header.every == 10 * HEADER.every
        assert len(series.events) == 1


def lines(*tables: object) -> str:
    return "".join(json.dumps(table) + "\n" for table in tables)


def test_what_was_written_is_read(attempt: AttemptPaths) -> None:
    xid, oom = {"t": 1003.0, "event": "xid", "gpu": 0, "xid": 79}, {"t": 1004.0, "event": "oom", "kills": 2}
    attempt.samples_of("n1").write_text(lines(HEADERS["node"], SAMPLE, xid, at(1006.25), oom))
    attempt.samples_of_kind("dask").write_text(lines(HEADERS["dask"], DASK))
    (name, series), = samples.nodes(attempt).items()  # fmt: skip
    assert name == series.header.node == "n1"
    assert series.header == HEADER
    assert series.samples == (SAMPLE, at(1006.25))
    assert series.events == (samples.Event(1003.0, "xid", 0, 79), samples.Event(1004.0, "oom", kills=2))
    assert samples.of_kind(attempt, KIND) == samples.Series(5.0, (DASK,))
    assert samples.of_kind(attempt, kinds.get("ranks")) is None


def test_columns_are_read_by_their_names(attempt: AttemptPaths) -> None:
    """An hpcml of another version may have written more columns, fewer, or others first."""
    header = HEADER.as_json()
    header["columns"] = {"NodeSample": ["t", "new", "gpus", "net", "cpu"], "GpuSample": ["energy", "use"], "Traffic": ["sent"]}  # fmt: skip
    attempt.samples_of("n1").write_text(lines(header, [1001.25, {}, [[7, 9]], [2], 1.5]))
    (sample,) = samples.nodes(attempt)["n1"].samples
    gpu = GpuSample(use=9, energy=7)
    assert sample == NodeSample(1001.25, 1.5, net=Traffic(None, 2), gpus=(gpu,))


def row(t: object) -> bytes:
    return json.dumps([t, *SAMPLE[1:]]).encode()


def test_damage_costs_the_damaged_line_alone(attempt: AttemptPaths, subtests: pytest.Subtests) -> None:
    damaged = {
        "half a line": b'{"t": 1002.0, "cp', "bytes": b"\xff\xfe\x00", "columns too few": b"[1, 2]", "no table": b"5",
        "a time that is none": row("now"), "true": row(True), "no number": row(float("nan")), "without end": b"[" * 100_000,
    }  # fmt: skip
    for name, line in damaged.items():
        with subtests.test(name):
            content = lines(HEADERS["node"], SAMPLE).encode() + line + b"\n" + lines(at(1006.25)).encode()
            attempt.samples_of("n1").write_bytes(content)
            assert [sample.t for sample in samples.nodes(attempt)["n1"].samples] == [1001.25, 1006.25]
            last = samples.last_of_node(attempt.samples_of("n1"))
            assert last is not None
            assert [sample.t for sample in last.samples] == [1001.25, 1006.25]


def test_samples_without_a_time_are_none(attempt: AttemptPaths) -> None:
    header = HEADERS["node"]
    header = header | {"columns": header["columns"] | {"NodeSample": [1.0, *header["columns"]["NodeSample"][1:]]}}
    attempt.samples_of("n1").write_text(lines(header, SAMPLE))
    assert samples.nodes(attempt)["n1"].samples == ()


def test_a_line_that_is_being_written_is_left_out(attempt: AttemptPaths) -> None:
    attempt.samples_of("n1").write_text(lines(HEADERS["node"], SAMPLE) + lines(at(1006.25)).rstrip())
    assert [sample.t for sample in samples.nodes(attempt)["n1"].samples] == [1001.25]


def test_the_last_samples_are_read_from_the_end(attempt: AttemptPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_HEAD", 1000)
    monkeypatch.setattr(samples, "_TAIL", 2000)
    path = attempt.samples_of("n1")
    for count in (1, 7, 400):
        path.write_text(lines(HEADERS["node"], *(at(1000.0 + number) for number in range(count))))
        last = samples.last_of_node(path)
        assert last is not None
        assert last.header.node == "n1"
        assert [sample.t for sample in last.samples] == [1000.0 + number for number in range(count)][-2:]
    attempt.samples_of_kind("dask").write_text(lines(HEADERS["dask"], *([DASK] * 50)))
    dask = samples.last_of_kind(attempt, KIND, 1)
    assert dask is not None
    assert dask.samples[0].tasks.known == 9
    assert len(dask.samples) == 1


def test_files_that_others_made(attempt: AttemptPaths, tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = attempt.samples_of("n1")
    secret = tmp_path / "secret"
    secret.write_text(lines(HEADERS["node"], SAMPLE))

    def hole() -> None:
        path.touch()
        os.truncate(path, 1 << 40)

    ways: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to(secret),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "hole": hole,
    }
    for name, make in ways.items():
        with subtests.test(name):
            make()
            assert samples.nodes(attempt) == {}
            assert samples.last_of_node(path) is None
            path.rmdir() if path.is_dir() else path.unlink()
    with subtests.test("nothing"):
        assert samples.nodes(AttemptPaths(tmp_path / "none")) == {}
        assert samples.of_kind(AttemptPaths(tmp_path / "none"), KIND) is None


def test_a_machine_s_own_kills_are_not_said_to_be_the_run_s() -> None:
    event = samples.Event(1.0, "oom", kills=2)
    of_the_job = says("n1", "ran out of memory: the kernel killed 2")
    assert event.sentence("n1", of_host=False, of_xid=str) == of_the_job
    of_any = "perhaps another program on n1 ran out of memory: the kernel killed 2 processes (the kernel counts "
    assert event.sentence("n1", of_host=True, of_xid=str).startswith(of_any)
