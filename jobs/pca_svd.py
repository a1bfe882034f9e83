"""PCA of a tall table; compressed SVD of a wide matrix.

Your own data, in place of the generated rows:
    import dask.dataframe as dd
    x = dd.read_parquet("measured/*.parquet").to_dask_array(lengths=True).persist()  # or da.from_zarr("matrix.zarr")
"""

import json
import time

import dask
import dask.array as da
import matplotlib.pyplot as plt
import numpy as np

import hpcml

if hpcml.run.gpus:
    from cuml.dask.decomposition import PCA
    from cupy import asnumpy

    options = {}
else:
    from dask_ml.decomposition import PCA
    from numpy import asarray as asnumpy

    options = {"svd_solver": "full"}  # exact, like cuML

client = hpcml.connect(backend="auto")  # arrays are CuPy arrays on GPUs, NumPy arrays on CPUs
k = 5
rng = np.random.default_rng(0)
group = rng.integers(0, 3, 20_000)
hidden = np.column_stack([6.0 * np.cos(2.1 * group), 6.0 * np.sin(2.1 * group), rng.normal(size=20_000)])
values = hidden @ rng.normal(size=(3, 50)) + rng.normal(size=(20_000, 50))
x = da.from_array(values, chunks=(2_500, -1)).to_backend().persist()

start = time.perf_counter()
model = PCA(n_components=k, **options).fit(x)
components, explained = asnumpy(model.components_), asnumpy(model.explained_variance_)
after_pca = time.perf_counter()
means = x.mean(axis=0)
_, singular, _ = da.linalg.svd_compressed(x - means, k=k, n_power_iter=2, seed=0)  # works for matrices of any width
means, total, singular = (asnumpy(part) for part in dask.compute(means, x.var(axis=0, ddof=1).sum(), singular))
seconds = {"pca": after_pca - start, "svd": time.perf_counter() - after_pca}

shares = explained / float(total)
result = {"shape": x.shape, "shares": shares.tolist(), "singular_values": singular.tolist(), "seconds": seconds}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
np.save(out / "components.npy", components)
(out / "result.json").write_text(json.dumps(result, indent=1))

few = (x[::10].to_backend("numpy").compute() - means) @ components[:2].T
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.bar(range(1, k + 1), 100 * shares)
left.set(xlabel="component", ylabel="share of the variance, %", title=f"{k} components explain {shares.sum():.1%}")
right.scatter(few[:, 0], few[:, 1], s=4)
right.set(xlabel="component 1", ylabel="component 2", title=f"{len(few):,} of {len(x):,} rows")
figure.savefig(out / "pca_svd.png", dpi=150)
print(f"{k} components explain {shares.sum():.1%} of variance; PCA {seconds['pca']:.1f} s, SVD {seconds['svd']:.1f} s")
print(f"picture: {out / 'pca_svd.png'}")
