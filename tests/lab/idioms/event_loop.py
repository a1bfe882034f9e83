"""Asynchronous client and cluster in asyncio.run, with a scheduler of the script's own beside them."""

import asyncio
import json

from distributed import Client, LocalCluster, Scheduler, Worker


async def main():
    found = {}
    async with (
        LocalCluster(n_workers=2, asynchronous=True, dashboard_address=":0") as cluster,
        Client(cluster, asynchronous=True) as client,
    ):
        found["cluster"] = await client.gather(client.map(abs, range(-3, 0)))
    client = await Client(n_workers=2, asynchronous=True, dashboard_address=":0")
    found["client"] = await client.submit(max, [4, 9, 2])
    await client.close()
    async with (
        Scheduler(dashboard_address=":0") as scheduler,
        Worker(scheduler.address),
        Client(scheduler.address, asynchronous=True) as client,
    ):
        found["own"] = [client.scheduler.address == scheduler.address, await client.submit(sum, [1, 2])]
    return found


if __name__ == "__main__":
    print("result", json.dumps(asyncio.run(main())))
