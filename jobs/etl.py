"""ETL: read CSV files, drop invalid rows, aggregate by group, write clean Parquet: Polars on GPUs, Dask on CPUs.

On GPUs the script needs hpcml's extra polars-cuda12 or polars-cuda13.

Your own data: replace made(…) with the path of your files; change the columns and the rules for valid rows.
"""

import json
import tempfile
import time

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import hpcml


def made(folder):  # eight files of taxi trips; some rows are invalid
    for number in range(8):
        rng, rows = np.random.default_rng(number), 25_000
        hours = 24 * rng.integers(0, 30, rows) + rng.normal(15, 5, rows) % 24  # most trips are in the afternoon
        pickup = pd.Timestamp("2026-01-01") + pd.to_timedelta((3600 * hours).astype(int), unit="s")
        miles = (rng.gamma(2.0, 1.5, rows) + 4 * (hours % 24 < 6)).round(2)  # trips at night are longer
        trips = pd.DataFrame({"pickup": pickup, "miles": miles, "fare": (3 + 2.5 * miles).round(2)})
        trips.loc[rng.random(rows) < 0.01, "miles"] = 9_999.0
        trips.loc[rng.random(rows) < 0.01, "fare"] *= -1
        trips.to_csv(f"{folder}/trips-{number}.csv", index=False)
    return f"{folder}/trips-*.csv"


def by_polars(files, clean):  # cuDF-Polars on the run's GPUs
    import polars as pl

    trips = pl.scan_csv(files).with_columns(pl.col("pickup").str.to_datetime("%Y-%m-%d %H:%M:%S", cache=False))
    possible = (pl.col("miles") > 0) & (pl.col("miles") < 200) & (pl.col("fare") > 0)
    good = trips.filter(possible)
    hours = good.group_by(pl.col("pickup").dt.hour().alias("hour"))
    with hpcml.polars_engine(client) as engine:
        each = hours.agg(pl.len().alias("count"), pl.col("fare").mean().alias("mean")).collect(engine=engine)
        good.sink_parquet(clean, engine=engine)
        counts = trips.group_by(possible).agg(pl.len()).collect(engine=engine)  # GPUs count CSV rows only in groups
    return counts["len"].sum(), pd.DataFrame(each.to_dict(as_series=False)).set_index("hour")


def by_dask(files, clean):  # pandas tables on the run's workers
    trips = dd.read_csv(files, dtype={"miles": "float64", "fare": "float64"})
    trips["pickup"] = trips["pickup"].astype("datetime64[us]")
    good = trips[(trips["miles"] > 0) & (trips["miles"] < 200) & (trips["fare"] > 0)].persist()
    each = good.assign(hour=good["pickup"].dt.hour).groupby("hour")["fare"].agg(["count", "mean"]).compute()
    good.to_parquet(clean, write_index=False)
    return len(trips), each


client = hpcml.connect()
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
folder = tempfile.TemporaryDirectory(dir=out.parent, prefix="trips-")  # on a file system that all nodes share
files = made(folder.name)

start = time.perf_counter()
read, by_hour = (by_polars if hpcml.run.gpus else by_dask)(files, str(out / "clean"))
seconds = time.perf_counter() - start

by_hour = by_hour.sort_index()
kept = int(by_hour["count"].sum())
result = {"read": read, "kept": kept, "hours": by_hour["count"].tolist(), "mean_fare": by_hour["mean"].tolist()}
(out / "result.json").write_text(json.dumps(result | {"seconds": seconds}, indent=1))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.bar(by_hour.index, by_hour["count"])
left.set(xlabel="hour of the day", ylabel="trips", title=f"{kept:,} of {read:,} rows are valid")
right.bar(by_hour.index, by_hour["mean"])
right.set(xlabel="hour of the day", ylabel="mean fare, dollars")
figure.savefig(out / "etl.png", dpi=150)
folder.cleanup()
print(f"{kept:,} of {read:,} rows are valid; written in {seconds:.1f} s: {out / 'clean'}")
print(f"picture: {out / 'etl.png'}")
