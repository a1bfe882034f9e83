"""DBSCAN clustering: clusters of any shape, and noise; the radius comes from the k-distance curve.

Your own data, in place of the generated rows (numeric columns of similar scale; all rows must fit into one node):
    import pandas as pd
    points = pd.read_parquet("measured.parquet").to_numpy("float32")
"""

import json
import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons
from sklearn.neighbors import NearestNeighbors

import hpcml

if hpcml.run.gpus:
    from cuml.dask.cluster import DBSCAN  # every GPU has all rows and computes a part of the result

    options = {"max_mbytes_per_batch": 4096}
else:
    from sklearn.cluster import DBSCAN  # on one node: scikit-learn has no DBSCAN for several nodes

    options = {"n_jobs": -1}

client = hpcml.connect(backend="auto")
rng, min_samples = np.random.default_rng(0), 20
moons, moon = make_moons(18_000, noise=0.05, random_state=0)
points = np.concatenate([moons, rng.uniform((-2, -1.5), (3, 2), (2_000, 2))]).astype("float32")

start = time.perf_counter()
some = rng.choice(len(points), 2_000, replace=False)
distances, _ = NearestNeighbors(n_neighbors=min_samples).fit(points).kneighbors(points[some])
curve = np.sort(distances[:, -1])  # distance to the twentieth neighbour: large only for noise
share, height = np.linspace(0, 1, len(curve)), (curve - curve[0]) / (curve[-1] - curve[0])
eps = float(curve[np.argmax(share - height)])  # the knee: the point farthest from the line between the curve's ends
labels = DBSCAN(eps=eps, min_samples=min_samples, **options).fit_predict(points)
labels = labels.get() if hasattr(labels, "get") else labels
seconds = time.perf_counter() - start

clusters, noise = int(labels.max()) + 1, int((labels < 0).sum())
sizes = np.sort(np.bincount(labels[labels >= 0]))[::-1].tolist()
result = {"rows": len(points), "eps": eps, "clusters": clusters, "noise": noise, "sizes": sizes, "seconds": seconds}
out = hpcml.run.out  # the run's folder for results (outside a run: ./out)
np.save(out / "labels.npy", labels)
(out / "result.json").write_text(json.dumps(result, indent=1))

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.plot(share, curve)
left.axhline(eps, color="black", linestyle="--", label=f"eps {eps:.3f}, at the knee")
left.set(xlabel="share of the rows", ylabel=f"distance to neighbour {min_samples}")
left.legend(loc="upper right")
right.scatter(*points[labels < 0].T, s=2, color="lightgrey")
right.scatter(*points[labels >= 0].T, s=2, c=labels[labels >= 0], cmap="tab10")
right.set(xlabel="column 0", ylabel="column 1", title=f"{clusters} clusters, {noise:,} noise rows in grey")
figure.savefig(out / "dbscan.png", dpi=150)
print(f"{clusters} clusters with {sizes} rows, and {noise:,} noise rows, in {seconds:.1f} s")
print(f"picture: {out / 'dbscan.png'}")
