#!/usr/bin/env python3
"""cudf-polars' SPMDEngine on the GPUs of this machine, its ranks started and brought together by `hpcml submit --ranks gpu`.

    python3 bench/ranks_rapidsmpf.py --gpus 2 --python /env/bin/python

The Python has cudf-polars and rapidsmpf. Each rank holds every key once; a group-by over all ranks must add them up. The
script prints what each rank saw, and returns 1 if a rank or a sum is missing. With --nodes 2, the Slurm at hand starts it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import json, os, time
local, visible = int(os.environ["LOCAL_RANK"]), os.environ.get("CUDA_VISIBLE_DEVICES", "")
visible = visible.split(",") if visible else [str(one) for one in range(int(os.environ["LOCAL_WORLD_SIZE"]))]
os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[local:] + visible[:local])  # rapidsmpf uses the first one
began = time.time()
import polars as pl
try: from cudf_polars.engine.spmd import SPMDEngine
except ImportError: from cudf_polars.experimental.rapidsmpf.frontend.spmd import SPMDEngine
import hpcml
with SPMDEngine() as engine:
    start = time.time() - began
    rank = engine.rank
    frame = pl.LazyFrame({"k": list(range(10_000)), "v": [rank + 1] * 10_000})
    begin = time.time()
    sums = frame.group_by("k").agg(pl.col("v").sum()).collect(engine=engine)
    seconds = time.time() - begin
    told = {"rank": rank, "nranks": engine.nranks, "start": start, "seconds": seconds, "pid": os.getpid(),
            "gpu": os.environ["CUDA_VISIBLE_DEVICES"], "sums": dict(zip(sums["k"].to_list(), sums["v"].to_list()))}
    (hpcml.run.out / f"{rank}.json").write_text(json.dumps(told))
print("rank", rank, "has", len(sums), "keys", flush=True)
"""


def main() -> int:
    """Run the ranks, and judge what they wrote."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2, help="GPUs of each node")
    parser.add_argument("--nodes", type=int, default=1, help="more than 1: by the site that hpcml finds")
    parser.add_argument("--python", default=sys.executable, help="a Python with cudf-polars (default: this one)")
    options = parser.parse_args()
    size = ["--nodes", str(options.nodes), "--gpus-per-node", str(options.gpus), "--ranks", "gpu"]
    site = ["--site", "local"] if options.nodes == 1 else []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "spmd.py")
        script.write_text(SCRIPT)
        settings = ["--set", f"runtime.python={options.python}", "--set", "interconnect.require=none"]
        command = [sys.executable, "-m", "hpcml", "submit", "--wait", *site, *size, *settings, str(script)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "HOME": folder, "PYTHONPATH": path}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=500, env=environment, cwd=folder
        )
        ranks = [json.loads(file.read_text()) for file in sorted(Path(folder).glob(".hpcml/runs/*/out/*.json"))]
        logs = sorted(Path(folder).glob(".hpcml/runs/*/logs/rank-*"))
        tails = {log.name: re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))[-1500:] for log in logs}
    count = options.nodes * options.gpus
    sums = [one.pop("sums") for one in ranks]
    keys = {key for part in sums for key in part}
    right = all(value == count * (count + 1) // 2 for part in sums for value in part.values())
    for one, part in zip(ranks, sums, strict=True):
        print(json.dumps({**one, "keys": len(part)}), flush=True)
    good = (
        done.returncode == 0 and [one["nranks"] for one in ranks] == [count] * count and len(keys) == 10_000 and right
    )
    print(
        f"{'good' if good else 'WRONG'}: {len(ranks)} of {count} ranks, {len(keys)} keys, sums {'right' if right else 'wrong'}"
    )
    if not good:
        print(done.stdout[-2000:], done.stderr[-2000:], json.dumps(tails, indent=1))
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
