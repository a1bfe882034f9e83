"""Data reaches a worker beside tasks that compute in Python: threads switch sooner while it arrives."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="Dask is not installed (hpcml's extra node)")

from distributed import Scheduler
from distributed.comm import tcp

from hpcml import repairs
from hpcml.kinds.dask.node.dask_worker import PrivateWorker
from hpcml.repairs import switching

USUAL = 0.005


class Stream:
    """A stream whose read ends when the test says so."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def read_into(self, buffer: Any) -> int:
        self.begun.set()
        await self.go_on.wait()
        return len(buffer)


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    # Dask's own in the test, as it was after it: a worker of another test may have installed the repair.
    monkeypatch.setattr(tcp, "read_bytes_rw", getattr(tcp.read_bytes_rw, "__wrapped__", tcp.read_bytes_rw))
    yield
    sys.setswitchinterval(before)


def intervals(sizes: tuple[int, ...]) -> list[float]:
    """Return Python's interval when reads have begun one after another, then after the end of each."""

    async def read() -> list[float]:
        seen, reads = [], []
        for size in sizes:
            stream = Stream()
            reads.append((stream, asyncio.ensure_future(tcp.read_bytes_rw(stream, size))))
            await stream.begun.wait()
            seen.append(sys.getswitchinterval())
        for stream, task in reads:
            stream.go_on.set()
            assert len(await task) >= min(sizes)
            seen.append(sys.getswitchinterval())
        return seen

    return asyncio.run(asyncio.wait_for(read(), 120))


def test_the_interval_is_short_until_the_last_large_read_ends() -> None:
    switching.install()
    switching.install()
    short = pytest.approx(switching.INTERVAL)
    assert intervals((switching.LARGE, switching.LARGE)) == [
        short,
        short,
        short,
        pytest.approx(USUAL),
    ]


def test_a_small_read_does_not_change_the_interval() -> None:
    switching.install()
    assert intervals((switching.LARGE - 1,)) == pytest.approx([USUAL, USUAL])


def test_without_repairs_the_interval_is_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*repairs.NO_REPAIRS)
    switching.install()
    assert intervals((switching.LARGE,)) == pytest.approx([USUAL, USUAL])


def test_a_worker_has_the_repair(tmp_path: Path) -> None:
    async def start() -> None:
        folder = str(tmp_path)
        async with (
            Scheduler(protocol="inproc", dashboard_address="127.0.0.1:0", local_directory=folder) as scheduler,
            PrivateWorker(scheduler.address, local_directory=folder, nthreads=1),
        ):
            assert hasattr(tcp.read_bytes_rw, "__wrapped__")

    asyncio.run(asyncio.wait_for(start(), 120))
