"""Asynchronous code, which opens cluster and client in an event loop."""

import asyncio
import os

from distributed import Client, LocalCluster


async def main():
    os.environ["FIRST"] = "1"
    async with LocalCluster(n_workers=2, asynchronous=True) as cluster, Client(cluster, asynchronous=True) as client:
        first = await client.submit(sum, [1, 2]) * int(await client.submit(os.getenv, "FIRST"))
    del os.environ["FIRST"]
    os.environ["SECOND"] = "2"
    async with Client(n_workers=2, asynchronous=True) as client:
        assert await client.submit(os.getenv, "FIRST", pure=False) is None
        return first + await client.submit(sum, [3, 4]) * int(await client.submit(os.getenv, "SECOND"))


print("result", asyncio.run(main()) == 17)
