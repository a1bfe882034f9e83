"""The worker's side of the fabric check: give and fetch a buffer, tell what UCX wired, take part in an all-reduce."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distributed import Worker
from distributed.protocol import to_serialize

from hpcml.node.fabric import counters as node_counters

MIB = 1024**2
FIRST = 32 * MIB  # bytes of the transfer that tells how large the timed ones shall be
MOST = 512 * MIB
AIMED = 0.02  # seconds that one timed transfer should last: long against the request, short against the run
REPEATS = 4
NCCL_BYTES = 256 * MIB
NCCL_REPEATS = 5


class Transfers:
    """The handlers that a worker adds to Dask's for the check; they use Dask's own comms, as the workload will.

    ``logs`` is the folder with this worker's UCX and NCCL logs (:func:`log_environment`), ``device`` the GPU by index
    or UUID, empty on a CPU worker: the buffers then lie in host memory.
    """

    def __init__(self, worker: Worker, logs: Path, device: str) -> None:
        self.worker, self.logs, self.device = worker, logs, device
        self.buffer: Any = None
        self.communicator: Any = None
        handlers = (self.give, self.warm, self.fetch, self.facts, self.counters, self.release)
        for handler in (*handlers, self.nccl_id, self.nccl_join, self.nccl):
            worker.handlers[f"hpcml_{handler.__name__}"] = handler

    def give(self, size: int) -> dict[str, Any]:
        """Return ``size`` bytes of the worker's kind of memory."""
        if self.buffer is None or _length(self.buffer) != size:
            self.buffer = _device_buffer(size) if self.device else bytes(size)
        return {"data": to_serialize(self.buffer)}

    async def warm(self, source: str) -> dict[str, Any]:
        """Connect to another worker and have both sides open what they open once; return the ``moved`` bytes.

        Opening a neighbour's memory pool holds a process for half a second: all workers do it before one is timed.
        """
        await self._one(source, MIB)
        await self._one(source, FIRST)
        return {"moved": MIB + FIRST}

    async def fetch(self, source: str, budget: float) -> dict[str, Any]:
        """Fetch buffers from another worker; after ``budget`` seconds none is begun.

        Return ``bytes`` and ``seconds`` of the timed transfers, and the ``moved`` bytes of all.
        """
        begin = time.perf_counter()
        last = await self._one(source, FIRST)
        size = min(MOST, max(FIRST, int(FIRST / last * AIMED) // MIB * MIB))
        moved = FIRST
        if size > FIRST:
            last = await self._one(source, size)
            moved += size
        count, seconds = 0, 0.0
        while count == 0 or (count < REPEATS and time.perf_counter() - begin + last < budget):
            last = await self._one(source, size)
            seconds += last
            count += 1
        return {"bytes": count * size, "seconds": seconds, "moved": moved + count * size}

    async def _one(self, source: str, size: int) -> float:
        begin = time.perf_counter()
        answer = await self.worker.rpc(source).hpcml_give(size=size)
        seconds = time.perf_counter() - begin
        if (got := _length(answer["data"])) != size:
            raise ValueError(f"{got} bytes came from {source}, {size} were asked for")
        return seconds

    def facts(self) -> dict[str, Any]:
        """Return what this worker's UCX may use, what it wired, and the variables that steer it (`WorkerFacts`)."""
        facts: dict[str, Any] = {"gpu": self.device, "environment": node_counters.settings(os.environ)}
        ucxx = sys.modules.get("ucxx")  # imported by Dask's UCX backend, if that is in use
        if ucxx is not None:
            facts["transports"] = sorted(ucxx.get_active_transports())
            facts["version"] = ".".join(str(part) for part in ucxx.get_ucx_version())
            facts["log"] = node_counters.parse_ucx_log(_text(self.logs / f"ucx-{os.getpid()}.log"))
        if self.device:
            import rmm

            facts["memory_resource"] = type(rmm.mr.get_current_device_resource()).__name__
        return facts

    def counters(self) -> dict[str, Any]:
        """Return the counters of this node's adapters and GPUs."""
        return node_counters.counters()

    def release(self) -> None:
        """Give the buffer's memory back."""
        self.buffer = None

    async def nccl_id(self) -> bytes | list[int]:
        """Return NCCL's id for a communicator (made on its first rank); CuPy has it as bytes, before 14 as a tuple."""
        from cupy.cuda import nccl

        identifier = nccl.get_unique_id()
        return identifier if isinstance(identifier, bytes) else list(identifier)

    async def nccl_join(self, unique_id: bytes | list[int], rank: int, size: int) -> dict[str, Any]:
        """Become a rank of a communicator over all workers."""
        from cupy.cuda import nccl

        def join() -> dict[str, Any]:
            begin = time.perf_counter()
            chosen = unique_id if isinstance(unique_id, bytes) else tuple(unique_id)
            self.communicator = nccl.NcclCommunicator(size, chosen, rank)
            return {"start": time.perf_counter() - begin}

        return await _in_thread(join)

    async def nccl(self, rank: int, size: int) -> dict[str, Any]:
        """Take part in an all-reduce over all workers; the communicator is gone then."""
        communicator, self.communicator = self.communicator, None
        result = await _in_thread(lambda: _all_reduce(communicator, rank, size))
        return {**result, "log": node_counters.parse_nccl_log(_text(self.logs / f"nccl-{os.getpid()}.log"))}


async def _in_thread(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what ``work`` returns, or its ``error``; in a thread, as NCCL waits in C and a rank may be missing."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[dict[str, Any]] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it goes to the scheduler
            result = {"error": f"{type(error).__name__}: {error}"}
        loop.call_soon_threadsafe(
            lambda: None if done.done() else done.set_result(result)
        )  # the check may have given up on it

    threading.Thread(target=run, name="hpcml-nccl", daemon=True).start()
    return await done


def _all_reduce(communicator: Any, rank: int, size: int) -> dict[str, Any]:
    """Time an all-reduce; its sum is looked at on the host, as CuPy first compiles kernels for seconds to do so."""
    import rmm
    from cupy.cuda import get_current_stream, nccl

    count = NCCL_BYTES // 4
    values = rmm.DeviceBuffer.to_device(struct.pack("f", rank + 1) * count)
    total = rmm.DeviceBuffer(size=NCCL_BYTES)
    stream = get_current_stream()

    def reduce() -> None:
        communicator.allReduce(values.ptr, total.ptr, count, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr)
        stream.synchronize()

    reduce()
    begin = time.perf_counter()
    for _ in range(NCCL_REPEATS):
        reduce()
    seconds = (time.perf_counter() - begin) / NCCL_REPEATS
    host = bytearray(NCCL_BYTES)
    total.copy_to_host(host)
    right = host == struct.pack("f", size * (size + 1) / 2) * count
    communicator.destroy()
    return {"bytes": NCCL_BYTES, "seconds": seconds, "right": right}


def _device_buffer(size: int) -> Any:
    import rmm

    return rmm.DeviceBuffer(size=size)


def _length(buffer: Any) -> int:
    return int(getattr(buffer, "nbytes", None) or getattr(buffer, "size", None) or len(buffer))


def _text(log: Path) -> str:
    ctypes.CDLL(None).fflush(None)  # UCX writes its log through C's buffer, and empties that at the process's end
    try:
        return log.read_text(errors="replace")
    except FileNotFoundError:  # the user chose another file, or nothing was logged
        return ""


def log_environment(folder: Path) -> dict[str, str]:
    """Return the variables that make UCX and NCCL write what they wired into files of their own.

    At level ``info`` both write some lines when a connection is made and none per message. A level or a file that
    the user chose stays.
    """
    ucx = {"UCX_LOG_LEVEL": "info", "UCX_LOG_FILE": str(folder / "ucx-%p.log")}
    nccl = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(folder / "nccl-%p.log")}
    chosen = os.environ.keys()
    return {**({} if ucx.keys() & chosen else ucx), **({} if nccl.keys() & chosen else nccl)}
