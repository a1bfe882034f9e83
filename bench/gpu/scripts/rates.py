"""Measure what this machine can do without Dask and hpcml: the rates that a headline's time is compared with.

Prints one line of JSON, GiB/s each: ``memory`` of a GPU (bytes read and written by a copy), ``to`` and ``from`` a GPU over the
bus with pinned memory, ``nvlink`` from one GPU to another (where there are two), ``file`` of files just written, read by as many threads
as there are files, ``loopback`` of one TCP connection, and ``draw_NAME``: float64 normal numbers by CuPy's generators, each with
its seeding, as a task of Dask's pays it, a chunk of 32nd of the GPU's memory at a time.
"""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

GIB = 1024**3
TIMES = 5
CPU = "--cpu" in sys.argv
SIZE = GIB // 64 if CPU else 8 * GIB  # bytes of a copy in memory
COPIED = GIB // 64 if CPU else GIB  # over the bus
FILES, FILE = 16, (GIB // 256 if CPU else GIB // 4)
SENT = GIB // 64 if CPU else 2 * GIB  # over a TCP connection
BLOCK = 1 << 20


def rate(size: float, work: Callable[[], object], done: Callable[[], object] = lambda: None) -> float:
    """Return the median GiB/s of so many bytes; the first time does not count."""
    seconds = []
    for _ in range(TIMES + 1):
        began = time.perf_counter()
        work()
        done()
        seconds.append(time.perf_counter() - began)
    return round(size / statistics.median(seconds[1:]) / GIB, 3)


def read(path: pathlib.Path) -> None:
    place = memoryview(bytearray(8 * BLOCK))
    with path.open("rb", buffering=0) as file:
        while file.readinto(place):
            pass


def files() -> float:
    """Return the rate of reading files that were just written, so that they are in the page cache."""
    with tempfile.TemporaryDirectory(dir=".") as folder, concurrent.futures.ThreadPoolExecutor(FILES) as pool:
        paths = [pathlib.Path(folder) / f"{number}" for number in range(FILES)]
        for path in paths:
            with path.open("wb") as file:
                for _ in range(FILE // BLOCK):
                    file.write(b"7" * BLOCK)
        return rate(FILES * FILE, lambda: list(pool.map(read, paths)))


def loopback() -> float:
    """Return the rate of one TCP connection of this host with itself."""

    def send() -> None:
        with socket.create_connection(door.getsockname()) as one:
            for _ in range(SENT // (8 * BLOCK)):
                one.sendall(block)

    def once() -> None:
        sender = threading.Thread(target=send)
        sender.start()
        other, _ = door.accept()
        with other:
            while other.recv_into(place):
                pass
        sender.join()

    block, place = bytes(8 * BLOCK), bytearray(8 * BLOCK)
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(60)
        return rate(SENT, once)


def draws(xp: Any, size: int, done: Callable[[], object]) -> dict[str, float]:
    """Return the rate of drawing by each of the library's generators, which is made anew each time."""
    shape = (size // 8,)
    makers: dict[str, Callable[[int], Any]] = {"legacy": xp.random.RandomState}
    names = {"pcg64": "PCG64"} if CPU else {"xorwow": "XORWOW", "philox": "Philox4x3210"}
    for name, kind in names.items():
        makers[name] = lambda seed, kind=kind: xp.random.Generator(getattr(xp.random, kind)(seed))  # type: ignore[misc]
        if not CPU:  # as many streams as the GPU has threads; CuPy's own default is fewer
            streams = 2048 * xp.cuda.Device().attributes["MultiProcessorCount"]
            makers[f"{name}_all"] = lambda seed, kind=kind, streams=streams: xp.random.Generator(
                getattr(xp.random, kind)(seed, size=streams)
            )  # type: ignore[misc]
    return {f"draw_{name}_gib_s": rate(size, lambda make=make: make(1).standard_normal(shape), done)  # type: ignore[misc]
            for name, make in makers.items()}  # fmt: skip


def nvlink(cp: Any) -> float:
    """Return the rate of copies from the first GPU to the second."""
    runtime = cp.cuda.runtime
    with cp.cuda.Device(1):
        there = cp.empty(SIZE, dtype="uint8")
        if runtime.deviceCanAccessPeer(1, 0):
            runtime.deviceEnablePeerAccess(0)
    with cp.cuda.Device(0):
        here = cp.ones(SIZE, dtype="uint8")
        if runtime.deviceCanAccessPeer(0, 1):
            runtime.deviceEnablePeerAccess(1)
        return rate(
            SIZE, lambda: runtime.memcpyPeer(there.data.ptr, 1, here.data.ptr, 0, SIZE), runtime.deviceSynchronize
        )


def main() -> dict[str, float]:
    found = {"file_gib_s": files(), "loopback_gib_s": loopback()}
    if CPU:
        import numpy as np

        one = np.ones(SIZE, dtype="uint8")
        other = one.copy()
        return {**found, "memory_gib_s": rate(2 * SIZE, lambda: np.copyto(other, one)), **draws(np, SIZE, lambda: None)}
    import cupy as cp
    import cupyx

    wait = cp.cuda.runtime.deviceSynchronize
    device, copy = cp.ones(SIZE, dtype="uint8"), cp.empty(SIZE, dtype="uint8")
    found["memory_gib_s"] = rate(2 * SIZE, lambda: cp.copyto(copy, device), wait)
    pinned, few = cupyx.empty_pinned((COPIED,), dtype="uint8"), device[:COPIED]
    found["to_gib_s"] = rate(COPIED, lambda: few.set(pinned), wait)
    found["from_gib_s"] = rate(COPIED, lambda: few.get(out=pinned), wait)
    found |= draws(cp, int(cp.cuda.runtime.memGetInfo()[1]) // 32, wait)
    if cp.cuda.runtime.getDeviceCount() > 1:
        found["nvlink_gib_s"] = nvlink(cp)
    return found


if __name__ == "__main__":
    print(json.dumps(main()), flush=True)
