"""Join of two tables larger than one machine, and an aggregate by group.

Your own data, in the place of the made tables; then your columns' names below:
    orders, customers = (dd.read_parquet(f"{table}/*.parquet") for table in ("orders", "customers"))
"""

import json
import time

import dask
import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import hpcml

client = hpcml.connect(backend="auto")  # tables are cuDF's on GPUs, pandas' on CPUs
rng = np.random.default_rng(0)
made = pd.DataFrame({"customer": rng.integers(0, 60_000, 500_000), "cents": rng.integers(100, 10_000, 500_000)})
orders = dd.from_pandas(made, npartitions=8).to_backend().persist()
made = pd.DataFrame({"customer": np.arange(50_000), "region": rng.choice(["north", "east", "south", "west"], 50_000)})
customers = dd.from_pandas(made.sample(frac=1, random_state=0), npartitions=8, sort=False).to_backend().persist()

start = time.perf_counter()
# Rows of the same key meet on one worker: on GPUs by the GPUs' own network, on CPUs by way of the disks.
# Faster: merge(…, broadcast=True) where the right table is small, and few large partitions on GPUs (docs/choosing.md).
dask.config.set({"dataframe.shuffle.method": "tasks" if hpcml.run.gpus else "p2p"})
joined = orders.merge(customers, on="customer", how="inner")
by_region = joined.groupby("region")["cents"].agg(["count", "sum"]).to_backend("pandas").compute().sort_index()
seconds = time.perf_counter() - start

rows = {"orders": len(orders), "customers": len(customers), "joined": int(by_region["count"].sum())}
sums = {str(region): int(cents) for region, cents in by_region["sum"].items()}
out = hpcml.run.out  # the run's folder for results; outside a run ./out
by_region.to_csv(out / "by_region.csv")
(out / "result.json").write_text(json.dumps({"rows": rows, "sums": sums, "seconds": seconds}, indent=1))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.bar(list(rows), list(rows.values()))
left.set(ylabel="rows", title="orders of unknown customers are left out")
right.bar(list(sums), [cents / 1e8 for cents in sums.values()])
right.set(xlabel="region", ylabel="orders, million euros")
figure.savefig(out / "join.png", dpi=150)
print(f"{rows['orders']:,} orders with {rows['customers']:,} customers: {rows['joined']:,} rows, in {seconds:.1f} s")
print(f"picture: {out / 'join.png'}")
