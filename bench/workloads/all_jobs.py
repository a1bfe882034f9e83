"""Run workloads one after the other on one cluster: ``all_jobs.py '{"kmeans": "--k 4"}' [SECONDS [TIMES]]``.

It is beside them, so that workers find the jobs' functions by name. Each job writes into a folder of its name
in the run's out/; statuses.json there has the exit status of each, or what it raised, and is written after every job. A
job that takes longer than SECONDS is broken off, and the next one runs. With TIMES all that succeeded run again, in
out/again1 …, where libraries are loaded and kernels compiled. "NAME/anything" is the job NAME with other options; it runs
once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import pathlib
import signal
import traceback
from typing import Any

import hpcml


def main(options: dict[str, str], seconds: int, out: pathlib.Path) -> dict[str, int | str]:
    """Run the jobs; return the exit status of each."""

    def too_long(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGALRM, too_long)
    statuses: dict[str, int | str] = {}
    for name, words in options.items():
        print("==", name, words, flush=True)
        signal.alarm(seconds)
        try:
            job = importlib.import_module(name.split("/")[0])
            statuses[name] = job.main([*words.split(), "--out", str(out / name)])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the next job is tried whatever happens
            traceback.print_exc()
            statuses[name] = f"{type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
        (out / "statuses.json").write_text(json.dumps(statuses))
    return statuses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("options", type=json.loads)
    parser.add_argument("seconds", type=int, nargs="?", default=300)
    parser.add_argument("times", type=int, nargs="?", default=1)
    given = parser.parse_args()
    with hpcml.connect(
        backend="auto"
    ) as client:  # one cluster for all: each job's own would be started anew on the local site
        hpcml.connect = lambda **_: contextlib.nullcontext(client)
        found = main(given.options, given.seconds, hpcml.run.out)
        good = {name: words for name, words in given.options.items() if found[name] == 0 and "/" not in name}
        for number in range(1, given.times):
            main(good, given.seconds, hpcml.run.out / f"again{number}")
    raise SystemExit(int(any(found.values())))
