"""Move device memory between two processes over Dask's UCX comms, and time connections and throughput.

``exchange.py FOLDER listen`` and ``exchange.py FOLDER connect``; with ``--key`` both authenticate as hpcml does. No
cluster is involved: what differs between two runs of this is the key, or how UCX makes progress, alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import dask.config

GIB = 1024**3
DEADLINE = 120
SERIALIZERS = ("cuda", "dask", "pickle", "error")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("side", choices=("listen", "connect"))
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--messages", type=int, default=40)
    parser.add_argument("--connections", type=int, default=20)
    parser.add_argument("--key", type=Path)
    parser.add_argument("--cpu", action="store_true")
    return parser.parse_args()


def prepare(options: argparse.Namespace) -> Any:
    """Put the key before UCX, make the memory pool, and return the array that travels."""
    if options.key:
        from hpcml.kinds.dask.node.security import ucx_auth

        ucx_auth.install(options.key)
    size = options.mib << 20
    if options.cpu:
        import numpy

        return numpy.ones(size, dtype="uint8")
    dask.config.set({"distributed-ucxx.create-cuda-context": True})
    import rmm

    rmm.reinitialize(pool_allocator=True, initial_pool_size=8 * GIB)
    return rmm.DeviceBuffer(size=size)


async def listen(options: argparse.Namespace, array: Any) -> None:
    """Send the array as often as is asked for; end when told so."""
    from distributed.comm import listen as open_listener
    from distributed.comm.core import CommClosedError
    from distributed.protocol import to_serialize

    ended = asyncio.Event()

    async def serve(comm: Any) -> None:
        last = False
        while True:
            try:
                message = await comm.read()
            except CommClosedError:
                break
            for _ in range(message["send"]):
                await comm.write({"array": to_serialize(array)}, serializers=SERIALIZERS)
            last = last or message["end"]
        if last:  # the other side has closed the connection on which it said so
            ended.set()

    listener = open_listener("ucx://127.0.0.1:0", serve)
    async with listener:
        new = options.folder / "address.new"
        new.write_text(listener.contact_address)
        new.rename(options.folder / "address")
        await asyncio.wait_for(ended.wait(), DEADLINE)


async def connect(options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of a connection and the throughput of messages of device memory, warmed up."""
    from distributed.comm import connect as open_comm

    ends = time.monotonic() + DEADLINE
    path = options.folder / "address"
    while not path.exists():
        if time.monotonic() > ends:
            raise TimeoutError("the listener did not come")
        await asyncio.sleep(0.02)
    address = path.read_text()
    seconds = []
    for _ in range(options.connections):
        began = time.perf_counter()
        comm = await open_comm(address, timeout=20)
        seconds.append(time.perf_counter() - began)
        await comm.close()
    comm = await open_comm(address, timeout=20, deserializers=SERIALIZERS)
    rates = []
    for count in (2, options.messages, options.messages):
        began = time.perf_counter()
        await comm.write({"send": count, "end": False})
        for _ in range(count):
            await comm.read(deserializers=SERIALIZERS)
        rates.append(count * options.mib / 1024 / (time.perf_counter() - began))
    await comm.write({"send": 0, "end": True})
    await comm.close()
    return {"gib_s": statistics.median(rates[1:]), "connect_ms": 1000 * statistics.median(seconds[1:])}


def main() -> None:
    options = parse()
    array = prepare(options)
    if options.side == "listen":
        asyncio.run(asyncio.wait_for(listen(options, array), DEADLINE))
    else:
        found = asyncio.run(asyncio.wait_for(connect(options), DEADLINE))
        (options.folder / "result.json").write_text(json.dumps(found))
    os._exit(0)  # UCX's teardown is not what is measured


if __name__ == "__main__":
    main()
