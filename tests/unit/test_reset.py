"""When workers are restarted between two points of a sweep, and what is kept of what a point reported."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcml.kinds.dask.node import reset
from hpcml.node.hardware import nvidia
from hpcml.node.sweep import points
from tests.said import says

MIB, GIB = 1 << 20, 1 << 30


def test_memory_that_was_not_given_back(subtests: pytest.Subtests) -> None:
    for more, limit, expected in ((100 * MIB, 200 * MIB, False), (129 * MIB, 400 * MIB, True), (2 * GIB, 10 * GIB, False), (3 * GIB, 10 * GIB, True)):  # fmt: skip
        with subtests.test(more=more, limit=limit):
            assert reset.kept_too_much(more, limit) == expected


def test_the_reason_in_words() -> None:
    assert reset.reason(0, 0, []) == ""
    assert "3 Dask tasks of the sweep point" in reset.reason(3, 0, [])
    assert "tasks of the sweep point still ran on 2" in reset.reason(3, 2, [])
    assert "2 of the workers kept up to 1024 MiB" in reset.reason(3, 2, [300 * MIB, GIB])


def test_the_last_value_of_each_metric_counts(tmp_path: Path) -> None:
    path = tmp_path / "reports"
    assert points._reports(path) == {"metrics": {}, "reports": 0}
    path.write_text('{"metrics": {"a": 1, "b": 2}, "step": 1}\n{"metrics": {"a": null}, "step": null}\n{"metr')
    assert points._reports(path) == {"metrics": {"a": None, "b": 2}, "reports": 2, "step": 1}
    path.write_text('{"stopped": true}\n')
    assert points._reports(path)["stopped"] is True


class Nvml:
    """A stand-in for pynvml: a GPU of 80 GiB and a MIG part of 20; ``used`` GiB by process, 0 by nobody that it knows."""

    class NVMLError(Exception):
        """As pynvml's."""

    def __init__(self, used: dict[int, float | None]) -> None:
        self.used = used

    def nvmlInit(self) -> None:  # noqa: N802 - pynvml's names
        """Begin."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index > 0:
            raise self.NVMLError("Insufficient Permissions")
        return 80

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        return {"GPU-a": 80, "MIG-b": 20}[uuid]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        used = int(sum(amount or 1 for amount in self.used.values()) * GIB)
        return SimpleNamespace(total=handle * GIB, used=used, free=handle * GIB - used)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        if handle == 20:
            raise self.NVMLError("Not Supported")
        found = {pid: amount for pid, amount in self.used.items() if pid}
        return [SimpleNamespace(pid=pid, usedGpuMemory=amount and int(amount * GIB)) for pid, amount in found.items()]


def test_the_gpu_memory_of_a_process(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, dict[int, float | None], tuple[int, int] | None]] = [
        ("GPU-a", {7: 2.0, 8: 30.0}, (2, 48)), ("0", {8: 30.0}, (30, 50)),
        ("0", {7: None, 0: 4.0}, (5, 75)), ("MIG-b", {7: 2.0, 8: 3.0}, (5, 15)), ("1", {7: 2.0}, None),
    ]  # fmt: skip
    for device, used, expected in cases:
        monkeypatch.setitem(sys.modules, "pynvml", Nvml(used))
        with subtests.test(device=device, used=used):
            assert nvidia.memory_of(device, 7) == (expected and (expected[0] * GIB, expected[1] * GIB))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvidia.memory_of("0", 7) is None


class Workers:
    """A stand-in for the client of a reset: one worker on a GPU, as this process is one."""

    id = "reset"

    def __init__(self, gpu: Nvml) -> None:
        self.gpu, self.ended = gpu, 0
        memory = SimpleNamespace(memory_limit=64 * GIB)
        self.worker = SimpleNamespace(state=SimpleNamespace(executing_count=0, long_running=()), memory_manager=memory)

    def run(self, function: Callable[..., Any], **options: Any) -> dict[str, Any]:
        if function is reset.end:
            self.ended += 1
            self.gpu.used = {os.getpid(): 70.0}
            return {}
        return {f"tls://n1:{self.ended}": function(dask_worker=self.worker, **options)}

    def run_on_scheduler(self, function: Callable[..., Any], **_: Any) -> Any:
        return 0 if function is reset.release else []


def test_workers_whose_gpu_memory_has_not_come_back_are_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Nvml({os.getpid(): 70.0})  # a pool, beside which 10 GiB are free
    monkeypatch.setitem(sys.modules, "pynvml", gpu)
    monkeypatch.delitem(sys.modules, "rmm", raising=False)  # what another test has loaded looks for a driver
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    cluster = reset.WorkerGroup.__new__(reset.WorkerGroup)
    cluster.client, cluster.gpus, cluster.before = Workers(gpu), True, {}
    said = []
    for used in (70.0, 71.5, 72.0, 76.0, 70.5):  # after each point
        gpu.used = {os.getpid(): used}
        said.append(cluster.reset())
    assert said == ["", "", "", says("1 of the workers kept up to 6144 MiB", "of GPU"), ""]
    assert cluster.client.ended == 1
    gpu.used = {os.getpid(): 79.0}
    cluster.gpus = False  # a run without GPUs asks nobody
    assert cluster.reset() == ""


class Pool:
    """A stand-in for RMM's pool of 64 GiB, with so much of it in use; it grows if it may."""

    def __init__(self, used: float, *, grows: bool = False) -> None:
        self.size, self.used, self.grows = 64 * GIB, used * GIB, grows

    def pool_size(self) -> int:
        return self.size

    def take(self, size: int) -> None:
        if self.used + size > self.size:
            if not self.grows:
                raise MemoryError("std::bad_alloc: out_of_memory: RMM failure: Maximum pool size exceeded")
            self.size = int(self.used + size)


def test_what_is_kept_of_a_pool(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    for pool, kept in ((Pool(0), 0), (Pool(10), 0), (Pool(20), 16), (Pool(20, grows=True), 16), (SimpleNamespace(), 0)):
        mr = SimpleNamespace(get_current_device_resource=lambda pool=pool: pool, PoolMemoryResource=Pool)
        rmm = SimpleNamespace(mr=mr, DeviceBuffer=lambda size, pool=pool: pool.take(size))
        monkeypatch.setitem(sys.modules, "rmm", rmm)
        with subtests.test(kept=kept):
            assert reset.pool_kept() == kept * GIB
    monkeypatch.delitem(sys.modules, "rmm")
    assert reset.pool_kept() == 0


def test_what_a_point_published_is_gone_before_the_next() -> None:
    datasets, variables, queues = {"left": 1}, {"v": 1}, {"q": 1}
    extensions = {
        "publish": SimpleNamespace(datasets=datasets),
        "variables": SimpleNamespace(variables=variables),
        "queues": SimpleNamespace(queues=queues),
    }
    comms: dict[str, object] = {"reset": None}
    scheduler = SimpleNamespace(
        joined=1, cleaned=0, worker_plugins={}, client_comms=comms, clients={}, tasks={}, extensions=extensions
    )
    assert asyncio.run(reset.release(scheduler, keep="reset")) == 0
    assert [datasets, variables, queues] == [{}, {}, {}]


def test_all_restarted_workers_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [["a", "b"], ["b"], ["c"], ["c", "d"], []]
    monkeypatch.setattr(reset, "workers", lambda _: looks.pop(0))
    asyncio.run(reset.replaced(None, ["a", "b"]))
    assert looks == [[]]
