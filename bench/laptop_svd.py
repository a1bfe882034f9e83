#!/usr/bin/env python3
"""The SVD that Dask's blog computed on a laptop, on eight cores: in an hpcml run, and on a LocalCluster by hand, in turns.

    .venv/bin/python bench/laptop_svd.py --out docs/benchmarks/laptop_svd.json

The array is the post's: 1,000,000 × 20,000 random numbers, made anew in each pass, so that a few gigabytes of memory are
enough. Needs neither Slurm nor a network. Each cluster does a small part before the clock starts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench")]
from cpu_rows import BY_HAND, HPCML, client_of, machine, started  # noqa: E402

COLUMNS, CHUNK = 20_000, (20_000, 5_000)
K = 10  # singular values
DEADLINE = 1_800  # seconds for one contender


def svd(rows: int) -> list[float]:
    """Return the largest singular values of random numbers."""
    import dask.array as da

    x = da.random.default_rng(0).random(size=(rows, COLUMNS), chunks=CHUNK)
    _, singular, v = da.linalg.svd_compressed(x, k=K, compute=True, seed=0)
    v.compute()
    return [float(value) for value in singular.compute()]


def contend(contender: str, cores: int, rows: int, result: Path) -> None:
    """Compute the SVD on the contender's cluster, and write its seconds and values."""
    with client_of(contender, cores):
        svd(CHUNK[0])
        start = time.perf_counter()
        values = svd(rows)
        seconds = time.perf_counter() - start
    result.write_text(json.dumps({"seconds": seconds, "values": values}))


def main() -> int:
    """Measure, or be a contender."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--cores", type=int, default=8)
    parser.add_argument("--out", type=Path, help="also write all figures to this file")
    parser.add_argument("--contend", choices=(HPCML, BY_HAND), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        contend(options.contend, options.cores, options.rows, options.out)
        return 0
    if options.cores > len(os.sched_getaffinity(0)):
        parser.error(f"this machine has {len(os.sched_getaffinity(0))} cores. Give --cores fewer.")
    from figures import measured  # not at the top: a run has a copy of this file

    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hpcml-laptop-svd-") as name:
        for number in range(options.rounds):
            for contender in (HPCML, BY_HAND)[:: -1 if number % 2 else 1]:
                words = ["--rows", str(options.rows)]
                found = started(__file__, contender, options.cores, words, Path(name), DEADLINE)
                runs.append({"round": number, "contender": contender, **found})
                print(f"{contender}: {found['seconds']:.1f} s", flush=True)
    if max(run["values"][0] for run in runs) > 1.0001 * min(run["values"][0] for run in runs):
        sys.exit(f"the first singular values are {[run['values'][0] for run in runs]}; all are expected to be equal")
    document = {
        "command": f"python3 {shlex.join(['bench/laptop_svd.py', *sys.argv[1:]])}",
        "measured": measured("bench/laptop_svd.py:svd"),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{options.cores} of {machine()}",
        "rows": options.rows,
        "runs": runs,
    }
    if options.out:
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
