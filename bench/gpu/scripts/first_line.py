"""Connect, see all workers, and leave behind when that was: the script of every contender in the bring-up."""

import argparse
import json
import os
import time
from pathlib import Path

from distributed import Client

BEGUN = time.time()  # after the imports, which hpcml makes while the workers start
DEADLINE = 120


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("workers", type=int)
    parser.add_argument("--scheduler-file", default="")
    options = parser.parse_args()
    by_hand = options.scheduler_file
    client = Client(scheduler_file=by_hand, timeout=DEADLINE) if by_hand else Client()
    client.wait_for_workers(options.workers, timeout=DEADLINE)
    usable = time.time()
    events = client.get_events("all")
    registered = [when for when, what in events if isinstance(what, dict) and what.get("action") == "add-worker"]
    result = Path(os.environ["GPU_TIER_FOLDER"]) / "result.json"
    new = result.with_suffix(".new")
    new.write_text(json.dumps({"begun": BEGUN, "usable": usable, "registered": sorted(registered)}))
    new.rename(result)
    if by_hand:
        client.shutdown()
    else:
        client.close()


if __name__ == "__main__":
    main()
