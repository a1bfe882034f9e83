"""The samples of a run, read back: whole files, their ends, and what others or a full disk made of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hpcml import samples
from hpcml.paths import AttemptPaths

HEADER: dict[str, Any] = {
    "kind": "node", "version": 1, "node": "n1", "t": 1000.25, "every": 5.0, "cores": 48, "memory": 1 << 38, "memory_of": "cgroup",
    "gpus": [{"index": 2, "uuid": "GPU-1", "name": "NVIDIA H200", "memory": 1 << 37, "power_limit": 700.0}],
    "interfaces": ["eth0"], "infiniband": ["mlx5_0/1"],
}  # fmt: skip
GPU = [97, 1 << 36, 512.5, 61, 1980, 4, 10, 20, 30, 40, 123456789]
SAMPLE: dict[str, Any] = {"t": 1001.25, "cpu": 1.5, "memory": 1 << 30, "swap": 0, "pressure": [0.5, None, 1.25], "net": [1, 2],
                          "ib": [3, 4], "disk": [5, 6], "gpus": [GPU]}  # fmt: skip
DASK: dict[str, Any] = {
    "t": 1002.0, "tasks": {"known": 9, "done": 4, "processing": 2, "waiting": 1, "queued": 1, "erred": 1},
    "workers": {"n1-0": [2, 1 << 29, 7, 99.5]}, "metrics": {"execute": 3.5, "spill_bytes": 7},
}  # fmt: skip


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptPaths:
    paths = AttemptPaths(tmp_path)
    paths.samples_of("n1").parent.mkdir(parents=True)
    return paths


def test_of_large_files_some_samples_are_taken(attempt: AttemptPaths) -> None:
    """Each header and each event stays, and so does the last sample."""
    xid = {"t": 1500.0, "event": "xid", "gpu": 0, "xid": 79}
    rows = [{**SAMPLE, "t": 1001.0 + number} for number in range(1000)]
    for name in ("n1", "n2"):
        attempt.samples_of(name).write_text(lines(HEADER, *rows[:500], xid, *rows[500:]))
    size = attempt.samples_of("n1").stat().st_size
    assert samples.step(attempt, 2 * size) == 1
    assert samples.step(attempt, size) == 2
    assert samples.nodes(attempt, 2 * size)["n1"] == samples.nodes(attempt)["n1"]
    for series in samples.nodes(attempt, size // 5 + 1).values():
        assert len(series.samples) == 100
        assert series.samples[-1].t == 2000.0
        assert series.header.every == 10 * HEADER["every"]
        assert len(series.events) == 1


def lines(*tables: object) -> str:
    return "".join(json.dumps(table) + "\n" for table in tables)


def test_what_was_written_is_read(attempt: AttemptPaths) -> None:
    xid, oom = {"t": 1003.0, "event": "xid", "gpu": 0, "xid": 79}, {"t": 1004.0, "event": "oom", "kills": 2}
    attempt.samples_of("n1").write_text(lines(HEADER, SAMPLE, xid, {**SAMPLE, "t": 1006.25, "new": {}}, oom))
    attempt.dask_samples.write_text(lines({"kind": "dask", "version": 1, "t": 1000.0, "every": 5.0}, DASK))
    (name, series), = samples.nodes(attempt).items()  # fmt: skip
    assert name == series.header.node == "n1"
    assert series.header.gpus == (samples.Gpu(2, "GPU-1", "NVIDIA H200", 1 << 37, 700.0),)
    assert (series.header.cores, series.header.memory_of, series.header.infiniband) == (48, "cgroup", ("mlx5_0/1",))
    assert [sample.t for sample in series.samples] == [1001.25, 1006.25]
    first = series.samples[0]
    assert (first.cpu, first.pressure, first.net, first.ib, first.disk) == (
        1.5,
        (0.5, None, 1.25),
        (1, 2),
        (3, 4),
        (5, 6),
    )
    assert first.gpus == (samples.GpuSample(*GPU),)
    assert (first.gpus[0].use, first.gpus[0].throttle, first.gpus[0].energy) == (97, 4, 123456789)
    assert series.events == (samples.Event(1003.0, "xid", 0, 79), samples.Event(1004.0, "oom", kills=2))
    dask = samples.dask(attempt)
    assert dask is not None
    assert (dask.every, dask.samples[0].tasks.done, dask.samples[0].tasks.erred) == (5.0, 4, 1)
    assert dask.samples[0].workers == {"n1-0": samples.WorkerSample(2, 1 << 29, 7, 99.5)}
    assert dask.samples[0].metrics == {"execute": 3.5, "spill_bytes": 7}


def test_damage_costs_the_damaged_line_alone(attempt: AttemptPaths, subtests: pytest.Subtests) -> None:
    damaged = {
        "half a line": b'{"t": 1002.0, "cp',
        "bytes": b"\xff\xfe\x00",
        "no table": b"[1, 2]",
        "no time": b'{"cpu": 1}',
        "a time that is none": b'{"t": "now"}',
        "no number": b'{"t": NaN}',
        "without end": b'{"t": ' + b"[" * 100_000,
        "a number without end": b'{"t": ' + b"9" * 10_000 + b"}",
        "a number too large": b'{"t": 1e300}',
        "nothing": b"",
    }
    for name, line in damaged.items():
        with subtests.test(name):
            content = lines(HEADER, SAMPLE).encode() + line + b"\n" + lines({**SAMPLE, "t": 1006.25}).encode()
            attempt.samples_of("n1").write_bytes(content)
            assert [sample.t for sample in samples.nodes(attempt)["n1"].samples] == [1001.25, 1006.25]
            last = samples.last_of_node(attempt.samples_of("n1"))
            assert last is not None
            assert [sample.t for sample in last.samples] == [1001.25, 1006.25]


def test_values_of_another_kind_are_not_known(attempt: AttemptPaths, subtests: pytest.Subtests) -> None:
    odd: tuple[Any, ...] = ("x", True, None, {}, [], [[]], ["x", True], 1e300, [float("inf")])
    for value in odd:
        with subtests.test(repr(value)):
            sample = {"t": 1001.25, **dict.fromkeys(SAMPLE.keys() - {"t"}, value)}
            header = {"kind": "node", "t": 1.0, **dict.fromkeys(HEADER.keys() - {"kind", "t"}, value)}
            attempt.samples_of("n1").write_text(lines(header, sample))
            read = samples.nodes(attempt)["n1"].samples[0]
            assert (read.cpu, read.memory, read.net, read.pressure) == (None, None, (None, None), (None,) * 3)
            attempt.dask_samples.write_text(
                lines({"kind": "dask", "t": 1.0}, {"t": 2.0, "tasks": value, "workers": value, "metrics": value})
            )
            dask = samples.dask(attempt)
            assert dask is not None
            assert dask.samples == (samples.DaskSample(2.0, samples.Tasks(), {}, {}),)


def test_a_line_that_is_being_written_is_left_out(attempt: AttemptPaths) -> None:
    attempt.samples_of("n1").write_text(lines(HEADER, SAMPLE) + lines({**SAMPLE, "t": 1006.25}).rstrip())
    assert [sample.t for sample in samples.nodes(attempt)["n1"].samples] == [1001.25]


def test_the_last_samples_are_read_from_the_end(attempt: AttemptPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "_HEAD", 1000)
    monkeypatch.setattr(samples, "_TAIL", 2000)
    path = attempt.samples_of("n1")
    for count in (1, 4, 7, 400):
        path.write_text(lines(HEADER, *({**SAMPLE, "t": 1000.0 + number} for number in range(count))))
        last = samples.last_of_node(path)
        assert last is not None
        assert last.header.node == "n1"
        assert [sample.t for sample in last.samples] == [1000.0 + number for number in range(count)][-2:]
    attempt.dask_samples.write_text(lines({"kind": "dask", "t": 1.0, "every": 5.0}, *([DASK] * 50)))
    dask = samples.last_of_dask(attempt.dask_samples, 1)
    assert dask is not None
    assert dask.samples[0].tasks.known == 9
    assert len(dask.samples) == 1


def test_files_that_others_made(attempt: AttemptPaths, tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = attempt.samples_of("n1")
    secret = tmp_path / "secret"
    secret.write_text(lines(HEADER, SAMPLE))

    def hole() -> None:
        path.touch()
        os.truncate(path, 1 << 40)

    ways = {
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
        assert samples.dask(AttemptPaths(tmp_path / "none")) is None


def test_a_machine_s_own_kills_are_not_said_to_be_the_run_s() -> None:
    event = samples.Event(1.0, "oom", kills=2)
    of_the_job = "n1: the kernel killed 2 processes for want of memory"
    assert event.sentence("n1", of_host=False) == of_the_job
    assert event.sentence("n1", of_host=True).startswith(f"{of_the_job} (of any program there")
