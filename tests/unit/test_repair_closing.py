"""A scheduler that closes does not tell the workers that are left of each one that goes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="Dask is not installed (hpcml's extra node)")

from distributed import Scheduler, Worker
from distributed.batched import BatchedSend

from hpcml import repairs
from hpcml.kinds.dask.node.dask_scheduler import PrivateScheduler


def told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return how many messages say that a worker has gone: when one of three closes, and when the scheduler does."""
    messages: list[str] = []
    send, both = BatchedSend.send, asyncio.Event()

    def hear(self: BatchedSend, *sent: dict[str, Any]) -> None:
        messages.extend(message["worker"] for message in sent if message["op"] == "remove-worker")
        if len(messages) == 2:
            both.set()
        send(self, *sent)

    monkeypatch.setattr(BatchedSend, "send", hear)

    async def join_and_go() -> tuple[int, int]:
        async with (
            PrivateScheduler(protocol="inproc", dashboard=False, local_directory=str(folder)) as scheduler,
            Worker(scheduler.address, local_directory=str(folder), nthreads=1) as first,
            Worker(scheduler.address, local_directory=str(folder), nthreads=1),
            Worker(scheduler.address, local_directory=str(folder), nthreads=1),
        ):
            await first.close()
            await both.wait()
            running, gone = [*messages], first.address
            assert set(running) == {gone}
            messages.clear()
            await scheduler.close()
            return len(running), len(messages)

    return asyncio.run(asyncio.wait_for(join_and_go(), 120))


@pytest.mark.parametrize("on", [True, False])
def test_nobody_is_told_who_goes_when_all_go(on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the run continues, all are; without repairs at its end too, or hpcml/repairs/closing.py is not needed."""
    monkeypatch.setattr(PrivateScheduler, "socket_path", tmp_path / "s.sock", raising=False)
    if not on:
        monkeypatch.setenv(*repairs.NO_REPAIRS)
    running, closing = told(tmp_path, monkeypatch)
    assert running == 2
    assert (closing == 0) is on


def test_workers_of_a_job_that_was_suspended_beat_before_they_count_as_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[object] = []

    async def sleep(seconds: float) -> None:
        happened.append(seconds >= 15)

    async def look(_: Scheduler) -> None:
        happened.append("looked")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(Scheduler, "check_worker_ttl", look)
    scheduler = object.__new__(PrivateScheduler)
    scheduler.workers = {}
    asyncio.run(scheduler.check_worker_ttl())
    assert happened == [True, "looked"]
