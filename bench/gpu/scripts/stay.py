"""Say where scheduler and workers are, then compute again and again until told to stop: ``stay.py FOLDER``."""

import json
import sys
import time
from pathlib import Path

import hpcml

DEADLINE = 240
folder = Path(sys.argv[1])


def square(number: int) -> int:
    return number * number


def main() -> None:
    client = hpcml.connect()
    info = client.scheduler_info(n_workers=-1)
    new = folder / "ready.new"
    new.write_text(json.dumps({"scheduler": client.scheduler.address, "workers": sorted(info["workers"])}))
    new.rename(folder / "ready.json")
    ends = time.monotonic() + DEADLINE
    rounds = 0
    while not (folder / "stop").exists() and time.monotonic() < ends:
        numbers = range(rounds, rounds + 20)
        assert client.gather(client.map(square, numbers, pure=False)) == [number * number for number in numbers]
        rounds += 1
        time.sleep(0.1)  # a pace, not a hope: the loop looks at the clock
    workers = len(client.scheduler_info(n_workers=-1)["workers"])
    (folder / "end.json").write_text(json.dumps({"rounds": rounds, "workers_at_end": workers}))
    assert workers == len(info["workers"])
    client.close()


if __name__ == "__main__":
    main()
