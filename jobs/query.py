"""Polars queries on Parquet files: filter, join, aggregate, rank; cuDF-Polars runs them on GPUs.

On CPUs the script needs hpcml's extra polars, and uses one node. On GPUs it needs the extra polars-cuda13.

Your own data: replace made(…) with the paths of your files, and change the columns.
"""

import json
import tempfile
import time

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

import hpcml


def made(folder):  # eight files of orders, one of customers; some customers are unknown
    for number in range(8):
        rng = np.random.default_rng(number)
        orders = {"customer": rng.integers(0, 60_000, 50_000), "cents": rng.integers(100, 10_000, 50_000)}
        pl.DataFrame(orders).write_parquet(f"{folder}/orders-{number}.parquet")
    region = np.random.default_rng(8).choice(["north", "east", "south", "west"], 50_000)
    pl.DataFrame({"customer": np.arange(50_000), "region": region}).write_parquet(f"{folder}/customers.parquet")
    return f"{folder}/orders-*.parquet", f"{folder}/customers.parquet"


out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
folder = tempfile.TemporaryDirectory(dir=out.parent, prefix="orders-")  # on a file system that all nodes share
orders, customers = (pl.scan_parquet(files) for files in made(folder.name))

large = orders.filter(pl.col("cents") >= 500).join(customers, on="customer")
sums = (pl.len().alias("orders"), pl.col("cents").sum())
each = large.group_by("customer").agg(*sums).sort("cents", "customer", descending=True).head(10)
with hpcml.polars_engine() as engine:  # cuDF-Polars on the run's GPUs; without GPUs plain Polars
    start = time.perf_counter()
    regions = large.group_by("region").agg(*sums).sort("region").collect(engine=engine)
    best = each.collect(engine=engine)
    seconds = time.perf_counter() - start
result = {"regions": regions.rows(), "best": best.rows(), "seconds": seconds}
(out / "result.json").write_text(json.dumps(result))
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.bar(regions["region"].to_list(), (regions["cents"] / 1e8).to_list())
left.set(xlabel="region", ylabel="orders of at least 5 euros, million euros")
right.barh([str(number) for number in best["customer"]], (best["cents"] / 100).to_list())
right.set(ylabel="customer", xlabel="orders, euros", title="the best customers")
figure.savefig(out / "query.png", dpi=150)
folder.cleanup()
print(f"{regions['orders'].sum():,} orders joined, summed and ranked in {seconds:.1f} s")
print(f"picture: {out / 'query.png'}")
