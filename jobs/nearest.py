"""Nearest neighbours: find the nearest known rows, their distances, and predict a number from them.

Your own data, in place of the generated rows (numeric features of similar scale; y is the number to predict):
    import dask.dataframe as dd
    table = dd.read_parquet("measured/*.parquet").persist()
    x, y = (table[columns].to_dask_array(lengths=True) for columns in (["width", "height"], "price"))
"""

import json
import time

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import r2_score

import hpcml

k = 10
client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
if hpcml.run.gpus:
    from cuml.dask.neighbors import KNeighborsRegressor, NearestNeighbors  # known rows stay on their GPUs
    from cupy import asnumpy

    model, finder = KNeighborsRegressor(n_neighbors=k), NearestNeighbors(n_neighbors=k)
else:
    from dask_ml.wrappers import ParallelPostFit
    from numpy import asarray as asnumpy
    from sklearn.neighbors import KNeighborsRegressor, NearestNeighbors  # each worker has all known rows

    model, finder = ParallelPostFit(KNeighborsRegressor(k)), NearestNeighbors(n_neighbors=k)


def nearest(known, asked):  # returns distances and row numbers of the k nearest known rows, (asked rows, k) each
    if hpcml.run.gpus:
        return tuple(asnumpy(part.compute()) for part in finder.fit(known).kneighbors(asked))
    whole = client.scatter(finder.fit(known.compute()), broadcast=True)
    both = asked.map_blocks(lambda rows, finder: np.hstack(finder.kneighbors(rows)), whole, dtype="float64")
    distances, rows = np.hsplit(both.compute(), 2)
    return distances, rows.astype(int)


rng = np.random.default_rng(0)
places = rng.normal(0, 1, (50_000, 2)).astype("float32")
heights = (np.sin(3 * places[:, 0]) + places[:, 1] ** 2 + rng.normal(0, 0.1, 50_000)).astype("float32")
x, y = (da.from_array(part, chunks=(6_250, *part.shape[1:])).to_backend() for part in (places, heights))
number = np.arange(len(x))
known, asked = number[number % 5 > 0], number[number % 5 == 0]
x_known, y_known, x_asked, y_asked = (part.persist() for part in (x[known], y[known], x[asked], y[asked]))

start = time.perf_counter()
distances, rows = nearest(x_known, x_asked)
after_search = time.perf_counter()
predicted = asnumpy(model.fit(x_known, y_known).predict(x_asked).compute()).ravel()
seconds = {"search": after_search - start, "regression": time.perf_counter() - after_search}

true, points = (part.to_backend("numpy").compute() for part in (y_asked, x_asked))
result = {"known": len(known), "asked": len(asked), "k": k, "r2": float(r2_score(true, predicted)), "seconds": seconds}
result["mean_distance"] = float(distances.mean())
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
np.savez(out / "nearest.npz", distances=distances, rows=rows, predicted=predicted)
(out / "result.json").write_text(json.dumps(result, indent=1))
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
right.scatter(points[:, 0], points[:, 1], c=distances[:, -1], norm="log", s=4)
right.set(xlabel="feature 0", ylabel="feature 1", title=f"distance of the neighbour number {k}: outliers are bright")
left.hexbin(true, predicted, gridsize=50, bins="log", mincnt=1)
left.axline((0, 0), slope=1, color="black", linewidth=1)
left.set(xlabel="true", ylabel="predicted", title=f"R² {result['r2']:.4f} on {len(true):,} test rows")
figure.savefig(out / "nearest.png", dpi=150)
print(
    f"R² {result['r2']:.4f} on {len(true):,} rows; search {seconds['search']:.1f} s, then {seconds['regression']:.1f} s"
)
print(f"picture: {out / 'nearest.png'}")
