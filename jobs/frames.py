"""The same data frame code on CPUs and GPUs, with pandas or cuDF: read files, from_dict, sum, join, groupby.

Your own data: trips = dd.read_parquet("trips/*.parquet"), and change the columns. On GPUs Polars is faster (join.py).
"""

import argparse
import json
import tempfile
import time

import dask
import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from distributed import wait

import hpcml


def made(number, rows):  # a partition of taxi trips
    rng = np.random.default_rng(number)
    return pd.DataFrame({"zone": rng.integers(0, 200, rows), "fare": rng.gamma(4.0, 3.0, rows).round(2)})


parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=800_000)
options = parser.parse_args()
client = hpcml.connect(backend="auto")  # tables are cuDF tables on GPUs, pandas tables on CPUs
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
folder = tempfile.TemporaryDirectory(dir=out.parent, prefix="trips-")  # on a file system that all nodes share
files = max(8, options.rows // 20_000_000)
meta = pd.DataFrame({"zone": pd.Series(dtype="int64"), "fare": pd.Series(dtype="float64")})
dd.from_map(made, range(files), rows=options.rows // files, meta=meta).to_parquet(folder.name)

start = time.perf_counter()
trips = dd.read_parquet(folder.name).persist()
wait(trips)
seconds = {"read": time.perf_counter() - start}
areas = dd.from_dict({"zone": list(range(200)), "area": ["north", "south"] * 100}, npartitions=1)
results = {
    "sum": trips["fare"].sum(),
    "join": trips.merge(areas, on="zone").groupby("area")["fare"].agg(["count", "mean"]),
}
for name, lazy in results.items():  # Dask computes nothing before compute()
    start = time.perf_counter()
    results[name] = lazy.compute()
    seconds[name] = time.perf_counter() - start
by_area = results["join"]
by_area = (by_area.to_pandas() if hasattr(by_area, "to_pandas") else by_area).sort_index()
result = {"rows": len(trips), "sum": float(results["sum"])}
result |= {"counts": by_area["count"].tolist(), "means": by_area["mean"].tolist()}
(out / "result.json").write_text(json.dumps(result | {"seconds": seconds}, indent=1))

figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
axes.bar(list(seconds), list(seconds.values()))
axes.set(ylabel="seconds", title=f"{dask.config.get('dataframe.backend')}, {result['rows']:,} rows")
figure.savefig(out / "frames.png", dpi=150)
folder.cleanup()
print(", ".join(f"{name} {took:.2f} s" for name, took in seconds.items()))
print(f"picture: {out / 'frames.png'}")
