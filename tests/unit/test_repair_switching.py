"""Data reaches a worker beside tasks that compute in Python: threads switch sooner while it arrives."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="Dask is not installed (hpcml's extra node)")

from distributed import Scheduler
from distributed.comm import tcp

from hpcml import repairs
from hpcml.kinds.dask.node import tls
from hpcml.kinds.dask.node.dask_worker import PrivateWorker
from hpcml.paths import AttemptPaths
from hpcml.repairs import switching

USUAL = 0.005


class Stream:
    """A stream whose read ends when the test says so."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.go_on, self.error = asyncio.Event(), asyncio.Event(), error

    async def read_into(self, buffer: Any) -> int:
        self.begun.set()
        await self.go_on.wait()
        if self.error:
            raise self.error
        return len(buffer)


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL)
    # Dask's own in the test, as it was after it: a worker of another test may have installed the repair.
    monkeypatch.setattr(tcp, "read_bytes_rw", getattr(tcp.read_bytes_rw, "__wrapped__", tcp.read_bytes_rw))
    yield
    sys.setswitchinterval(before)


def intervals(sizes: tuple[int, ...], error: Exception | None = None, change: float = 0.0) -> list[float]:
    """Return Python's interval when reads have begun one after another, then after the end of each."""

    async def read() -> list[float]:
        seen, reads = [], []
        for size in sizes:
            stream = Stream(error)
            reads.append((stream, asyncio.ensure_future(tcp.read_bytes_rw(stream, size))))
            await stream.begun.wait()
            seen.append(sys.getswitchinterval())
        if change:
            sys.setswitchinterval(change)
        for stream, task in reads:
            stream.go_on.set()
            with contextlib.suppress(OSError):
                assert len(await task) >= min(sizes)
            seen.append(sys.getswitchinterval())
        return seen

    return asyncio.run(asyncio.wait_for(read(), 120))


def test_the_interval_is_short_until_the_last_large_read_ends() -> None:
    switching.install()
    switching.install()
    short = pytest.approx(switching.INTERVAL)
    assert intervals((switching.LARGE, switching.LARGE)) == [short, short, short, pytest.approx(USUAL)]


def test_a_failed_read_restores_the_interval() -> None:
    switching.install()
    assert intervals((switching.LARGE,), OSError("reset")) == pytest.approx([switching.INTERVAL, USUAL])


def test_a_small_read_does_not_change_the_interval() -> None:
    switching.install()
    assert intervals((switching.LARGE - 1,)) == pytest.approx([USUAL, USUAL])


def test_an_interval_that_a_task_sets_meanwhile_remains() -> None:
    switching.install()
    assert intervals((switching.LARGE,), change=0.002) == pytest.approx([switching.INTERVAL, 0.002])


def test_without_repairs_the_interval_is_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*repairs.OFF)
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


def test_python_still_reads_one_record_at_a_time(tmp_path: Path) -> None:
    paths, wires = AttemptPaths(tmp_path), (ssl.MemoryBIO(), ssl.MemoryBIO())
    tls.make_certificate(paths, 3600)
    security = tls.security(paths)
    client = security.get_connection_args("client")["ssl_context"].wrap_bio(*wires)
    server = security.get_listen_args("worker")["ssl_context"].wrap_bio(*reversed(wires), server_side=True)
    for one in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            one.do_handshake()
    client.write(bytes(1 << 20))
    assert len(server.read(1 << 20)) == 1 << 14, "Python reads several: is hpcml/repairs/switching.py still needed?"
