"""GPU data that does not fit: by pinned host memory at the speed of the bus, and a fixed part of it stays on the GPU.

dask-cuda's DeviceHostFile holds a GPU worker's data: on the GPU, in host memory, on disk. It takes fresh host memory
for each value that leaves the GPU, which costs more than the copy, and the value that was not used for the longest time
leaves first, which in pass after pass over more than fits is the one that is needed soonest. Both are replaced here;
the rest is dask-cuda's. What is moved is counted, in Dask's own metrics too.
"""

from __future__ import annotations

import copy
import ctypes
import mmap
import sys
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from distributed.metrics import context_meter, time
from distributed.protocol import deserialize, serialize
from distributed.sizeof import safe_sizeof
from distributed.spill import SpilledSize
from distributed.utils import nbytes
from zict import LRU, Buffer, Func

OUT, BACK = "device-to-host", "host-to-device"  # Dask's metrics: what left a GPU, and what came back
WRITE, READ = "disk-write", "disk-read"
BLOCK = 64 << 20  # bytes: a larger value takes several blocks, so that blocks fit the next one too
SMALLEST = 64 << 10  # what is smaller takes no pinned memory
LARGE_PAGE = 2 << 20
POPULATE = 23  # MADV_POPULATE_WRITE (Linux 5.14), which Python does not name
AHEAD = 1 << 30  # bytes that are pinned ahead of what is taken, at most
PATIENCE = 60.0  # seconds for a block that is being pinned
WINDOW = 0.1  # of the GPU's limit: for what came back


class Kept(LRU):  # type: ignore[type-arg]
    """The values on a GPU, of which a fixed part stays when passes go over more than fits.

    What came back from the host waits in a window, and leaves it in the order in which it came. Other values leave only
    for new ones, the least recently used first, or if they were not read while as much came back as there is in all.
    ``away`` are the weights of what is not here.
    """

    def __init__(self, n: float, values: dict[Any, Any], **options: Any) -> None:
        super().__init__(n, values, **options)
        self.back: dict[Any, float] = {}
        self.back_weight = 0.0
        self.away: dict[Any, float] = {}
        self.away_weight = 0.0
        self.read: dict[Any, float] = {}  # how much had come back when a value was last read
        self.came = 0.0
        self.coming: Any = None

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        self.read[key] = self.came
        return value

    def set_noevict(self, key: Any, value: Any) -> None:
        """Take a value in; what comes back takes its place in the window."""
        super().set_noevict(key, value)
        self.here(key)
        if key == self.coming:
            self.back[key] = self.weights[key]
            self.back_weight += self.weights[key]
            self.came += self.weights[key]
        self.read[key] = self.came

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self._forget(key)

    def evict(self, *chosen: Any) -> Any:
        """Evict a value, as chosen or the next one."""
        key, value, weight = super().evict(*(chosen or (self._next(),)))
        if key is not None:
            self._forget(key)
            self.away[key] = weight
            self.away_weight += weight
        return key, value, weight

    def here(self, key: Any) -> None:
        """Note that a value is not away, any more."""
        self.away_weight -= self.away.pop(key, 0.0)

    def _forget(self, key: Any) -> None:
        self.back_weight -= self.back.pop(key, 0.0)
        self.read.pop(key, None)

    def _next(self) -> Any:
        if not self.d:
            raise KeyError("evict(): dictionary is empty")
        if self.heavy:
            return next(iter(self.heavy))
        window = WINDOW * self.n
        while self.back_weight > window:  # into the place of what has left for good
            oldest = next(iter(self.back))
            if self.total_weight - self.back_weight + self.back[oldest] > self.n - window:
                break
            self.back_weight -= self.back.pop(oldest)
        others = next((key for key in self.order if key not in self.back), None)
        if others is None:
            return next(iter(self.order))
        stale = self.came - self.read[others] > self.total_weight + self.away_weight
        return next(iter(self.back)) if self.back_weight > window and not stale else others


class Cyclic(Buffer):  # type: ignore[type-arg]
    """A buffer whose fast values are :class:`Kept`."""

    fast: Kept

    def __init__(self, fast: dict[Any, Any], slow: Any, n: float, weight: Callable[[Any, Any], float]) -> None:
        super().__init__(fast, slow, n, weight=weight)
        self.fast = Kept(n, fast, weight=weight, on_evict=[self.fast_to_slow], on_cancel_evict=[self._cancel_evict])

    def slow_to_fast(self, key: Any) -> Any:
        """Bring a value back, into the window."""
        before, self.fast.coming = self.fast.coming, key
        try:
            return super().slow_to_fast(key)
        finally:
            self.fast.coming = before

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self.fast.here(key)


class Timed(Func):  # type: ignore[type-arg]
    """A mapping to a slower place, which counts what goes there and comes back, in bytes and seconds."""

    def __init__(self, names: tuple[str, str], dump: Any, load: Any, place: Any) -> None:
        super().__init__(dump, load, place)
        self.names = names
        self.moved = {name: [0.0, 0.0] for name in names}

    def __setitem__(self, key: Any, value: Any) -> None:
        began = time()
        super().__setitem__(key, value)
        self._count(self.names[0], safe_sizeof(value), time() - began)

    def __getitem__(self, key: Any) -> Any:
        began = time()
        value = super().__getitem__(key)
        self._count(self.names[1], safe_sizeof(value), time() - began)
        return value

    def _count(self, name: str, size: int, seconds: float) -> None:
        self.moved[name][0] += size
        self.moved[name][1] += seconds
        context_meter.digest_metric(name, seconds, "seconds")
        context_meter.digest_metric(name, size, "bytes")


class PinnedPool:
    """Blocks of pinned host memory, kept from one value to the next: at most so many bytes of them.

    To pin memory for the first time takes far longer than a copy does, so threads do it a little ahead of what is
    taken. Nothing is pinned before something is taken or expected.

    Parameters
    ----------
    allocate
        Returns a writable buffer of so many bytes, which lives as long as it is referred to.
    threads
        How many threads call it; with 0 the one that takes does.
    """

    def __init__(self, most: int, allocate: Callable[[int], Any], threads: int = 0) -> None:
        self.most, self.allocate, self.threads = most, allocate, threads
        self.held = 0  # those that are being pinned too
        self.free: defaultdict[int, list[Any]] = defaultdict(list)
        self.made: Counter[int] = Counter()
        self.coming: Counter[int] = Counter()  # those that are being pinned
        self.refused = False
        self.changed = threading.Condition()
        self.pinners: ThreadPoolExecutor | None = None

    def take(self, size: int) -> np.ndarray[Any, Any] | None:
        """Return an array of so many bytes, None if there are no more; its block is free again when it is gone."""
        block = 1 << (max(size, SMALLEST) - 1).bit_length()
        with self.changed:
            free = self.free[block]
            if not free and not self.coming[block] and self._room(block):
                self._pin(block)
            self._pin_ahead(block, min(self.made[block], AHEAD // block))
            self.changed.wait_for(lambda: free or not self.coming[block], PATIENCE)
            if not free:
                return None
            memory = free.pop()
        array = np.frombuffer(memory, dtype="u1", count=size)
        weakref.finalize(array, free.append, memory).atexit = False
        return array

    def expect(self, size: int) -> None:
        """Have blocks of so many bytes pinned beforehand, of those that there may be."""
        with self.changed:
            self._pin_ahead(BLOCK, min(-(-size // BLOCK), self.most // BLOCK))

    def trim(self) -> None:
        """Give back to the system what nobody uses."""
        with self.changed:
            for size, free in self.free.items():
                self.held -= size * len(free)
                free.clear()

    def _room(self, block: int) -> bool:
        """Whether a block more may be pinned, if need be in the place of others that nobody uses."""
        for size, free in self.free.items():
            while free and self.held + block > self.most:
                free.pop()
                self.held -= size
        return self.held + block <= self.most

    def _pin_ahead(self, block: int, count: int) -> None:
        while self.threads and len(self.free[block]) + self.coming[block] < count and self.held + block <= self.most:
            self._pin(block)

    def _pin(self, block: int) -> None:
        self.held += block
        self.coming[block] += 1
        if not self.threads:
            self._allocate(block)
            return
        self.pinners = self.pinners or ThreadPoolExecutor(self.threads, "hpcml-pin")
        self.pinners.submit(self._allocate, block)

    def _allocate(self, block: int) -> None:
        memory, refusal = None, ""
        if not self.refused:
            try:
                memory = self.allocate(block)
            except Exception as error:  # noqa: BLE001 - CUDA's: the system pins no more
                refusal = str(error)
        with self.changed:
            self.coming[block] -= 1
            if memory is None:
                self.held -= block
            else:
                self.made[block] += 1
                self.free[block].append(memory)
            if refusal and not self.refused:
                self.refused = True
                print(f"hpcml: the worker pinned {self.held >> 20} MiB of host memory and cannot pin more: {refusal}.",
                      file=sys.stderr, flush=True)  # fmt: skip
            if self.refused:
                self.most = min(self.most, self.held)
                self.refused = self.coming.total() > 0  # what was asked for before is not asked again
            self.changed.notify_all()


class Bus(Protocol):
    """Copies between a GPU's memory and arrays of the host; ``wait`` is for all that were begun."""

    def allocate(self, size: int) -> Any:
        """Return pinned memory."""

    def device_buffer(self, size: int) -> Any:
        """Return memory of the GPU, as libraries take it."""

    def out(self, host: np.ndarray[Any, Any], pointer: int) -> None:
        """Begin a copy from the GPU."""

    def back(self, pointer: int, host: np.ndarray[Any, Any]) -> None:
        """Begin a copy to the GPU."""

    def wait(self) -> None:
        """Wait for the copies."""


class CudaBus:
    """CUDA's copies, on the stream that waits for what tasks have begun, and for which their next step waits."""

    def __init__(self) -> None:
        import cupy
        import rmm

        self.cuda, self.rmm = cupy.cuda, rmm
        self.system = ctypes.CDLL(None, use_errno=True)
        self.system.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def allocate(self, size: int) -> Any:
        """Return pinned memory, of large pages where they are, and had before CUDA is asked for it.

        CUDA's own is of small ones, and while it takes them no thread can launch a kernel: 40 ms for 64 MiB.
        """
        runtime = self.cuda.runtime
        if size < LARGE_PAGE:
            return self.cuda.PinnedMemoryPointer(self.cuda.PinnedMemory(size), 0)
        memory = np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype="u1")
        place = memory.ctypes.data
        for wish in (mmap.MADV_DONTFORK, mmap.MADV_HUGEPAGE, POPULATE):  # a kernel without one does without
            self.system.madvise(place, size, wish)
        runtime.hostRegister(place, size, 0)
        weakref.finalize(memory, runtime.hostUnregister, place).atexit = False
        return memory

    def device_buffer(self, size: int) -> Any:
        """Return memory of the GPU, as libraries take it."""
        return self.rmm.DeviceBuffer(size=size)

    def out(self, host: np.ndarray[Any, Any], pointer: int) -> None:
        """Begin a copy from the GPU."""
        runtime = self.cuda.runtime
        runtime.memcpyAsync(host.ctypes.data, pointer, host.nbytes, runtime.memcpyDeviceToHost, 0)

    def back(self, pointer: int, host: np.ndarray[Any, Any]) -> None:
        """Begin a copy to the GPU."""
        runtime = self.cuda.runtime
        runtime.memcpyAsync(pointer, host.ctypes.data, host.nbytes, runtime.memcpyHostToDevice, 0)

    def wait(self) -> None:
        """Wait for the copies."""
        self.cuda.runtime.streamSynchronize(0)


class Mover:
    """Moves values between a GPU and pinned memory; what finds none goes to other memory of the host.

    Parameters
    ----------
    pack
        Makes dask-cuda's form of a value in host memory, made of a header and frames.
    """

    def __init__(self, pool: PinnedPool, bus: Bus, pack: Callable[[Any, list[Any]], Any]) -> None:
        self.pool, self.bus, self.pack = pool, bus, pack

    def out(self, value: Any) -> Any:
        """Return a value as it is in host memory."""
        header, frames = serialize(value, serializers=("cuda", "dask", "pickle"), on_error="raise")
        pieces: list[Any] = []
        sizes: list[int] = []  # of a frame on the GPU its bytes, of others -1
        for frame in frames:
            cuda_interface = getattr(frame, "__cuda_array_interface__", None)
            sizes.append(-1 if cuda_interface is None else nbytes(frame))
            if cuda_interface is None:
                pieces.append(frame)
                continue
            for at in range(0, sizes[-1], BLOCK):
                size = min(BLOCK, sizes[-1] - at)
                host = self.pool.take(size) if size >= SMALLEST else None
                pieces.append(np.empty(size, dtype="u1") if host is None else host)
                self.bus.out(pieces[-1], cuda_interface["data"][0] + at)
        self.bus.wait()
        return self.pack({"header": header, "sizes": sizes}, pieces)

    def back(self, packed: Any) -> Any:
        """Return a value as it is on the GPU."""
        pieces: Iterable[Any] = iter(packed.frames)
        frames: list[Any] = []
        for size in packed.header["sizes"]:
            if size < 0:
                frames.append(next(pieces))  # type: ignore[call-overload]
                continue
            buffer, at = self.bus.device_buffer(size), 0
            while at < size:
                host = np.frombuffer(next(pieces), dtype="u1")  # type: ignore[call-overload]
                self.bus.back(buffer.ptr + at, host)
                at += host.nbytes
            frames.append(buffer)
        self.bus.wait()
        return deserialize(copy.deepcopy(packed.header["header"]), frames)  # Dask takes keys out of those of dicts


def store(worker_local_directory: str, *, device_memory_limit: int | None, memory_limit: int | None, pinned: int,
          threads: int, cyclic: bool) -> Any:  # fmt: skip
    """Return the store of a GPU worker's data: dask-cuda's, with at most ``pinned`` bytes (0: none), and :class:`Kept`.

    So many ``threads`` pin them. It has ``spilled_total`` for Dask: what is not on the GPU; and ``expect``.
    """
    from dask_cuda import device_host_file as dask_cuda

    class Store(dask_cuda.DeviceHostFile):  # type: ignore[misc]
        """dask-cuda's, which tells Dask's worker how much is spilled."""

        @property
        def spilled_total(self) -> SpilledSize:
            """The bytes that are not on the GPU."""
            away = int(getattr(getattr(self.device_buffer, "fast", None), "away_weight", 0))
            return SpilledSize(away, away)

        def expect(self, size: int) -> None:
            """Make ready for so many bytes that will leave the GPU: pin host memory for them, in the background."""
            if pool is not None:
                pool.expect(size)

        def evict(self) -> int:
            """Send a value from the host to the disk, because the worker's process is too large; see dask-cuda's."""
            weight = super().evict()
            if pool is not None:
                pool.trim()
            return int(weight)

    pool: PinnedPool | None = None
    made = Store(worker_local_directory, device_memory_limit=device_memory_limit, memory_limit=memory_limit)
    if made.disk is not None:
        slow = made.host_buffer.slow
        made.host_buffer.slow = made.disk_func = Timed((WRITE, READ), slow.dump, slow.load, slow.d)
    if device_memory_limit is None:
        return made
    out, back = dask_cuda.device_to_host, dask_cuda.host_to_device
    if pinned:
        bus = CudaBus()
        pool = PinnedPool(pinned, bus.allocate, threads)
        mover = Mover(pool, bus, dask_cuda.DeviceSerialized)
        out, back = mover.out, mover.back
    made.device_host_func = Timed((OUT, BACK), out, back, made.host_buffer)
    kind = Cyclic if cyclic else Buffer
    made.device_buffer = kind(
        made.device_func, made.device_host_func, device_memory_limit, weight=lambda _, value: safe_sizeof(value)
    )
    made.device = made.device_buffer.fast.d
    return made
