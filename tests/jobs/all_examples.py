"""Run the examples one after the other on one cluster: ``all_examples.py SECONDS [NAME …]``; all, if none is named.

Examples for --ranks have no cluster: they are left out.

It is in the examples' folder. What an example writes goes to a folder of its name in the run's out/. statuses.json there
has for each its seconds, its error (empty if there was none), and whether it reached its limit, and is written before and
after each example. An example that takes longer than SECONDS is ended, and the next one runs. The stacks of all
processes of the run at that moment are in stacks.txt of its folder.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import hpcml

NEEDS = {"query": "polars", "to_torch": "torch", "zarr_svd": "zarr"}
NEEDS_ON_GPUS = {"to_torch": "torch", "zarr_svd": "zarr", **dict.fromkeys(("query", "join", "etl"), "cudf_polars")}
STACKS = 20  # seconds for the stacks of an example that reached its limit
# why an example is left out
CANNOT = {f"{package} is not installed" for package in (*NEEDS.values(), *NEEDS_ON_GPUS.values())}


def lacks(name: str) -> str:
    """Return why an example cannot run here, empty if it can."""
    package = (NEEDS_ON_GPUS if hpcml.run.gpus else NEEDS).get(name)
    return f"{package} is not installed" if package and importlib.util.find_spec(package) is None else ""


def write_stacks(file: Path) -> None:
    """Write the stacks of all processes of this run, or of this process if it is not in a run, to a file."""
    with file.open("w") as stacks:
        if hpcml.run.directory is None:
            faulthandler.dump_traceback(stacks)
            return
        directory = Path(hpcml.run.directory)
        words = [sys.executable, "-m", "hpcml", "stacks", directory.name, "--set", f"paths.runs={directory.parent}"]
        try:
            subprocess.run(words, stdout=stacks, stderr=subprocess.STDOUT, timeout=STACKS, check=False)
        except subprocess.TimeoutExpired:
            stacks.write(f"hpcml stacks did not end after {STACKS} s\n")


class LimitReachedError(BaseException):
    """An example took longer than its limit; no library catches this as an error of its own."""


def run(path: Path, out: Path, seconds: int) -> str:
    """Run an example as if it were started by itself; return the error that it ended with.

    Raises LimitReachedError if the example takes longer than the limit.
    """

    def too_long(*_: Any) -> None:
        write_stacks(out / "stacks.txt")
        raise LimitReachedError(f"not done after {seconds} s")

    if lacking := lacks(path.stem):
        return lacking
    out.mkdir(parents=True, exist_ok=True)
    type(hpcml.run).out = property(lambda _: out)  # type: ignore[method-assign,assignment] # each its own
    sys.argv = [str(path)]
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        runpy.run_path(str(path), run_name="__main__")
    except LimitReachedError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the next example is tried whatever happens
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    finally:
        signal.alarm(0)
        if "matplotlib.pyplot" in sys.modules:
            sys.modules["matplotlib.pyplot"].close("all")
        gc.collect()
    return ""


def main(seconds: int, names: list[str]) -> int:
    """Run the examples; return 1 if one of them failed."""
    os.environ["MPLBACKEND"] = "Agg"
    here, out = Path(__file__).resolve().parent, Path(hpcml.run.out)
    client = hpcml.connect(backend="auto")
    if hpcml.run.directory is None:  # each example's own cluster would be started anew
        hpcml.connect = lambda **_: client
    statuses: dict[str, dict[str, Any]] = {}
    for path in sorted(here.glob("*.py")):
        of_ranks = "--ranks" in path.read_text(encoding="utf-8")
        if path.name != Path(__file__).name and not of_ranks and path.stem in (names or [path.stem]):
            print("==", path.stem, flush=True)
            start, limit = time.perf_counter(), False
            statuses[path.stem] = {"seconds": 0.0, "error": "it did not end", "limit": limit}
            (out / "statuses.json").write_text(json.dumps(statuses))
            try:
                error = run(path, out / path.stem, seconds)
            except LimitReachedError as reached:
                error, limit = str(reached), True
                print((out / path.stem / "stacks.txt").read_text(), file=sys.stderr, flush=True)
            statuses[path.stem] = {"seconds": round(time.perf_counter() - start, 2), "error": error, "limit": limit}
            (out / "statuses.json").write_text(json.dumps(statuses))
    return int(any(one["error"] not in {"", *CANNOT} for one in statuses.values()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
