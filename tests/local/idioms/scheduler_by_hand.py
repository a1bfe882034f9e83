"""A scheduler by hand: its two ports talk TLS to those who have the run's key; Dask's HTTP pages would ask nobody."""

import asyncio

import psutil
from distributed import Client, Scheduler, Worker


async def main():
    async with (
        Scheduler() as scheduler,
        Worker(scheduler.address) as worker,
        Client(scheduler.address, asynchronous=True) as client,
    ):
        doors = {one.laddr.port for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"}
        print("result", await client.submit(sum, [1, 2]) == 3 and doors == {scheduler.port, worker.port})


asyncio.run(main())
