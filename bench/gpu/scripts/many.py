"""Compute on many workers, then wait for an order, and end with the status that it has: ``many.py FOLDER WORKERS``."""

import json
import sys
import time
from pathlib import Path

import hpcml

DEADLINE = 300


def host(_: int) -> str:
    """Return the name of a worker's node."""
    import socket

    return socket.gethostname()


def wait_for(order: Path) -> int:
    """Return the status in a file once it is there."""
    ends = time.monotonic() + DEADLINE
    while not order.exists():
        if time.monotonic() > ends:
            return 1
        time.sleep(0.1)
    return int(order.read_text())


if __name__ == "__main__":
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    client = hpcml.connect()
    names = list(client.scheduler_info(n_workers=-1)["workers"])
    asked = [client.submit(host, number, workers=[name], pure=False) for number, name in enumerate(names)]
    new = folder / "ready.new"
    new.write_text(json.dumps({"workers": len(names), "nodes": sorted(set(client.gather(asked)))}))
    new.rename(folder / "ready.json")
    sys.exit(wait_for(folder / "order"))
