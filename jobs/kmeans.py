"""Find groups of similar rows with k-means.

For your own data: give --data (Parquet files with columns of numbers) and --k, or read it in your own
way in the place of dd.read_parquet.
"""

import argparse
import json
import time

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import sklearn.cluster
from sklearn.datasets import make_blobs

import hpcml

if hpcml.run.gpus:
    from cuml.dask.cluster import KMeans
    from cupy import asnumpy
else:
    from dask_ml.cluster import KMeans
    from numpy import asarray as asnumpy

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", help="Parquet files (default: rows made here)")
parser.add_argument("--k", type=int, default=5, help="clusters (default 5)")
options = parser.parse_args()

client = hpcml.connect(backend="auto")  # tables are cuDF's on GPUs, pandas' on CPUs
if options.data:
    table = dd.read_parquet(options.data)
else:
    points, _ = make_blobs(50_000, centers=options.k, cluster_std=0.7, random_state=1)
    table = dd.from_pandas(pd.DataFrame(points, columns=["x", "y"]), npartitions=4).to_backend()
rows = table.to_dask_array(lengths=True).persist()

step = max(len(rows) // 10_000, 1)
sample = asnumpy(rows[::step].compute())
first = sklearn.cluster.KMeans(options.k, n_init=5, random_state=0).fit(sample)  # a good start, found in few rows

start = time.perf_counter()
model = KMeans(n_clusters=options.k, init=first.cluster_centers_, n_init=1).fit(rows)
labels = model.predict(rows).map_blocks(asnumpy).compute()
centres = asnumpy(model.cluster_centers_)
seconds = time.perf_counter() - start

out = hpcml.run.out  # the run's folder for results; outside a run ./out
np.save(out / "labels.npy", labels)
result = {"rows": len(labels), "sizes": np.bincount(labels).tolist(), "centres": centres.tolist(), "seconds": seconds}
(out / "result.json").write_text(json.dumps(result, indent=1))

figure, axes = plt.subplots(figsize=(8, 6), layout="constrained")
axes.scatter(sample[:, 0], sample[:, 1], c=labels[::step], cmap="tab10", s=4)
axes.scatter(centres[:, 0], centres[:, 1], marker="x", color="black", label="centres")
axes.set(xlabel=table.columns[0], ylabel=table.columns[1], title=f"{options.k} clusters of {len(labels):,} rows")
axes.legend()
figure.savefig(out / "kmeans.png", dpi=150)

print(f"{options.k} clusters of {len(labels):,} rows, sizes {result['sizes']}, {seconds:.1f} s")
print(f"picture: {out / 'kmeans.png'}")
