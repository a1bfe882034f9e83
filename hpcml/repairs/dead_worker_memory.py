"""GPU memory of workers that have died, which their neighbours keep from being freed, and how they let go of it.

UCX moves data between the GPUs of a node through CUDA IPC: a worker maps its neighbour's whole memory pool once, and
keeps the mapping (UCX 1.21, ``uct_cuda_ipc_cache``: one cache for each peer process, emptied only when this process
ends). A mapping keeps the memory allocated after the process that owned it is gone: measured on H200s, a pool of
100 GiB stayed for as long as a neighbour lived, and was free 0.1 s after ``cuIpcCloseMemHandle`` there.

Each GPU worker therefore writes a marker, 32 random bytes, into its pool (:func:`mark`), and tells it to the scheduler.
When the worker is gone, the scheduler asks the other workers, which look for the marker in the memory that they have
mapped and close that mapping, no other (:func:`release`). UCX's record of the mapping stays; it is found again by a
process of the same number only, so a node's worker task never gives a dead worker's number to another one.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distributed import Scheduler, Status, Worker

MARKER_BYTES = 32
PAGE = 2 * 1024**2  # bytes; CUDA maps memory of other processes in steps of this
ASK = "hpcml-let-go"  # what the scheduler sends to workers
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # of the machine, also where Slurm divides it into several nodes
_LONGEST_LOOK = 3.0  # seconds


class MarkError(Exception):
    """The marker cannot be written, or mapped memory not be looked at."""


class Marker(NamedTuple):
    """What is written where: ``text`` (hexadecimal) at ``offset`` bytes from the beginning of an allocation."""

    text: str
    offset: int


def ucx_version() -> str:
    """Return the version of the UCX that this process has loaded, which may not be the wheel's; empty without one."""
    ucxx: Any = sys.modules.get("ucxx")
    return ".".join(map(str, ucxx.get_ucx_version())) if ucxx else ""


def mark() -> tuple[Marker, Any]:
    """Write a marker into this process's memory pool; return it and the buffer, which must be kept."""
    import rmm

    driver = _driver()
    content = secrets.token_bytes(MARKER_BYTES)
    buffer = rmm.DeviceBuffer.to_device(content)
    start, _ = _called(driver.cuMemGetAddressRange(buffer.ptr))
    return Marker(content.hex(), int(buffer.ptr) - int(start)), buffer


def release(marker: Marker) -> int:
    """Close this process's mappings of the memory that holds a marker; return their size in bytes.

    The GPU finishes all that this process has given it first, so nothing reads through a mapping that goes.
    """
    driver = _driver()
    held = [mapping for mapping in _mappings(driver) if _content(driver, *mapping, marker) == marker.text]
    if held:
        _called(driver.cuCtxSynchronize())
    for start, _ in held:
        _called(driver.cuIpcCloseMemHandle(start))
    return sum(size for _, size in held)


def _driver() -> Any:
    """Return CUDA's driver interface with the context of this process's first GPU in force in this thread."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise MarkError(f"cuda-bindings cannot be imported: {error}") from error
    (device,) = _called(driver.cuDeviceGet(0))
    (context,) = _called(driver.cuDevicePrimaryCtxRetain(device))
    _called(driver.cuCtxSetCurrent(context))
    return driver


def _called(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the answer of CUDA's driver, without the status in front."""
    status, *values = answer
    if int(status) != 0:
        raise MarkError(f"CUDA's driver returned {status.name}")
    return tuple(values)


def _mappings(driver: Any) -> Iterator[tuple[int, int]]:
    """Yield start and bytes of what belongs to other processes: those of which no handle can be made here.

    CUDA reserves addresses in private ranges without a file (proc(5), maps); there its driver is asked page by page.
    """
    attribute = driver.CUpointer_attribute
    ends = time.monotonic() + _LONGEST_LOOK
    for low, high in _reserved(Path("/proc/self/maps").read_text()):
        address = -(-low // PAGE) * PAGE
        while address < high:
            if time.monotonic() > ends:
                raise MarkError(f"the search of the mapped GPU memory took longer than {_LONGEST_LOOK:g} s")
            status, start = driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address)
            if int(status) != 0 or not int(start):
                address += PAGE
                continue
            (size,) = _called(driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE, address))
            (mappings,) = _called(
                driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address)
            )
            if not mappings:
                yield int(start), int(size)
            address = max(address + PAGE, -(-(int(start) + int(size)) // PAGE) * PAGE)


def _reserved(maps: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of private memory without a file and without rights, from /proc/self/maps."""
    for low, high in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) ---p \S+ \S+ \S+ *$", maps, re.MULTILINE):
        yield int(low, 16), int(high, 16)


def _content(driver: Any, start: int, size: int, marker: Marker) -> str:
    """Return the bytes at the marker's place in a mapping, empty if the mapping is too small."""
    if marker.offset + MARKER_BYTES > size:
        return ""
    content = bytearray(MARKER_BYTES)
    status = driver.cuMemcpyDtoH(content, start + marker.offset, MARKER_BYTES)[0]
    return content.hex() if int(status) == 0 else ""


class Holder:
    """A worker's side: how its memory is recognised, and the release of a dead worker's when the scheduler asks.

    It is made before the worker starts, because Dask takes up its handlers then.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._buffer: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        worker.stream_handlers[ASK] = self._asked

    def mark(self, *, pool: bool) -> dict[str, Any]:
        """Mark the worker's pool, if it has one; return for :meth:`Neighbours.add` how it is recognised."""
        machine = {"machine": BOOT_ID.read_text().strip()}
        if not pool:
            return machine
        try:
            marker, self._buffer = mark()
        except MarkError as error:
            print(
                f"hpcml: after a crash, this worker's GPU memory may stay allocated: {error}.",
                file=sys.stderr,
                flush=True,
            )
            return machine
        return machine | marker._asdict()

    def _asked(self, **memory: Any) -> None:
        pool, address = self._worker.rpc, memory["address"]
        for comm in [*pool.available.get(address, ()), *pool.occupied.get(address, ())]:
            comm.abort()  # nothing more is received from it; to close politely would be to wait for an answer
        pool.remove(address, reason="the worker has died")
        task = asyncio.create_task(let_go(memory))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def let_go(memory: Mapping[str, Any]) -> None:
    """Close this process's mappings of a dead worker's memory, and say in its log how much they were."""
    try:
        released = await asyncio.to_thread(release, Marker(str(memory["text"]), int(memory["offset"])))
    except MarkError as error:
        print(
            f"hpcml: the GPU memory of the dead worker {memory['address']} may stay allocated: {error}.",
            file=sys.stderr,
            flush=True,
        )
    else:
        print(
            f"hpcml: released {released / 1024**3:.1f} GiB of GPU memory of the dead worker {memory['address']}.",
            flush=True,
        )


class Neighbours:
    """The scheduler's side: the markers of all workers, and which workers share a machine."""

    def __init__(self) -> None:
        self._memories: dict[str, Mapping[str, Any]] = {}
        self._machines: dict[str, str] = {}

    def add(self, worker: Mapping[str, Any]) -> None:
        """Take in what a worker says of its memory; one without this repair says nothing of it."""
        if "machine" in worker:
            self._machines[worker["address"]] = worker["machine"]
        if "text" in worker:
            self._memories[worker["address"]] = {name: worker[name] for name in ("address", *Marker._fields)}

    def remove(self, scheduler: Scheduler, worker: str) -> None:
        """Ask the neighbours of a worker that has gone to release its memory; at the run's end all becomes free."""
        machine = self._machines.pop(worker, "")
        memory = self._memories.pop(worker, None)
        if memory and scheduler.status == Status.running:
            for other in scheduler.workers:
                if self._machines.get(other) == machine:
                    scheduler.worker_send(other, {"op": ASK, **memory})
