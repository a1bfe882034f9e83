"""Singular value decomposition of a tall array: exact, the first values only, and compressed.

Your own data, in place of the generated rows (the columns of a block must fit into memory):
    import dask.dataframe as dd
    x = dd.read_parquet("measured/*.parquet").to_dask_array(lengths=True).persist()  # or da.from_zarr("matrix.zarr")
"""

import json
import time

import dask
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np
from distributed import wait

import hpcml

if hpcml.run.gpus:
    from cuml.dask.decomposition import TruncatedSVD
    from cupy import asnumpy
else:
    from dask_ml.decomposition import TruncatedSVD
    from numpy import asarray as asnumpy

found, seconds = {}, {}
client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
k = 4
rng = np.random.default_rng(0)
hidden = rng.normal(size=(10_000, 8)) * 16 * 2.0 ** -np.arange(8)
values = hidden @ rng.normal(size=(8, 100)) + rng.normal(size=(10_000, 100))
x = da.from_array(values, chunks=(1_250, -1)).to_backend().persist()


def exact():  # all singular values; u is as tall as x, and stays on the workers
    parts = dask.persist(*da.linalg.svd(x))  # u, singular values, v
    wait(parts)
    return parts[1].compute()[:k]


def truncated():  # the first k, exact
    return TruncatedSVD(n_components=k).fit(x).singular_values_


def compressed():  # the first k, approximately; also for matrices that are wide
    return da.linalg.svd_compressed(x, k=k, n_power_iter=2, seed=0)[1].compute()


for way in (exact, truncated, compressed):
    start = time.perf_counter()
    found[way.__name__] = asnumpy(way())
    seconds[way.__name__] = time.perf_counter() - start

error = {name: float(abs(part / found["exact"] - 1).max()) for name, part in found.items()}
singular_values = {name: part.tolist() for name, part in found.items()}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
result = {"shape": x.shape, "singular_values": singular_values, "error": error, "seconds": seconds}
(out / "result.json").write_text(json.dumps(result, indent=1))
figure, axes = plt.subplots(layout="constrained")
for name, marker in zip(found, "ox+", strict=True):
    label = f"{name}, {seconds[name]:.2f} s"
    axes.plot(range(1, k + 1), found[name], marker, markersize=10, fillstyle="none", label=label)
axes.set(xlabel="number", ylabel="singular value")
axes.legend()
figure.savefig(out / "svd.png", dpi=150)
print(", ".join(f"{name} {seconds[name]:.2f} s" for name in found) + f"; compressed is {error['compressed']:.1e} off")
print(f"picture: {out / 'svd.png'}")
