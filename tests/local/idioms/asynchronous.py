"""Asynchronous code, which opens cluster and client in an event loop."""

import asyncio

from distributed import Client, LocalCluster


async def main():
    async with LocalCluster(n_workers=2, asynchronous=True) as cluster, Client(cluster, asynchronous=True) as client:
        first = await client.submit(sum, [1, 2])
    async with Client(n_workers=2, asynchronous=True) as client:
        return first + await client.submit(sum, [3, 4])


print("result", asyncio.run(main()) == 10)
