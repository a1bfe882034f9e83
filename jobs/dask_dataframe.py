"""Tables: read Parquet, repartition, shuffle by key, aggregate by group: Dask-cuDF on GPUs, Dask DataFrame on CPUs.

Your own data: replace made(…) with the path of your files, and change the columns.
"""

import json
import tempfile
import time

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import hpcml

if hpcml.run.gpus:
    import dask_cudf as frames  # its tables have the methods of Dask DataFrame, and consist of cuDF tables
else:
    frames = dd  # its tables consist of pandas tables


def made(folder):  # water levels: each of twelve files has some hours of all stations
    for number in range(12):
        rng, rows = np.random.default_rng(number), 20_000
        hour = np.arange(rows) // 50 + number * rows // 50
        station = np.tile(np.arange(50), rows // 50)
        level = 2 + station / 50 + np.sin(hour / 24 + station) + rng.normal(0, 0.05, rows)
        pd.DataFrame({"station": station, "hour": hour, "level": level}).to_parquet(
            f"{folder}/levels-{number:02}.parquet"
        )
    return f"{folder}/levels-*.parquet"


def rises(part):  # the change of the level since the hour before: a part has all rows of its stations
    part = part.sort_values(["station", "hour"])
    part["rise"] = part.groupby("station")["level"].diff()
    return part


client = hpcml.connect()
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
folder = tempfile.TemporaryDirectory(dir=out.parent, prefix="levels-")  # on a file system that all nodes share
files = made(folder.name)

start = time.perf_counter()
table = frames.read_parquet(files).repartition(npartitions=8)  # partition_size="1GB" for large files
table = table.shuffle("station").map_partitions(rises).persist()
each = table.groupby("station").agg({"level": ["count", "mean"], "rise": "max"}).to_backend("pandas").compute()
seconds = time.perf_counter() - start

each.columns = ["count", "mean", "rise"]
each = each.sort_index()
each.to_csv(out / "stations.csv")
result = {"rows": int(each["count"].sum()), "mean": each["mean"].tolist(), "rise": each["rise"].tolist()}
(out / "result.json").write_text(json.dumps(result | {"seconds": seconds}, indent=1))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
for axes, column, label in ((left, "mean", "mean level, metres"), (right, "rise", "largest rise in an hour, metres")):
    axes.bar(each.index, each[column])
    axes.set(xlabel="station", ylabel=label)
figure.savefig(out / "dask_dataframe.png", dpi=150)
folder.cleanup()
print(f"{result['rows']:,} rows of {len(each)} stations in {table.npartitions} partitions, in {seconds:.1f} s")
print(f"picture: {out / 'dask_dataframe.png'}")
