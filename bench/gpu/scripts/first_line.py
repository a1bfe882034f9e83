"""Connect, see all workers, and leave behind when that was: the script of every contender in the bring-up."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from distributed import Client

BEGUN = time.time()  # after the imports, which hpcml makes while the workers start
DEADLINE = 120


def measure(client: Client, workers: int, work: Callable[[], object] | None = None) -> None:
    """Wait for the workers, do some work on each, and write when all was done."""
    client.wait_for_workers(workers, timeout=DEADLINE)
    if work is not None:
        client.run(work)
    usable = time.time()
    events = client.get_events("all")
    registered = [when for when, what in events if isinstance(what, dict) and what.get("action") == "add-worker"]
    write(BEGUN, usable, registered)


def write(begun: float, usable: float, registered: list[float]) -> None:
    """Write the times, whole or not at all."""
    result = Path(os.environ["GPU_TIER_FOLDER"]) / "result.json"
    new = result.with_suffix(".new")
    new.write_text(json.dumps({"begun": begun, "usable": usable, "registered": sorted(registered)}))
    new.rename(result)


def main(work: Callable[[], object] | None = None) -> None:
    """Connect to the run, or to the cluster of a scheduler file, and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workers", type=int)
    parser.add_argument("--scheduler-file", default="")
    options = parser.parse_args()
    by_hand = options.scheduler_file
    client = Client(scheduler_file=by_hand, timeout=DEADLINE) if by_hand else Client()
    measure(client, options.workers, work)
    if by_hand:
        client.shutdown()
    else:
        client.close()


if __name__ == "__main__":
    main()
