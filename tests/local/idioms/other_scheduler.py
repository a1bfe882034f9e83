"""A scheduler of the script's own that answers is the one that was asked for."""

import asyncio
import os

from dask.distributed import Client, Scheduler, Security


async def main():
    own = {"security": Security.temporary(), "port": 0, "host": "127.0.0.1"}
    async with (
        Scheduler(dashboard=False, dashboard_address=None, **own) as scheduler,
        Client(scheduler.address, asynchronous=True, security=own["security"]) as client,
    ):
        print("result", client.scheduler.address == scheduler.address != os.environ["DASK_SCHEDULER_ADDRESS"])


asyncio.run(main())
