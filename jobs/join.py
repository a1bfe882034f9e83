"""Join of two tables larger than one machine's memory, and an aggregate by group: Polars on GPUs, Dask on CPUs.

On GPUs the script needs hpcml's extra polars-cuda12 or polars-cuda13.

Your own data: replace made(…) with the paths of your files, and change the columns.
"""

import json
import tempfile
import time

import dask
import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import hpcml


def made(folder):  # eight files of orders, one of customers; some customers are unknown
    for number in range(8):
        rng = np.random.default_rng(number)
        orders = {"customer": rng.integers(0, 60_000, 62_500), "cents": rng.integers(100, 10_000, 62_500)}
        pd.DataFrame(orders).to_parquet(f"{folder}/orders-{number}.parquet")
    region = np.random.default_rng(8).choice(["north", "east", "south", "west"], 50_000)
    pd.DataFrame({"customer": np.arange(50_000), "region": region}).to_parquet(f"{folder}/customers.parquet")
    return f"{folder}/orders-*.parquet", f"{folder}/customers.parquet"


def by_polars(orders, customers):  # cuDF-Polars on the run's GPUs
    import polars as pl

    with hpcml.polars_engine(client) as engine:
        tables = pl.scan_parquet(orders), pl.scan_parquet(customers)
        joined = tables[0].join(tables[1], on="customer", how="inner").group_by("region")
        each = joined.agg(pl.len().alias("count"), pl.col("cents").sum().alias("sum")).collect(engine=engine)
        rows = [table.select(pl.len()).collect(engine=engine).item() for table in tables]
    return rows, pd.DataFrame(each.to_dict(as_series=False)).set_index("region")


def by_dask(orders, customers):  # pandas tables on the run's workers
    dask.config.set({"dataframe.shuffle.method": "p2p"})  # moves rows of one key to one worker, through disks
    # If the right table is small, merge(…, broadcast=True) is faster (docs/choosing.md).
    tables = dd.read_parquet(orders), dd.read_parquet(customers)
    joined = tables[0].merge(tables[1], on="customer", how="inner")
    return list(map(len, tables)), joined.groupby("region")["cents"].agg(["count", "sum"]).compute()


client = hpcml.connect()
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
folder = tempfile.TemporaryDirectory(dir=out.parent, prefix="orders-")  # on a file system that all nodes share
files = made(folder.name)

start = time.perf_counter()
(orders, customers), by_region = by_polars(*files) if hpcml.run.gpus else by_dask(*files)
seconds = time.perf_counter() - start

by_region = by_region.sort_index()
rows = {"orders": orders, "customers": customers, "joined": int(by_region["count"].sum())}
sums = {str(region): int(cents) for region, cents in by_region["sum"].items()}
by_region.to_csv(out / "by_region.csv")
(out / "result.json").write_text(json.dumps({"rows": rows, "sums": sums, "seconds": seconds}, indent=1))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.bar(list(rows), list(rows.values()))
left.set(ylabel="rows", title="joined: without orders of unknown customers")
right.bar(list(sums), [cents / 1e8 for cents in sums.values()])
right.set(xlabel="region", ylabel="orders, million euros")
figure.savefig(out / "join.png", dpi=150)
folder.cleanup()
print(f"{rows['orders']:,} orders, {rows['customers']:,} customers: {rows['joined']:,} joined rows, in {seconds:.1f} s")
print(f"picture: {out / 'join.png'}")
