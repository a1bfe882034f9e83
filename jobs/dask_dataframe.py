"""Data frames: read Parquet, sum, join with a small table, shuffle by key: the same code on pandas and Dask-cuDF.

Your own data: levels = dd.read_parquet("measured/*.parquet"), and change the columns. On GPUs Polars joins two large
tables faster (join.py).
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


def made(number, rows):  # one file: some hours of the water levels of all 50 stations
    hour = np.arange(rows) // 50 + number * rows // 50
    station = np.arange(rows) % 50
    noise = np.random.default_rng(number).normal(0, 0.05, rows)
    level = 2 + station / 50 + np.sin(hour / 24 + station) + noise
    return pd.DataFrame({"station": station, "hour": hour, "level": level})


def rises(part):  # the change of the level since the hour before: a part has all rows of its stations
    part = part.sort_values(["station", "hour"])
    part["rise"] = part.groupby("station")["level"].diff()
    return part


parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=240_000)
options = parser.parse_args()
client = hpcml.connect(backend="auto")  # tables are cuDF tables on GPUs (Dask-cuDF), pandas tables on CPUs
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
folder = tempfile.TemporaryDirectory(dir=out.parent, prefix="levels-")  # on a file system that all nodes share
files = max(12, options.rows // 20_000_000)
written = dd.from_map(made, range(files), rows=options.rows // files, meta=made(0, 50)).to_backend()
written.to_parquet(folder.name)

start = time.perf_counter()
levels = dd.read_parquet(folder.name).repartition(npartitions=max(8, files)).persist()  # or partition_size="1GB"
wait(levels)
seconds = {"read": time.perf_counter() - start}
places = dd.from_dict({"station": list(range(50)), "river": ["Po", "Adige"] * 25}, npartitions=1)
moved = levels.shuffle("station").map_partitions(rises)  # moves all rows of a station to one partition
results = {
    "sum": levels["level"].sum(),
    "join": levels.merge(places, on="station").groupby("river").agg({"level": ["count", "mean"]}).to_backend("pandas"),
    "shuffle": moved.groupby("station").agg({"level": "mean", "rise": "max"}).to_backend("pandas"),
}
for name, lazy in results.items():  # Dask computes nothing before compute()
    start = time.perf_counter()
    results[name] = lazy.compute()
    seconds[name] = time.perf_counter() - start

rivers, stations = results["join"]["level"].sort_index(), results["shuffle"].sort_index()
stations.to_csv(out / "stations.csv")
result = {"rows": len(levels), "sum": float(results["sum"]), "counts": rivers["count"].tolist()}
result |= {"rivers": rivers["mean"].tolist(), "mean": stations["level"].tolist(), "rise": stations["rise"].tolist()}
(out / "result.json").write_text(json.dumps(result | {"seconds": seconds}, indent=1))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.bar(stations.index, stations["rise"])
left.set(xlabel="station", ylabel="largest rise in an hour, metres")
right.bar(list(seconds), list(seconds.values()))
right.set(ylabel="seconds", title=f"{dask.config.get('dataframe.backend')}, {result['rows']:,} rows")
figure.savefig(out / "dask_dataframe.png", dpi=150)
folder.cleanup()
print(", ".join(f"{name} {took:.2f} s" for name, took in seconds.items()))
print(f"picture: {out / 'dask_dataframe.png'}")
