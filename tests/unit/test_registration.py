"""What a scheduler does for each worker that goes must not grow with those that are there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="Dask is not installed (hpcml's extra node)")

from distributed import Worker
from distributed.batched import BatchedSend

from hpcml.node.roles.scheduler import PrivateScheduler


def test_nobody_is_told_who_goes_when_all_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the run goes on, all are; at its end that would be half a million messages for a thousand workers."""
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
