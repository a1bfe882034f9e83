"""K-means clustering.

Your own data: use --data 'measured/*.parquet' (numeric columns only) and --k. For CSV files
change dd.read_parquet(options.data) to dd.read_csv(options.data, usecols=["x", "y"]), with your columns.
Keep the folder lloyd/ beside this script.
"""

import argparse
import json
import time

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import sklearn.cluster
from lloyd import KMeans, to_numpy  # the folder lloyd beside this script
from sklearn.datasets import make_blobs

import hpcml

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", help="Parquet files (default: generated rows)")
parser.add_argument("--k", type=int, default=5, help="number of clusters (default 5)")
options = parser.parse_args()

client = hpcml.connect(backend="auto")  # tables are cuDF tables on GPUs, pandas tables on CPUs
if options.data:
    table = dd.read_parquet(options.data)
else:
    points, _ = make_blobs(50_000, centers=options.k, cluster_std=0.7, random_state=1)
    table = dd.from_pandas(pd.DataFrame(points, columns=["x", "y"]), npartitions=8).to_backend()
rows = table.to_dask_array(lengths=True).persist()
if len(rows) < options.k:
    parser.error(f"--k {options.k}: the data have only {len(rows)} rows")
sample = rows[:: max(len(rows) // 10_000, 1)].to_backend("numpy").compute()

start = time.perf_counter()
first = sklearn.cluster.KMeans(options.k, n_init=5, random_state=0).fit(sample)  # good centres to start from
model = KMeans(options.k, init=first.cluster_centers_).fit(rows)
labels = to_numpy(model.predict(rows).compute())
centres = model.cluster_centers_
seconds = time.perf_counter() - start

out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
np.save(out / "labels.npy", labels)
result = {"rows": len(labels), "sizes": np.bincount(labels).tolist(), "centres": centres.tolist(), "seconds": seconds}
(out / "result.json").write_text(json.dumps(result, indent=1))

figure, axes = plt.subplots(layout="constrained")
axes.scatter(sample[:, 0], sample[:, 1], c=first.labels_, cmap="tab10", s=4)
axes.scatter(centres[:, 0], centres[:, 1], marker="x", color="black", label="centre")
axes.set(xlabel=table.columns[0], ylabel=table.columns[1], title=f"{options.k} clusters of {len(labels):,} rows")
axes.legend(loc="upper right")
figure.savefig(out / "kmeans.png", dpi=150)
print(f"{options.k} clusters of {len(labels):,} rows, sizes {result['sizes']}, in {seconds:.1f} s by {model.library}")
print(f"picture: {out / 'kmeans.png'}")
