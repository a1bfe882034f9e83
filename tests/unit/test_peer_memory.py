"""Mapped memory of a worker that has died is found by its marker, and nothing else is let go of."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Status

from hpcml.repairs import dead_worker_memory
from hpcml.repairs.dead_worker_memory import PAGE, Marker, MarkError

LOW, HIGH = 0x7FA100000000, 0x7FA140000000
MARKER = Marker("ab" * 32, 512)


class Driver:
    """CUDA's driver of a process that has memory of its own and mapped a neighbour's: (start, size, own, marker)."""

    CUpointer_attribute = SimpleNamespace(
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR="start",
        CU_POINTER_ATTRIBUTE_RANGE_SIZE="size",
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE="own",
    )

    def __init__(self, ranges: list[tuple[int, int, bool, str]], close_status: int = 0) -> None:
        self.ranges, self.close_status = ranges, close_status
        self.calls: list[tuple[str, int]] = []

    def cuPointerGetAttribute(self, name: str, address: int) -> tuple[int, Any]:  # noqa: N802
        for start, size, own, _ in self.ranges:
            if start <= address < start + size:
                return 0, {"start": start, "size": size, "own": own}[name]
        return 1, None

    def cuMemcpyDtoH(self, into: bytearray, address: int, count: int) -> tuple[int]:  # noqa: N802
        marker = next(marker for start, size, _, marker in self.ranges if start <= address < start + size)
        into[:] = bytes.fromhex(marker) if marker else os.urandom(count)
        return (0,)

    def cuCtxSynchronize(self) -> tuple[int]:  # noqa: N802
        self.calls.append(("synchronize", 0))
        return (0,)

    def cuIpcCloseMemHandle(self, address: int) -> tuple[Any]:  # noqa: N802
        self.calls.append(("close", address))
        return (Answer(self.close_status),)


class Answer(int):
    name = "CUDA_ERROR_INVALID_VALUE"


def released(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(dead_worker_memory, "_driver", lambda: driver)
    monkeypatch.setattr(dead_worker_memory, "_reserved", lambda _: iter([(LOW, HIGH)]))
    return dead_worker_memory.release(MARKER)


def test_only_the_marked_mapping_is_closed_after_the_gpu_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([
        (LOW, 64 * PAGE, True, MARKER.text),  # this process's own: no handle was opened for it
        (LOW + 64 * PAGE, 128 * PAGE, False, "cd" * 32),  # a living neighbour's
        (LOW + 200 * PAGE, 32 * PAGE, False, MARKER.text),
        (LOW + 300 * PAGE, 1, False, ""),  # too small for a marker
    ])  # fmt: skip
    assert released(driver, monkeypatch) == 32 * PAGE
    assert driver.calls == [("synchronize", 0), ("close", LOW + 200 * PAGE)]


def test_what_cuda_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([(LOW, 64 * PAGE, False, MARKER.text)], close_status=1)
    with pytest.raises(MarkError, match="CUDA's driver returned CUDA_ERROR_INVALID_VALUE"):
        released(driver, monkeypatch)


def test_reserved_ranges_are_private_without_a_file_and_without_rights() -> None:
    text = (
        "204c00000-400200000 ---p 00000000 00:00 0 \n"
        "7fa1a0000000-7fc220000000 ---p 00000000 00:00 0 \n"
        "7fc49de00000-7fc4dde00000 rw-p 00000000 00:00 0 \n"
        "7fc500000000-7fc500001000 ---p 00000000 08:01 17                         /usr/lib/libcuda.so.1\n"
    )
    assert list(dead_worker_memory._reserved(text)) == [
        (0x204C00000, 0x400200000),
        (0x7FA1A0000000, 0x7FC220000000),
    ]
    assert list(dead_worker_memory._reserved(Path("/proc/self/maps").read_text()))


def test_neighbours_on_the_same_machine_are_asked_and_no_others() -> None:
    """One that has no pool of its own may have mapped a neighbour's; at the run's end nobody is asked."""
    neighbours, asked = dead_worker_memory.Neighbours(), []
    for name, machine in (("a", "m1"), ("b", "m1"), ("c", "m2"), ("d", "m1")):
        marked = MARKER._asdict() if name != "d" else {}
        neighbours.add({"address": name, "machine": machine, "pool": 5, **marked})
    neighbours.add({"address": "without repairs", "pool": 5})
    left: Any = SimpleNamespace(
        workers=["b", "c", "d", "without repairs"],
        status=Status.running,
        worker_send=lambda worker, message: asked.append((worker, message)),
    )
    message = {"op": dead_worker_memory.ASK, "address": "a", **MARKER._asdict()}
    neighbours.remove(left, "a")
    assert asked == [("b", message), ("d", message)]
    asked.clear()
    neighbours.remove(left, "a")
    neighbours.remove(left, "without repairs")
    left.status = Status.closing
    neighbours.remove(left, "b")
    assert asked == []


def test_connections_to_a_worker_that_died_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[str] = []
    free, used = (SimpleNamespace(abort=lambda name=name: aborted.append(name)) for name in ("free", "used"))
    pool = SimpleNamespace(
        available={"a": [free]}, occupied={"a": [used]}, remove=lambda *_, **__: aborted.append("pool")
    )
    worker: Any = SimpleNamespace(rpc=pool, stream_handlers={})

    async def let_go(_: object) -> None: ...

    async def ask() -> None:
        holder = dead_worker_memory.Holder(worker)
        worker.stream_handlers[dead_worker_memory.ASK](address="a", **MARKER._asdict())
        await asyncio.gather(*holder._tasks)

    monkeypatch.setattr(dead_worker_memory, "let_go", let_go)
    asyncio.run(ask())
    assert aborted == ["free", "used", "pool"]
