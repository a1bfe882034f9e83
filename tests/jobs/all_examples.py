"""Run the examples one after the other on one cluster: ``all_examples.py SECONDS [NAME …]``; all, if none is named.

Examples for --ranks have no cluster: they are left out.

It stands beside them. What an example writes goes to a folder of its name in the run's out/; statuses.json there has for
each the seconds that it took and the error, empty if there was none, and is written after every example. One that takes
longer than SECONDS is broken off, and the next one runs.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import runpy
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import hpcml

NEEDS = {"query": "polars", "to_torch": "torch", "zarr_svd": "zarr"}
NEEDS_ON_GPUS = {"to_torch": "torch", "zarr_svd": "zarr", **dict.fromkeys(("query", "join", "etl"), "cudf_polars")}
# why an example is left out
CANNOT = {f"{package} is not installed" for package in (*NEEDS.values(), *NEEDS_ON_GPUS.values())}


def lacks(name: str) -> str:
    """Return why an example cannot run here, empty if it can."""
    package = (NEEDS_ON_GPUS if hpcml.run.gpus else NEEDS).get(name)
    return f"{package} is not installed" if package and importlib.util.find_spec(package) is None else ""


def run(path: Path, out: Path, seconds: int) -> str:
    """Run an example as if it were started by itself; return the error that it ended with."""

    def too_long(*_: Any) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    if lacking := lacks(path.stem):
        return lacking
    out.mkdir(parents=True, exist_ok=True)
    type(hpcml.run).out = property(lambda _: out)  # type: ignore[method-assign,assignment] # each its own
    sys.argv = [str(path)]
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        runpy.run_path(str(path), run_name="__main__")
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
            start = time.perf_counter()
            error = run(path, out / path.stem, seconds)
            statuses[path.stem] = {"seconds": round(time.perf_counter() - start, 2), "error": error}
            (out / "statuses.json").write_text(json.dumps(statuses))
    return int(any(one["error"] not in {"", *CANNOT} for one in statuses.values()))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
