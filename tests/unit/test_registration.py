"""What a scheduler does for each worker that comes or goes must not grow with those that are there."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="Dask is not installed (hpcml's extra node)")

from distributed import Client, Worker, versions
from distributed import scheduler as dask_scheduler
from distributed.batched import BatchedSend

from hpcml.node.roles import registration
from hpcml.node.roles.scheduler import PrivateScheduler


def told(**packages: str) -> dict[str, Any]:
    return {"packages": {"python": "3.12", **packages}}


def test_workers_that_are_alike_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = registration.Kinds()
    workers = {f"w{number}": kinds.one(told(numpy="2.0")) for number in range(999)}
    workers["odd"] = kinds.one(told(numpy="1.26"))
    by_dask, looked_at = versions.error_message, []

    def count(own: Any, some: Any, *rest: Any) -> Any:
        looked_at.append(len(some))
        return by_dask(own, some, *rest)

    monkeypatch.setattr(versions, "error_message", count)
    said = registration.error_message(told(numpy="2.0"), workers, told(numpy="2.0"), "w7")
    assert looked_at == [2]
    assert said == by_dask(told(numpy="2.0"), workers, told(numpy="2.0"), "w7")
    assert "1.26" in said["warning"]


def test_a_scheduler_keeps_the_versions_of_alike_workers_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And still tells a client that is unlike them."""
    monkeypatch.setattr(dask_scheduler, "version_module", versions)  # as it was, at the end
    monkeypatch.setattr(PrivateScheduler, "socket_path", tmp_path / "s.sock", raising=False)

    async def join() -> None:
        async with (
            PrivateScheduler(protocol="inproc", dashboard=False, local_directory=str(tmp_path)) as scheduler,
            Worker(scheduler.address, local_directory=str(tmp_path), nthreads=1),
            Worker(scheduler.address, local_directory=str(tmp_path), nthreads=1),
        ):
            one, other = (state.versions for state in scheduler.workers.values())
            assert one is other
            assert one["packages"]["distributed"]
            one["packages"]["numpy"] = "0.1"
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                async with Client(scheduler.address, asynchronous=True):
                    pass
            assert any("0.1" in str(one.message) for one in said)

    asyncio.run(join())


def test_nobody_is_told_who_goes_when_all_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the run goes on, all are; at its end that would be half a million messages for a thousand workers."""
    monkeypatch.setattr(dask_scheduler, "version_module", versions)
    monkeypatch.setattr(PrivateScheduler, "socket_path", tmp_path / "s.sock", raising=False)
    told_of: list[str] = []
    send, both = BatchedSend.send, asyncio.Event()

    def hear(self: BatchedSend, *messages: dict[str, Any]) -> None:
        told_of.extend(message["worker"] for message in messages if message["op"] == "remove-worker")
        if len(told_of) == 2:
            both.set()
        send(self, *messages)

    monkeypatch.setattr(BatchedSend, "send", hear)

    async def join_and_go() -> tuple[list[str], str]:
        async with (
            PrivateScheduler(protocol="inproc", dashboard=False, local_directory=str(tmp_path)) as scheduler,
            Worker(scheduler.address, local_directory=str(tmp_path), nthreads=1) as first,
            Worker(scheduler.address, local_directory=str(tmp_path), nthreads=1),
            Worker(scheduler.address, local_directory=str(tmp_path), nthreads=1),
        ):
            await first.close()
            await both.wait()
            running, gone = [*told_of], first.address
            told_of.clear()
            await scheduler.close()
            return running, gone

    running, gone = asyncio.run(asyncio.wait_for(join_and_go(), 120))
    assert running == [gone, gone]
    assert told_of == []
