"""Run jobs of the gallery one after the other in one allocation: ``all_jobs.py '{"kmeans": "--k 4"}' [SECONDS]``.

It stands in a copy of jobs/, so that workers find the jobs' functions by name. Each job writes into a folder of its name
in the run's out/; statuses.json there has the exit status of each, or what it raised, and is written after every job. A
job that takes longer than SECONDS is broken off, and the next one runs.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import signal
import sys
import traceback
from typing import Any

import hpcml


def main(options: dict[str, str], seconds: int, out: pathlib.Path) -> int:
    def too_long(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    signal.signal(signal.SIGALRM, too_long)
    statuses: dict[str, int | str] = {}
    for name, words in options.items():
        print("==", name, words, flush=True)
        signal.alarm(seconds)
        try:
            statuses[name] = importlib.import_module(name).main([*words.split(), "--out", str(out / name)])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the next job is tried whatever happens
            traceback.print_exc()
            statuses[name] = f"{type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
        (out / "statuses.json").write_text(json.dumps(statuses))
    return int(any(statuses.values()))


if __name__ == "__main__":
    hpcml.run.out.mkdir(parents=True, exist_ok=True)
    status = main(json.loads(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 300, hpcml.run.out)
    raise SystemExit(status)
